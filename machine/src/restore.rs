//! The first state of a cluster that begins with another one's backup.
//!
//! What the backup knows of workflows, rows, timers, namespaces and remembered replies stays. What it knows of processes is
//! void, because none of them belongs to the new cluster:
//!
//! - the members are the new cluster's, none of them seen yet;
//! - no shard has an owner. The leader gives them out as in a cluster that was just formed, and their epochs begin
//!   above all that the old cluster gave or will still give ([`EPOCHS_LEFT`]), so each of its fences is refused;
//! - sessions have ended and no row is claimed: what somebody held is pending again, at its old place in the line, and
//!   claim tokens of the old cluster are refused. Tokens, attachments and event numbers come from log indexes, and
//!   these go on above all that the old cluster has or will still write ([`INDEXES_LEFT`]).
//!
//! Log time goes on from where it was. What falls due meanwhile falls due with the first entry.

use crate::archive::{Archive, ArchiveResult, Writes};
use crate::id::{DispatchKey, Epoch, SessionId};
use crate::keys;
use crate::member::Member;
use crate::outbox::Row;
use crate::session::Disconnected;
use crate::state::{Apply, Machine};

/// Epochs that are left to the old cluster for changes of owners after the backup.
pub const EPOCHS_LEFT: u64 = 1 << 32;
/// Log indexes that are left to the old cluster for entries after the backup. JSON's exact integers allow for eight
/// thousand restores of restores.
pub const INDEXES_LEFT: u64 = 1 << 40;

/// What makes a backup's rows those of a new cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The log index that the new cluster's state begins at.
    pub index: u64,
    /// The changes to the backup's rows.
    pub writes: Writes,
    /// The rolling hash with them.
    pub hash: u64,
}

impl Machine {
    /// Turns the state of a backup, taken after the entry at `last`, into the first state of a new cluster. The machine is
    /// used up: load another one from the changed rows.
    ///
    /// # Errors
    /// As [`Machine::apply`].
    pub fn restored(mut self, last: u64, members: &[Member], archive: &dyn Archive) -> ArchiveResult<Restored> {
        let index = last.saturating_add(INDEXES_LEFT);
        let mut apply = Apply::begin(&mut self, index, archive);
        apply.end_all_sessions();
        apply.put_back_all();
        // One after the other, so that of a node with an old one's name nothing is known.
        apply.members(&[]);
        apply.members(members);
        apply.leave_all_shards();
        self.seal(index);
        Ok(Restored { index, hash: self.state_hash(), writes: self.take_writes() })
    }
}

