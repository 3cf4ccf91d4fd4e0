//! Worker sessions in memory: what each of them holds, and which of them can be given a row.
//!
//! Sessions that registered alike form a crew. A row looks for a crew that takes it and for the one in it that was given
//! work longest ago; so what a row costs depends on how many kinds of workers there are, and not on how many workers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{ActivityType, ClaimToken, DispatchKey, Millis, Namespace, NodeName, SessionId, TaskQueue};
use crate::row_index::{Lane, Pool};
use crate::session::{Session, Worker};
use crate::state::Machine;

/// What a session was given last. Stored, so that whose turn it is survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// The claim; tokens grow, so they are the order of turns as well.
    pub last: ClaimToken,
    /// The row's namespace.
    pub namespace: Namespace,
}

/// What a session takes: the part of its registration that it may have in common with others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Serves {
    /// In the order of the registration.
    pub pools: Vec<Pool>,
    activity_types: BTreeSet<ActivityType>,
    node: Option<NodeName>,
}

impl Serves {
    fn of(worker: &Worker) -> Self {
        let pool = |namespace: &Namespace| (namespace.clone(), worker.task_queue.clone());
        Self {
            pools: worker.namespaces.iter().map(pool).collect(),
            activity_types: worker.activity_types.iter().cloned().collect(),
            node: worker.node.clone(),
        }
    }

    /// True if it takes the rows of a lane of its pools.
    pub fn takes(&self, lane: &Lane) -> bool {
        self.takes_pin(lane.pin.as_ref()) && self.takes_activity(&lane.activity)
    }

    pub fn takes_pin(&self, pin: Option<&NodeName>) -> bool {
        pin.is_none() || pin == self.node.as_ref()
    }

    pub fn takes_activity(&self, activity_type: &ActivityType) -> bool {
        self.activity_types.is_empty() || self.activity_types.contains(activity_type)
    }
}

#[derive(Debug)]
struct Member {
    session: Session,
    serves: Arc<Serves>,
    held: BTreeMap<ClaimToken, DispatchKey>,
    turn: Option<Turn>,
    is_ready: bool,
}

impl Member {
    fn place(&self, id: &SessionId) -> Place {
        (self.turn.as_ref().map(|turn| turn.last), id.clone())
    }
}

/// A session's place among those that can be given a row: first who was never given one, then by the last one.
pub(crate) type Place = (Option<ClaimToken>, SessionId);

#[derive(Debug, Default)]
struct Crew {
    members: BTreeSet<SessionId>,
    ready: BTreeSet<Place>,
}

/// All sessions. Derived from what is stored of them, and from the rows that they hold.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Member>,
    crews: BTreeMap<Arc<Serves>, Crew>,
    /// The crews of each pool.
    serving: BTreeMap<Namespace, BTreeMap<TaskQueue, BTreeSet<Arc<Serves>>>>,
    ends: BTreeSet<(Millis, SessionId)>,
    attached: BTreeMap<NodeName, BTreeSet<SessionId>>,
    ready_count: usize,
}

impl Sessions {
    pub fn get(&self, id: &SessionId) -> Option<&Session> {
        self.all.get(id).map(|member| &member.session)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True while the session exists and its lease runs.
    pub fn is_alive(&self, id: &SessionId, now: Millis) -> bool {
        self.get(id).is_some_and(|session| session.deadline > now)
    }

    /// Adds a session, or gives it another state.
    pub fn put(&mut self, id: &SessionId, session: Session, now: Millis) {
        let before = self.take_out(id);
        let (held, turn) = before.map_or_else(Default::default, |before| (before.held, before.turn));
        self.ends.insert((session.deadline, id.clone()));
        if let Some(attached) = &session.attached {
            self.attached.entry(attached.node.clone()).or_default().insert(id.clone());
        }
        let serves = Serves::of(&session.worker);
        let serves = match self.crews.get_key_value(&serves) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(serves),
        };
        self.crews.entry(Arc::clone(&serves)).or_default().members.insert(id.clone());
        for (namespace, task_queue) in &serves.pools {
            let queues = self.serving.entry(namespace.clone()).or_default();
            queues.entry(task_queue.clone()).or_default().insert(Arc::clone(&serves));
        }
        self.all.insert(id.clone(), Member { session, serves, held, turn, is_ready: false });
        self.refresh(id, now);
    }

    /// Takes a session out, and returns what it held.
    pub fn remove(&mut self, id: &SessionId) -> Option<(Session, BTreeMap<ClaimToken, DispatchKey>)> {
        self.take_out(id).map(|member| (member.session, member.held))
    }

    fn take_out(&mut self, id: &SessionId) -> Option<Member> {
        let member = self.all.remove(id)?;
        self.ends.remove(&(member.session.deadline, id.clone()));
        if let Some(attached) = &member.session.attached {
            let of_node = self.attached.get_mut(&attached.node);
            if of_node.is_some_and(|of_node| of_node.remove(id) && of_node.is_empty()) {
                self.attached.remove(&attached.node);
            }
        }
        let Some(crew) = self.crews.get_mut(&member.serves) else { return Some(member) };
        crew.members.remove(id);
        if crew.ready.remove(&member.place(id)) {
            self.ready_count -= 1;
        }
        if crew.members.is_empty() {
            self.disband(&member.serves);
        }
        Some(member)
    }

