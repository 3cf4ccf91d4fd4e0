//! Dispatch: due rows go to worker sessions that have room for them, at the end of the very entry that made the one or
//! the other.
//!
//! So nothing is ever claimed without somebody who takes it, no session holds more than it said it can, and no node
//! competes with another for work. After each entry no due row waits that a session could take, so the next entry
//! need only look at what it has stirred itself:
//!
//! 1. sessions with new room (attached, or one of their rows left them), by turn: one row each in a round, from
//!    their namespaces in rotation;
//! 2. pools with newly due rows, or whose namespace has room again: rows in the order of claims, each to the session
//!    that takes it and was given work longest ago.
//!
//! An entry gives so many rows and no more, and none as long as it has left deadlines of rows behind; if that cuts it
//! short, the next one looks at all sessions that have room.

use std::collections::BTreeSet;

use crate::event::Effect;
use crate::id::{ClaimToken, DispatchKey, Millis, Namespace, SessionId};
use crate::keys;
use crate::limits::ROWS_GIVEN_PER_ENTRY_MAX;
use crate::outbox::{Holder, Row};
use crate::row_index::{Lane, Pool};
use crate::session_index::{Place, Sessions, Turn};
use crate::state::{Apply, Machine};

/// What an entry has stirred, and whom it has to tell.
#[derive(Debug, Default)]
pub(crate) struct Stirred {
    /// Sessions that may have new room.
    pub sessions: BTreeSet<SessionId>,
    pools: BTreeSet<Pool>,
    /// Tokens that the command under way was made with: their holders know what becomes of their rows.
    pub presented: BTreeSet<ClaimToken>,
    /// Sessions whose rows were changed by another hand, or whose attachment was.
    pub changed: BTreeSet<SessionId>,
    given: BTreeSet<SessionId>,
}

impl Stirred {
    /// A row is there to be taken. A session that has no room yet is stirred itself once it has.
    pub fn row(&mut self, sessions: &Sessions, row: &Row, now: Millis) {
        if row.visible_after <= now && sessions.anyone_ready() {
            self.pools.insert((row.namespace.clone(), row.task_queue.clone()));
        }
    }
}

/// The session that holds a row, and its claim.
pub(crate) fn session_claim(row: &Row) -> Option<(&SessionId, ClaimToken)> {
    let claim = row.claim.as_ref()?;
    match &claim.holder {
        Holder::Session { session } => Some((session, claim.token)),
        Holder::Node { .. } | Holder::Lease { .. } => None,
    }
}

impl Machine {
    /// When log time next lets a session take a row: the earliest time from which a row is due that a session with
    /// room takes. It has come already if the last entry had more rows to give than one entry may.
    pub fn next_dispatch_due(&self) -> Option<Millis> {
        if self.meta.dispatch_cut {
            return Some(self.meta.now);
        }
        let mut first: Option<Millis> = None;
        for serves in self.sessions.ready_crews() {
            for pool in serves.pools.iter().filter(|(namespace, _)| self.room_for_claims(namespace) != Some(0)) {
                let heads = self.index.heads(pool).filter(|(lane, _)| serves.takes(lane)).map(|(_, (at, _))| *at);
                first = heads.filter(|at| *at > self.meta.now).chain(first).min();
            }
        }
        first
    }
}

