//! A member that has lost its data comes back: under its old name, in the place of what it was, and under a Raft id
//! that nobody had before.
//!
//! ```text
//! voters 1 2 3    node 3 comes back empty and knocks; its peers know another data directory of it
//!   + learner 4   "replace": the name of 3, the new data directory; it is sent the snapshot and the log
//!   1 2 3 & 1 2 4 once it has caught up: both majorities decide, and 3 acknowledges nothing
//! voters 1 2 4    3 is gone for good
//! ```
//!
//! Each step is one change of the membership, made by the leader and guarded by the membership that it was made from.
//! What the next one is follows from the membership alone, so a new leader goes on where the last one stopped. No
//! majority ever shrinks: at each step whatever was committed is on a majority of those that vote, and what has lost
//! its data never counts. Hence also what is refused: a member that is alive, and one whose fellows are too few.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{Liveness, NodeName};
use openraft::ChangeMembers;
use serde::{Deserialize, Serialize};

use crate::types::{Incarnation, Membership, PeerNode};

/// A voter that is further behind the leader than this, in entries, cannot be relied on.
const FELLOW_LAG_MAX: u64 = 1_000;
/// A learner votes once it is no further behind than this.
const LEARNER_LAG_MAX: u64 = 200;

/// How far a replacement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplacementStage {
    /// The node has no data and waits; nothing has been done.
    Waiting,
    /// It is a learner and receives the data.
    CatchingUp,
    /// It takes the vote over.
    TakingOver,
}

/// The replacement of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The member.
    pub name: NodeName,
    /// The Raft id that lost its data.
    pub old: u64,
    /// The Raft id in its place; for one that waits the one that it would get, if that was asked.
    pub new: Option<u64>,
    /// How far it is.
    pub stage: ReplacementStage,
    /// The voters that have to agree to it, all of them reached and close to the leader.
    pub others: Vec<NodeName>,
}

/// Why a member is not replaced. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ReplaceError {
    /// No member has that name.
    #[error("is no member")]
    NoMember,
    /// The member is there, with the data that it is known with.
    #[error("is alive; only a member that has lost its data is replaced")]
    Alive,
    /// The old process is gone for too short a time to be sure.
    #[error("is not committed as down yet; try again in a moment")]
    NotDown,
    /// No node without data waits under that name.
    #[error(
        "does not wait to be let in: start it with an empty data directory, under its name and with the same members, and \
         so that it reaches the leader"
    )]
    NotWaiting,
    /// Too few of the other voters could agree.
    #[error(
        "cannot be replaced now: that takes {needed} of the other voters, reached and close to the leader's log, and \
         {found} are; missing: {missing:?}. Bring these back first"
    )]
    TooFew {
        /// How many have to agree.
        needed: usize,
        /// How many could.
        found: usize,
        /// The others.
        missing: Vec<NodeName>,
    },
    /// So many have lost their data that acknowledged writes may be gone.
    #[error(
        "cannot be replaced: {lost:?} have lost their data, and with them the majority, so what was acknowledged may be \
         gone. Put their data directories back if you still have them; otherwise restore a backup into a new cluster"
    )]
    MajorityLost {
        /// The members without data.
        lost: Vec<NodeName>,
    },
    /// Another change is under way.
    #[error("cannot be replaced now: {0}; try again when that is done")]
    Busy(String),
    /// There is no leader that could decide.
    #[error("cannot be replaced now: no leader with a majority answers")]
    NoLeader,
}

/// What the leader knows of the members.
pub(crate) struct Situation<'a> {
    /// The leader.
    pub node: u64,
    pub membership: &'a Membership,
    /// The membership is committed.
    pub settled: bool,
    /// Members that can be talked to and are not held for dead; the leader need not be among them.
    pub reached: BTreeSet<u64>,
    /// How far each log is known to match the leader's.
    pub matched: BTreeMap<u64, u64>,
    /// The leader's last log index.
    pub last: u64,
}

/// What is to be done for a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is under way; the leader goes on by itself.
    UnderWay,
    /// The new member becomes a learner; a learner that was to take the same place before goes.
    Admit { dropped: Option<u64>, new: u64, node: PeerNode },
}

/// The change that a step is.
pub(crate) fn change_of(new: u64, dropped: Option<u64>, node: PeerNode) -> ChangeMembers<u64, PeerNode> {
    let add = ChangeMembers::AddNodes(BTreeMap::from([(new, node)]));
    match dropped {
        None => add,
        Some(dropped) => ChangeMembers::Batch(vec![ChangeMembers::RemoveNodes(BTreeSet::from([dropped])), add]),
    }
}

