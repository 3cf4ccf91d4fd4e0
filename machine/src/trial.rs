//! A small cluster for the unit tests of this crate: nodes a, b and c are up, a owns shard 0 and b shard 1.
//! The workflows `order-1` and `order-2` are in shard 0, `held` is in shard 1.

use crate::archive::MemoryArchive;
use crate::command::{Claim, Command, Commit, Entry, NewHolder, Request, Scope};
use crate::event::ClusterEvent;
use crate::history::{EventKind, NewEvent, Workflow};
use crate::id::{ClaimToken, DispatchKey, Millis, NodeName, ShardId, WorkflowId, WorkflowType};
use crate::member::{Evidence, Liveness, Member};
use crate::outbox::{NewRow, RetryPolicy, Row};
use crate::payload::Payload;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::session::{Attached, SessionChange, SessionReply, Worker};
use crate::state::{Apply, Machine};
use crate::timer::{Arming, TimerChange};
use crate::{Applied, Claimed};

pub(crate) const DOWN: Liveness = Liveness::Down { evidence: Evidence::Silent };

pub(crate) fn id<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("not valid: {text}"))
}

pub(crate) fn member(name: &str, liveness: Liveness) -> Member {
    Member { id: 1, name: id(name), peer_addr: format!("{name}:1"), http_addr: String::new(), liveness }
}

/// The events and rows of activities with these ordinals.
pub(crate) fn activities(ordinals: impl IntoIterator<Item = u64>) -> (Vec<NewEvent>, Vec<NewRow>) {
    let (mut events, mut rows) = (Vec::new(), Vec::new());
    for ordinal in ordinals {
        events.push(NewEvent::activity(EventKind::ActivityScheduled, ordinal));
        events.push(NewEvent::activity(EventKind::ActivityStarted, ordinal));
        rows.push(new_row(ordinal));
    }
    (events, rows)
}

pub(crate) fn new_row(ordinal: u64) -> NewRow {
    NewRow {
        ordinal,
        task_queue: Default::default(),
        node: None,
        activity_type: id("charge"),
        input: Payload::default(),
        visible_after: Millis(0),
        retry: RetryPolicy::default(),
        timeouts: Default::default(),
    }
}

/// A worker that takes everything of the default pool, under a lease of 1,000 ms.
pub(crate) fn worker(max_concurrency: u32) -> Worker {
    Worker {
        identity: id("bob"),
        namespaces: vec![Default::default()],
        task_queue: Default::default(),
        activity_types: Vec::new(),
        max_concurrency,
        node: None,
        lease_ms: 1_000,
    }
}

pub(crate) fn started() -> NewEvent {
    NewEvent::started(WorkflowType::new("order").unwrap())
}

pub(crate) struct Trial {
    pub machine: Machine,
    pub archive: MemoryArchive,
    pub at: u64,
    index: u64,
}

impl Trial {
    pub fn new() -> Self {
        let mut trial = Self { machine: Machine::default(), archive: MemoryArchive::default(), at: 1_000, index: 0 };
        trial.members(&["a", "b", "c"].map(|name| member(name, Liveness::Up)));
        trial.ask(Command::Create { shard_count: 2 }).unwrap();
        for name in ["a", "b", "c"] {
            trial.ask(Command::Boot { node: id(name), boot: id("1") }).unwrap();
        }
        let owners = vec![(ShardId(0), id::<NodeName>("a")), (ShardId(1), id("b"))];
        trial.ask(Command::Assign { owners }).unwrap();
        trial
    }

    /// A trial that goes on from a state.
    pub fn of(machine: Machine, archive: MemoryArchive, at: u64) -> Self {
        let index = machine.applied();
        Self { machine, archive, at, index }
    }

    pub fn apply(&mut self, requests: Vec<Request>) -> Applied {
        self.index += 1;
        let entry = Entry { at: Millis(self.at), requests };
        let applied = self.machine.apply(self.index, entry, &self.archive).unwrap();
        self.archive.commit(self.machine.take_writes());
        applied
    }

    pub fn ask(&mut self, command: Command) -> Result<Reply, Reject> {
        self.apply(vec![command.into()]).replies.remove(0)
    }

    pub fn members(&mut self, members: &[Member]) -> Vec<ClusterEvent> {
        self.index += 1;
        let applied = self.machine.apply_members(self.index, members, &self.archive).unwrap();
        self.archive.commit(self.machine.take_writes());
        applied.events
    }

