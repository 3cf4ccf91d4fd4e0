//! Three nodes as processes on loopback: a cluster of its own for one story.
//!
//! A story ends with [`Cluster::finish`], which mends what was broken, waits until the cluster is whole and
//! holds it against the invariants. A cluster that is dropped before that has failed: the nodes' last words
//! are printed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use holdfast_client::{Client, ClientOptions, ClusterView, ReadMode};
use holdfast_machine::{Fence, Liveness, NodeName, ShardEntry, ShardId, WorkflowId};
use tempfile::TempDir;

use crate::check;
use crate::check::directories::Looked;
use crate::links::Links;
use crate::ports::free_port;
use crate::process::{NodeProcess, Process};
use crate::program::Program;
use crate::small_disk::SmallDisk;
use crate::turn::{self, Turn};
use crate::wait::{LONG, wait_until};
use crate::wall_clock::WallClock;

/// The names of the nodes, in the order in which they are the cluster's members.
pub const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// The id of a test's cluster.
const CLUSTER: &str = "test";
/// Shards of a test's cluster: few enough to look at all, enough for every node to own some.
pub const SHARDS: u32 = 12;
/// Longest time for an answer to a plain HTTP request.
const ANSWER: Duration = Duration::from_secs(10);

/// How a cluster is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    program: Program,
    proxied: bool,
    alone: bool,
    clocks: bool,
    disk_bytes: Option<u64>,
    settings: Vec<(String, String)>,
}

/// A running cluster; nodes are numbered from 0 in the order of [`NAMES`].
#[derive(Debug)]
pub struct Cluster {
    /// Workers that the story has added.
    pub workers: Vec<Process>,
    /// The nodes.
    pub nodes: Vec<NodeProcess>,
    /// Their disks, in a cluster that was set up with small ones.
    pub disks: Vec<SmallDisk>,
    /// Their wall clocks, in a cluster that was set up with some that can be stepped.
    pub clocks: Vec<WallClock>,
    clients: Vec<Client>,
    links: Option<Links>,
    http: reqwest::Client,
    finished: bool,
    folder: TempDir,
    _turn: Turn,
}

impl Setup {
    /// Plain nodes, as users start them.
    pub fn plain() -> Self {
        Self {
            program: Program::Holdfast,
            proxied: false,
            alone: false,
            clocks: false,
            disk_bytes: None,
            settings: Vec::new(),
        }
    }

    /// Nodes with an engine inside; see `bin/engine-node.rs`.
    pub fn with_engines() -> Self {
        Self { program: Program::EngineNode, ..Self::plain() }
    }

    /// The nodes reach each other through proxies that the story can cut.
    #[must_use]
    pub fn with_links(self) -> Self {
        Self { proxied: true, ..self }
    }

    /// No other cluster runs beside this one.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Each node has its data on a file system of its own, of this size (see [`crate::small_disk`]).
    #[must_use]
    pub fn on_small_disks(self, bytes: u64) -> Self {
        Self { disk_bytes: Some(bytes), ..self }
    }

    /// Each node has a wall clock that the story can step (see [`crate::wall_clock`]).
    #[must_use]
    pub fn with_clocks(self) -> Self {
        Self { clocks: true, ..self }
    }

    /// A setting of all nodes, by its environment variable.
    #[must_use]
    pub fn set(mut self, variable: &str, value: impl ToString) -> Self {
        self.settings.push((variable.to_owned(), value.to_string()));
        self
    }

