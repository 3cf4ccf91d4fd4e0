//! The oracle's view of workers' sessions, and of who gets which row.

use std::collections::BTreeSet;

use holdfast_machine::{
    Attached, ClaimToken, DispatchKey, Holder, Millis, Namespace, Reject, Reply, Row, RowClaim, RowStatus, Session,
    SessionChange, SessionId, SessionReply, TaskQueue, Worker, WorkflowStatus,
};

use crate::oracle::{Answer, Oracle, invalid, to_pending};

pub type Held = Vec<(SessionId, ClaimToken)>;

pub fn session_of(row: &Row) -> Option<(&SessionId, ClaimToken)> {
    match row.claim.as_ref().map(|claim| (&claim.holder, claim.token)) {
        Some((Holder::Session { session }, token)) => Some((session, token)),
        _ => None,
    }
}

/// Which of the rows a worker takes.
pub fn takes(worker: &Worker, row: &Row) -> bool {
    worker.namespaces.contains(&row.namespace)
        && worker.task_queue == row.task_queue
        && (worker.activity_types.is_empty() || worker.activity_types.contains(&row.activity_type))
        && (row.node.is_none() || row.node == worker.node)
}

impl Oracle {
    pub fn change_session(&mut self, id: &SessionId, change: &SessionChange) -> Answer {
        let reply = match change {
            SessionChange::Attach { worker, to } => self.attach(id, worker, to)?,
            SessionChange::Extend { attachment } => {
                let now = self.now;
                let session = self.session_under(id, *attachment, true)?;
                session.deadline = now.plus(session.worker.lease_ms);
                SessionReply::Extended { deadline: session.deadline }
            }
            SessionChange::Detach { attachment } => {
                self.session_under(id, *attachment, false)?.attached = None;
                SessionReply::Detached
            }
            SessionChange::Drain { attachment } => {
                self.session_under(id, *attachment, true)?.draining = true;
                SessionReply::Draining
            }
            SessionChange::Close { attachment } => {
                self.session_under(id, *attachment, false)?;
                SessionReply::Closed { rearmed: self.end_session(id) }
            }
        };
        Ok(Reply::Session(reply))
    }

    fn session_under(&mut self, id: &SessionId, attachment: u64, attached: bool) -> Result<&mut Session, Reject> {
        let Some((_, session)) = self.sessions.iter_mut().find(|(known, _)| known == id) else {
            return Err(Reject::SessionNotFound { session: id.clone() });
        };
        if session.attachment != attachment || (attached && session.attached.is_none()) {
            return Err(Reject::SessionMoved { session: id.clone() });
        }
        Ok(session)
    }

    fn attach(&mut self, id: &SessionId, worker: &Worker, to: &Attached) -> Result<SessionReply, Reject> {
        let namespaces: BTreeSet<&Namespace> = worker.namespaces.iter().collect();
        let is_odd = namespaces.is_empty() || namespaces.len() < worker.namespaces.len();
        if is_odd || worker.max_concurrency == 0 || worker.lease_ms == 0 {
            return invalid();
        }
        if worker.max_concurrency > 1_000 {
            let actual = u64::from(worker.max_concurrency);
            return Err(Reject::LimitExceeded { what: String::new(), limit: 1_000, actual });
        }
        if !self.is_current(to) {
            return Err(Reject::NodeState { node: to.node.clone(), problem: String::new() });
        }
        let deadline = self.now.plus(worker.lease_ms);
        let before = self.sessions.iter().find(|(known, _)| known == id).map(|(_, session)| session.clone());
        let resumed = before.is_some();
        let draining = before.as_ref().is_some_and(|was| was.draining);
        let (opened_at, attachment) = before.map_or((self.now, self.index), |was| (was.opened_at, was.attachment + 1));
        let (worker, attached) = (worker.clone(), Some(to.clone()));
        self.sessions.retain(|(known, _)| known != id);
        let session = Session { worker, opened_at, deadline, attachment, attached, draining };
        self.sessions.push((id.clone(), session));
        self.attached.push(id.clone());
        Ok(SessionReply::Attached { attachment, deadline, resumed })
    }

    fn is_current(&self, to: &Attached) -> bool {
        let member = self.members.iter().find(|(member, _)| member.name == to.node);
        member.is_some_and(|(_, boot)| boot.as_ref() == Some(&to.boot)) && !self.is_down(&to.node)
    }

    /// Whoever is attached to a process that is gone is attached no more.
    pub fn detach_from_the_gone(&mut self) {
        let gone: Vec<SessionId> = self
            .sessions
            .iter()
            .filter_map(|(id, session)| {
                let attached = session.attached.as_ref()?;
                (!self.is_current(attached)).then(|| id.clone())
            })
            .collect();
        for (_, session) in self.sessions.iter_mut().filter(|(id, _)| gone.contains(id)) {
            session.attached = None;
        }
    }