impl Apply<'_> {
    /// Log time has moved on: rows that are due since are there to be taken.
    pub fn pass_rows(&mut self) {
        let passed = self.state.index.upcoming.pass(self.now());
        if self.state.sessions.anyone_ready() {
            self.stirred.pools.extend(passed);
        }
    }

    /// A namespace has room for claims again.
    pub fn stir_namespace(&mut self, namespace: &Namespace) {
        if self.state.sessions.anyone_ready() {
            self.stirred.pools.extend(self.state.sessions.pools_of(namespace));
        }
    }

    /// Keeps what sessions hold in step with a row that changes.
    pub fn follow_claim(&mut self, key: &DispatchKey, before: Option<&Row>, after: &Row) {
        let (before, after) = (before.and_then(session_claim), session_claim(after));
        if before == after {
            return;
        }
        let now = self.now();
        if let Some((session, token)) = before {
            self.state.sessions.release(session, token, now);
            self.stirred.sessions.insert(session.clone());
            if !self.stirred.presented.contains(&token) {
                self.stirred.changed.insert(session.clone());
            }
        }
        if let Some((session, token)) = after {
            self.state.sessions.hold(session, token, key.clone(), now);
        }
    }

    /// Gives due rows to sessions with room, as far as the entry has stirred the one or the other. The last thing in
    /// each entry.
    pub fn dispatch(&mut self) {
        if std::mem::take(&mut self.state.meta.dispatch_cut) {
            self.stirred.sessions.extend(self.state.sessions.ready().cloned());
        }
        self.state.meta.dispatch_cut = self.give_rows().is_err();
        for session in std::mem::take(&mut self.stirred.given) {
            if let Some(turn) = self.state.sessions.turn(&session).cloned() {
                self.state.put(keys::turn(&session), &turn);
            }
            self.effects.push(Effect::RowsGiven { session });
        }
        for session in std::mem::take(&mut self.stirred.changed) {
            self.effects.push(Effect::SessionChanged { session });
        }
    }

    fn give_rows(&mut self) -> Result<(), Cut> {
        // A row whose time is up waits for the entry that says so; it must not be begun meanwhile.
        if self.state.sessions.anyone_ready() && self.state.index.overdue(self.now()).is_some() {
            return Err(Cut);
        }
        let mut left = ROWS_GIVEN_PER_ENTRY_MAX;
        self.serve_sessions(&mut left)?;
        self.serve_pools(&mut left)
    }

    /// One row for each session with new room in a round, until they are full or find none.
    fn serve_sessions(&mut self, left: &mut usize) -> Result<(), Cut> {
        let stirred = std::mem::take(&mut self.stirred.sessions);
        let mut turns: BTreeSet<Place> =
            stirred.iter().filter_map(|session| self.state.sessions.ready_place(session)).collect();
        while let Some((_, session)) = turns.pop_first() {
            let Some(key) = self.next_row_for(&session) else { continue };
            self.give(&key, &session, left)?;
            turns.extend(self.state.sessions.ready_place(&session));
        }
        Ok(())
    }

    /// The first due row that a session takes, of the first of its namespaces that has one. The one behind the
    /// namespace that it was served from last comes first.
    fn next_row_for(&self, session: &SessionId) -> Option<DispatchKey> {
        let Machine { sessions, index, .. } = &*self.state;
        let (serves, now) = (sessions.serves(session)?, self.now());
        let last = sessions.turn(session).map(|turn| &turn.namespace);
        let after = serves.pools.iter().position(|(namespace, _)| Some(namespace) == last).map_or(0, |at| at + 1);
        let (before, behind) = serves.pools.split_at(after);
        let mut rotation = behind.iter().chain(before).filter(|(namespace, _)| self.has_room(namespace));
        rotation.find_map(|pool| {
            let heads = index.heads(pool).filter(|(lane, (at, _))| *at <= now && serves.takes(lane));
            heads.map(|(_, head)| head).min().map(|(_, key)| key.clone())
        })
    }

    fn serve_pools(&mut self, left: &mut usize) -> Result<(), Cut> {
        for pool in std::mem::take(&mut self.stirred.pools) {
            self.serve_pool(&pool, left)?;
        }
        Ok(())
    }

    /// Due rows of a pool in the order of claims, as long as a session takes them.
    fn serve_pool(&mut self, pool: &Pool, left: &mut usize) -> Result<(), Cut> {
        let now = self.now();
        let Machine { sessions, index, .. } = &*self.state;
        let served = index.heads(pool).filter(|(lane, (at, _))| *at <= now && sessions.taker(pool, lane).is_some());
        // The first row of each lane; a lane leaves when nobody takes its rows any more.
        let mut heads: BTreeSet<((Millis, DispatchKey), Lane)> =
            served.map(|(lane, head)| (head.clone(), lane.clone())).collect();
        while let Some(((_, key), lane)) = heads.pop_first() {
            if !self.has_room(&pool.0) {
                return Ok(());
            }
            let Some(session) = self.state.sessions.taker(pool, &lane) else { continue };
            self.give(&key, &session, left)?;
            let next = self.state.index.head(pool, &lane).filter(|(at, _)| *at <= now).cloned();
            heads.extend(next.map(|head| (head, lane)));
        }
        Ok(())
    }

    fn give(&mut self, key: &DispatchKey, session: &SessionId, left: &mut usize) -> Result<(), Cut> {
        *left = left.checked_sub(1).ok_or(Cut)?;
        let holder = Holder::Session { session: session.clone() };
        // The index lists live rows only, and each of them is in the map.
        let Some((token, namespace)) = self.take_row(key, holder, None) else { return Ok(()) };
        self.state.sessions.set_turn(session, Turn { last: token, namespace });
        self.stirred.given.insert(session.clone());
        Ok(())
    }
}

