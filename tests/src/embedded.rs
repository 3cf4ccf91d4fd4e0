//! Nodes in this process, as an engine embeds them: for what is asked of their stores and interfaces, and not
//! of their deaths.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_machine::NodeName;
use holdfast_node::config::{DetectorConfig, Members};
use holdfast_node::{Config, Node};
use tempfile::TempDir;

use crate::cluster::{NAMES, SHARDS};
use crate::ports::free_port;
use crate::wait::{LONG, wait_until};

/// The nodes, by number from 0.
pub struct Embedded {
    nodes: Vec<Node>,
    _folder: TempDir,
}

impl Embedded {
    /// Starts that many nodes, at most three, and waits until every shard has its owner.
    ///
    /// # Errors
    /// When they do not come together.
    pub async fn start(count: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut members = Members::default();
        let mut peers = Vec::new();
        for name in &NAMES[..count] {
            let address = format!("127.0.0.1:{}", free_port()?);
            members = members.with(NodeName::new(name)?, address.clone());
            peers.push((NodeName::new(name)?, address));
        }
        let mut nodes = Vec::new();
        for (name, address) in peers {
            let data_dir = folder.path().join(name.as_str());
            // Nobody dies here, and a machine that is busy is no reason to take shards from anybody.
            let detector = DetectorConfig { silence_ms: 10_000, ..Config::default().detector };
            let config = Config {
                node_name: Some(name),
                members: members.clone(),
                http_listen: ([127, 0, 0, 1], 0).into(),
                peer_listen: address.parse()?,
                data_dir,
                shard_count: SHARDS,
                detector,
                ..Config::default()
            };
            nodes.push(Node::start(config).await?);
        }
        let embedded = Self { nodes, _folder: folder };
        for node in &embedded.nodes {
            let ready = tokio::time::timeout(Duration::from_secs(90), node.ready()).await;
            ensure!(ready.context("a node is not ready in time")?, "a node has stopped");
        }
        wait_until("every node knows the owner of every shard", LONG, async || {
            for node in &embedded.nodes {
                let owned = node.raft().view(|machine, _| machine.shards().count());
                ensure!(owned == SHARDS as usize, "{} knows of {owned}", node.name());
            }
            Ok(())
        })
        .await?;
        Ok(embedded)
    }

    /// A node.
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// A node that does not lead.
    ///
    /// # Errors
    /// When there is none.
    pub fn follower(&self) -> Result<&Node> {
        self.nodes.iter().find(|node| !node.raft().is_leader()).context("every node leads")
    }

    /// The base URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.http_addr())).collect()
    }

    /// Stops all nodes in good order.
    pub async fn stop(self) {
        for node in self.nodes {
            node.shutdown().await;
        }
    }
}
