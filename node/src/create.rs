//! The first steps of a new cluster: the leader records how many shards it has and gives each a first owner.
//!
//! Owners are spread over all configured members once all of them have started. If some do not start, those that
//! have wait a while and then go on without them; a quorum they must be in any case, to commit anything.

use std::time::Duration;

use holdfast_machine::rendezvous::spread;
use holdfast_machine::{Command, Machine, MemberState, NodeName, ShardId};
use holdfast_raft::Handle;
use tokio::time::{Instant, sleep};

/// Between two looks at the state while there is something to wait for.
const PAUSE: Duration = Duration::from_millis(50);

/// What a leader has to do for the cluster now.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Create,
    Assign(Vec<(ShardId, NodeName)>),
    /// A quorum has started, others may still.
    WaitForMembers,
    WaitForQuorum,
    Done,
}

/// Runs until every shard has an owner; from then on shards only change hands.
pub(crate) async fn found(handle: Handle, shard_count: u32, grace: Duration) {
    let mut waiting_since: Option<Instant> = None;
    loop {
        let grace_over = waiting_since.is_some_and(|since| since.elapsed() >= grace);
        let step = handle.view(|machine, _| next_step(machine, grace_over));
        let leads = handle.is_leader();
        match (&step, leads) {
            (Step::Done, _) => return,
            (Step::WaitForMembers, true) => {
                waiting_since.get_or_insert_with(Instant::now);
            }
            (Step::WaitForQuorum, _) | (_, false) => waiting_since = None,
            (Step::Create, true) => propose(&handle, Command::Create { shard_count }).await,
            (Step::Assign(owners), true) => propose(&handle, Command::Assign { owners: owners.clone() }).await,
        }
        sleep(PAUSE).await;
    }
}

async fn propose(handle: &Handle, command: Command) {
    match handle.propose(command.into()).await.map(|committed| committed.reply) {
        Ok(Ok(reply)) => tracing::debug!(?reply, "founding the cluster"),
        Ok(Err(reject)) => tracing::debug!(%reject, "founding the cluster; trying again"),
        Err(error) => tracing::debug!(%error, "founding the cluster; trying again"),
    }
}

fn next_step(machine: &Machine, grace_over: bool) -> Step {
    let shard_count = machine.shard_count();
    if shard_count == 0 {
        return Step::Create;
    }
    let unowned: Vec<ShardId> = (0..shard_count).map(ShardId).filter(|s| machine.shard(*s).is_none()).collect();
    let members: Vec<&MemberState> = machine.members().collect();
    first_owners(&unowned, &members, grace_over)
}

fn first_owners(unowned: &[ShardId], members: &[&MemberState], grace_over: bool) -> Step {
    if unowned.is_empty() {
        return Step::Done;
    }
    let serving: Vec<&NodeName> = members.iter().filter(|m| m.serves()).map(|m| &m.member.name).collect();
    if serving.len() * 2 <= members.len() {
        return Step::WaitForQuorum;
    }
    if serving.len() < members.len() && !grace_over {
        return Step::WaitForMembers;
    }
    Step::Assign(spread(unowned, &serving))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{BootId, Liveness, Member, Millis};

    use super::*;

    fn member(number: u64, booted: bool) -> MemberState {
        let name = NodeName::new(format!("node-{number}")).unwrap();
        let boot = booted.then(|| BootId::new("boot").unwrap());
        let (peer_addr, http_addr) = (String::new(), String::new());
        let member = Member { id: number, name, peer_addr, http_addr, liveness: Liveness::Up };
        MemberState { member, boot, since: Millis(0) }
    }

    fn step(booted: [bool; 3], shards: u32, grace_over: bool) -> Step {
        let members: Vec<MemberState> = (1..).zip(booted).map(|(n, booted)| member(n, booted)).collect();
        let unowned: Vec<ShardId> = (0..shards).map(ShardId).collect();
        first_owners(&unowned, &members.iter().collect::<Vec<_>>(), grace_over)
    }

    #[test]
    fn all_members_get_shards_if_they_come_in_time() {
        assert_eq!(step([true, false, false], 6, true), Step::WaitForQuorum);
        assert_eq!(step([true, true, false], 6, false), Step::WaitForMembers);
        let Step::Assign(owners) = step([true, true, true], 6, false) else { panic!() };
        assert_eq!(owners.len(), 6);
        for number in 1..=3 {
            let name = format!("node-{number}");
            assert_eq!(owners.iter().filter(|(_, owner)| owner.as_str() == name).count(), 2);
        }
    }

    #[test]
    fn after_the_grace_the_others_go_without() {
        let Step::Assign(owners) = step([true, false, true], 6, true) else { panic!() };
        assert!(owners.iter().all(|(_, owner)| owner.as_str() != "node-2"));
        assert_eq!(owners.len(), 6);
    }

    #[test]
    fn nothing_is_left_to_do_once_all_have_owners() {
        assert_eq!(step([true, true, true], 0, false), Step::Done);
    }
}