impl Situation<'_> {
    fn voters(&self) -> Option<&BTreeSet<u64>> {
        self.membership.get_joint_config().last()
    }

    fn close(&self, id: u64, lag_max: u64) -> bool {
        id == self.node
            || (self.reached.contains(&id)
                && self.matched.get(&id).is_some_and(|matched| matched.saturating_add(lag_max) >= self.last))
    }

    fn name(&self, id: u64) -> Option<&NodeName> {
        self.membership.get_node(&id).map(|node| &node.name)
    }

    /// The replacement of `name` by the data directory `guest`, and what comes first.
    pub fn plan(&self, name: &NodeName, guest: Option<Incarnation>) -> Result<(Replacement, Step), ReplaceError> {
        let Some(voters) = self.voters() else { return Err(ReplaceError::NoMember) };
        let joint = self.membership.get_joint_config().len() > 1;
        if let Some(replacement) = self.replacements().find(|replacement| replacement.name == *name) {
            let learner = replacement.new.and_then(|new| self.membership.get_node(&new));
            if guest.is_none() || learner.is_some_and(|learner| learner.incarnation == guest) {
                return Ok((replacement, Step::UnderWay));
            }
        }
        let old = voters.iter().find(|id| self.name(**id) == Some(name)).copied();
        let old = old.ok_or(ReplaceError::NoMember)?;
        let Some(record) = self.membership.get_node(&old) else { return Err(ReplaceError::NoMember) };
        if old == self.node || self.reached.contains(&old) {
            return Err(ReplaceError::Alive);
        }
        let others = self.fellows(voters, old)?;
        let Some(incarnation) = guest.filter(|guest| Some(*guest) != record.incarnation) else {
            return Err(ReplaceError::NotWaiting);
        };
        if !matches!(record.liveness, Liveness::Down { .. }) {
            return Err(ReplaceError::NotDown);
        }
        if joint || !self.settled {
            return Err(ReplaceError::Busy("another change of the members is under way".to_owned()));
        }
        // One whose old member is back after all will never come about.
        let mut pending = self.replacements().filter(|replacement| !self.reached.contains(&replacement.old));
        if let Some(other) = pending.find(|replacement| replacement.name != *name) {
            return Err(ReplaceError::Busy(format!("{} is being replaced", other.name)));
        }
        let dropped =
            self.replacements().find(|replacement| replacement.old == old).and_then(|replacement| replacement.new);
        // Ids only grow: whoever goes, goes for one with a higher id.
        let new = self.membership.nodes().map(|(id, _)| *id).max().unwrap_or(old) + 1;
        let node = PeerNode {
            incarnation: Some(incarnation),
            liveness: Liveness::Joining,
            replaces: Some(old),
            ..record.clone()
        };
        let stage = ReplacementStage::Waiting;
        let replacement = Replacement { name: name.clone(), old, new: Some(new), stage, others };
        Ok((replacement, Step::Admit { dropped, new, node }))
    }

    /// The voters without `old` that could agree now, if they are enough.
    fn fellows(&self, voters: &BTreeSet<u64>, old: u64) -> Result<Vec<NodeName>, ReplaceError> {
        let needed = voters.len() / 2 + 1;
        let (found, missing): (Vec<u64>, Vec<u64>) =
            voters.iter().filter(|id| **id != old).partition(|id| self.close(**id, FELLOW_LAG_MAX));
        let names = |ids: &[u64]| ids.iter().filter_map(|id| self.name(*id).cloned()).collect::<Vec<_>>();
        if found.len() < needed {
            return Err(ReplaceError::TooFew { needed, found: found.len(), missing: names(&missing) });
        }
        Ok(names(&found))
    }

    /// The replacements that are under way.
    pub fn replacements(&self) -> impl Iterator<Item = Replacement> {
        under_way(self.membership)
    }

    /// The voters once a learner that has caught up has taken the place of the one that it replaces.
    pub fn next_voters(&self) -> Option<BTreeSet<u64>> {
        let voters = self.voters()?;
        let ready = self.replacements().find(|replacement| {
            replacement.new.is_some_and(|new| self.close(new, LEARNER_LAG_MAX))
                && !self.reached.contains(&replacement.old)
                && self.fellows(voters, replacement.old).is_ok()
        })?;
        let mut next = voters.clone();
        next.remove(&ready.old);
        next.extend(ready.new);
        Some(next)
    }
}

/// The replacements that a membership speaks of.
pub(crate) fn under_way(membership: &Membership) -> impl Iterator<Item = Replacement> {
    let configs = membership.get_joint_config();
    let voted = configs.first();
    let votes = configs.last();
    membership.nodes().filter_map(move |(id, node)| {
        let old = node.replaces.filter(|old| voted.is_some_and(|voters| voters.contains(old)))?;
        let taking_over = votes.is_some_and(|voters| voters.contains(id));
        let stage = if taking_over { ReplacementStage::TakingOver } else { ReplacementStage::CatchingUp };
        Some(Replacement { name: node.name.clone(), old, new: Some(*id), stage, others: Vec::new() })
    })
}

#[cfg(test)]
mod tests;
