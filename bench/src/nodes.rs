//! The nodes that are measured: started for it as processes of this program, or running ones by their URLs.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use holdfast_client::{Client, ClientOptions, ClusterView, ReadMode};
use holdfast_machine::{Liveness, NodeName};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::args::BenchArgs;
use crate::own_process::{OwnProcess, free_addresses};
use crate::process::{self, Held};
use crate::spent::{Spent, counter, disk_of};
use crate::system::Holdfast;
use crate::work::Work;

/// How long nodes may take to form a cluster, and a node to come back to one.
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The nodes. Dropping them ends the processes that were started, and removes their temporary data.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    /// The rows that the nodes hold themselves, as they said.
    pub held: Held,
    http: reqwest::Client,
    folder: Option<TempDir>,
}

#[derive(Debug)]
struct Node {
    url: String,
    /// A process that was running before.
    pid: Option<u32>,
    own: Option<Own>,
}

/// A node that was started for the benchmark.
#[derive(Debug)]
struct Own {
    name: NodeName,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<OwnProcess>,
}

impl Nodes {
    /// The nodes that were asked for, ready to serve. Those that are started get these settings besides those of the
    /// user, which stand above them.
    ///
    /// # Errors
    /// When they cannot be started, or do not form a cluster.
    pub async fn ready(args: &BenchArgs, settings: &[(&str, String)]) -> Result<Self> {
        let settings = settings.iter().flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        Self::started(args, &settings.collect::<Vec<_>>()).await
    }

    /// Nodes that are started, and hold all rows of this queue in the namespace of the same name.
    ///
    /// # Errors
    /// As [`Nodes::ready`].
    pub async fn holding(args: &BenchArgs, queue: &str) -> Result<Self> {
        Self::started(args, &["--hold".to_owned(), queue.to_owned()]).await
    }