/// The entry has given as many rows as it may, and there may be more to give.
struct Cut;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Commit, Transition};
    use crate::history::{EventKind, NewEvent};
    use crate::namespace::NamespaceSettings;
    use crate::session::{SessionChange, Worker};
    use crate::trial::{Trial, id, new_row, worker};

    fn token(trial: &Trial, key: &str) -> ClaimToken {
        trial.row(key).unwrap().claim.unwrap().token
    }

    fn stage(trial: &mut Trial, workflow: &str, namespace: &str, rows: Vec<crate::NewRow>) -> Vec<Effect> {
        let command = Command::Stage { workflow: id(workflow), namespace: id(namespace), rows };
        trial.apply(vec![command.into()]).effects
    }

    fn ceiling(trial: &mut Trial, claimed_max: u32) {
        let settings = NamespaceSettings { claimed_max: Some(claimed_max), ..Default::default() };
        trial.ask(Command::PutNamespace { namespace: Default::default(), settings }).unwrap();
    }

    #[test]
    fn work_goes_to_whoever_has_waited_longest_and_never_past_its_room() {
        let mut trial = Trial::new();
        for session in ["s1", "s2"] {
            trial.attach(session, worker(2));
        }
        trial.start("order-1", [1]);
        trial.start("held", [1, 2]);
        assert_eq!(
            (trial.held("s1"), trial.held("s2")),
            (vec!["order-1:1".into(), "held:2".into()], vec!["held:1".into()])
        );
        trial.start("order-2", [1, 2]);
        assert_eq!(trial.held("s2"), ["held:1", "order-2:1"]);
        assert_eq!((trial.held("s1").len(), trial.machine.row_counts().pending), (2, 1));
        let token = token(&trial, "held:1");
        trial.complete(&id("held:1"), token).unwrap();
        assert_eq!(trial.held("s2"), ["order-2:1", "order-2:2"], "the room that an outcome makes is filled with it");
    }

    #[test]
    fn a_backlog_is_shared_out_in_rounds() {
        let mut trial = Trial::new();
        trial.start("order-1", 1..=5);
        let to = crate::session::Attached { node: id("a"), boot: id("1") };
        let attach = |session| Command::Session {
            session: id(session),
            change: SessionChange::Attach { worker: worker(9), to: to.clone() },
        };
        trial.apply(vec![attach("s1").into(), attach("s2").into()]);
        assert_eq!(trial.held("s1"), ["order-1:1", "order-1:3", "order-1:5"]);
        assert_eq!(trial.held("s2"), ["order-1:2", "order-1:4"]);
    }

    #[test]
    fn a_worker_takes_its_namespaces_in_turn() {
        let mut trial = Trial::new();
        for (workflow, namespace) in [("order-1", "x"), ("order-2", "y")] {
            stage(&mut trial, workflow, namespace, (1..=3).map(new_row).collect());
        }
        let namespaces = ["x", "none", "y"].map(id).to_vec();
        trial.attach("s", Worker { namespaces, ..worker(3) });
        assert_eq!(trial.held("s"), ["order-1:1", "order-2:1", "order-1:2"]);
        // The one behind the last one comes next, in a machine that has been loaded too.
        trial.machine = Machine::load(&trial.archive).unwrap();
        let token = token(&trial, "order-1:1");
        trial.complete(&id("order-1:1"), token).unwrap();
        assert_eq!(trial.held("s").pop().unwrap(), "order-2:2");
    }

    #[test]
    fn rows_find_sessions_that_take_them() {
        let mut trial = Trial::new();
        let activity_types = vec![id("mail")];
        trial.attach("mail", Worker { activity_types, ..worker(9) });
        trial.attach("on b", Worker { node: Some(id("b")), ..worker(9) });
        trial.attach("elsewhere", Worker { task_queue: id("other"), ..worker(9) });
        let mail = |ordinal| crate::NewRow { activity_type: id("mail"), ..new_row(ordinal) };
        let pinned = |ordinal, node: &str| crate::NewRow { node: Some(id(node)), ..new_row(ordinal) };
        let rows = vec![mail(1), mail(2), new_row(3), pinned(4, "b"), pinned(5, "a")];
        stage(&mut trial, "order-1", "default", rows);
        assert_eq!(trial.held("mail"), ["order-1:1"]);
        assert_eq!(trial.held("on b"), ["order-1:2", "order-1:3", "order-1:4"]);
        assert_eq!(trial.row("order-1:5").unwrap().status, crate::RowStatus::Pending);
        let serving = trial.machine.sessions_serving(&Default::default(), &id("other")).count();
        assert_eq!(serving, 1);
    }

    #[test]
    fn rows_are_given_when_log_time_reaches_them() {
        let mut trial = Trial::new();
        let later = |ordinal, at| crate::NewRow { visible_after: Millis(at), ..new_row(ordinal) };
        stage(&mut trial, "order-1", "default", vec![later(1, 1_500), later(2, 2_000)]);
        assert_eq!(trial.machine.next_dispatch_due(), None, "nobody is there to take it");
        let attachment = trial.attach("s", Worker { lease_ms: 9_999, ..worker(1) });
        assert_eq!(trial.machine.next_dispatch_due(), Some(Millis(1_500)));
        trial.machine = Machine::load(&trial.archive).unwrap();
        trial.at = 1_500;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(trial.held("s"), ["order-1:1"]);
        assert_eq!(trial.machine.next_dispatch_due(), None, "it is full");
        let handed_back = token(&trial, "order-1:1");
        let retry = Command::Retry { key: id("order-1:1"), token: Some(handed_back), delay_ms: 600 };
        trial.ask(retry).unwrap();
        assert_eq!(trial.machine.next_dispatch_due(), Some(Millis(2_000)));
        ceiling(&mut trial, 0);
        assert_eq!(trial.machine.next_dispatch_due(), None, "its namespace has no room");
        trial.at = 3_000;
        ceiling(&mut trial, 1);
        assert_eq!(trial.held("s"), ["order-1:2"]);
        trial.change("s", SessionChange::Drain { attachment }).unwrap();
    }

    #[test]
    fn a_ceiling_and_a_pause_hold_rows_back_until_they_are_lifted() {
        let mut trial = Trial::new();
        ceiling(&mut trial, 1);
        trial.attach("s", worker(9));
        trial.start("order-1", [1, 2]);
        trial.append("order-1", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
        trial.start("order-2", [1]);
        assert_eq!(trial.held("s"), ["order-1:1"]);
        let token = token(&trial, "order-1:1");
        trial.complete(&id("order-1:1"), token).unwrap();
        assert_eq!(trial.held("s"), ["order-2:1"], "what is paused waits");
        trial.append("order-1", NewEvent::of(EventKind::WorkflowResumed)).unwrap();
        assert_eq!(trial.held("s"), ["order-2:1"]);
        ceiling(&mut trial, 2);
        assert_eq!(trial.held("s"), ["order-2:1", "order-1:2"]);
    }

    #[test]
    fn an_entry_gives_so_many_rows_and_the_next_one_goes_on() {
        let mut trial = Trial::new();
        let most = ROWS_GIVEN_PER_ENTRY_MAX as u64;
        for session in ["s1", "s2"] {
            trial.attach(session, worker(1_000));
        }
        trial.start("order-1", 0..most);
        assert_eq!(trial.machine.next_dispatch_due(), None, "there was not one more to give");
        trial.ask(Command::Settle { workflow: id("order-1") }).unwrap();
        trial.start("order-2", 0..most + 5);
        assert_eq!(trial.machine.row_counts().pending, 5);
        assert_eq!(trial.machine.next_dispatch_due(), Some(Millis(trial.at)));
        trial.machine = Machine::load(&trial.archive).unwrap();
        trial.ask(Command::Tick).unwrap();
        assert_eq!((trial.machine.row_counts().pending, trial.machine.next_dispatch_due()), (0, None));
    }

    #[test]
    fn a_row_whose_time_is_up_is_given_to_nobody() {
        let mut trial = Trial::new();
        let most = crate::limits::DEADLINES_PASSED_PER_ENTRY_MAX as u64;
        let timeouts = crate::Timeouts { schedule_to_start_ms: Some(10), ..Default::default() };
        let row = |ordinal| crate::NewRow { timeouts: timeouts.clone(), ..new_row(ordinal) };
        stage(&mut trial, "order-1", "default", (0..most + 2).map(row).collect());
        trial.start("order-2", [1]);
        trial.at += 10;
        // This entry passes so many deadlines and no more.
        trial.attach("s", worker(9));
        assert_eq!((trial.held("s").len(), trial.machine.row_counts().pending), (0, 3));
        assert_eq!(trial.machine.next_dispatch_due(), Some(Millis(trial.at)));
        trial.machine = Machine::load(&trial.archive).unwrap();
        trial.ask(Command::Tick).unwrap();
        assert_eq!((trial.held("s"), trial.machine.next_dispatch_due()), (vec!["order-2:1".into()], None));
    }

    #[test]
    fn sessions_are_told_once_of_what_they_are_given_and_of_what_others_take() {
        let mut trial = Trial::new();
        trial.attach("s", worker(9));
        let told = |effects: Vec<Effect>| -> (usize, usize) {
            let count = |of: &Effect| effects.iter().filter(|effect| *effect == of).count();
            (count(&Effect::RowsGiven { session: id("s") }), count(&Effect::SessionChanged { session: id("s") }))
        };
        assert_eq!(told(stage(&mut trial, "order-1", "default", (1..=5).map(new_row).collect())), (1, 0));
        let own = Transition { ordinal: 1, token: Some(token(&trial, "order-1:1")), action: complete() };
        let by_key = |ordinal| Transition { ordinal, token: None, action: complete() };
        let commit = |head, transitions| {
            let commit = Commit { transitions, ..Commit::new(id("order-1"), head) };
            Command::Commit(commit.event(NewEvent::of(EventKind::SignalReceived)))
        };
        assert_eq!(told(trial.apply(vec![commit(0, vec![own]).into()]).effects), (0, 0), "its own doing");
        assert_eq!(told(trial.apply(vec![commit(2, vec![by_key(2)]).into()]).effects), (0, 1));
        // A token that was presented to no avail excuses nothing that another hand does.
        let token = token(&trial, "order-1:3");
        let refused = Transition { ordinal: 3, token: Some(token), action: complete() };
        let refused = commit(4, vec![refused, by_key(9)]);
        let settle = Command::Settle { workflow: id("order-1") };
        let applied = trial.apply(vec![refused.into(), settle.into()]);
        assert!(applied.replies[0].is_err() && applied.replies[1].is_ok(), "{:?}", applied.replies);
        assert_eq!((told(applied.effects), trial.held("s").len()), ((0, 1), 0));
        trial.start("order-2", [1]);
        for kind in [EventKind::WorkflowPaused, EventKind::WorkflowResumed] {
            let commit = Commit::new(id("order-2"), trial.workflow("order-2").unwrap().head).event(NewEvent::of(kind));
            assert_eq!(told(trial.apply(vec![Command::Commit(commit).into()]).effects), (0, 1));
        }
        let older = Command::Reconcile { older_than_ms: 0, limit: 9, excluded: Vec::new() };
        trial.ask(older).unwrap();
        assert_eq!(trial.held("s"), ["order-2:1"], "its session vouches for it");
    }

    fn complete() -> crate::RowAction {
        crate::RowAction::Complete { result: Default::default() }
    }
}