    /// Ends a session; how many of its rows are pending again.
    pub fn end_session(&mut self, id: &SessionId) -> u64 {
        self.sessions.retain(|(known, _)| known != id);
        self.turns.retain(|(known, ..)| known != id);
        let (now, mut rearmed) = (self.now, 0);
        for (_, row) in &mut self.rows {
            if session_of(row).is_some_and(|(session, _)| session == id) {
                to_pending(row, now);
                rearmed += 1;
            }
        }
        rearmed
    }

    /// What all sessions hold.
    pub fn held_by_sessions(&self) -> Held {
        self.rows.iter().filter_map(|(_, row)| session_of(row).map(|(id, token)| (id.clone(), token))).collect()
    }

    /// Gives out what can be given, knowing what sessions held before the entry.
    pub fn dispatch(&mut self, before: Held) {
        let held = self.held_by_sessions();
        let lost = before.into_iter().filter(|was| !held.contains(was)).map(|(id, _)| id);
        let mut with_new_room: BTreeSet<SessionId> = lost.chain(std::mem::take(&mut self.attached)).collect();
        loop {
            let next = with_new_room.iter().filter(|id| self.has_room_for_work(id)).min_by_key(|id| self.turn(id));
            let Some(id) = next.cloned() else { break };
            match self.next_for(&id) {
                Some(key) => self.give(&key, &id),
                None => drop(with_new_room.remove(&id)),
            }
        }
        let pools: BTreeSet<(Namespace, TaskQueue)> =
            self.rows.iter().map(|(_, row)| (row.namespace.clone(), row.task_queue.clone())).collect();
        for pool in pools {
            while let Some((key, id)) = self.next_of(&pool) {
                self.give(&key, &id);
            }
        }
    }

    fn turn(&self, id: &SessionId) -> (Option<ClaimToken>, SessionId) {
        let turn = self.turns.iter().find(|(known, ..)| known == id);
        (turn.map(|(_, token, _)| *token), id.clone())
    }

    fn has_room_for_work(&self, id: &SessionId) -> bool {
        let Some((_, session)) = self.sessions.iter().find(|(known, _)| known == id) else { return false };
        let held = self.held_by_sessions().iter().filter(|(holder, _)| holder == id).count();
        session.attached.is_some() && !session.draining && held < session.worker.max_concurrency as usize
    }

    /// Rows that a session may be given, in the order of claims.
    fn due(&self) -> Vec<(Millis, DispatchKey)> {
        let is_due = |(key, row): &&(DispatchKey, Row)| {
            let paused = self.status(&key.workflow).0 == WorkflowStatus::Paused;
            row.status == RowStatus::Pending
                && row.visible_after <= self.now
                && !paused
                && self.room(&row.namespace) > 0
        };
        let due = self.rows.iter().filter(is_due).map(|(key, row)| (row.visible_after, key.clone()));
        due.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn next_for(&self, id: &SessionId) -> Option<DispatchKey> {
        let (_, session) = self.sessions.iter().find(|(known, _)| known == id)?;
        let mut namespaces = session.worker.namespaces.clone();
        let last = self.turns.iter().find(|(known, ..)| known == id).map(|(_, _, namespace)| namespace);
        if let Some(at) = namespaces.iter().position(|namespace| Some(namespace) == last) {
            namespaces.rotate_left(at + 1);
        }
        let due = self.due();
        namespaces.iter().find_map(|namespace| {
            let fits = |key: &DispatchKey| {
                self.row(key).is_some_and(|row| row.namespace == *namespace && takes(&session.worker, row))
            };
            due.iter().map(|(_, key)| key).find(|key| fits(key)).cloned()
        })
    }

    fn next_of(&self, pool: &(Namespace, TaskQueue)) -> Option<(DispatchKey, SessionId)> {
        for (_, key) in self.due() {
            let row = self.row(&key)?;
            if (&row.namespace, &row.task_queue) != (&pool.0, &pool.1) {
                continue;
            }
            let fits = self.sessions.iter().filter(|(_, session)| takes(&session.worker, row)).map(|(id, _)| id);
            let taker = fits.filter(|id| self.has_room_for_work(id)).min_by_key(|id| self.turn(id));
            if let Some(taker) = taker {
                return Some((key.clone(), taker.clone()));
            }
        }
        None
    }

    fn give(&mut self, key: &DispatchKey, id: &SessionId) {
        self.tokens += 1;
        let token = ClaimToken { index: self.index, number: self.tokens };
        let now = self.now;
        let row = self.row_mut(key).unwrap();
        row.status = RowStatus::Claimed;
        let holder = Holder::Session { session: id.clone() };
        row.claim = Some(RowClaim { token, holder, claimed_at: now, deadline: None, heartbeat_at: now });
        let namespace = row.namespace.clone();
        self.turns.retain(|(known, ..)| known != id);
        self.turns.push((id.clone(), token, namespace));
    }
}