    /// Starts the nodes and waits until every shard has an owner that is up.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn start(self) -> Result<Cluster> {
        let cluster = self.prepare().await?;
        for node in &cluster.nodes {
            node.start()?;
        }
        cluster.whole().await?;
        Ok(cluster)
    }

    /// Everything but the start of the nodes.
    ///
    /// # Errors
    /// When ports or folders are not to be had, or a program does not build.
    pub async fn prepare(self) -> Result<Cluster> {
        let turn = if self.alone { turn::alone().await? } else { turn::one().await? };
        // Built before anything else, so that no clock of a story runs meanwhile.
        self.program.path()?;
        let folder = tempfile::tempdir()?;
        let mut listeners = Vec::new();
        for name in NAMES {
            listeners.push((NodeName::new(name)?, free_port()?));
        }
        let links = if self.proxied { Some(Links::in_front_of(&listeners).await?) } else { None };
        let reached = listeners.iter().enumerate().map(|(node, (name, port))| {
            let port = links.as_ref().map_or(*port, |links| links.front(node));
            format!("{name}=127.0.0.1:{port}")
        });
        let members: Vec<String> = reached.collect();

        let (mut nodes, mut clients, mut disks, mut clocks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, peer_port) in listeners {
            let http = free_port()?;
            let own = [
                ("HOLDFAST_NODE_NAME", name.to_string()),
                ("HOLDFAST_CLUSTER_ID", CLUSTER.to_owned()),
                ("HOLDFAST_MEMBERS", members.join(",")),
                ("HOLDFAST_HTTP_LISTEN", format!("127.0.0.1:{http}")),
                ("HOLDFAST_PEER_LISTEN", format!("127.0.0.1:{peer_port}")),
                ("HOLDFAST_SHARD_COUNT", SHARDS.to_string()),
            ];
            let mut environment: BTreeMap<String, String> = own.map(|(key, value)| (key.to_owned(), value)).into();
            environment.extend(self.settings.iter().cloned());
            if self.clocks {
                let clock = WallClock::new(folder.path().join(format!("{name}.clock")))?;
                environment.extend(clock.environment()?);
                clocks.push(clock);
            }
            let home = folder.path().join(name.as_str());
            let node = NodeProcess::new(name, http, home, self.program, environment)?;
            if let Some(bytes) = self.disk_bytes {
                disks.push(SmallDisk::mount(&node.data(), bytes)?);
            }
            clients.push(Client::new([&node.url])?);
            nodes.push(node);
        }
        let http = reqwest::Client::builder().no_proxy().timeout(ANSWER).build()?;
        let workers = Vec::new();
        Ok(Cluster { workers, nodes, disks, clocks, clients, links, http, finished: false, folder, _turn: turn })
    }
}

/// What a node tells of itself, or why it does not.
pub async fn view(client: &Client) -> Result<ClusterView> {
    Ok(client.cluster().await?.value)
}

impl Cluster {
    /// A client that speaks to one node only, patiently.
    pub fn client(&self, node: usize) -> &Client {
        &self.clients[node]
    }

    /// A client that knows all nodes.
    ///
    /// # Errors
    /// Never for the URLs of a cluster.
    pub fn any(&self) -> Result<Client> {
        Ok(Client::new(self.nodes.iter().map(|node| &node.url))?)
    }

    /// A client of one node that gives up after `deadline`.
    ///
    /// # Errors
    /// Never for the URLs of a cluster.
    pub fn impatient(&self, node: usize, deadline: Duration) -> Result<Client> {
        let options = ClientOptions { deadline, attempt_timeout: deadline, ..ClientOptions::default() };
        Ok(Client::with_options([&self.nodes[node].url], options)?)
    }

    /// A plain HTTP client, for what has to be seen on the wire.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Where the processes have their files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The links, in a cluster that was set up with them.
    ///
    /// # Errors
    /// When it was not.
    pub fn links(&self) -> Result<&Links> {
        self.links.as_ref().context("this cluster was set up without links")
    }

    /// The number of a node.
    ///
    /// # Errors
    /// When no node has that name.
    pub fn place(&self, name: &NodeName) -> Result<usize> {
        self.nodes.iter().position(|node| node.name == *name).with_context(|| format!("no node is called {name}"))
    }

