//! What happens to a session: it is attached and extended, it loses its connection, it ends.

use crate::archive::ArchiveResult;
use crate::event::ClusterEvent;
use crate::id::{BootId, Millis, NodeName, SessionId};
use crate::keys;
use crate::limits::{DEADLINES_PASSED_PER_ENTRY_MAX, SESSIONS_MAX};
use crate::member::Liveness;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::session::{Attached, Disconnected, Session, SessionChange, SessionReply, Worker};
use crate::shard::{BOOTED_SINCE, NO_MEMBER};
use crate::state::Apply;

impl Apply<'_> {
    pub fn session(&mut self, id: SessionId, change: SessionChange) -> Result<Reply, Reject> {
        let reply = match change {
            SessionChange::Attach { worker, to } => self.attach(id, worker, to),
            SessionChange::Extend { attachment } => self.extend(&id, attachment),
            SessionChange::Detach { attachment } => self.detach(&id, attachment),
            SessionChange::Drain { attachment } => self.drain(&id, attachment),
            SessionChange::Close { attachment } => self.close(&id, attachment),
        };
        reply.map(Reply::Session)
    }

    fn attach(&mut self, id: SessionId, worker: Worker, to: Attached) -> Result<SessionReply, Reject> {
        worker.check()?;
        self.check_attaches(&to)?;
        let (now, known) = (self.now(), self.state.sessions.get(&id));
        let sessions = self.state.sessions.len() as u64;
        if known.is_none() && sessions >= SESSIONS_MAX {
            let what = "the number of sessions".to_owned();
            return Err(Reject::LimitExceeded { what, limit: SESSIONS_MAX, actual: sessions + 1 });
        }
        if known.is_some_and(|session| session.deadline <= now) {
            self.end_session(&id, Disconnected::LeaseEnded);
        }
        let before = self.state.sessions.get(&id);
        let resumed = before.is_some();
        let (opened_at, attachment) =
            before.map_or((now, self.log_index), |session| (session.opened_at, session.attachment + 1));
        // Another connection is no reason to take on more than was wanted.
        let draining = before.is_some_and(|session| session.draining);
        let (identity, node) = (worker.identity.clone(), to.node.clone());
        let deadline = now.plus(worker.lease_ms);
        let session = Session { worker, opened_at, deadline, attachment, attached: Some(to), draining };
        self.put_session(&id, session);
        self.stirred.sessions.insert(id.clone());
        self.stirred.changed.insert(id.clone());
        self.events.push(ClusterEvent::WorkerConnected { session: id, identity, node, resumed });
        Ok(SessionReply::Attached { attachment, deadline, resumed })
    }

    /// Only a process that is its node's current one can push work to a worker.
    fn check_attaches(&self, to: &Attached) -> Result<(), Reject> {
        let problem = match self.state.members.get(&to.node) {
            None => NO_MEMBER,
            Some(state) if state.boot.as_ref() != Some(&to.boot) => BOOTED_SINCE,
            Some(state) if matches!(state.member.liveness, Liveness::Down { .. }) => "is committed as down",
            Some(_) => return Ok(()),
        };
        Err(Reject::NodeState { node: to.node.clone(), problem: problem.to_owned() })
    }

    /// The session, if `attachment` is its current or last one.
    fn current(&self, id: &SessionId, attachment: u64) -> Result<Session, Reject> {
        let session = self.state.sessions.get(id).filter(|session| session.deadline > self.now());
        let session = session.ok_or_else(|| Reject::SessionNotFound { session: id.clone() })?;
        if session.attachment == attachment {
            return Ok(session.clone());
        }
        Err(Reject::SessionMoved { session: id.clone() })
    }

    /// The session, if `attachment` is its current one and has not been given up.
    fn attached(&self, id: &SessionId, attachment: u64) -> Result<Session, Reject> {
        let session = self.current(id, attachment)?;
        if session.attached.is_some() { Ok(session) } else { Err(Reject::SessionMoved { session: id.clone() }) }
    }

    fn extend(&mut self, id: &SessionId, attachment: u64) -> Result<SessionReply, Reject> {
        let mut session = self.attached(id, attachment)?;
        let deadline = self.now().plus(session.worker.lease_ms);
        session.deadline = deadline;
        self.put_session(id, session);
        Ok(SessionReply::Extended { deadline })
    }

    fn detach(&mut self, id: &SessionId, attachment: u64) -> Result<SessionReply, Reject> {
        let session = self.current(id, attachment)?;
        if session.attached.is_some() {
            self.disconnect(id, session, Disconnected::ConnectionLost);
        }
        Ok(SessionReply::Detached)
    }

    fn drain(&mut self, id: &SessionId, attachment: u64) -> Result<SessionReply, Reject> {
        let mut session = self.attached(id, attachment)?;
        session.draining = true;
        self.put_session(id, session);
        Ok(SessionReply::Draining)
    }

    fn close(&mut self, id: &SessionId, attachment: u64) -> Result<SessionReply, Reject> {
        self.current(id, attachment)?;
        Ok(SessionReply::Closed { rearmed: self.end_session(id, Disconnected::Closed) })
    }

    /// The process that sessions were attached to is gone. They keep their rows.
    pub fn detach_from(&mut self, node: &NodeName, but: Option<&BootId>) {
        for id in self.state.sessions.attached_to(node) {
            let Some(session) = self.state.sessions.get(&id).cloned() else { continue };
            if session.attached.as_ref().is_some_and(|attached| Some(&attached.boot) != but) {
                self.disconnect(&id, session, Disconnected::NodeGone);
            }
        }
    }

    fn disconnect(&mut self, id: &SessionId, mut session: Session, reason: Disconnected) {
        let identity = session.worker.identity.clone();
        session.attached = None;
        self.put_session(id, session);
        self.stirred.changed.insert(id.clone());
        self.events.push(ClusterEvent::WorkerDisconnected { session: id.clone(), identity, reason, rearmed: 0 });
    }

    /// Ends the sessions whose lease log time has passed. Runs before the commands of each entry.
    pub fn end_sessions(&mut self) -> ArchiveResult<()> {
        let now = self.now();
        let ended = |at: &Millis| *at <= now;
        let mut left = DEADLINES_PASSED_PER_ENTRY_MAX as u64;
        while left > 0 {
            let Some((at, id)) = self.state.sessions.first_end().filter(|(at, _)| ended(at)).cloned() else { break };
            // What had passed by then has happened to its rows before.
            self.pass_deadlines(at)?;
            let rearmed = self.end_session(&id, Disconnected::LeaseEnded);
            left = left.saturating_sub(1 + rearmed);
        }
        self.state.sessions.lapse(now);
        Ok(())
    }

    /// Takes a session out and puts the rows that it held back to pending; returns how many.
    pub fn end_session(&mut self, id: &SessionId, reason: Disconnected) -> u64 {
        let turn = self.state.sessions.turn(id).is_some();
        let Some((session, held)) = self.state.sessions.remove(id) else { return 0 };
        self.state.delete(keys::session(id));
        if turn {
            self.state.delete(keys::turn(id));
        }
        let rearmed = held.len() as u64;
        for key in held.into_values() {
            let shard = self.state.shard_of(&key.workflow);
            if let Some(row) = self.state.rows.get(shard, &key).cloned() {
                self.rearm_row(&key, row);
            }
        }
        self.stirred.changed.insert(id.clone());
        let identity = session.worker.identity;
        self.events.push(ClusterEvent::WorkerDisconnected { session: id.clone(), identity, reason, rearmed });
        rearmed
    }

    fn put_session(&mut self, id: &SessionId, session: Session) {
        self.state.put(keys::session(id), &session);
        let now = self.now();
        self.state.sessions.put(id, session, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::event::Effect;
    use crate::id::DispatchKey;
    use crate::outbox::RowStatus;
    use crate::trial::{DOWN, Trial, id, member, worker};

    fn attach_to(node: &str, boot: &str) -> SessionChange {
        SessionChange::Attach { worker: worker(2), to: Attached { node: id(node), boot: id(boot) } }
    }

    fn token(trial: &Trial, key: &str) -> crate::ClaimToken {
        trial.row(key).unwrap().claim.unwrap().token
    }

    #[test]
    fn only_the_current_attachment_speaks_for_its_session() {
        let mut trial = Trial::new();
        let first = trial.attach("s", worker(2));
        let second = trial.attach("s", worker(2));
        let moved = Err(Reject::SessionMoved { session: id("s") });
        assert_eq!(trial.change("s", SessionChange::Extend { attachment: first }), moved);
        assert_eq!(trial.change("s", SessionChange::Detach { attachment: first }), moved);
        assert_eq!(trial.change("s", SessionChange::Close { attachment: first }), moved);
        assert!(trial.change("s", SessionChange::Extend { attachment: second }).is_ok());
        assert_eq!(trial.change("s", SessionChange::Detach { attachment: second }), Ok(SessionReply::Detached));
        assert_eq!(trial.change("s", SessionChange::Detach { attachment: second }), Ok(SessionReply::Detached));
        assert_eq!(trial.change("s", SessionChange::Extend { attachment: second }), moved);
        assert_eq!(trial.change("s", SessionChange::Drain { attachment: second }), moved);
        let closed = Ok(SessionReply::Closed { rearmed: 0 });
        assert_eq!(trial.change("s", SessionChange::Close { attachment: second }), closed);
        let gone = Err(Reject::SessionNotFound { session: id("s") });
        assert_eq!(trial.change("s", SessionChange::Close { attachment: second }), gone);
        let third = trial.attach("s", worker(2));
        assert!(third > second, "a name that is used again has other numbers: {third}, {second}");
    }

    #[test]
    fn what_a_worker_registers_is_checked() {
        let mut trial = Trial::new();
        let mut refused = |change: &dyn Fn(&mut Worker)| {
            let mut worker = worker(1);
            change(&mut worker);
            let to = Attached { node: id("a"), boot: id("1") };
            let change = SessionChange::Attach { worker, to };
            let reject = trial.change("s", change.clone()).unwrap_err();
            let command = Command::Session { session: id("s"), change };
            assert_eq!(crate::Limits::default().check(&command).as_ref(), Err(&reject), "at the entrance too");
            reject.code()
        };
        assert_eq!(refused(&|worker| worker.namespaces.clear()), "invalid_argument");
        assert_eq!(refused(&|worker| worker.namespaces.push(Default::default())), "invalid_argument");
        assert_eq!(refused(&|worker| worker.max_concurrency = 0), "invalid_argument");
        assert_eq!(refused(&|worker| worker.lease_ms = 0), "invalid_argument");
        assert_eq!(refused(&|worker| worker.max_concurrency = 1_001), "limit_exceeded");
        let many = |name: &str, count: u32| (0..count).map(|n| format!("{name}{n}")).collect::<Vec<_>>();
        let namespaces = many("n", 101);
        assert_eq!(refused(&|worker| worker.namespaces = namespaces.iter().map(|n| id(n)).collect()), "limit_exceeded");
        let types = many("t", 1_001);
        assert_eq!(refused(&|worker| worker.activity_types = types.iter().map(|t| id(t)).collect()), "limit_exceeded");
        for change in [attach_to("nobody", "1"), attach_to("a", "2")] {
            assert!(matches!(trial.change("s", change), Err(Reject::NodeState { .. })));
        }
        let long = Command::Session { session: id("s"), change: attach_to("a", "1") };
        let limits = crate::Limits { lease_ms_max: 999, ..Default::default() };
        assert_eq!(limits.check(&long).unwrap_err().code(), "limit_exceeded");
    }

    #[test]
    fn a_session_ends_with_its_lease_and_its_rows_are_handed_out_again() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2]);
        let attachment = trial.attach("s", worker(2));
        let (key, first): (DispatchKey, _) = (id("order-1:1"), token(&trial, "order-1:1"));
        trial.at += 500;
        let deadline = crate::Millis(trial.at + 1_000);
        let extended = trial.change("s", SessionChange::Extend { attachment });
        assert_eq!(extended, Ok(SessionReply::Extended { deadline }));
        let heartbeat =
            Command::Heartbeat { key: key.clone(), token: first, lease_ms: 7, details: crate::Payload::text("half") };
        assert_eq!(trial.ask(heartbeat), Ok(Reply::Extended { deadline }), "it goes on as long as the session");
        assert_eq!(trial.machine.next_session_end(), Some(deadline));
        trial.at += 999;
        trial.ask(Command::Tick).unwrap();
        assert_eq!(trial.held("s").len(), 2);
        trial.at += 1;
        trial.attach("other", worker(1));
        assert_eq!(trial.machine.session(&id("s")), None);
        assert_eq!(trial.held("other"), ["order-1:1"], "in the same entry");
        assert_eq!(trial.row("order-1:2").unwrap().status, RowStatus::Pending);
        assert_eq!(trial.complete(&key, first), Err(Reject::ClaimLost { key: key.clone() }));
        let second = token(&trial, "order-1:1");
        assert!(trial.complete(&key, second).is_ok());
    }

    #[test]
    fn a_lease_that_has_ended_is_void_even_before_its_session_is_ended() {
        let mut trial = Trial::new();
        let full = crate::limits::WORKER_CONCURRENCY_MAX;
        let staged = u64::from(2 * full);
        trial.start("order-1", 0..staged);
        let worker = crate::session::Worker { lease_ms: 10, ..worker(full) };
        for session in ["s1", "s2"] {
            trial.attach(session, worker.clone());
        }
        let row = trial.held("s2").pop().unwrap();
        let token = token(&trial, &row);
        trial.at += 10;
        // The first one's rows are as many as one entry puts back; the second one has ended all the same.
        assert_eq!(trial.complete(&id(&row), token), Err(Reject::ClaimLost { key: id(&row) }));
        assert_eq!(trial.held("s2").len() as u32, full);
        let attachment = trial.machine.session(&id("s2")).unwrap().attachment;
        trial.ask(Command::Tick).unwrap();
        let gone = Err(Reject::SessionNotFound { session: id("s2") });
        assert_eq!(trial.change("s2", SessionChange::Extend { attachment }), gone);
        assert_eq!((trial.machine.next_session_end(), trial.machine.row_counts().claimed), (None, 0));
    }

    #[test]
    fn sessions_outlive_their_node_with_their_rows() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2, 3]);
        trial.attach("s", worker(2));
        let held = trial.held("s");
        let up = |down: &str| ["a", "b", "c"].map(|n| member(n, if n == down { DOWN } else { Liveness::Up }));
        let told = trial.members(&up("a"));
        let gone = ClusterEvent::WorkerDisconnected {
            session: id("s"),
            identity: id("bob"),
            reason: Disconnected::NodeGone,
            rearmed: 0,
        };
        assert!(told.contains(&gone), "{told:?}");
        assert!(matches!(trial.change("s", attach_to("a", "1")), Err(Reject::NodeState { .. })));
        let token = token(&trial, &held[0]);
        assert!(trial.complete(&id(&held[0]), token).is_ok(), "any node takes the outcome");
        assert_eq!(trial.held("s"), held[1..], "without a connection it is given nothing");
        let resumed = trial.change("s", attach_to("b", "1"));
        assert!(matches!(resumed, Ok(SessionReply::Attached { resumed: true, .. })), "{resumed:?}");
        assert_eq!(trial.held("s").len(), 2);
        trial.ask(Command::Boot { node: id("b"), boot: id("2") }).unwrap();
        assert_eq!(trial.machine.session(&id("s")).unwrap().attached, None);
        assert_eq!(trial.held("s").len(), 2);
        trial.change("s", attach_to("b", "2")).unwrap();
        trial.members(&up("a")[..1]);
        assert_eq!(trial.machine.session(&id("s")).unwrap().attached, None, "b has left the cluster");
    }

    #[test]
    fn closing_hands_rows_back_and_draining_keeps_them() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2, 3]);
        let attachment = trial.attach("s", worker(2));
        trial.change("s", SessionChange::Drain { attachment }).unwrap();
        let token = token(&trial, "order-1:1");
        trial.complete(&id("order-1:1"), token).unwrap();
        assert_eq!(trial.held("s"), ["order-1:2"]);
        let attachment = trial.attach("s", worker(2));
        assert_eq!(trial.held("s"), ["order-1:2"], "another connection does not make it take more");
        let close = Command::Session { session: id("s"), change: SessionChange::Close { attachment } };
        let applied = trial.apply(vec![close.into()]);
        assert_eq!(applied.replies, [Ok(Reply::Session(SessionReply::Closed { rearmed: 1 }))]);
        assert!(applied.effects.contains(&Effect::SessionChanged { session: id("s") }), "{:?}", applied.effects);
        assert_eq!(trial.row("order-1:2").unwrap().status, RowStatus::Pending);
        assert!(trial.archive.0.keys().all(|key| !b"Cc".contains(&key[0])), "nothing of it is left");
    }
}
