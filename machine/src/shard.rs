//! The directory of shards: who owns which, under which epoch, and how that changes.
//!
//! The epoch is a fencing token in the sense of Chubby's sequencers: it grows by one at every change of
//! owner, and a write made under an old one is refused wherever it was held up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::archive::ArchiveResult;
use crate::command::Fence;
use crate::event::{ClusterEvent, Effect};
use crate::id::{BootId, DispatchKey, Epoch, Millis, NodeName, ShardId, WorkflowId};
use crate::keys;
use crate::limits::SHARDS_MAX;
use crate::member::Liveness;
use crate::outbox::{Holder, Row};
use crate::planted::is_planted;
use crate::reject::Reject;
use crate::reply::{Moved, Reply};
use crate::state::{Apply, Machine};

pub(crate) const NO_MEMBER: &str = "is no member of the cluster";
pub(crate) const BOOTED_SINCE: &str = "has started again since; this process of it is over";

/// A shard that has an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardEntry {
    /// The shard.
    pub shard: ShardId,
    /// The node that serves it.
    pub owner: NodeName,
    /// The epoch of that ownership.
    pub epoch: Epoch,
    /// Log time of the last change.
    pub since: Millis,
    /// Who owned it before.
    pub previous: Option<NodeName>,
}

/// All shards that have an owner.
#[derive(Debug, Default)]
pub(crate) struct Directory(BTreeMap<ShardId, ShardEntry>);

impl Directory {
    pub fn restore(&mut self, entry: ShardEntry) {
        self.0.insert(entry.shard, entry);
    }

    pub fn get(&self, shard: ShardId) -> Option<&ShardEntry> {
        self.0.get(&shard)
    }

    pub fn all(&self) -> impl Iterator<Item = &ShardEntry> {
        self.0.values()
    }

    pub fn owned_by(&self, node: &NodeName) -> impl Iterator<Item = &ShardEntry> {
        self.0.values().filter(move |entry| entry.owner == *node)
    }
}

impl Machine {
    /// Who owns a shard, if anybody, and under which epoch.
    fn holder(&self, shard: ShardId) -> (Option<NodeName>, Epoch) {
        let nobody = (None, self.meta.epoch_floor);
        self.directory.get(shard).map_or(nobody, |entry| (Some(entry.owner.clone()), entry.epoch))
    }
}

