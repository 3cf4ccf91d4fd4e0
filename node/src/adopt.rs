//! Survivors take over the shards of a dead node.
//!
//! Each node works out by itself, from the committed state, which shards have no live owner and in which place it
//! stands in each one's order of adopters. The first in line proposes at once, the others after a stagger each,
//! and only if the shard is still without a live owner. Two proposals at the same moment do no harm: the first one
//! in the log wins, the other hears who holds the shard. Proposals for many shards run side by side, so that they
//! share a few log entries.

mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_machine::{BootId, ClusterEvent, Command, Effect, Epoch, NodeName, Reply, ShardId};
use holdfast_raft::{Handle, ProposeError};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use plan::{Orphan, is_gone, orphans};

/// Looks at the state again although no effect told it to.
const SAFETY_INTERVAL: Duration = Duration::from_millis(500);
/// The first pause after a proposal that did not get through; it doubles up to the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// The adopting side of one node.
#[derive(Clone)]
pub(crate) struct Adopter {
    pub handle: Handle,
    pub node: NodeName,
    pub boot: BootId,
    pub stagger: Duration,
}

impl Adopter {
    /// Watches until the node stops.
    pub async fn run(self) {
        let mut effects = self.handle.effects();
        let mut safety = interval(SAFETY_INTERVAL);
        safety.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut attempts = JoinSet::new();
        let mut under_way: BTreeSet<(ShardId, Epoch)> = BTreeSet::new();
        loop {
            for orphan in self.orphans() {
                if under_way.insert((orphan.shard, orphan.epoch)) {
                    attempts.spawn(self.clone().adopt(orphan));
                }
            }
            loop {
                tokio::select! {
                    _ = safety.tick() => break,
                    effect = effects.recv() => match effect {
                        Ok((_, Effect::TopologyChanged)) | Err(RecvError::Lagged(_)) => break,
                        Ok(_) => {}
                        Err(RecvError::Closed) => return,
                    },
                    Some(ended) = attempts.join_next() => match ended {
                        Ok(ended) => { under_way.remove(&ended); }
                        // Only a panic gets here; the safety interval starts the attempt anew.
                        Err(error) => {
                            tracing::error!(%error, "an adoption ended badly");
                            under_way.clear();
                        }
                    },
                }
            }
        }
    }

    fn orphans(&self) -> Vec<Orphan> {
        self.handle.view(|machine, _| {
            let me = machine.member(&self.node);
            if me.is_none_or(|me| me.boot.as_ref() != Some(&self.boot)) {
                return Vec::new();
            }
            orphans(machine.shards(), machine.members(), &self.node)
        })
    }

    fn is_orphan(&self, orphan: &Orphan) -> bool {
        self.handle.view(|machine, _| {
            let held = machine.shard(orphan.shard).filter(|entry| entry.epoch == orphan.epoch);
            held.is_some_and(|entry| is_gone(machine.member(&entry.owner)))
        })
    }

    /// Proposes until the shard has a live owner or another epoch.
    async fn adopt(self, orphan: Orphan) -> (ShardId, Epoch) {
        sleep(self.stagger.saturating_mul(orphan.rank)).await;
        let mut pause = PAUSE_FIRST;
        while self.is_orphan(&orphan) {
            match self.propose(&orphan).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(shard = %orphan.shard, error, "adoption did not get through; trying again");
                    self.handle.feed().push_local(ClusterEvent::AdoptionFailed { shard: orphan.shard, error });
                }
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(PAUSE_LONGEST);
        }
        (orphan.shard, orphan.epoch)
    }

    async fn propose(&self, orphan: &Orphan) -> Result<(), String> {
        let command = Command::Adopt {
            shard: orphan.shard,
            from: orphan.owner.clone(),
            by: self.node.clone(),
            expected_epoch: orphan.epoch,
        };
        match self.handle.propose(command.into()).await {
            Ok(committed) => match committed.reply {
                Ok(Reply::Adopted(moved)) => {
                    let (settled, rearmed) = (moved.settled.len(), moved.rearmed.len());
                    tracing::info!(shard = %orphan.shard, from = %orphan.owner, epoch = %moved.epoch, settled, rearmed,
                        "shard adopted");
                    Ok(())
                }
                Ok(_) => Ok(()),
                Err(reject) => Err(reject.to_string()),
            },
            // Nobody is left to try again; whoever stops the node knows.
            Err(ProposeError::Stopped) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}
