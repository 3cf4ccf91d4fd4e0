//! Small worlds, searched through to their ends: every order of every message that the bounds allow, over the machine itself.
//! Random runs (`tests/model`) go far and wide and may pass by the one order that matters; these go nowhere that is far
//! and pass by nothing. [`ownership`] is about who may write to a shard, [`claims`] about who may settle a row.
//!
//! # What a state is
//!
//! What is stored, and what the world outside still knows: epochs that it once saw, tokens that it was once given. Each step
//! loads a machine from what is stored, as after a crash, and applies one entry. Messages are never taken out of
//! the network: whatever could once have been said may be said again, at any later time and any number of times, so that late
//! messages, doubled ones and lost ones are all among the paths.
//!
//! # Why the search ends
//!
//! The log index grows with every entry, so no two states would ever be the same. States are told apart without it: by the
//! stored rows, with each index in them replaced by its place among those that the state knows. That loses no
//! behaviour: the machine takes an index from a new entry, where it is larger than all others, and from then on compares indexes,
//! of tokens with those of tokens and of attachments with those of attachments, by equality and order alone. Which state
//! stands for its like is no matter either: the properties speak of nothing but equality and order too. The rolling hash,
//! which covers indexes, is left out; so is when a session was given something, which matters among several
//! sessions only. Everything else is compared as it is stored; log time stands still or has an end.
//!
//! Beside what each search looks for itself, every property of `checkers` is held against every step.

#![allow(clippy::unwrap_used)]

mod claims;
mod ownership;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use holdfast_checkers::coverage::Coverage;
use holdfast_checkers::invariants::{PROPERTIES, check_step};
use holdfast_checkers::{Snapshot, Step};
use holdfast_machine::{
    Applied, Command, Entry, Evidence, Fence, Liveness, Machine, Member, MemoryArchive, Millis, NodeName, Reject,
    Reply, Request,
};
use stateright::{Checker, Model};

/// What is stored after an entry, and what can be seen of it.
#[derive(Clone)]
struct Stored {
    archive: Arc<MemoryArchive>,
    seen: Arc<Snapshot>,
}

/// What came of an entry.
struct Came {
    after: Stored,
    /// One for a request, none for an entry of the membership.
    reply: Option<Result<Reply, Reject>>,
    /// What is wrong, in words; empty if nothing is.
    wrong: String,
    /// True if nothing but the index is different.
    is_as_before: bool,
}

impl Stored {
    fn nothing() -> Self {
        let archive = MemoryArchive::default();
        let seen = Snapshot::of(&Machine::default(), &archive).unwrap();
        Self { archive: Arc::new(archive), seen: Arc::new(seen) }
    }

    /// The next log index.
    fn next(&self) -> u64 {
        self.seen.applied + 1
    }

    fn ask(&self, at: Millis, command: Command) -> Came {
        self.ask_under(at, None, command)
    }

    fn ask_under(&self, at: Millis, fence: Option<Fence>, command: Command) -> Came {
        let request = Request { idempotency_key: None, fence, command };
        let entry = Entry { at, requests: vec![request.clone()] };
        self.step(|machine| machine.apply(self.next(), entry, &*self.archive).unwrap(), Some(request))
    }

    fn members(&self, members: &[Member]) -> Came {
        self.step(|machine| machine.apply_members(self.next(), members, &*self.archive).unwrap(), None)
    }

    fn step(&self, apply: impl FnOnce(&mut Machine) -> Applied, request: Option<Request>) -> Came {
        let mut machine = Machine::load(&*self.archive).unwrap();
        let applied = apply(&mut machine);
        let mut archive = MemoryArchive::clone(&self.archive);
        archive.commit(machine.take_writes());
        let said: Vec<_> = request.into_iter().zip(applied.replies.iter().cloned()).collect();
        // Most messages are refused, or find done what they ask for. What has not changed has been looked at before.
        let is_as_before = archive.0.iter().filter(not_meta).eq(self.archive.0.iter().filter(not_meta))
            && machine.now() == self.seen.now;
        let seen = if is_as_before { self.seen.clone() } else { Arc::new(Snapshot::of(&machine, &archive).unwrap()) };
        let step = Step {
            index: self.next(),
            before: &self.seen,
            after: &seen,
            said: &said,
            effects: &applied.effects,
            remembered: &[],
            removed: &[],
        };
        let checked = match is_as_before {
            true => PROPERTIES.iter().filter_map(|property| property.of_step).try_for_each(|check| check(&step)),
            false => check_step(&step),
        };
        let wrong = checked.err().map_or_else(String::new, |broken| broken.to_string());
        let after = if is_as_before { self.clone() } else { Self { archive: Arc::new(archive), seen } };
        Came { after, reply: applied.replies.into_iter().next(), wrong, is_as_before }
    }

    /// What is stored, but for tables in which log indexes are.
    fn without(&self, tables: &[u8]) -> BTreeMap<&[u8], &[u8]> {
        let all = self.archive.0.iter().map(|(key, value)| (&key[..], &value[..]));
        all.filter(|(key, _)| !tables.contains(&key[0])).collect()
    }
}

/// The machine's own counters change with every entry.
fn not_meta((key, _): &(&Vec<u8>, &Vec<u8>)) -> bool {
    key.as_slice() != b"M"
}

/// A state of a search: what makes it different from others, and what was wrong on the way here.
#[derive(Clone)]
struct State<W> {
    stored: Stored,
    /// What the world outside knows.
    world: W,
    identity: Vec<u8>,
    /// Empty if nothing is wrong.
    wrong: String,
}

impl<W> Hash for State<W> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity.hash(hasher);
        self.wrong.hash(hasher);
    }
}

impl<W> PartialEq for State<W> {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.wrong == other.wrong
    }
}

impl<W: std::fmt::Debug> std::fmt::Debug for State<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("world", &self.world).field("wrong", &self.wrong).finish_non_exhaustive()
    }
}

/// Searches a world through. It must hold no state in which something is wrong, and must have met what it is about.
fn search<M, W>(name: &str, model: M, met: impl FnOnce(&M) -> &Mutex<Coverage>, wanted: &[&str])
where
    M: Model<State = State<W>> + Send + Sync + 'static,
    M::Action: std::fmt::Debug + Clone + PartialEq,
    W: std::fmt::Debug + Clone + Send + Sync + 'static,
{
    let checker = model.checker().spawn_bfs().join();
    if let Some(path) = checker.discoveries().into_values().next() {
        let (actions, last) = (path.clone().into_actions(), path.last_state().wrong.clone());
        panic!("{name}: {last}\nafter {actions:#?}");
    }
    let coverage = met(checker.model()).lock().unwrap().clone();
    println!(
        "{name}: {} states, {} steps, at most {} in a row; {coverage}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth() - 1,
    );
    coverage.met(wanted).unwrap();
}

fn is_right<M, W>(_: &M, state: &State<W>) -> bool {
    state.wrong.is_empty()
}

fn node(number: u8) -> NodeName {
    ["a", "b", "c"][usize::from(number)].parse().unwrap()
}

fn member(number: u8, up: bool) -> Member {
    let liveness = if up { Liveness::Up } else { Liveness::Down { evidence: Evidence::Silent } };
    let (id, name) = (u64::from(number) + 1, node(number));
    Member { id, name, peer_addr: "peer:1".into(), http_addr: String::new(), liveness }
}
