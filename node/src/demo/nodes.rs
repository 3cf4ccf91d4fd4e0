//! Three nodes as processes of their own, with configuration files, data directories and logs in the demo's folder.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use holdfast_bench::own_process::free_addresses;
use holdfast_machine::NodeName;

use super::ledger::{Executor, Ledger};
use super::process::Process;

/// How many nodes the demo has.
pub(crate) const NODES: usize = 3;
/// How many shards the cluster gets: few enough for a line on the terminal.
const SHARDS: u32 = 32;

/// The nodes. Dropping them ends their processes.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    ledger: Ledger,
}

#[derive(Debug)]
struct Node {
    name: NodeName,
    url: String,
    config: PathBuf,
    log: PathBuf,
    process: Option<Process>,
}

impl Nodes {
    /// Writes what each node needs into `folder`; starts nothing.
    ///
    /// # Errors
    /// When no free port is found or the folder cannot be written.
    pub fn prepare(folder: &Path, ledger: Ledger) -> anyhow::Result<Self> {
        let addresses = free_addresses(2 * NODES)?;
        let (http, peer) = addresses.split_at(NODES);
        let members = peer.iter().enumerate().map(|(position, peer)| format!("{} = \"{peer}\"\n", name(position)));
        let members: String = members.collect();
        let mut nodes = Vec::with_capacity(NODES);
        for (position, (http, peer)) in http.iter().zip(peer).enumerate() {
            let name = name(position);
            let config = folder.join(format!("{name}.toml"));
            let data = folder.join(&name);
            fs::write(&config, configuration(&name, &data, *http, *peer, &members))
                .with_context(|| format!("{} cannot be written", config.display()))?;
            let log = folder.join(format!("{name}.log"));
            nodes.push(Node { name: NodeName::new(&name)?, url: format!("http://{http}"), config, log, process: None });
        }
        Ok(Self { nodes, ledger })
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<NodeName> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Where each node's HTTP API is, in the order of the names.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    /// Starts a node that is not running.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(&mut self, position: usize) -> anyhow::Result<()> {
        let node = &mut self.nodes[position];
        let arguments = ["demo-node".to_owned(), "--config".to_owned(), node.config.display().to_string()];
        let by = Executor::Engine(node.name.clone());
        node.process = Some(Process::start(&arguments, by, &node.log, &self.ledger)?);
        Ok(())
    }

    /// Ends a node with SIGKILL and returns when that was. All that its engine had written is in the
    /// ledger afterwards.
    ///
    /// # Errors
    /// When the node is not running.
    pub async fn kill(&mut self, position: usize) -> anyhow::Result<Instant> {
        let node = &mut self.nodes[position];
        node.process.take().with_context(|| format!("{} is not running", node.name))?.kill().await
    }

    /// Fails if a node has ended by itself.
    ///
    /// # Errors
    /// Names the node and its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                process.check().with_context(|| format!("{}, whose log is {}", node.name, node.log.display()))?;
            }
        }
        Ok(())
    }

    /// Stops all nodes in good order, and those that do not stop in time by SIGKILL.
    pub async fn stop(&mut self) {
        let mut processes: Vec<Process> = self.nodes.iter_mut().filter_map(|node| node.process.take()).collect();
        processes.iter_mut().for_each(Process::tell_to_stop);
        for process in processes {
            process.stopped().await;
        }
    }
}

fn name(position: usize) -> String {
    let letter = ["a", "b", "c"][position % NODES];
    format!("node-{letter}")
}

fn configuration(name: &str, data: &Path, http: SocketAddr, peer: SocketAddr, members: &str) -> String {
    let data = data.display().to_string();
    format!(
        "node_name = \"{name}\"\ncluster_id = \"demo\"\ndata_dir = {data:?}\n\
         http_listen = \"{http}\"\npeer_listen = \"{peer}\"\nshard_count = {SHARDS}\n\n[members]\n{members}"
    )
}
