//! Invariants 7 and 8 over several nodes: whichever node is asked, and however far it has come, an epoch of a shard has
//! one owner; on one node epochs do not go back while a process lives; and a shard that was adopted was taken from a node
//! that was down: its last owner may have no outcome of its own under the old epoch accepted behind the adoption.

use std::collections::BTreeMap;

use holdfast_machine::{Epoch, Fence, NodeName, ShardEntry, ShardId};

use crate::{Check, ensure, ensure_eq};

/// What was seen of the directory.
#[derive(Debug, Default)]
pub struct EpochsHaveOneOwner {
    owners: BTreeMap<(ShardId, Epoch), NodeName>,
    /// By node and shard: process and epoch.
    nodes: BTreeMap<(NodeName, ShardId), (u64, Epoch)>,
    /// Fenced writes that were accepted, by shard and log index.
    accepted: BTreeMap<(ShardId, u64), Fence>,
}

impl EpochsHaveOneOwner {
    /// Takes in a directory as one node's process has it.
    ///
    /// # Errors
    /// When an epoch has two owners, or when one went back.
    pub fn directory<'a>(
        &mut self,
        node: &NodeName,
        boot: u64,
        entries: impl IntoIterator<Item = &'a ShardEntry>,
    ) -> Check {
        for ShardEntry { shard, owner, epoch, .. } in entries {
            let known = self.owners.entry((*shard, *epoch)).or_insert_with(|| owner.clone());
            ensure_eq!(owner, known, "the owner of shard {shard} under epoch {epoch}, says {node}");
            let last = self.nodes.insert((node.clone(), *shard), (boot, *epoch));
            let went_back = last.is_some_and(|(process, last)| process == boot && last > *epoch);
            ensure!(!went_back, "epoch {epoch} of shard {shard} on {node} comes after {last:?}");
        }
        Ok(())
    }

    /// Takes in a write to a workflow of a shard that was accepted under a fence, at this log index.
    ///
    /// # Errors
    /// When an earlier epoch wrote behind a later one, or when the fence is of a node that did not own the shard.
    pub fn accepted(&mut self, shard: ShardId, index: u64, fence: &Fence) -> Check {
        let known = self.owners.entry((shard, fence.epoch)).or_insert_with(|| fence.owner.clone());
        ensure_eq!(fence.owner, *known, "the owner of shard {shard} under epoch {}, by a write", fence.epoch);
        let before = self.accepted.range((shard, 0)..=(shard, index)).next_back();
        let behind = self.accepted.range((shard, index)..=(shard, u64::MAX)).next();
        let low = before.map_or(Epoch(0), |(_, fence)| fence.epoch);
        let high = behind.map_or(Epoch(u64::MAX), |(_, fence)| fence.epoch);
        let fits = (low..=high).contains(&fence.epoch);
        ensure!(fits, "{fence:?} wrote to shard {shard} at {index}, between epochs {low} and {high}");
        self.accepted.insert((shard, index), fence.clone());
        Ok(())
    }

    /// How many changes of an owner were seen.
    pub fn changes(&self) -> usize {
        let later = |((shard, epoch), owner): &(&(ShardId, Epoch), &NodeName)| {
            let before = self.owners.range((*shard, Epoch(0))..(*shard, *epoch)).next_back();
            before.is_some_and(|(_, before)| before != *owner)
        };
        self.owners.iter().filter(later).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_machine::Millis;

    fn entry(owner: &str, epoch: u64) -> ShardEntry {
        let (shard, owner, epoch) = (ShardId(1), owner.parse().unwrap(), Epoch(epoch));
        ShardEntry { shard, owner, epoch, since: Millis(0), previous: None }
    }

    #[test]
    fn two_owners_an_old_epoch_and_a_write_of_the_dead_are_noticed() {
        let mut watch = EpochsHaveOneOwner::default();
        let [a, b]: [NodeName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let fence = |owner: &NodeName, epoch| Fence { owner: owner.clone(), epoch: Epoch(epoch) };
        watch.directory(&a, 1, [&entry("a", 1)]).unwrap();
        watch.accepted(ShardId(1), 10, &fence(&a, 1)).unwrap();
        watch.directory(&b, 1, [&entry("b", 2)]).unwrap();
        watch.accepted(ShardId(1), 20, &fence(&b, 2)).unwrap();
        watch.accepted(ShardId(1), 12, &fence(&a, 1)).unwrap();
        assert_eq!(watch.changes(), 1);
        assert!(watch.accepted(ShardId(1), 21, &fence(&a, 1)).is_err(), "the dead one writes");
        assert!(watch.accepted(ShardId(1), 22, &fence(&a, 2)).is_err(), "epoch 2 is b's");
        assert!(watch.directory(&a, 1, [&entry("a", 2)]).is_err(), "so it is");
        assert!(watch.directory(&b, 1, [&entry("a", 1)]).is_err(), "b knew better");
        watch.directory(&b, 2, [&entry("a", 1)]).unwrap();
    }
}