    /// Starts a workflow with rows of these ordinals.
    pub fn start(&mut self, workflow: &str, ordinals: impl IntoIterator<Item = u64>) {
        let (mut events, rows) = activities(ordinals);
        events.insert(0, started());
        let commit = Commit { events, rows, ..Commit::new(id(workflow), 0) };
        self.ask(Command::Commit(commit)).unwrap();
    }

    /// Stages rows of these ordinals by themselves, and says of each whether it was written.
    pub fn stage(&mut self, workflow: &str, ordinals: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let rows = ordinals.into_iter().map(new_row).collect();
        let command = Command::Stage { workflow: id(workflow), namespace: Default::default(), rows };
        match self.ask(command) {
            Ok(Reply::Staged { rows }) => rows.into_iter().map(|staged| staged.written).collect(),
            other => panic!("not staged: {other:?}"),
        }
    }

    /// Spends the whole budget of the only row that is due.
    pub fn bury(&mut self, key: &str) {
        for _ in 0..RetryPolicy::default().deliveries_max {
            self.lease(1, 1_000);
            self.ask(Command::Retry { key: id(key), token: None, delay_ms: 0 }).unwrap();
        }
    }

    /// Appends one event at the head.
    pub fn append(&mut self, workflow: &str, event: NewEvent) -> Result<Reply, Reject> {
        let (workflow, events) = (id::<WorkflowId>(workflow), vec![event]);
        let expected_seq = self.workflow(workflow.as_str()).map_or(0, |workflow| workflow.head);
        self.ask(Command::Commit(Commit { events, ..Commit::new(workflow, expected_seq) }))
    }

    pub fn arm(&mut self, workflow: &str, timer: &str, fire_at: u64, armed_seq: u64) -> Result<Reply, Reject> {
        let arming = Arming { timer: id(timer), fire_at: Millis(fire_at), armed_seq };
        self.ask(Command::Timer { workflow: id(workflow), change: TimerChange::Schedule(arming) })
    }

    pub fn lease(&mut self, limit: u32, lease_ms: u64) -> Vec<Claimed> {
        self.claim(limit, NewHolder::Lease { claimant: id("bob"), lease_ms })
    }

    pub fn claim_by(&mut self, node: &str) -> Vec<Claimed> {
        self.claim(100, NewHolder::Node { node: id(node), boot: id("1") })
    }

    fn claim(&mut self, limit: u32, holder: NewHolder) -> Vec<Claimed> {
        let claim = Claim { scope: Scope::default(), limit, holder, hold: Vec::new() };
        match self.ask(Command::Claim(claim)) {
            Ok(Reply::Claimed { claims }) => claims,
            other => panic!("no claim: {other:?}"),
        }
    }

    /// Attaches a session to node a, and returns the number of the attachment.
    pub fn attach(&mut self, session: &str, worker: Worker) -> u64 {
        let to = Attached { node: id("a"), boot: id("1") };
        match self.change(session, SessionChange::Attach { worker, to }) {
            Ok(SessionReply::Attached { attachment, .. }) => attachment,
            other => panic!("not attached: {other:?}"),
        }
    }

    pub fn change(&mut self, session: &str, change: SessionChange) -> Result<SessionReply, Reject> {
        self.ask(Command::Session { session: id(session), change }).map(|reply| match reply {
            Reply::Session(reply) => reply,
            other => panic!("not of a session: {other:?}"),
        })
    }

    /// The rows that a session holds, in the order in which it was given them.
    pub fn held(&self, session: &str) -> Vec<String> {
        self.machine.rows_of_session(&id(session), None).map(|(_, key)| key.to_string()).collect()
    }

    pub fn complete(&mut self, key: &DispatchKey, token: ClaimToken) -> Result<Reply, Reject> {
        self.ask(Command::Complete { key: key.clone(), token: Some(token), result: Payload::default() })
    }

    pub fn workflow(&self, workflow: &str) -> Option<Workflow> {
        self.machine.workflow(&self.archive, &id(workflow)).unwrap()
    }

    pub fn row(&self, key: &str) -> Option<Row> {
        self.machine.row(&self.archive, &id(key)).unwrap()
    }

    /// Works on the state from inside, past all checks.
    pub fn force<T>(&mut self, change: impl FnOnce(&mut Apply<'_>) -> T) -> T {
        self.index += 1;
        let done = change(&mut Apply::begin(&mut self.machine, self.index, &self.archive));
        self.machine.seal(self.index);
        self.archive.commit(self.machine.take_writes());
        done
    }
}
