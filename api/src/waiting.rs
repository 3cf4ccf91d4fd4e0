//! Claims that wait for work: who sits where, and who is called when there is some.
//!
//! A waiting claim proposes nothing; it has a seat in the line of its pool (namespace and task queue).
//! When rows of a pool may have become due, [`Waiting::look`] deals what the state shows as due to the
//! seats in the order in which they came, and calls only those that get something. A call that was
//! called but has not left its seat keeps its share, so that nobody else is called for the same rows.
//! A seat is left by dropping it: a caller that is gone leaves nothing behind, and its share is dealt anew.
//!
//! One task on each node ([`watch_for_work`]) looks again when apply says that rows are due, when the time
//! comes at which a row will be, and when a share becomes free.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_machine::{DispatchKey, Effect, Machine, Millis, Namespace, NodeName, Poll, Scope, TaskQueue, WorkflowId};
use holdfast_raft::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::sleep;

use crate::store::Shared;

/// How long the watching task sleeps at most when no row's time is known.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

type Pool = (Namespace, TaskQueue);
/// Rows in the order of claims, with the times from which they are due.
type Rows<'a> = Box<dyn Iterator<Item = (Millis, &'a DispatchKey)> + 'a>;
/// What is left of the rows that seats with the same wish draw from.
type Deck<'a> = Peekable<Rows<'a>>;

/// What a claim is after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Want {
    pub scope: Scope,
    /// Only rows of shards that this node owns.
    pub owner: Option<NodeName>,
    /// Workflows to pass over.
    pub hold: Vec<WorkflowId>,
    /// Most rows.
    pub limit: u32,
}

impl Want {
    fn pool(&self) -> Pool {
        (self.scope.namespace.clone(), self.scope.task_queue.clone())
    }

    /// True if the two are after the same rows, whatever their limits.
    fn is_like(&self, other: &Self) -> bool {
        self.scope == other.scope && self.owner == other.owner && self.hold == other.hold
    }

    /// The rows it may take, with the times from which they are due, in the order of claims.
    fn rows<'a>(&'a self, machine: &'a Machine) -> impl Iterator<Item = (Millis, &'a DispatchKey)> {
        let rows = machine.pending(&self.scope, self.owner.as_ref());
        rows.filter(|(_, key)| !self.hold.contains(&key.workflow))
    }
}

/// All seats of one node.
pub(crate) struct Waiting {
    hall: Mutex<Hall>,
    /// There are pools to look at, or an earlier time to wake at.
    changed: Notify,
    wall: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Hall {
    next_number: u64,
    lines: BTreeMap<Pool, Line>,
    /// Pools in which a share became free.
    stirred: BTreeSet<Pool>,
    clock: LogClock,
}

/// The seats of one pool, first come, first served.
#[derive(Debug, Default)]
struct Line {
    seats: BTreeMap<u64, Place>,
    /// When the next row that somebody here waits for will be due.
    next_due: Option<Millis>,
}

#[derive(Debug)]
struct Place {
    want: Arc<Want>,
    called: bool,
    call: Arc<Notify>,
}

/// A claim's place in the line. Dropping it leaves the line.
pub(crate) struct Seat {
    waiting: Arc<Waiting>,
    pool: Pool,
    number: u64,
    call: Arc<Notify>,
}

impl Waiting {
    /// No seats, at a node that goes by this wall clock.
    pub fn new(wall: Arc<dyn Clock>) -> Self {
        Self { hall: Mutex::default(), changed: Notify::default(), wall }
    }

    fn wall_time(&self) -> Millis {
        Millis(self.wall.now_ms())
    }

    /// Takes the last place of the line for `want`.
    pub fn sit(self: &Arc<Self>, want: Want) -> Seat {
        let pool = want.pool();
        let call = Arc::new(Notify::new());
        let mut hall = self.hall.lock();
        let number = hall.next_number;
        hall.next_number += 1;
        let place = Place { want: Arc::new(want), called: false, call: Arc::clone(&call) };
        hall.lines.entry(pool.clone()).or_default().seats.insert(number, place);
        Seat { waiting: Arc::clone(self), pool, number, call }
    }

    /// Deals the due rows of a pool to its seats, and calls those that get some.
    pub fn look(&self, machine: &Machine, pool: &Pool) {
        let mut hall = self.hall.lock();
        let now = hall.clock.now(machine.now(), self.wall_time());
        let Some(line) = hall.lines.get_mut(pool) else { return };
        let before = line.next_due;
        line.next_due = line.deal(machine, &pool.0, now);
        if line.next_due.is_some() && line.next_due != before {
            self.changed.notify_one();
        }
    }