    /// The numbers of the nodes whose process runs.
    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_running()).collect()
    }

    /// What a node tells of itself right now.
    ///
    /// # Errors
    /// When it does not answer within a second.
    pub async fn view(&self, node: usize) -> Result<ClusterView> {
        view(&self.impatient(node, Duration::from_secs(1))?).await
    }

    /// The leader that all running nodes agree on.
    ///
    /// # Errors
    /// When they never do.
    pub async fn leader(&self) -> Result<usize> {
        wait_until("all running nodes know one leader", LONG, async || {
            let mut leaders = Vec::new();
            for node in self.running() {
                leaders.push(self.view(node).await?.leader.context("a node knows no leader")?);
            }
            let leader = leaders.first().context("no node runs")?;
            ensure!(leaders.iter().all(|other| other == leader), "they disagree: {leaders:?}");
            let leader = self.place(leader)?;
            ensure!(self.nodes[leader].is_running(), "they follow a node that is gone");
            Ok(leader)
        })
        .await
    }

    /// The leader that one node knows.
    ///
    /// # Errors
    /// When it knows none.
    pub async fn leader_as_known_by(&self, node: usize) -> Result<usize> {
        wait_until("a node knows a leader", LONG, async || {
            self.place(&self.view(node).await?.leader.context("it knows none")?)
        })
        .await
    }

    /// A running node that does not lead.
    ///
    /// # Errors
    /// As [`Cluster::leader`].
    pub async fn follower(&self) -> Result<usize> {
        let leader = self.leader().await?;
        self.running().into_iter().find(|node| *node != leader).context("the leader is alone")
    }

    /// Waits until `seen_by` holds that `of` is up or down, as is committed.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn committed_as(&self, up: bool, of: usize, seen_by: usize) -> Result<()> {
        let (of, wanted) = (&self.nodes[of].name, if up { "up" } else { "down" });
        wait_until(&format!("{of} is committed as {wanted}"), LONG, async || {
            let view = self.view(seen_by).await?;
            let found = view.members.iter().find(|member| member.member.name == *of).context("no such member")?;
            let is_up = found.member.liveness == Liveness::Up;
            ensure!(is_up == up, "it is {:?}", found.member.liveness);
            Ok(())
        })
        .await
    }

    /// The directory as a node knows it.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn directory(&self, node: usize) -> Result<BTreeMap<ShardId, ShardEntry>> {
        let client = self.impatient(node, Duration::from_secs(2))?;
        let directory = client.shards(ReadMode::Stale).await?.value;
        Ok(directory.shards.into_iter().map(|entry| (entry.shard, entry)).collect())
    }

    /// Waits until every shard is owned by a running node, as all running nodes see it.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn all_shards_owned(&self) -> Result<BTreeMap<ShardId, ShardEntry>> {
        wait_until("every shard has a live owner", LONG, async || {
            let mut last = BTreeMap::new();
            for node in self.running() {
                let directory = self.directory(node).await?;
                ensure!(directory.len() == SHARDS as usize, "{} shards have an owner", directory.len());
                for entry in directory.values() {
                    ensure!(self.nodes[self.place(&entry.owner)?].is_running(), "{entry:?} is orphaned");
                }
                last = directory;
            }
            Ok(last)
        })
        .await
    }

    /// Waits until all running nodes are ready, know each other as up, and own all shards between them.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn whole(&self) -> Result<()> {
        wait_until("all running nodes are ready and know each other as up", LONG, async || {
            for node in self.running() {
                let ready = self.http.get(format!("{}/readyz", self.nodes[node].url)).send().await?;
                ensure!(ready.status().is_success(), "{} says {}", self.nodes[node].name, ready.text().await?);
                for member in self.view(node).await?.members {
                    let runs = self.nodes[self.place(&member.member.name)?].is_running();
                    let serves = member.member.liveness == Liveness::Up && member.boot.is_some();
                    ensure!(runs == serves, "{:?} as {} sees it", member.member, self.nodes[node].name);
                }
            }
            Ok(())
        })
        .await?;
        self.all_shards_owned().await.map(drop)
    }

    /// A workflow id that nobody uses, of a shard that this node owns.
    ///
    /// # Errors
    /// When the node owns nothing.
    pub async fn workflow_of(&self, owner: usize, prefix: &str) -> Result<(WorkflowId, Fence)> {
        let name = &self.nodes[owner].name;
        let directory = self.directory(*self.running().first().context("no node runs")?).await?;
        for number in 0..10_000 {
            let id = WorkflowId::new(format!("{prefix}-{number}"))?;
            if let Some(entry) = directory.get(&ShardId::of(&id, SHARDS)).filter(|entry| entry.owner == *name) {
                return Ok((id, Fence { owner: entry.owner.clone(), epoch: entry.epoch }));
            }
        }
        anyhow::bail!("{name} owns no shard")
    }

    /// Ends a story: the workers are gone, all else flows and runs again, and every invariant holds.
    ///
    /// # Errors
    /// When the cluster does not come to rest, or an invariant is broken.
    pub async fn finish(mut self) -> Result<()> {
        self.come_to_rest().await?;
        self.finished = true;
        Ok(())
    }

    /// Ends a story in the same way, then stops the nodes and looks at what they have on their disks.
    ///
    /// # Errors
    /// As [`Cluster::finish`], or when what is on the disks is not sound.
    pub async fn finish_on_disk(mut self) -> Result<Looked> {
        self.come_to_rest().await?;
        try_join_all(self.nodes.iter().map(|node| node.stop(LONG))).await?;
        let looked = check::directories::sound(&self.nodes, CLUSTER)?;
        self.finished = true;
        Ok(looked)
    }

    async fn come_to_rest(&mut self) -> Result<()> {
        if let Some(links) = &self.links {
            links.mend();
        }
        for node in &self.nodes {
            if !node.is_running() {
                node.start()?;
            }
        }
        self.workers.clear();
        self.whole().await?;
        check::state::same_on_all(&self.clients).await.map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.finished {
            for puppet in self.puppets() {
                eprintln!("{}", puppet.last_words());
            }
        }
    }
}
