//! A cluster in one process, on loopback addresses of its own, in temporary directories.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use holdfast_machine::{Command, Liveness, NodeName, ReadMode, Reply, Request};
use holdfast_raft::{Handle, MemberConfig, Options, PeerListen, Raft};
use tempfile::TempDir;

/// No wait in these tests should come near this.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Changes the options of every node of a cluster.
pub type Adjust = fn(&mut Options);

pub struct TestCluster {
    dir: TempDir,
    pub members: Vec<MemberConfig>,
    /// Where each node really listens; differs from its member's address when something stands between.
    pub listen: BTreeMap<u64, String>,
    nodes: BTreeMap<u64, Handle>,
    adjust: Adjust,
}

/// An address that nothing else uses: a loopback address of its own.
pub fn own_address(id: u64) -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let (a, b) = (pid % 250 + 1, pid / 250 % 250);
    format!("127.{a}.{b}.{}:{}", NEXT.fetch_add(1, Ordering::Relaxed), 7400 + id)
}

pub fn member(id: u64) -> MemberConfig {
    MemberConfig {
        id,
        name: NodeName::new(format!("node-{id}")).unwrap(),
        peer_addr: own_address(id),
        http_addr: String::new(),
    }
}

impl TestCluster {
    /// A cluster that is not started yet.
    pub fn prepare(count: u64, adjust: Adjust) -> Self {
        let members: Vec<_> = (1..=count).map(member).collect();
        let listen = members.iter().map(|m| (m.id, m.peer_addr.clone())).collect();
        Self { dir: tempfile::tempdir().unwrap(), members, listen, nodes: BTreeMap::new(), adjust }
    }

    /// A running cluster with all members committed as up.
    pub async fn start(count: u64, adjust: Adjust) -> Self {
        let mut cluster = Self::prepare(count, adjust);
        for id in 1..=count {
            cluster.start_node(id).await;
        }
        cluster.all_up().await;
        cluster
    }

    pub fn data_dir(&self, id: u64) -> std::path::PathBuf {
        self.dir.path().join(format!("node-{id}"))
    }

    pub fn options(&self, id: u64) -> Options {
        let listen = PeerListen::Address(self.listen[&id].clone());
        let mut options = Options::new("test", id, self.data_dir(id), self.members.clone(), listen);
        (self.adjust)(&mut options);
        options
    }

    pub async fn start_node(&mut self, id: u64) -> Handle {
        self.start_with(id, self.options(id)).await
    }

    pub async fn start_with(&mut self, id: u64, options: Options) -> Handle {
        let handle = Raft::start(options).await.unwrap();
        self.nodes.insert(id, handle.clone());
        handle
    }

    /// Stops a node as a kill would look to the others: its connections close at once.
    pub async fn kill(&mut self, id: u64) {
        self.nodes.remove(&id).unwrap().shutdown().await;
    }

    /// Hands a node over, for the caller to stop.
    pub fn take(&mut self, id: u64) -> Handle {
        self.nodes.remove(&id).unwrap()
    }

    pub fn node(&self, id: u64) -> &Handle {
        &self.nodes[&id]
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Handle> {
        self.nodes.values()
    }

    /// The leader that all running nodes agree on, by its place in the list of members.
    pub async fn leader(&self) -> u64 {
        let mut found = None;
        eventually("one leader", || {
            let mut leaders = self.nodes().map(|node| self.leader_known_to(node));
            found = leaders.next().flatten();
            found.is_some_and(|id| self.nodes.contains_key(&id) && leaders.all(|other| other == Some(id)))
        })
        .await;
        found.unwrap()
    }

    fn leader_known_to(&self, node: &Handle) -> Option<u64> {
        let status = node.status();
        let known = status.members.iter().find(|member| Some(member.id) == status.leader)?;
        self.members.iter().find(|member| member.name == known.name).map(|member| member.id)
    }

    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        *self.nodes.keys().find(|id| **id != leader).unwrap()
    }

    pub async fn all_up(&self) {
        eventually("all up", || {
            self.nodes().all(|node| {
                node.view(|machine, _| {
                    machine.members().filter(|m| m.member.liveness == Liveness::Up).count() == self.members.len()
                })
            })
        })
        .await;
    }

    pub fn liveness(&self, seen_by: u64, of: u64) -> Option<Liveness> {
        let name = &self.members.iter().find(|m| m.id == of).unwrap().name;
        self.node(seen_by).view(|machine, _| machine.member(name).map(|m| m.member.liveness))
    }

    pub async fn shutdown(mut self) {
        for (_, node) in std::mem::take(&mut self.nodes) {
            node.shutdown().await;
        }
    }
}

pub fn tick() -> Request {
    Command::Tick.into()
}

/// Proposes a tick until it gets through; gives log time.
pub async fn propose_tick(node: &Handle) -> u64 {
    let begun = Instant::now();
    loop {
        match node.propose(tick()).await {
            Ok(committed) => match committed.reply.unwrap() {
                Reply::Ticked { at } => return at.0,
                other => panic!("{other:?}"),
            },
            Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
        }
    }
}

/// Waits until every node has the same state.
pub async fn same_state(cluster: &TestCluster) {
    let leader = cluster.leader().await;
    let index = cluster.node(leader).read_index(ReadMode::Linearizable).await.unwrap();
    for node in cluster.nodes() {
        node.read_index(ReadMode::AtLeast(index)).await.unwrap();
    }
    eventually("equal hashes", || {
        let mut hashes = cluster.nodes().map(|node| node.view(|machine, _| machine.state_hash()));
        let first = hashes.next().unwrap();
        hashes.all(|hash| hash == first)
    })
    .await;
}

/// Waits for ten intervals without an entry: the cluster has come to rest after its last checkpoint.
pub async fn at_rest(cluster: &TestCluster, leader: u64) {
    let settled = || cluster.node(leader).status().last;
    let mut last = settled();
    let mut quiet = 0;
    let begun = Instant::now();
    while quiet < 10 {
        assert!(begun.elapsed() < DEADLINE, "it never comes to rest");
        tokio::time::sleep(Duration::from_millis(50)).await;
        quiet = if settled() == last { quiet + 1 } else { 0 };
        last = settled();
    }
}

/// Waits for a condition.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