impl Apply<'_> {
    /// Refuses a write to `workflow` that was made under another ownership than the directory's.
    pub fn check_fence(&self, fence: Option<&Fence>, workflow: &WorkflowId) -> Result<(), Reject> {
        let Some(fence) = fence.filter(|_| !is_planted("skip-fence")) else { return Ok(()) };
        let shard = self.state.shard_of(workflow);
        let (owner, epoch) = self.state.holder(shard);
        if owner.as_ref() == Some(&fence.owner) && epoch == fence.epoch {
            return Ok(());
        }
        Err(Reject::NotOwner { shard, owner, epoch })
    }

    pub fn create(&mut self, shard_count: u32) -> Result<Reply, Reject> {
        if shard_count == 0 {
            return Err(Reject::invalid("shard_count must be at least 1"));
        }
        if shard_count > SHARDS_MAX {
            return Err(Reject::LimitExceeded {
                what: "the shard count".to_owned(),
                limit: u64::from(SHARDS_MAX),
                actual: u64::from(shard_count),
            });
        }
        if self.state.meta.shard_count == 0 {
            self.state.meta.shard_count = shard_count;
            self.state.spread();
        }
        Ok(Reply::Created { shard_count: self.state.meta.shard_count })
    }

    pub fn boot(&mut self, node: NodeName, boot: BootId) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(member) = self.state.members.get(&node) else {
            return Ok(Err(Reject::NodeState { node, problem: NO_MEMBER.to_owned() }));
        };
        let mut member = member.clone();
        if member.boot.as_ref() == Some(&boot) {
            let shards = self.state.directory.owned_by(&node).map(|entry| (entry.shard, entry.epoch)).collect();
            return Ok(Ok(Reply::Booted { shards, rearmed: Vec::new() }));
        }
        // A boot that was held up on its way must not take the node from the process that came after it.
        let past = keys::boot(&node, &boot);
        if self.get::<Millis>(&past)?.is_some() {
            return Ok(Err(Reject::NodeState { node, problem: BOOTED_SINCE.to_owned() }));
        }
        self.state.put(past, &self.now());
        member.boot = Some(boot.clone());
        self.state.put(keys::member(&node), &member);
        self.state.members.insert(node.clone(), member);
        self.events.push(ClusterEvent::PeerBooted { node: node.clone(), boot: boot.clone() });
        self.effects.push(Effect::TopologyChanged);
        self.detach_from(&node, Some(&boot));

        let rearmed = self.rearm_held_by(&node);
        let mut by_shard: BTreeMap<ShardId, Vec<DispatchKey>> = BTreeMap::new();
        for key in &rearmed {
            by_shard.entry(self.state.shard_of(&key.workflow)).or_default().push(key.clone());
        }
        let owned: Vec<ShardEntry> = self.state.directory.owned_by(&node).cloned().collect();
        let mut shards = Vec::with_capacity(owned.len());
        for entry in owned {
            let of_shard = by_shard.remove(&entry.shard).unwrap_or_default();
            let epoch = self.own(entry.shard, &node, entry.previous.clone());
            self.events.push(ClusterEvent::ShardAssigned { shard: entry.shard, owner: node.clone(), epoch });
            self.acquired(&node, entry.shard, epoch, Vec::new(), of_shard);
            shards.push((entry.shard, epoch));
        }
        Ok(Ok(Reply::Booted { shards, rearmed }))
    }

    pub fn assign(&mut self, owners: Vec<(ShardId, NodeName)>) -> Result<Reply, Reject> {
        for (shard, node) in &owners {
            self.check_shard(*shard)?;
            self.check_serves(node)?;
        }
        let mut shards = Vec::new();
        for (shard, node) in owners {
            if self.state.directory.get(shard).is_none() {
                let epoch = self.own(shard, &node, None);
                self.events.push(ClusterEvent::ShardAssigned { shard, owner: node.clone(), epoch });
                self.acquired(&node, shard, epoch, Vec::new(), Vec::new());
                shards.push(shard);
            }
        }
        if !shards.is_empty() {
            self.effects.push(Effect::TopologyChanged);
        }
        Ok(Reply::Assigned { shards })
    }

    pub fn adopt(
        &mut self,
        shard: ShardId,
        from: NodeName,
        by: NodeName,
        expected_epoch: Epoch,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        if let Err(reject) = self.check_shard(shard) {
            return Ok(Err(reject));
        }
        let Some(entry) = self.state.directory.get(shard).cloned() else {
            let (owner, epoch) = self.state.holder(shard);
            return Ok(Err(Reject::EpochConflict { shard, owner, epoch }));
        };
        if entry.owner != from || entry.epoch != expected_epoch {
            let ShardEntry { owner: held_by, epoch, .. } = entry;
            self.events.push(ClusterEvent::ShardAdoptionSkipped { shard, by, held_by: held_by.clone(), epoch });
            return Ok(Ok(Reply::AlreadyAdopted { shard, held_by, epoch }));
        }
        if !self.is_gone(&from) && !is_planted("adopt-from-the-living") {
            return Ok(Err(Reject::NodeState { node: from, problem: "is not committed as down".to_owned() }));
        }
        if let Err(reject) = self.check_serves(&by) {
            return Ok(Err(reject));
        }
        let moved = self.hand_over(shard, &from, &by)?;
        self.events.push(ClusterEvent::ShardAdopted {
            shard,
            from,
            by,
            epoch: moved.epoch,
            settled: moved.settled.len() as u64,
            rearmed: moved.rearmed.len() as u64,
        });
        Ok(Ok(Reply::Adopted(moved)))
    }

    pub fn transfer(
        &mut self,
        shard: ShardId,
        to: NodeName,
        expected_epoch: Epoch,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        if let Err(reject) = self.check_shard(shard).and_then(|()| self.check_serves(&to)) {
            return Ok(Err(reject));
        }
        let (owner, epoch) = self.state.holder(shard);
        let from = match owner {
            Some(owner) if epoch == expected_epoch => owner,
            owner => return Ok(Err(Reject::EpochConflict { shard, owner, epoch })),
        };
        if from == to {
            return Ok(Err(Reject::NodeState { node: to, problem: format!("owns shard {shard} already") }));
        }
        if self.is_gone(&from) {
            let problem = "is down; its shards are adopted, not transferred".to_owned();
            return Ok(Err(Reject::NodeState { node: from, problem }));
        }
        let moved = self.hand_over(shard, &from, &to)?;
        self.events.push(ClusterEvent::ShardTransferred { shard, from, to, epoch: moved.epoch });
        Ok(Ok(Reply::Transferred(moved)))
    }

    /// The new ownership and what it means for the shard's rows, in one apply: rows of finished workflows
    /// are cancelled, rows that the last owner itself held are pending at once, all others stay.
    fn hand_over(&mut self, shard: ShardId, from: &NodeName, to: &NodeName) -> ArchiveResult<Moved> {
        let mut settled = Vec::new();
        let mut rearmed = Vec::new();
        let rows: Vec<(DispatchKey, Row)> =
            self.state.rows.of_shard(shard).map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, row) in rows {
            let ended = self.workflow(&key.workflow)?.is_some_and(|w| w.status.is_terminal());
            if ended {
                self.cancel_row(&key, row);
                settled.push(key);
            } else if row.claim.as_ref().is_some_and(|claim| is_held_by(&claim.holder, from)) {
                self.put_back_row(&key, row);
                rearmed.push(key);
            }
        }
        let epoch = self.own(shard, to, Some(from.clone()));
        self.effects.push(Effect::ShardLost { node: from.clone(), shard, epoch, new_owner: to.clone() });
        self.acquired(to, shard, epoch, settled.clone(), rearmed.clone());
        self.effects.push(Effect::TopologyChanged);
        Ok(Moved { shard, epoch, settled, rearmed })
    }

    fn rearm_held_by(&mut self, node: &NodeName) -> Vec<DispatchKey> {
        let held = |row: &Row| row.claim.as_ref().is_some_and(|claim| is_held_by(&claim.holder, node));
        let rows: Vec<(DispatchKey, Row)> =
            self.state.rows.all().filter(|(_, row)| held(row)).map(|(key, row)| (key.clone(), row.clone())).collect();
        rows.into_iter()
            .map(|(key, row)| {
                self.put_back_row(&key, row);
                key
            })
            .collect()
    }

    fn own(&mut self, shard: ShardId, owner: &NodeName, previous: Option<NodeName>) -> Epoch {
        let (_, last) = self.state.holder(shard);
        let epoch = Epoch(last.0 + 1);
        self.state.put_shard(ShardEntry { shard, owner: owner.clone(), epoch, since: self.now(), previous });
        epoch
    }

    fn acquired(
        &mut self,
        node: &NodeName,
        shard: ShardId,
        epoch: Epoch,
        settled: Vec<DispatchKey>,
        rearmed: Vec<DispatchKey>,
    ) {
        self.effects.push(Effect::ShardAcquired { node: node.clone(), shard, epoch, settled, rearmed });
        self.tell_if_timers_due(shard);
    }

    /// True for a node that is committed as down, or that has left the cluster.
    fn is_gone(&self, node: &NodeName) -> bool {
        let member = self.state.members.get(node);
        member.is_none_or(|state| matches!(state.member.liveness, Liveness::Down { .. }))
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), Reject> {
        let shard_count = self.state.meta.shard_count;
        if shard.0 < shard_count { Ok(()) } else { Err(Reject::NoSuchShard { shard, shard_count }) }
    }

    fn check_serves(&self, node: &NodeName) -> Result<(), Reject> {
        let problem = match self.state.members.get(node) {
            Some(member) if member.serves() => return Ok(()),
            Some(_) => "is not up",
            None => NO_MEMBER,
        };
        Err(Reject::NodeState { node: node.clone(), problem: problem.to_owned() })
    }
}