impl Apply<'_> {
    fn end_all_sessions(&mut self) {
        let sessions: Vec<SessionId> = self.state.sessions.after(None).map(|(id, _)| id.clone()).collect();
        for id in sessions {
            self.end_session(&id, Disconnected::NodeGone);
        }
    }

    fn put_back_all(&mut self) {
        let claimed = self.state.rows.all().filter(|(_, row)| row.claim.is_some());
        let claimed: Vec<(DispatchKey, Row)> = claimed.map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, row) in claimed {
            self.put_back_row(&key, row);
        }
    }

    fn leave_all_shards(&mut self) {
        let owned: Vec<_> = self.state.directory.all().map(|entry| (entry.shard, entry.epoch)).collect();
        let highest = owned.iter().map(|(_, epoch)| *epoch).chain([self.state.meta.epoch_floor]).max();
        for (shard, _) in owned {
            self.state.delete(keys::shard(shard));
        }
        self.state.meta.epoch_floor = Epoch(highest.unwrap_or_default().0.saturating_add(EPOCHS_LEFT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Fence, Request};
    use crate::id::{IdempotencyKey, Millis, ShardId};
    use crate::member::Liveness;
    use crate::outbox::RowStatus;
    use crate::reject::Reject;
    use crate::reply::Reply;
    use crate::session::{Attached, SessionChange};
    use crate::trial::{Trial, id, member, worker};

    /// The trial's state as that of a new cluster of these nodes.
    fn restored(trial: Trial, names: &[&str]) -> Trial {
        let last = trial.machine.applied() + 3;
        let members: Vec<Member> = names.iter().map(|name| member(name, Liveness::Joining)).collect();
        let mut archive = trial.archive;
        let restored = trial.machine.restored(last, &members, &archive).unwrap();
        archive.commit(restored.writes);
        let machine = Machine::load(&archive).unwrap();
        assert_eq!((machine.state_hash(), machine.applied()), (restored.hash, restored.index));
        Trial::of(machine, archive, trial.at)
    }

    fn join(trial: &mut Trial, names: &[&str]) {
        let up: Vec<Member> = names.iter().map(|name| member(name, Liveness::Up)).collect();
        trial.members(&up);
        for name in names {
            let boot = id(&format!("after-{}", trial.machine.applied()));
            trial.ask(Command::Boot { node: id(name), boot }).unwrap();
        }
        let owners = vec![(ShardId(0), id(names[0])), (ShardId(1), id(names[0]))];
        assert_eq!(trial.ask(Command::Assign { owners }), Ok(Reply::Assigned { shards: vec![ShardId(0), ShardId(1)] }));
    }

    fn fenced(trial: &mut Trial, owner: &str, epoch: u64) -> Result<Reply, Reject> {
        let fence = Some(Fence { owner: id(owner), epoch: Epoch(epoch) });
        let command = Command::Settle { workflow: id("unknown") };
        trial.apply(vec![Request { idempotency_key: None, fence, command }]).replies.remove(0)
    }

    #[test]
    fn what_is_finished_and_what_waits_stays_and_who_worked_on_it_does_not() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2, 3, 4]);
        let leased = trial.lease(1, 60_000);
        assert_eq!(trial.complete(&leased[0].key, leased[0].token), Ok(Reply::Completed { seq: 10 }));
        let leased = trial.lease(1, 60_000);
        trial.attach("s", worker(1));
        let by_node = trial.claim_by("a");
        assert_eq!((trial.held("s").len(), by_node.len()), (1, 1));
        let before = trial.machine.now();

        let mut trial = restored(trial, &["a", "x"]);
        assert_eq!((trial.machine.now(), trial.machine.row_counts().pending), (before, 3));
        assert_eq!(trial.row("order-1:1").unwrap().status, RowStatus::Done);
        assert_eq!(trial.machine.session(&id("s")), None);
        assert_eq!(trial.machine.members().map(|m| m.member.name.as_str()).collect::<Vec<_>>(), ["a", "x"]);
        assert!(trial.machine.members().all(|m| m.boot.is_none()), "also of a node with an old one's name");
        for claim in leased.iter().chain(&by_node) {
            assert!(trial.complete(&claim.key, claim.token).is_err());
        }
        join(&mut trial, &["x", "a"]);
        let again = trial.lease(9, 60_000);
        assert_eq!(again.iter().map(|claim| claim.key.ordinal).collect::<Vec<_>>(), [2, 3, 4], "in their old order");
        for claim in leased.iter().chain(&by_node) {
            assert_eq!(trial.complete(&claim.key, claim.token), Err(Reject::ClaimLost { key: claim.key.clone() }));
        }
        let late = SessionChange::Extend { attachment: 1 };
        assert_eq!(trial.change("s", late), Err(Reject::SessionNotFound { session: id("s") }));
        let to = Attached { node: id("a"), boot: id("1") };
        assert!(trial.change("s", SessionChange::Attach { worker: worker(1), to }).is_err(), "an old node's boot");
    }

    #[test]
    fn no_fence_of_the_old_cluster_counts_whatever_it_has_done_since() {
        let mut trial = restored(Trial::new(), &["a"]);
        assert_eq!(trial.machine.shards().count(), 0);
        assert!(matches!(fenced(&mut trial, "a", 1), Err(Reject::NotOwner { owner: None, .. })));
        join(&mut trial, &["a"]);
        for epoch in [0, 1, 2, 3, EPOCHS_LEFT] {
            assert!(fenced(&mut trial, "a", epoch).is_err(), "epoch {epoch}");
        }
        let floor = trial.machine.shard(ShardId(0)).unwrap().epoch;
        assert_eq!(floor, Epoch(1 + EPOCHS_LEFT + 1));
        assert!(fenced(&mut trial, "a", floor.0).is_ok());
        let mut again = restored(trial, &["a"]);
        join(&mut again, &["a"]);
        assert_eq!(again.machine.shard(ShardId(1)).unwrap().epoch, Epoch(floor.0 + EPOCHS_LEFT + 1));
        let mut never_owned = restored(restored(Trial::new(), &["a"]), &["a"]);
        join(&mut never_owned, &["a"]);
        assert_eq!(never_owned.machine.shard(ShardId(0)).unwrap().epoch, Epoch(2 * EPOCHS_LEFT + 2));
    }

    #[test]
    fn a_retry_of_what_the_backup_has_gets_its_first_reply() {
        let mut trial = Trial::new();
        let request = || Request {
            idempotency_key: Some(IdempotencyKey::new("once").unwrap()),
            fence: None,
            command: Command::Tick,
        };
        let first = trial.apply(vec![request()]).replies.remove(0);
        let mut trial = restored(trial, &["a"]);
        trial.at += 5;
        assert_eq!(first, Ok(Reply::Ticked { at: Millis(1_000) }));
        assert_eq!(trial.apply(vec![request()]).replies.remove(0), first);
    }

    #[test]
    fn two_restores_of_one_backup_are_one_state_and_two_backups_are_two() {
        let hash = |workflow: &str, names: &[&str]| {
            let mut trial = Trial::new();
            trial.start(workflow, [1]);
            restored(trial, names).machine.state_hash()
        };
        assert_eq!(hash("order-1", &["a", "b"]), hash("order-1", &["a", "b"]));
        assert_ne!(hash("order-1", &["a", "b"]), hash("order-2", &["a", "b"]));
        assert_ne!(hash("order-1", &["a", "b"]), hash("order-1", &["a", "c"]));
    }
}