    /// As [`Waiting::look`], for some of the pools.
    fn look_at(&self, machine: &Machine, which: impl Fn(&Pool) -> bool) {
        let pools: Vec<Pool> = self.hall.lock().lines.keys().filter(|pool| which(pool)).cloned().collect();
        for pool in pools {
            self.look(machine, &pool);
        }
    }

    /// An entry was stamped with this time though a row seemed due: the leader's clock is behind ours.
    pub fn correct_clock(&self, at: Millis) {
        self.hall.lock().clock.correct(at, self.wall_time());
    }

    /// Log time as it is between entries, as far as this node can tell.
    pub fn log_time(&self, machine: &Machine) -> Millis {
        self.hall.lock().clock.now(machine.now(), self.wall_time())
    }

    /// What the seats wait for, those with the same wish once.
    pub fn polls(&self) -> Vec<Poll> {
        let mut polls: Vec<Poll> = Vec::new();
        for place in self.hall.lock().lines.values().flat_map(|line| line.seats.values()) {
            let Want { scope, owner, hold, limit: _ } = &*place.want;
            match polls.iter_mut().find(|poll| poll.scope == *scope && poll.owner == *owner && poll.hold == *hold) {
                Some(poll) => poll.count += 1,
                None => {
                    polls.push(Poll { scope: scope.clone(), owner: owner.clone(), hold: hold.clone(), count: 1 });
                }
            }
        }
        polls
    }

    /// How many claims have a seat.
    pub fn count(&self) -> usize {
        self.hall.lock().lines.values().map(|line| line.seats.len()).sum()
    }

    /// Pools that have to be looked at apart from what apply says: those with a share that became free, and
    /// those with a row whose time has come.
    fn take_stirred(&self, machine: &Machine) -> BTreeSet<Pool> {
        let mut hall = self.hall.lock();
        let now = hall.clock.now(machine.now(), self.wall_time());
        let mut pools = std::mem::take(&mut hall.stirred);
        let due = hall.lines.iter().filter(|(_, line)| line.next_due.is_some_and(|at| at <= now));
        pools.extend(due.map(|(pool, _)| pool.clone()));
        pools
    }

    /// How long it is until the next row's time.
    fn pause(&self, machine: &Machine) -> Duration {
        let mut hall = self.hall.lock();
        let now = hall.clock.now(machine.now(), self.wall_time());
        let next = hall.lines.values().filter_map(|line| line.next_due).min();
        next.map_or(SLEEP_MAX, |at| Duration::from_millis(at.0.saturating_sub(now.0)).min(SLEEP_MAX))
    }
}

impl Seat {
    /// The pool whose line this is.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// True if there was something to take when the line was last looked at.
    pub fn is_called(&self) -> bool {
        let hall = self.waiting.hall.lock();
        let place = hall.lines.get(&self.pool).and_then(|line| line.seats.get(&self.number));
        place.is_some_and(|place| place.called)
    }

    /// Waits to be called.
    pub async fn called(&self) {
        while !self.is_called() {
            self.call.notified().await;
        }
    }

