//! What an engine hears about its shards: acquired and lost, in log order, only what is committed, and nothing
//! left out.
//!
//! A subscriber has a picture of what it was told. Effects of applied entries move it on, with the rows that were
//! settled and re-armed. Where effects are missing (the subscriber was too slow, or this node's state jumped to a
//! snapshot), the picture is held against the directory instead, and the difference is told without the rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_machine::{BootId, DispatchKey, Effect, Epoch, NodeName, ShardEntry, ShardId};
use holdfast_raft::{FeedItem, Handle, Since, Subscription};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::boot::{BootWatch, Booted};

/// A change of this node's ownership of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardChange {
    /// The node owns the shard under this epoch from now on: its first ownership, an adoption, a transfer, or its
    /// own start. Fence writes with the epoch.
    Acquired {
        /// The shard.
        shard: ShardId,
        /// The epoch of this ownership.
        epoch: Epoch,
        /// Rows of finished workflows that were cancelled with the change.
        settled: Vec<DispatchKey>,
        /// Rows that the last owner held and that are pending again.
        rearmed: Vec<DispatchKey>,
    },
    /// The node does not own the shard any more; its writes under older epochs are refused.
    Lost {
        /// The shard.
        shard: ShardId,
        /// The epoch of the new ownership.
        epoch: Epoch,
        /// Who owns it now.
        new_owner: NodeName,
    },
}

impl ShardChange {
    /// The shard that changed.
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Acquired { shard, .. } | Self::Lost { shard, .. } => *shard,
        }
    }
}

/// One subscriber's stream of [`ShardChange`]s. It begins with an `Acquired` for each shard that the node owns.
pub struct ShardChanges {
    handle: Handle,
    boot: BootId,
    booted: BootWatch,
    stop: CancellationToken,
    effects: broadcast::Receiver<(u64, Effect)>,
    feed: Subscription,
    picture: Picture,
    ready: VecDeque<ShardChange>,
    begun: bool,
}

impl ShardChanges {
    pub(crate) fn new(
        handle: Handle,
        node: NodeName,
        boot: BootId,
        booted: BootWatch,
        stop: CancellationToken,
    ) -> Self {
        let (effects, feed) = (handle.effects(), handle.feed().subscribe(Since::Now));
        let picture = Picture { node, owned: BTreeMap::new(), seen: 0 };
        Self { handle, boot, booted, stop, effects, feed, picture, ready: VecDeque::new(), begun: false }
    }

    /// The next change; waits for it. Nothing comes before this process's boot entry is applied. None when the
    /// node has stopped. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<ShardChange> {
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            change = self.wait() => change,
        }
    }

    async fn wait(&mut self) -> Option<ShardChange> {
        if !self.begun {
            let booted = self.booted.wait_for(Option::is_some).await.ok()?.clone()?;
            self.compare(Some(&booted));
            self.begun = true;
        }
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Some(change);
            }
            tokio::select! {
                biased;
                effect = self.effects.recv() => match effect {
                    Ok((index, effect)) => self.ready.extend(self.picture.effect(index, effect)),
                    Err(RecvError::Lagged(_)) => self.compare(None),
                    Err(RecvError::Closed) => return None,
                },
                item = self.feed.next() => match item {
                    // The feed says so when the state has jumped.
                    Some(FeedItem::Lagged { .. }) => self.compare(None),
                    Some(FeedItem::Event { .. }) => {}
                    None => return None,
                },
            }
        }
    }

    /// Holds the picture against the directory as it is now.
    fn compare(&mut self, booted: Option<&Arc<Booted>>) {
        let (picture, boot) = (&mut self.picture, &self.boot);
        let changes = self.handle.view(|machine, _| {
            // A process that the cluster has seen the successor of owns nothing.
            let current = machine.member(&picture.node).is_some_and(|me| me.boot.as_ref() == Some(boot));
            let entries = machine.shards().filter(|_| current);
            let rows = |entry: &ShardEntry| {
                let booted = booted.filter(|booted| booted.shards.contains(&(entry.shard, entry.epoch)));
                let rows = booted.into_iter().flat_map(|booted| &booted.rearmed);
                rows.filter(|key| machine.shard_of(&key.workflow) == entry.shard).cloned().collect()
            };
            picture.directory(machine.applied(), entries, rows)
        });
        self.ready.extend(changes);
    }
}

/// What the subscriber was told, up to a log index.
#[derive(Debug)]
struct Picture {
    node: NodeName,
    owned: BTreeMap<ShardId, Epoch>,
    /// Effects up to this log index are in it.
    seen: u64,
}

