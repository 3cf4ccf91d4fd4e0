//! A lookout that asks every node for what it knows all along, while the cluster is being broken: a term has one leader
//! whoever is asked, a node does not go back unless its disk was emptied, states at one index are the same, and an epoch of
//! a shard has one owner (invariants 1, 3, 4 and 7).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_checkers::Observation;
use holdfast_checkers::invariants::{EpochsHaveOneOwner, Watch};
use holdfast_client::{Client, ReadMode};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, view};
use crate::process::Life;

/// A node that does not answer within this time is asked again in the next round.
const ANSWER: Duration = Duration::from_millis(500);
/// Between two rounds.
const REST: Duration = Duration::from_millis(50);

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The leaders of terms, the positions of nodes, the states at indexes.
    pub watch: Watch,
    /// The owners of shards.
    pub owners: EpochsHaveOneOwner,
    /// How often a node answered.
    pub looks: u64,
}

/// One that looks out.
#[derive(Debug)]
pub struct Lookout {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Seen>>,
}

impl Lookout {
    /// Begins to look at all nodes.
    ///
    /// # Errors
    /// Never for the URLs of a cluster.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let nodes = cluster.nodes.iter().enumerate();
        let nodes: Vec<(Client, Arc<Life>)> =
            nodes.map(|(place, node)| Ok((cluster.impatient(place, ANSWER)?, node.life()))).collect::<Result<_>>()?;
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !*stopped.borrow() {
                for (client, life) in &nodes {
                    seen.look(client, life).await?;
                }
                tokio::time::sleep(REST).await;
            }
            Ok(seen)
        });
        Ok(Self { stop, task })
    }

    /// Ends, and tells what was seen.
    ///
    /// # Errors
    /// The first property that did not hold.
    pub async fn stop(self) -> Result<Seen> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

impl Seen {
    /// Looks at a node; one that does not answer shows nothing.
    async fn look(&mut self, client: &Client, life: &Life) -> Result<()> {
        let (disk, boot) = life.numbers();
        let Ok(view) = view(client).await else { return Ok(()) };
        if life.numbers() != (disk, boot) {
            // It cannot be told which process has answered.
            return Ok(());
        }
        self.looks += 1;
        let hash = u64::from_str_radix(&view.state_hash, 16).context("a hash")?;
        // What was applied was committed, even if the node has looked at that before.
        let committed = view.committed.max(view.applied);
        let seen = Observation {
            node: view.node,
            disk,
            boot,
            term: view.term,
            leader: view.leader,
            purged: 0,
            snapshot: 0,
            applied: view.applied,
            committed,
            last: view.last.max(committed),
            hash: Some(hash),
        };
        self.watch.observe(&seen)?;
        let Ok(directory) = client.shards(ReadMode::Stale).await else { return Ok(()) };
        // The directory is asked for after that, so each look is taken for a process of its own.
        self.owners.directory(&seen.node, self.looks, &directory.value.shards)?;
        Ok(())
    }
}