    /// Keeps its place and waits for the next call, after a call that brought nothing.
    pub fn wait_on(&self) {
        let mut hall = self.waiting.hall.lock();
        let place = hall.lines.get_mut(&self.pool).and_then(|line| line.seats.get_mut(&self.number));
        if let Some(place) = place {
            place.called = false;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut hall = self.waiting.hall.lock();
        let Some(line) = hall.lines.get_mut(&self.pool) else { return };
        let left = line.seats.remove(&self.number);
        if line.seats.is_empty() {
            hall.lines.remove(&self.pool);
        } else if left.is_some_and(|place| place.called) {
            hall.stirred.insert(self.pool.clone());
            self.waiting.changed.notify_one();
        }
    }
}

impl Line {
    /// Deals the rows that are due at `now`, first come, first served, and no more of them than the namespace's
    /// ceiling leaves room for. Returns when the next row will be due that somebody who got less than the limit
    /// could take; none without room, for then it is the room that has to be waited for.
    fn deal(&mut self, machine: &Machine, namespace: &Namespace, now: Millis) -> Option<Millis> {
        let room = machine.room_for_claims(namespace).unwrap_or(u64::MAX);
        let wants: Vec<Arc<Want>> = self.seats.values().map(|place| Arc::clone(&place.want)).collect();
        let mut decks: Vec<(&Want, Deck<'_>)> = Vec::new();
        let mut dealt: BTreeSet<&DispatchKey> = BTreeSet::new();
        let mut next_due = None;
        for (place, want) in self.seats.values_mut().zip(&wants) {
            // Seats with the same wish draw from one deck, so that no row is looked at twice for them.
            let known = decks.iter().position(|(other, _)| other.is_like(want));
            let number = known.unwrap_or_else(|| {
                let rows: Rows<'_> = Box::new(want.rows(machine));
                decks.push((want, rows.peekable()));
                decks.len() - 1
            });
            let deck = &mut decks[number].1;
            let mut share = 0;
            while share < want.limit && (dealt.len() as u64) < room {
                let Some((_, key)) = deck.next_if(|(at, _)| *at <= now) else { break };
                share += u32::from(dealt.insert(key));
            }
            if share < want.limit
                && let Some((at, _)) = deck.peek()
            {
                next_due = Some(next_due.map_or(*at, |next: Millis| next.min(*at)));
            }
            if share > 0 && !place.called {
                place.called = true;
                place.call.notify_one();
            }
            if dealt.len() as u64 >= room {
                return None;
            }
        }
        next_due
    }
}

/// An estimate of log time between entries: this node's wall clock, corrected by what entries showed.
#[derive(Debug, Default)]
struct LogClock {
    /// Log time minus wall clock, in milliseconds.
    ahead_ms: i64,
}

impl LogClock {
    fn now(&mut self, log_time: Millis, wall: Millis) -> Millis {
        let estimate = Millis(wall.0.saturating_add_signed(self.ahead_ms));
        if log_time > estimate {
            self.correct(log_time, wall);
            return log_time;
        }
        estimate
    }

    fn correct(&mut self, at: Millis, wall: Millis) {
        let ahead = i128::from(at.0) - i128::from(wall.0);
        self.ahead_ms = ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    }
}

/// Looks at the lines whenever there may be work, until the store is gone.
pub(crate) async fn watch_for_work(store: Weak<Shared>, mut effects: Receiver<(u64, Effect)>) {
    let Some(waiting) = store.upgrade().map(|shared| Arc::clone(&shared.waiting)) else { return };
    let mut pause = Duration::ZERO;
    loop {
        let due = tokio::select! {
            effect = effects.recv() => match drain(effect, &mut effects) {
                Some(due) => due,
                None => return,
            },
            () = waiting.changed.notified() => Due::default(),
            () = sleep(pause) => Due::default(),
        };
        let Some(shared) = store.upgrade() else { return };
        if waiting.count() == 0 {
            pause = SLEEP_MAX;
            continue;
        }
        pause = shared.raft.view(|machine, _| {
            if due.everywhere {
                waiting.look_at(machine, |_| true);
            }
            for namespace in &due.namespaces {
                waiting.look_at(machine, |pool| pool.0 == *namespace);
            }
            for pool in waiting.take_stirred(machine).union(&due.pools) {
                waiting.look(machine, pool);
            }
            waiting.pause(machine)
        });
    }
}

/// Pools in which rows may have become due.
#[derive(Debug, Default)]
struct Due {
    pools: BTreeSet<Pool>,
    /// Namespaces that have room for claims again.
    namespaces: BTreeSet<Namespace>,
    everywhere: bool,
}

impl Due {
    fn note(&mut self, effect: Effect) {
        match effect {
            Effect::RowsDue { namespace, task_queue, .. } => {
                self.pools.insert((namespace, task_queue));
            }
            // The node's own claims may take the rows of a shard from now on, and a state that jumped to a snapshot
            // says no more than that the topology changed.
            Effect::ShardAcquired { .. } | Effect::TopologyChanged => self.everywhere = true,
            Effect::RoomForClaims { namespace } => {
                self.namespaces.insert(namespace);
            }
            Effect::ShardLost { .. }
            | Effect::HistoryGrew { .. }
            | Effect::RowsGiven { .. }
            | Effect::SessionChanged { .. }
            | Effect::DeadLetter { .. }
            | Effect::TimersDue { .. }
            | Effect::Checkpoint { .. } => {}
        }
    }
}

/// All effects that have come; none when no more will.
fn drain(first: Result<(u64, Effect), RecvError>, effects: &mut Receiver<(u64, Effect)>) -> Option<Due> {
    let mut due = Due::default();
    match first {
        Ok((_, effect)) => due.note(effect),
        Err(RecvError::Lagged(_)) => due.everywhere = true,
        Err(RecvError::Closed) => return None,
    }
    loop {
        match effects.try_recv() {
            Ok((_, effect)) => due.note(effect),
            Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_)) => due.everywhere = true,
            Err(_) => return Some(due),
        }
    }
}

#[cfg(test)]
mod tests;