    async fn started(args: &BenchArgs, arguments: &[String]) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        let mut nodes = Self { nodes: Vec::new(), held: Held::default(), http, folder: None };
        if args.urls.is_empty() {
            nodes.prepare(args, arguments)?;
            (0..nodes.len()).try_for_each(|number| nodes.start(number))?;
        } else {
            let pid = |number: usize| args.pids.get(number).copied();
            let given = args.urls.iter().enumerate();
            nodes.nodes = given.map(|(number, url)| Node { url: url.clone(), pid: pid(number), own: None }).collect();
        }
        nodes.wait_until_formed().await?;
        Ok(nodes)
    }

    fn prepare(&mut self, args: &BenchArgs, more: &[String]) -> Result<()> {
        let temporary = match &args.data_dir {
            Some(folder) => {
                fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
                tempfile::Builder::new().prefix("bench-").tempdir_in(folder)?
            }
            None => tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?,
        };
        let addresses = free_addresses(2 * args.nodes)?;
        let (http, peer) = addresses.split_at(args.nodes);
        let members = peer.iter().enumerate().map(|(number, peer)| format!("{}={peer}", name(number)));
        let members = members.collect::<Vec<_>>().join(",");
        for (number, (http, peer)) in http.iter().zip(peer).enumerate() {
            let name = name(number);
            let folder = temporary.path().join(&name);
            fs::create_dir_all(&folder)?;
            let mut arguments: Vec<String> = [
                "bench-node",
                "--node-name",
                &name,
                "--cluster-id",
                "bench",
                "--members",
                &members,
                "--http-listen",
                &http.to_string(),
                "--peer-listen",
                &peer.to_string(),
                "--data-dir",
                &folder.join("data").display().to_string(),
            ]
            .map(str::to_owned)
            .to_vec();
            arguments.extend_from_slice(more);
            arguments.extend(args.set.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
            let own = Own { name: NodeName::new(&name)?, arguments, log: folder.join("log"), process: None };
            self.nodes.push(Node { url: format!("http://{http}"), pid: None, own: Some(own) });
        }
        self.folder = Some(temporary);
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Clients that share a load. Each knows all nodes and begins at another one.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn clients(&self, count: usize) -> Result<Vec<Client>> {
        let clients = (0..count.max(1)).map(|number| {
            let mut urls: Vec<&str> = self.nodes.iter().map(|node| node.url.as_str()).collect();
            let places = urls.len();
            urls.rotate_left(number % places);
            Ok(Client::new(urls)?)
        });
        clients.collect()
    }

    /// The same clients, as a load uses them.
    ///
    /// # Errors
    /// As [`Nodes::clients`].
    pub fn systems(&self, count: usize, work: &Arc<Work>) -> Result<Vec<Arc<Holdfast>>> {
        let clients = self.clients(count)?.into_iter();
        Ok(clients.map(|client| Arc::new(Holdfast { work: Arc::clone(work), client })).collect())
    }

    /// A client of all nodes.
    ///
    /// # Errors
    /// As [`Nodes::clients`].
    pub fn client(&self) -> Result<Client> {
        self.clients(1)?.pop().context("one client")
    }

    /// A client of one node alone, which is not patient.
    ///
    /// # Errors
    /// As [`Nodes::clients`].
    pub fn client_of(&self, number: usize) -> Result<Client> {
        let options = ClientOptions {
            deadline: Duration::from_millis(500),
            attempt_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_millis(200),
            ..ClientOptions::default()
        };
        Ok(Client::with_options([&self.nodes[number].url], options)?)
    }

    /// The number of the started node of this name.
    ///
    /// # Errors
    /// When none has it.
    pub fn number_of(&self, name: &NodeName) -> Result<usize> {
        let has_it = |node: &Node| node.own.as_ref().is_some_and(|own| own.name == *name);
        self.nodes.iter().position(has_it).with_context(|| format!("{name} was not started by this benchmark"))
    }

    /// Starts a node that does not run.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(&mut self, number: usize) -> Result<()> {
        let held = Held::clone(&self.held);
        let own = self.own(number)?;
        own.process = Some(process::start(&own.arguments, &own.log, number, held)?);
        Ok(())
    }

    /// Ends a node with SIGKILL, and returns when that was.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&mut self, number: usize) -> Result<Instant> {
        self.own(number)?.process.take().context("the node does not run")?.kill().await
    }

    /// Has a node stop in good order.
    ///
    /// # Errors
    /// When it does not run, or does not stop.
    pub async fn stop(&mut self, number: usize) -> Result<()> {
        process::stop(self.own(number)?.process.take().context("the node does not run")?).await
    }

    fn own(&mut self, number: usize) -> Result<&mut Own> {
        self.nodes[number].own.as_mut().context("this node was not started by this benchmark")
    }

    /// What each node has cost so far.
    ///
    /// # Errors
    /// When a process is gone, or a node has no metrics.
    pub async fn spent_each(&self) -> Result<Vec<Spent>> {
        try_join_all(self.nodes.iter().map(|node| self.spent_by(node))).await
    }

    async fn spent_by(&self, node: &Node) -> Result<Spent> {
        let own = node.own.as_ref().map(|own| own.process.as_ref().and_then(OwnProcess::pid));
        let pid = match own {
            Some(running) => Some(running.context("a node does not run")?),
            None => node.pid,
        };
        let spent = pid.map(Spent::of_process).transpose()?.unwrap_or_default();
        let page = self.metrics(&node.url).await?;
        let flushes = counter(&page, "holdfast_log_syncs_total").map(|count| count as u64);
        Ok(Spent { flushes, ..spent })
    }

    async fn metrics(&self, url: &str) -> Result<String> {
        let url = format!("{}/metrics", url.trim_end_matches('/'));
        let page = self.http.get(&url).send().await.and_then(reqwest::Response::error_for_status);
        Ok(page.with_context(|| format!("asking {url}"))?.text().await?)
    }

    /// What all nodes together have cost so far.
    ///
    /// # Errors
    /// As [`Nodes::spent_each`].
    pub async fn spent(&self) -> Result<Spent> {
        let disk = match &self.folder {
            Some(folder) => disk_of(folder.path()).await,
            None => None,
        };
        let each = self.spent_each().await?;
        Ok(Spent { disk, ..each.into_iter().reduce(Spent::and).context("there is no node")? })
    }

    /// Waits until so many claims wait on all nodes together.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn wait_for_waiting(&self, claims: f64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let pages = try_join_all(self.nodes.iter().map(|node| self.metrics(&node.url))).await?;
            let waiting: f64 = pages.iter().filter_map(|page| counter(page, "holdfast_claims_waiting")).sum();
            if waiting >= claims {
                return Ok(());
            }
            ensure!(begun.elapsed() < READY_WITHIN, "{waiting} of {claims} claims wait after {READY_WITHIN:?}");
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until this node serves: it is up, and answers a linearizable read. Returns how long that took.
    ///
    /// # Errors
    /// When it takes too long, or the node has ended.
    pub async fn wait_until_serving(&mut self, number: usize) -> Result<Duration> {
        let begun = Instant::now();
        let client = self.client_of(number)?;
        loop {
            if client.shards(ReadMode::Linearizable).await.is_ok() {
                return Ok(begun.elapsed());
            }
            self.look_again(begun, "the node serves").await?;
        }
    }

    /// Waits until all nodes are up and know it, and all shards have owners.
    ///
    /// # Errors
    /// When it takes too long, or a node has ended.
    pub async fn wait_until_formed(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            if self.is_formed().await.unwrap_or(false) {
                return Ok(());
            }
            self.look_again(begun, "the nodes form a cluster").await?;
        }
    }

    async fn is_formed(&self) -> Result<bool> {
        for number in 0..self.len() {
            let client = self.client_of(number)?;
            let view = client.cluster().await?.value;
            let directory = client.shards(ReadMode::Linearizable).await?.value;
            let owned = directory.shards.len() == directory.shard_count as usize && directory.shard_count > 0;
            if !owned || view.leader.is_none() || !all_up(&view) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn look_again(&mut self, begun: Instant, what: &str) -> Result<()> {
        ensure!(begun.elapsed() < READY_WITHIN, "waited {READY_WITHIN:?} in vain until {what}");
        for own in self.nodes.iter_mut().filter_map(|node| node.own.as_mut()) {
            if let Some(process) = &mut own.process {
                let last = || fs::read_to_string(&own.log).unwrap_or_default();
                process.check().with_context(|| format!("{}: {}", own.name, last_line(&last())))?;
            }
        }
        sleep(LOOK_EVERY).await;
        Ok(())
    }

    /// Stops all that were started, in good order, and removes their temporary data.
    ///
    /// # Errors
    /// When one fails as it stops.
    pub async fn finish(mut self) -> Result<()> {
        let running = self.nodes.iter_mut().filter_map(|node| node.own.as_mut()?.process.take());
        try_join_all(running.map(process::stop)).await?;
        Ok(())
    }
}

fn all_up(view: &ClusterView) -> bool {
    view.members.iter().all(|member| member.member.liveness == Liveness::Up && member.boot.is_some())
}

fn name(number: usize) -> String {
    format!("node-{}", char::from(b'a' + (number % 26) as u8))
}

fn last_line(log: &str) -> &str {
    log.lines().last().unwrap_or("it has said nothing")
}
