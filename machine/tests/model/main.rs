//! Random runs of the machine next to an independent, naive model of the contract (`checkers/src/oracle.rs`). After each log entry:
//! equal replies, equal rows and histories, the properties of `checkers`, equal hashes of a machine that is reloaded from its
//! archive now and then and of one that never is, and everything that was said reads back from both encodings.

#![allow(clippy::unwrap_used)]

mod drive;
mod find;
mod ops;
mod sessions;

use std::collections::BTreeMap;
use std::fmt::Debug;

use holdfast_checkers::invariants::check_step;
use holdfast_checkers::oracle::{Oracle, plain};
use holdfast_checkers::replay::may_be_better_later;
use holdfast_checkers::{Snapshot, Step as EntryStep};
use holdfast_machine::{
    Applied, Command, DispatchKey, Effect, Entry, Fence, Machine, MemoryArchive, Millis, Reject, Reply, Request, Row,
    SessionReply, limits,
};
use ops::{Op, Step};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::Serialize;
use serde::de::DeserializeOwned;

type Said = Vec<(Request, Result<Reply, Reject>)>;

/// The machines and the oracle, side by side.
struct Run {
    machine: Machine,
    archive: MemoryArchive,
    /// Never reloaded; its writes pile up, so that it reads what it wrote from memory.
    twin: Machine,
    oracle: Oracle,
    past: drive::Past,
    index: u64,
    clock: u64,
    seen: Snapshot,
    /// First replies under idempotency keys, with the log time of each.
    remembered: Vec<(Millis, Request, Result<Reply, Reject>)>,
    /// How often each kind of answer was given.
    answers: BTreeMap<String, usize>,
}