fn is_held_by(holder: &Holder, node: &NodeName) -> bool {
    matches!(holder, Holder::Node { node: holder, .. } if holder == node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Request};
    use crate::history::{EventKind, NewEvent};
    use crate::outbox::RowStatus;
    use crate::trial::{DOWN, Trial, id, member};

    fn adopt(from: &str, by: &str, epoch: u64) -> Command {
        Command::Adopt { shard: ShardId(0), from: id(from), by: id(by), expected_epoch: Epoch(epoch) }
    }

    #[test]
    fn adoption_settles_rearms_and_leaves_alone_in_one_apply() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.claim_by("a");
        trial.start("order-2", [1, 2]);
        trial.lease(1, 60_000);
        let live = trial.row("order-2:2").unwrap();
        // A live row of a finished workflow cannot come about by commands; adoption settles it all the same.
        trial.start("order-22", []);
        trial.append("order-22", NewEvent::of(EventKind::WorkflowCompleted)).unwrap();
        assert_eq!(trial.machine.shard_of(&id("order-22")), ShardId(0), "pick an id of shard 0");
        trial.force(|apply| apply.put_row(&id("order-22:1"), live));
        trial.members(&[member("a", DOWN), member("b", Liveness::Up), member("c", Liveness::Up)]);
        let Ok(Reply::Adopted(moved)) = trial.ask(adopt("a", "c", 1)) else { panic!("not adopted") };
        let expected = Moved {
            shard: ShardId(0),
            epoch: Epoch(2),
            settled: vec![id("order-22:1")],
            rearmed: vec![id("order-1:1")],
        };
        assert_eq!(moved, expected);
        assert_eq!(trial.row("order-2:1").unwrap().status, RowStatus::Claimed, "the worker with a lease goes on");
        assert_eq!(trial.claim_by("c").len(), 2, "what waits is the new owner's now");
        let again = Ok(Reply::AlreadyAdopted { shard: ShardId(0), held_by: id("c"), epoch: Epoch(2) });
        assert_eq!(trial.ask(adopt("a", "b", 1)), again);
    }

    #[test]
    fn a_fence_is_the_owner_and_the_epoch() {
        let mut trial = Trial::new();
        let mut settle = |owner: &str, epoch| {
            let fence = Some(Fence { owner: id(owner), epoch: Epoch(epoch) });
            let command = Command::Settle { workflow: id("order-1") };
            trial.apply(vec![Request { idempotency_key: None, fence, command }]).replies.remove(0)
        };
        let refused = Err(Reject::NotOwner { shard: ShardId(0), owner: Some(id("a")), epoch: Epoch(1) });
        assert_eq!(settle("a", 1), Ok(Reply::Settled { keys: Vec::new() }));
        assert_eq!(settle("b", 1), refused);
        assert_eq!(settle("a", 0), refused);
        assert_eq!(settle("a", 2), refused);
    }

    #[test]
    fn a_boot_that_comes_after_a_later_one_is_refused() {
        let mut trial = Trial::new();
        let boot = |boot: &str| Command::Boot { node: id("a"), boot: id(boot) };
        let booted = |epoch| Ok(Reply::Booted { shards: vec![(ShardId(0), Epoch(epoch))], rearmed: Vec::new() });
        assert_eq!(trial.ask(boot("2")), booted(2));
        assert_eq!(trial.ask(boot("2")), booted(2), "the same one again changes nothing");
        assert!(matches!(trial.ask(boot("1")), Err(Reject::NodeState { .. })));
        trial.machine = crate::Machine::load(&trial.archive).unwrap();
        assert!(matches!(trial.ask(boot("1")), Err(Reject::NodeState { .. })), "after a restart too");
        assert_eq!(trial.ask(boot("3")), booted(3));
    }
}
