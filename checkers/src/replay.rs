//! A log played through a machine of its own, with every property held against every entry. Whoever has the log of a
//! cluster (a simulation, a node that was stopped) finds out with it where a state went wrong, and not only that it did.

use holdfast_machine::{
    Applied, ArchiveError, Command, Effect, Entry, Machine, Member, MemoryArchive, Millis, Reject, Reply, Request,
    WorkflowId, WorkflowStatus, limits,
};

use crate::invariants::check_step;
use crate::{Broken, Check, Said, Snapshot, Step};

type Answered = (Request, Result<Reply, Reject>);

/// What becomes of a log.
pub struct Replay {
    machine: Machine,
    archive: MemoryArchive,
    seen: Snapshot,
    /// First replies under idempotency keys, with the log time of each.
    remembered: Vec<(Millis, Answered)>,
}

impl Replay {
    /// Before the first entry.
    ///
    /// # Errors
    /// Never: an archive in memory can be read.
    pub fn new() -> Result<Self, Broken> {
        let (machine, archive) = (Machine::default(), MemoryArchive::default());
        let seen = look(&machine, &archive)?;
        Ok(Self { machine, archive, seen, remembered: Vec::new() })
    }

    /// Applies an entry of commands, checks it, and gives its replies.
    ///
    /// # Errors
    /// The first property that does not hold.
    pub fn entry(&mut self, index: u64, entry: Entry) -> Result<Vec<Result<Reply, Reject>>, Broken> {
        let requests = entry.requests.clone();
        let applied = self.machine.apply(index, entry, &self.archive).map_err(unreadable)?;
        let said: Vec<_> = requests.into_iter().zip(applied.replies.iter().cloned()).collect();
        self.checked(index, &applied, &said)?;
        Ok(applied.replies)
    }

    /// Applies an entry of the membership and checks it.
    ///
    /// # Errors
    /// The first property that does not hold.
    pub fn members(&mut self, index: u64, members: &[Member]) -> Check {
        let applied = self.machine.apply_members(index, members, &self.archive).map_err(unreadable)?;
        self.checked(index, &applied, &[])
    }

    /// The hash of the state.
    pub fn state_hash(&self) -> u64 {
        self.machine.state_hash()
    }

    /// The state after the last entry.
    pub fn state(&self) -> &Snapshot {
        &self.seen
    }

    fn checked(&mut self, index: u64, applied: &Applied, said: &Said) -> Check {
        self.archive.commit(self.machine.take_writes());
        let after = look(&self.machine, &self.archive)?;
        let removed = self.removed(&after, said);
        self.remembered.retain(|(at, _)| at.plus(limits::REPLY_REMEMBERED_MS) >= after.now);
        let remembered: Vec<_> = self.remembered.iter().map(|(_, said)| said.clone()).collect();
        let (before, effects): (_, &[Effect]) = (&self.seen, &applied.effects);
        check_step(&Step { index, before, after: &after, said, effects, remembered: &remembered, removed: &removed })?;
        self.remember(said, after.now);
        self.seen = after;
        Ok(())
    }

    /// What the entry removed: it was asked to, and the history that stands there, if any, is another.
    fn removed(&mut self, after: &Snapshot, said: &Said) -> Vec<(WorkflowId, Option<WorkflowStatus>)> {
        let mut asked: Vec<&WorkflowId> = Vec::new();
        for (request, reply) in said.iter().filter(|(_, reply)| reply.is_ok()) {
            match (&request.command, reply) {
                (Command::Delete { workflow }, _) => asked.push(workflow),
                (Command::Purge { workflows }, _) => asked.extend(workflows),
                _ => {}
            }
        }
        let before = &self.seen.workflows;
        let stands = |id: &WorkflowId| {
            let told = before.get(id).and_then(|told| told.events.first());
            told.is_none() || told == after.workflows.get(id).and_then(|told| told.events.first())
        };
        asked.retain(|id| !stands(id));
        asked.sort();
        asked.dedup();
        asked.into_iter().map(|id| (id.clone(), self.seen.forget(id))).collect()
    }

    fn remember(&mut self, said: &Said, at: Millis) {
        for said in said {
            let Some(key) = &said.0.idempotency_key else { continue };
            let known = self.remembered.iter().any(|(_, (known, _))| known.idempotency_key.as_ref() == Some(key));
            if !known && !may_be_better_later(&said.1) {
                self.remembered.push((at, said.clone()));
            }
        }
    }
}

/// True for an answer that is not remembered: the same call may do better later.
pub fn may_be_better_later(answer: &Result<Reply, Reject>) -> bool {
    match answer {
        Ok(Reply::Claimed { claims }) => claims.is_empty(),
        answer => {
            matches!(answer, Err(Reject::NotOwner { .. } | Reject::NodeState { .. } | Reject::BeingRemoved { .. }))
        }
    }
}

fn look(machine: &Machine, archive: &MemoryArchive) -> Result<Snapshot, Broken> {
    Snapshot::of(machine, archive).map_err(unreadable)
}

fn unreadable(error: ArchiveError) -> Broken {
    Broken::new(module_path!(), error.to_string())
}
