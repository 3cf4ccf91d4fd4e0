//! Which shards have no live owner, and where this node stands among those who may take them. Pure.

use std::collections::BTreeMap;

use holdfast_machine::rendezvous::ranked;
use holdfast_machine::{Epoch, MemberState, NodeName, ShardEntry, ShardId};

/// A shard whose owner is committed as down, or is no member any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Orphan {
    pub shard: ShardId,
    pub owner: NodeName,
    pub epoch: Epoch,
    /// This node's place in the shard's order of adopters; 0 acts at once.
    pub rank: u32,
}

/// The shards that `me` should try to adopt. None if it may not take any itself.
pub(super) fn orphans<'a>(
    shards: impl Iterator<Item = &'a ShardEntry>,
    members: impl Iterator<Item = &'a MemberState>,
    me: &NodeName,
) -> Vec<Orphan> {
    let members: BTreeMap<&NodeName, &MemberState> = members.map(|state| (&state.member.name, state)).collect();
    let serving: Vec<&NodeName> = members.iter().filter(|(_, state)| state.serves()).map(|(name, _)| *name).collect();
    if !serving.contains(&me) {
        return Vec::new();
    }
    shards
        .filter(|entry| is_gone(members.get(&entry.owner).copied()))
        .filter_map(|entry| {
            let rank = ranked(entry.shard, &serving).iter().position(|name| *name == me)?;
            let rank = u32::try_from(rank).ok()?;
            Some(Orphan { shard: entry.shard, owner: entry.owner.clone(), epoch: entry.epoch, rank })
        })
        .collect()
}

/// True if an owner with this member record will not serve its shards.
pub(super) fn is_gone(owner: Option<&MemberState>) -> bool {
    owner.is_none_or(MemberState::is_down)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{BootId, Evidence, Liveness, Member, Millis};

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn member(text: &str, liveness: Liveness, booted: bool) -> MemberState {
        let (name, peer_addr, http_addr) = (name(text), String::new(), String::new());
        let boot = booted.then(|| BootId::new("boot").unwrap());
        MemberState { member: Member { id: 1, name, peer_addr, http_addr, liveness }, boot, since: Millis(0) }
    }

    fn down(text: &str) -> MemberState {
        member(text, Liveness::Down { evidence: Evidence::LinkClosed }, true)
    }

    fn up(text: &str) -> MemberState {
        member(text, Liveness::Up, true)
    }

    fn owned(owner: &str, count: u32) -> Vec<ShardEntry> {
        let entry =
            |n| ShardEntry { shard: ShardId(n), owner: name(owner), epoch: Epoch(4), since: Millis(0), previous: None };
        (0..count).map(entry).collect()
    }

    #[test]
    fn each_orphan_has_one_survivor_that_acts_at_once() {
        let members = [down("a"), up("b"), up("c"), up("d")];
        let shards = owned("a", 64);
        let plans: Vec<Vec<Orphan>> =
            ["b", "c", "d"].iter().map(|me| orphans(shards.iter(), members.iter(), &name(me))).collect();
        for shard in 0..64 {
            let mut ranks: Vec<u32> = plans.iter().map(|plan| plan[shard].rank).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2]);
        }
        let first = |plan: &Vec<Orphan>| plan.iter().filter(|orphan| orphan.rank == 0).count();
        assert!(plans.iter().all(|plan| first(plan) >= 8), "{:?}", plans.iter().map(first).collect::<Vec<_>>());
        assert_eq!((plans[0][7].owner.as_str(), plans[0][7].epoch), ("a", Epoch(4)));
    }

    #[test]
    fn shards_of_the_living_are_left_alone() {
        let members = [up("a"), up("b"), member("c", Liveness::Joining, false)];
        assert!(orphans(owned("a", 8).iter(), members.iter(), &name("b")).is_empty());
        assert!(orphans(owned("c", 8).iter(), members.iter(), &name("b")).is_empty());
    }

    #[test]
    fn shards_of_a_removed_member_are_orphans() {
        let members = [up("b")];
        assert_eq!(orphans(owned("gone", 8).iter(), members.iter(), &name("b")).len(), 8);
    }

    #[test]
    fn who_cannot_serve_adopts_nothing() {
        let shards = owned("a", 8);
        for me in [down("b"), member("b", Liveness::Up, false), member("b", Liveness::Joining, true)] {
            assert!(orphans(shards.iter(), [down("a"), me, up("c")].iter(), &name("b")).is_empty());
        }
        assert!(orphans(shards.iter(), [down("a"), up("c")].iter(), &name("b")).is_empty());
    }

    #[test]
    fn a_node_that_is_not_booted_is_nobodys_first_choice() {
        let members = [down("a"), up("b"), member("c", Liveness::Up, false)];
        let plan = orphans(owned("a", 64).iter(), members.iter(), &name("b"));
        assert!(plan.iter().all(|orphan| orphan.rank == 0));
    }
}