    fn disband(&mut self, serves: &Arc<Serves>) {
        self.crews.remove(serves);
        for (namespace, task_queue) in &serves.pools {
            let Some(queues) = self.serving.get_mut(namespace) else { continue };
            let Some(crews) = queues.get_mut(task_queue) else { continue };
            crews.remove(serves);
            if crews.is_empty() {
                queues.remove(task_queue);
            }
            if queues.is_empty() {
                self.serving.remove(namespace);
            }
        }
    }

    /// Notes a row that the session holds.
    pub fn hold(&mut self, id: &SessionId, token: ClaimToken, key: DispatchKey, now: Millis) {
        if let Some(member) = self.all.get_mut(id) {
            member.held.insert(token, key);
        }
        self.refresh(id, now);
    }

    /// Notes that the session does not hold a row any more.
    pub fn release(&mut self, id: &SessionId, token: ClaimToken, now: Millis) {
        if let Some(member) = self.all.get_mut(id) {
            member.held.remove(&token);
        }
        self.refresh(id, now);
    }

    /// Notes whom a row was given to last.
    pub fn set_turn(&mut self, id: &SessionId, turn: Turn) {
        let Some(member) = self.all.get_mut(id) else { return };
        let before = member.place(id);
        member.turn = Some(turn);
        if let Some(crew) = self.crews.get_mut(&member.serves)
            && crew.ready.remove(&before)
        {
            crew.ready.insert(member.place(id));
        }
    }

    pub fn turn(&self, id: &SessionId) -> Option<&Turn> {
        self.all.get(id)?.turn.as_ref()
    }

    /// A session whose lease has ended is given nothing, even if it has yet to be ended itself.
    pub fn lapse(&mut self, now: Millis) {
        let ended = self.ends.iter().take_while(|(at, _)| *at <= now);
        for id in ended.map(|(_, id)| id.clone()).collect::<Vec<_>>() {
            self.refresh(&id, now);
        }
    }

    /// Sees anew whether a session can be given a row.
    fn refresh(&mut self, id: &SessionId, now: Millis) {
        let Some(member) = self.all.get_mut(id) else { return };
        let Session { worker, attached, draining, deadline, .. } = &member.session;
        let has_room = (member.held.len() as u64) < u64::from(worker.max_concurrency);
        let is_ready = attached.is_some() && !draining && *deadline > now && has_room;
        if is_ready == std::mem::replace(&mut member.is_ready, is_ready) {
            return;
        }
        let Some(crew) = self.crews.get_mut(&member.serves) else { return };
        if is_ready {
            crew.ready.insert(member.place(id));
            self.ready_count += 1;
        } else {
            crew.ready.remove(&member.place(id));
            self.ready_count -= 1;
        }
    }

    /// True if some session can be given a row, whatever it takes.
    pub fn anyone_ready(&self) -> bool {
        self.ready_count > 0
    }

    /// The session's place, if it can be given a row.
    pub fn ready_place(&self, id: &SessionId) -> Option<Place> {
        self.all.get(id).filter(|member| member.is_ready).map(|member| member.place(id))
    }

    /// All sessions that can be given a row.
    pub fn ready(&self) -> impl Iterator<Item = &SessionId> {
        self.crews.values().flat_map(|crew| &crew.ready).map(|(_, id)| id)
    }

    pub fn serves(&self, id: &SessionId) -> Option<Arc<Serves>> {
        self.all.get(id).map(|member| Arc::clone(&member.serves))
    }

    /// What is taken by sessions that can be given a row.
    pub fn ready_crews(&self) -> impl Iterator<Item = &Arc<Serves>> {
        self.crews.iter().filter(|(_, crew)| !crew.ready.is_empty()).map(|(serves, _)| serves)
    }