impl Run {
    fn new() -> Self {
        let (machine, archive) = (Machine::default(), MemoryArchive::default());
        let seen = look(&machine, &archive);
        let (twin, oracle, past) = (Machine::default(), Oracle::default(), drive::Past::default());
        let (remembered, answers) = (Vec::new(), BTreeMap::new());
        let (index, clock) = (0, 1_000);
        let mut run = Self { machine, archive, twin, oracle, past, index, clock, seen, remembered, answers };
        run.members(&[1, 1, 1]);
        run.entry(drive::opening().into_iter().map(Request::from).collect());
        run
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Entry(dt, ops) => self.ops(*dt, ops),
            Step::Members(liveness) => self.members(liveness),
            Step::Find(find) => self.find(find),
            Step::Reload => {
                let hash = self.machine.state_hash();
                self.machine = Machine::load(&self.archive).unwrap();
                assert_eq!(self.machine.state_hash(), hash, "a reloaded machine has another hash");
            }
        }
    }

    fn ops(&mut self, dt: i64, ops: &[Op]) {
        self.clock = self.clock.saturating_add_signed(dt);
        let requests = ops.iter().flat_map(|op| self.past.requests(op, &self.oracle)).collect();
        self.entry(requests);
    }

    fn members(&mut self, liveness: &[u8; 3]) {
        self.index += 1;
        let members = drive::members(liveness);
        self.oracle.apply_members(self.index, &members);
        let applied = self.machine.apply_members(self.index, &members, &self.archive).unwrap();
        self.twin.apply_members(self.index, &members, &MemoryArchive::default()).unwrap();
        self.compare(&applied, Vec::new());
    }

    fn entry(&mut self, requests: Vec<Request>) {
        self.index += 1;
        let entry = Entry { at: Millis(self.clock), requests };
        reads_back(&entry);
        let expected = self.oracle.apply(self.index, &entry);
        let applied = self.machine.apply(self.index, entry.clone(), &self.archive).unwrap();
        self.twin.apply(self.index, entry.clone(), &MemoryArchive::default()).unwrap();
        assert_eq!(applied.replies.len(), expected.len(), "a request got no reply");
        for ((request, reply), expected) in entry.requests.iter().zip(&applied.replies).zip(expected) {
            assert_eq!(plain(reply.clone()), plain(expected), "{request:?}");
            self.note(reply);
        }
        let said = entry.requests.into_iter().zip(applied.replies.iter().cloned()).collect();
        self.compare(&applied, said);
    }

    fn note(&mut self, reply: &Result<Reply, Reject>) {
        *self.answers.entry(kind(reply)).or_default() += 1;
        let Ok(Reply::Claimed { claims }) = reply else { return };
        for claim in claims {
            let given = (claim.key.clone(), claim.token);
            if !self.past.tokens.contains(&given) {
                self.past.tokens.push(given);
            }
        }
    }

    /// All that must hold after an entry.
    fn compare(&mut self, applied: &Applied, said: Said) {
        let after = self.commit(applied);
        self.check(&after, &said, &applied.effects);
        self.seen = after;
    }

    fn commit(&mut self, applied: &Applied) -> Snapshot {
        for effect in &applied.effects {
            if let Effect::RowsGiven { .. } = effect {
                *self.answers.entry("Rows given".to_owned()).or_default() += 1;
            }
        }
        applied.replies.iter().for_each(reads_back);
        applied.events.iter().for_each(reads_back);
        self.archive.commit(self.machine.take_writes());
        for (key, row) in &self.oracle.rows {
            let given = row.claim.as_ref().map(|claim| (key.clone(), claim.token));
            self.past.tokens.extend(given.filter(|given| !self.past.tokens.contains(given)));
        }
        assert_eq!(self.machine.state_hash(), self.twin.state_hash(), "two machines, one log, two hashes");
        look(&self.machine, &self.archive)
    }

    fn check(&mut self, after: &Snapshot, said: &Said, effects: &[Effect]) {
        self.remembered.retain(|(at, ..)| at.plus(limits::REPLY_REMEMBERED_MS) >= after.now);
        let remembered: Said =
            self.remembered.iter().map(|(_, request, reply)| (request.clone(), reply.clone())).collect();
        for (request, _) in &remembered {
            assert!(
                self.machine.remembers(request.idempotency_key.as_ref().unwrap()),
                "{request:?} was forgotten early"
            );
        }
        // What comes after a removed workflow has nothing to do with what was before.
        let removed: Vec<_> = self.oracle.removed.iter().map(|id| (id.clone(), self.seen.forget(id))).collect();
        let (index, before) = (self.index, &self.seen);
        check_step(&EntryStep { index, before, after, said, effects, remembered: &remembered, removed: &removed })
            .unwrap();
        self.remember(said, after.now);
        assert_eq!(after.now, self.oracle.now, "log time");
        for id in drive::workflows() {
            let told = after.workflows.get(&id);
            let events = told.map_or(Vec::new(), |told| told.events.iter().collect());
            assert_eq!(events, self.oracle.history(&id), "the history of {id}");
            if let Some(told) = told {
                let (status, run) = self.oracle.status(&id);
                assert_eq!((told.workflow.status, told.workflow.run.number), (status, run), "{id}");
            }
        }
        let mut expected: Vec<(DispatchKey, Row)> = self.oracle.rows.clone();
        for (key, row) in &mut expected {
            row.outcome_seq = self.oracle.outcome(&key.workflow, row.run, key.ordinal).map(|event| event.seq);
        }
        expected.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert_eq!(after.rows.clone().into_iter().collect::<Vec<_>>(), expected, "the rows");
        let sessions: BTreeMap<_, _> = self.oracle.sessions.iter().cloned().collect();
        assert_eq!(after.sessions, sessions, "the sessions");
        let namespaces: BTreeMap<_, _> = self.oracle.namespaces.iter().cloned().collect();
        assert_eq!(after.namespaces, namespaces, "the namespaces");
        let mut timers = self.oracle.timers.clone();
        timers.sort();
        assert_eq!(after.timers, timers, "the timers");
        let mut shards = self.oracle.shards.clone();
        shards.sort_by_key(|entry| entry.shard);
        assert_eq!(after.shards.values().cloned().collect::<Vec<_>>(), shards, "the directory");
    }

    fn remember(&mut self, said: &Said, at: Millis) {
        for (request, reply) in said {
            let Some(key) = &request.idempotency_key else { continue };
            let known = self.remembered.iter().any(|(_, known, _)| known.idempotency_key.as_ref() == Some(key));
            if !known && !may_be_better_later(reply) {
                self.remembered.push((at, request.clone(), reply.clone()));
            }
        }
    }
}

/// The name of an answer, with what tells its important cases apart.
fn kind(reply: &Result<Reply, Reject>) -> String {
    match reply {
        Err(reject) => reject.code().to_owned(),
        Ok(Reply::Claimed { claims }) if claims.is_empty() => "Claimed nothing".to_owned(),
        Ok(Reply::Committed(committed)) if committed.duplicate => "Committed before".to_owned(),
        Ok(Reply::Committed(committed)) if !committed.settled.is_empty() => "Committed and settled".to_owned(),
        Ok(Reply::Committed(committed)) if !committed.transitions.is_empty() => "Committed and moved".to_owned(),
        Ok(Reply::TimerRetired(retirement)) => format!("{retirement:?}"),
        Ok(Reply::Returned(returned)) => format!("Returned {}", returned.status),
        Ok(Reply::Adopted(moved)) if !moved.rearmed.is_empty() => "Adopted with rows".to_owned(),
        Ok(Reply::Transferred(moved)) if !moved.rearmed.is_empty() => "Transferred with rows".to_owned(),
        Ok(Reply::Session(SessionReply::Attached { resumed: true, .. })) => "Attached again".to_owned(),
        Ok(Reply::Session(SessionReply::Closed { rearmed: 1.. })) => "Closed with rows".to_owned(),
        Ok(Reply::Session(reply)) => format!("{reply:?}").split(' ').next().unwrap().to_owned(),
        Ok(Reply::Purged { workflows: 1.., .. }) => "Purged some".to_owned(),
        Ok(reply) => format!("{reply:?}").split([' ', '(']).next().unwrap().to_owned(),
    }
}

