//! A cluster of nodes in this process, on loopback ports and temporary directories.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use holdfast_node::config::Members;
use holdfast_node::machine::{
    ActivityType, Commit, NewEvent, NewRow, NodeName, ShardEntry, ShardId, WorkflowId, WorkflowType,
};
use holdfast_node::{Config, Node};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// How long anything may take before a test fails. Far more than it needs, for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const SHARDS: u32 = 16;

/// Waits until `look` finds something.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for a stream's next item.
pub async fn within<T>(what: &str, next: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, next).await {
        Ok(item) => item,
        Err(_) => panic!("not in time: {what}"),
    }
}

pub struct Cluster {
    pub nodes: Vec<Option<Node>>,
    pub configs: Vec<Config>,
    _folder: TempDir,
}

impl Cluster {
    /// Starts nodes and waits until all shards are given out.
    pub async fn start(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<NodeName> = (0..count).map(|n| NodeName::new(format!("node-{n}")).unwrap()).collect();
        let peers: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let members = names.iter().zip(&peers).fold(Members::default(), |m, (n, a)| m.with(n.clone(), a.to_string()));
        let config = |(name, peer): (&NodeName, &SocketAddr)| Config {
            node_name: Some(name.clone()),
            cluster_id: "test".to_owned(),
            members: members.clone(),
            http_listen: (Ipv4Addr::LOCALHOST, 0).into(),
            peer_listen: *peer,
            data_dir: folder.path().join(name.as_str()),
            shard_count: SHARDS,
            ..Config::default()
        };
        let configs: Vec<Config> = names.iter().zip(&peers).map(config).collect();
        let mut cluster = Self { nodes: (0..count).map(|_| None).collect(), configs, _folder: folder };
        for number in 0..count {
            cluster.start_node(number).await;
        }
        for number in 0..count {
            within("a node is ready", cluster.node(number).ready()).await;
        }
        until("every node knows every shard's owner", || {
            (0..count).all(|number| cluster.shards(number).len() == SHARDS as usize).then_some(())
        })
        .await;
        cluster
    }

    pub async fn start_node(&mut self, number: usize) {
        self.nodes[number] = Some(Node::start(self.configs[number].clone()).await.unwrap());
    }

    pub fn node(&self, number: usize) -> &Node {
        self.nodes[number].as_ref().unwrap()
    }

    pub async fn abort(&mut self, number: usize) {
        self.nodes[number].take().unwrap().abort().await;
    }

    /// The directory as a node has it.
    pub fn shards(&self, number: usize) -> Vec<ShardEntry> {
        self.node(number).raft().view(|machine, _| machine.shards().cloned().collect())
    }

    pub fn owned_by(&self, seen_by: usize, owner: usize) -> Vec<ShardEntry> {
        let name = &self.configs[owner].node_name;
        self.shards(seen_by).into_iter().filter(|entry| Some(&entry.owner) == name.as_ref()).collect()
    }

    pub async fn leader(&self) -> usize {
        until("there is a leader", || {
            self.nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.raft().is_leader()))
        })
        .await
    }
}

/// A loopback address that nobody listens on, below the range from which the system takes ports for outgoing
/// connections, so that a stopped node finds its own port free again.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + u16::try_from(std::process::id() % 7_000).unwrap();
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        let address = (Ipv4Addr::LOCALHOST, port).into();
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A workflow id of this shard.
pub fn workflow_in(shard: ShardId) -> WorkflowId {
    let mut ids = (0..).map(|number| WorkflowId::new(format!("w-{number}")).unwrap());
    ids.find(|id| ShardId::of(id, SHARDS) == shard).unwrap()
}

/// A commit that starts a workflow with activities 1..=`rows`.
pub fn staged(workflow: WorkflowId, rows: u64) -> Commit {
    let row = |ordinal| NewRow::new(ordinal, ActivityType::new("work").unwrap());
    let opening = Commit::new(workflow, 0).event(NewEvent::started(WorkflowType::new("test").unwrap()));
    (1..=rows).map(row).fold(opening, Commit::activity)
}