impl Picture {
    fn effect(&mut self, index: u64, effect: Effect) -> Option<ShardChange> {
        if index <= self.seen {
            return None;
        }
        match effect {
            Effect::ShardAcquired { node, shard, epoch, settled, rearmed } if node == self.node => {
                self.owned.insert(shard, epoch);
                Some(ShardChange::Acquired { shard, epoch, settled, rearmed })
            }
            Effect::ShardLost { node, shard, epoch, new_owner } if node == self.node => {
                self.owned.remove(&shard)?;
                Some(ShardChange::Lost { shard, epoch, new_owner })
            }
            _ => None,
        }
    }

    /// The differences to the whole directory as of `index`: first what was lost, then what was acquired.
    fn directory<'a>(
        &mut self,
        index: u64,
        entries: impl Iterator<Item = &'a ShardEntry>,
        rearmed: impl Fn(&ShardEntry) -> Vec<DispatchKey>,
    ) -> Vec<ShardChange> {
        let (mut lost, mut acquired) = (Vec::new(), Vec::new());
        for entry in entries {
            let (shard, epoch) = (entry.shard, entry.epoch);
            if entry.owner == self.node {
                if self.owned.insert(shard, epoch) != Some(epoch) {
                    acquired.push(ShardChange::Acquired { shard, epoch, settled: Vec::new(), rearmed: rearmed(entry) });
                }
            } else if self.owned.remove(&shard).is_some() {
                lost.push(ShardChange::Lost { shard, epoch, new_owner: entry.owner.clone() });
            }
        }
        self.seen = self.seen.max(index);
        lost.extend(acquired);
        lost
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::Millis;

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn picture() -> Picture {
        Picture { node: name("a"), owned: BTreeMap::new(), seen: 0 }
    }

    fn entry(shard: u32, owner: &str, epoch: u64) -> ShardEntry {
        let (shard, owner, epoch) = (ShardId(shard), name(owner), Epoch(epoch));
        ShardEntry { shard, owner, epoch, since: Millis(0), previous: None }
    }

    fn acquire(node: &str, shard: u32, epoch: u64) -> Effect {
        let rearmed = vec!["w:1".parse().unwrap()];
        let (node, shard, epoch) = (name(node), ShardId(shard), Epoch(epoch));
        Effect::ShardAcquired { node, shard, epoch, settled: Vec::new(), rearmed }
    }

    fn lose(node: &str, shard: u32, epoch: u64) -> Effect {
        Effect::ShardLost { node: name(node), shard: ShardId(shard), epoch: Epoch(epoch), new_owner: name("z") }
    }

    fn told(change: &ShardChange) -> (bool, u32, u64) {
        match change {
            ShardChange::Acquired { shard, epoch, .. } => (true, shard.0, epoch.0),
            ShardChange::Lost { shard, epoch, .. } => (false, shard.0, epoch.0),
        }
    }

    #[test]
    fn effects_of_this_node_become_changes() {
        let mut picture = picture();
        let change = picture.effect(5, acquire("a", 1, 1)).unwrap();
        assert!(matches!(&change, ShardChange::Acquired { rearmed, .. } if rearmed.len() == 1));
        assert_eq!(picture.effect(6, acquire("b", 2, 1)), None);
        assert_eq!(picture.effect(7, lose("b", 2, 2)), None);
        assert_eq!(told(&picture.effect(8, lose("a", 1, 2)).unwrap()), (false, 1, 2));
        assert_eq!(picture.effect(9, lose("a", 1, 3)), None, "it was told already");
    }

    #[test]
    fn what_the_directory_told_is_not_told_again_by_older_effects() {
        let mut picture = picture();
        let entries = [entry(1, "a", 3), entry(2, "b", 1)];
        let changes = picture.directory(10, entries.iter(), |_| Vec::new());
        assert_eq!(changes.iter().map(told).collect::<Vec<_>>(), [(true, 1, 3)]);
        assert_eq!(picture.effect(10, acquire("a", 1, 3)), None);
        assert!(picture.effect(11, acquire("a", 2, 2)).is_some());
    }

    #[test]
    fn a_gap_is_closed_by_the_difference() {
        let mut picture = picture();
        for shard in 1..=3 {
            picture.effect(1, acquire("a", shard, 1));
        }
        let entries = [entry(1, "a", 1), entry(2, "b", 2), entry(3, "a", 5), entry(4, "a", 9)];
        let changes = picture.directory(50, entries.iter(), |_| Vec::new());
        assert_eq!(changes.iter().map(told).collect::<Vec<_>>(), [(false, 2, 2), (true, 3, 5), (true, 4, 9)]);
        assert!(picture.directory(50, entries.iter(), |_| Vec::new()).is_empty());
    }
}