    fn crews_of<'a>(
        &'a self,
        namespace: &Namespace,
        task_queue: &TaskQueue,
    ) -> impl Iterator<Item = &'a Arc<Serves>> + use<'a> {
        self.serving.get(namespace).and_then(|queues| queues.get(task_queue)).into_iter().flatten()
    }

    /// The sessions that serve a pool, whether they can be given a row or not.
    pub fn serving<'a>(
        &'a self,
        namespace: &Namespace,
        task_queue: &TaskQueue,
    ) -> impl Iterator<Item = (&'a SessionId, &'a Session)> + use<'a> {
        let crews = self.crews_of(namespace, task_queue).filter_map(|serves| self.crews.get(serves));
        crews.flat_map(|crew| &crew.members).filter_map(|id| self.all.get_key_value(id)).map(with_session)
    }

    /// Those behind `after`, by name.
    pub fn after(&self, after: Option<&SessionId>) -> impl Iterator<Item = (&SessionId, &Session)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range::<SessionId, _>((from, Bound::Unbounded)).map(with_session)
    }

    /// What a session holds, in the order in which it was given.
    pub fn held(&self, id: &SessionId) -> Option<&BTreeMap<ClaimToken, DispatchKey>> {
        self.all.get(id).map(|member| &member.held)
    }

    /// The session that the next row of a lane goes to.
    pub fn taker(&self, pool: &Pool, lane: &Lane) -> Option<SessionId> {
        let crews = self.crews_of(&pool.0, &pool.1).filter(|serves| serves.takes(lane));
        let first = crews.filter_map(|serves| self.crews.get(serves)?.ready.first()).min();
        first.map(|(_, id)| id.clone())
    }

    /// The pools of a namespace that sessions serve.
    pub fn pools_of(&self, namespace: &Namespace) -> impl Iterator<Item = Pool> {
        let queues = self.serving.get(namespace).into_iter().flat_map(BTreeMap::keys);
        queues.map(|task_queue| (namespace.clone(), task_queue.clone()))
    }

    /// The session that ends first.
    pub fn first_end(&self) -> Option<&(Millis, SessionId)> {
        self.ends.first()
    }

    /// The sessions whose lease has ended at `now`, earliest first.
    pub fn ended(&self, now: Millis) -> impl Iterator<Item = &SessionId> {
        self.ends.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| id)
    }

    /// The sessions attached to a node.
    pub fn attached_to(&self, node: &NodeName) -> Vec<SessionId> {
        self.attached.get(node).into_iter().flatten().cloned().collect()
    }
}

fn with_session<'a>((id, member): (&'a SessionId, &'a Member)) -> (&'a SessionId, &'a Session) {
    (id, &member.session)
}

impl Machine {
    /// One worker's session.
    pub fn session(&self, session: &SessionId) -> Option<&Session> {
        self.sessions.get(session)
    }

    /// The sessions behind `after`, by name; all of them without one.
    pub fn sessions_after(&self, after: Option<&SessionId>) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.sessions.after(after)
    }

    /// The rows that a session holds, in the order in which they were given to it, behind `after` if that is given.
    pub fn rows_of_session(
        &self,
        session: &SessionId,
        after: Option<ClaimToken>,
    ) -> impl Iterator<Item = (ClaimToken, &DispatchKey)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let held = self.sessions.held(session).into_iter();
        held.flat_map(move |held| held.range((from, Bound::Unbounded))).map(|(token, key)| (*token, key))
    }

    /// How many rows a session holds.
    pub fn session_row_count(&self, session: &SessionId) -> u64 {
        self.sessions.held(session).map_or(0, |held| held.len() as u64)
    }

    /// The sessions that serve a task queue of a namespace: attached or not, with room or without.
    pub fn sessions_serving<'a>(
        &'a self,
        namespace: &Namespace,
        task_queue: &TaskQueue,
    ) -> impl Iterator<Item = (&'a SessionId, &'a Session)> + use<'a> {
        self.sessions.serving(namespace, task_queue)
    }

    /// When the first session ends or ended.
    pub fn next_session_end(&self) -> Option<Millis> {
        self.sessions.first_end().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Attached;
    use crate::trial::{id, worker};

    fn session(worker: Worker) -> Session {
        let attached = Some(Attached { node: id("a"), boot: id("1") });
        Session { worker, opened_at: Millis(0), deadline: Millis(9), attachment: 1, attached, draining: false }
    }

    #[test]
    fn what_goes_in_comes_out_and_leaves_nothing() {
        let mut sessions = Sessions::default();
        let (now, token) = (Millis(1), ClaimToken { index: 1, number: 1 });
        let other = Worker { namespaces: vec![id("x"), id("y")], ..worker(1) };
        for (name, worker) in [("s1", worker(1)), ("s2", worker(1)), ("s3", other.clone()), ("s1", other)] {
            sessions.put(&id(name), session(worker), now);
        }
        assert_eq!((sessions.ready_count, sessions.crews.len(), sessions.pools_of(&id("x")).count()), (3, 2, 1));
        sessions.set_turn(&id("s1"), Turn { last: token, namespace: id("x") });
        sessions.hold(&id("s2"), token, id("w:1"), now);
        assert_eq!(sessions.ready().map(SessionId::as_str).collect::<Vec<_>>(), ["s3", "s1"]);
        sessions.release(&id("s2"), token, now);
        assert_eq!(sessions.ready_count, 3);
        sessions.lapse(Millis(9));
        assert_eq!((sessions.ready_count, sessions.anyone_ready()), (0, false));
        sessions.put(&id("s3"), session(worker(1)), now);
        for name in ["s1", "s2", "s3", "s3"] {
            sessions.remove(&id(name));
        }
        let Sessions { all, crews, serving, ends, attached, ready_count } = sessions;
        assert!(all.is_empty() && crews.is_empty() && serving.is_empty() && ends.is_empty() && attached.is_empty());
        assert_eq!(ready_count, 0);
    }
}