fn look(machine: &Machine, archive: &MemoryArchive) -> Snapshot {
    Snapshot::of(machine, archive).unwrap()
}

fn reads_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let bytes = postcard::to_stdvec(value).unwrap();
    assert_eq!(postcard::from_bytes::<T>(&bytes).unwrap(), *value);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *value, "{text}");
}

impl Run {
    /// One command in an entry of its own, after one that lets time do its part. If it is refused, nothing
    /// may be different.
    fn alone(&mut self, command: Command, fence: Option<Fence>) {
        self.entry(vec![Request::from(Command::Tick)]);
        // A row with a timeout of no time at all that this entry gave out comes back with the next one, whatever that says.
        let is_quiet = self.machine.next_deadline().is_none_or(|at| at > self.machine.now());
        let before = self.stored();
        self.index += 1;
        let request = Request { idempotency_key: None, fence, command };
        let entry = Entry { at: Millis(self.clock), requests: vec![request] };
        let expected = self.oracle.apply(self.index, &entry);
        let applied = self.machine.apply(self.index, entry.clone(), &self.archive).unwrap();
        self.twin.apply(self.index, entry.clone(), &MemoryArchive::default()).unwrap();
        let after = self.commit(&applied);
        let reply = &applied.replies[0];
        self.note(reply);
        assert_eq!(plain(reply.clone()), plain(expected[0].clone()));
        if reply.is_err() && is_quiet && !self.finishes_a_rearmed_row(reply) {
            assert_eq!(before, self.stored(), "{entry:?} was refused and changed something");
            assert!(applied.events.is_empty() && applied.effects.is_empty(), "{entry:?} was refused and told of it");
        }
        self.seen = after;
    }

    /// What is stored, but for the machine's own counters.
    fn stored(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut stored = self.archive.0.clone();
        stored.remove(&b"M"[..]);
        stored
    }

    /// The one refusal that has an effect: a row that was re-armed although its activity had its outcome.
    fn finishes_a_rearmed_row(&self, reply: &Result<Reply, Reject>) -> bool {
        let Err(Reject::AlreadyTerminal { key, .. }) = reply else { return false };
        self.seen.rows.get(key).is_some_and(|row| row.status.is_live() && row.outcome_seq.is_some())
    }
}

/// Random runs that never meet an answer would prove nothing about it.
#[test]
fn random_runs_meet_every_answer() {
    let mut runner = TestRunner::deterministic();
    let mut answers: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..250 {
        let mut run = Run::new();
        ops::steps(60).new_tree(&mut runner).unwrap().current().iter().for_each(|step| run.step(step));
        run.answers.into_iter().for_each(|(kind, count)| *answers.entry(kind).or_default() += count);
    }
    println!("{answers:#?}");
    let missing: Vec<&&str> = EXPECTED.iter().filter(|kind| !answers.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

/// Every reply and every refusal, and the cases of some.
const EXPECTED: &[&str] = &[
    "Created",
    "Booted",
    "Assigned",
    "Adopted",
    "Adopted with rows",
    "AlreadyAdopted",
    "Transferred",
    "Transferred with rows",
    "Committed",
    "Committed and settled",
    "Committed and moved",
    "Committed before",
    "Claimed",
    "Claimed nothing",
    "Extended",
    "Completed",
    "Returned pending",
    "Returned failed",
    "NoSuchRow",
    "Settled",
    "Rearmed",
    "Reconciled",
    "Ticked",
    "Found some",
    "Found none",
    "Staged",
    "FailureDelivered",
    "Redriven",
    "NamespacePut",
    "Purged",
    "Purged some",
    "Deleted",
    "Rows given",
    "Attached",
    "Attached again",
    "Detached",
    "Draining",
    "Closed",
    "Closed with rows",
    "session_not_found",
    "session_moved",
    "workflow_open",
    "namespace_deprecated",
    "TimerScheduled",
    "Retired",
    "Superseded",
    "sequence_conflict",
    "not_owner",
    "already_terminal",
    "claim_lost",
    "row_not_found",
    "row_not_claimed",
    "workflow_status",
    "workflow_not_found",
    "workflow_ended",
    "invalid_argument",
    "limit_exceeded",
    "idempotency_conflict",
    "no_such_shard",
    "node_state",
    "workflow_ended",
    "not_dead_letter",
    "already_judged",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_contract_says(steps in ops::steps(40)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
    }

    #[test]
    fn a_refused_command_changes_nothing(steps in ops::steps(30)) {
        let mut run = Run::new();
        for step in &steps {
            let Step::Entry(dt, ops) = step else {
                run.step(step);
                continue;
            };
            run.clock = run.clock.saturating_add_signed(*dt);
            for op in ops {
                for request in run.past.requests(op, &run.oracle) {
                    run.alone(request.command, request.fence);
                }
            }
        }
    }
}
