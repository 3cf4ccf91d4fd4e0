//! Makes requests of the words in `ops.rs`, with what the oracle knows about heads, epochs and tokens.

use holdfast_machine::{
    Arming, BootId, Claim, ClaimToken, Command, Commit, DispatchKey, Epoch, EventKind, Evidence, Fence, Liveness,
    Member, Millis, Namespace, NamespaceSettings, NewEvent, NewHolder, NewRow, NodeName, Payload, Request, RetryPolicy,
    RowAction, Scope, ShardId, TaskQueue, Timeouts, TimerChange, Transition, WorkflowId, WorkflowStart, WorkflowType,
};

use crate::ops::{Event, Fencing, Limits, Move, Op, Seq, Timer, Token, What};
use crate::{find, sessions};
use holdfast_checkers::oracle::Oracle;

pub const ORDINALS: [u64; 5] = [0, 1, 2, 3, u64::MAX];
const KINDS: [EventKind; 9] = [
    EventKind::WorkflowStarted,
    EventKind::WorkflowCompleted,
    EventKind::WorkflowFailed,
    EventKind::WorkflowCancelled,
    EventKind::WorkflowTimedOut,
    EventKind::WorkflowContinuedAsNew,
    EventKind::WorkflowReopened,
    EventKind::WorkflowPaused,
    EventKind::WorkflowResumed,
];

/// Four workflows in the two shards: `order-2` is of another namespace than the others, and the last one has no
/// history in the beginning.
pub fn workflows() -> Vec<WorkflowId> {
    ["order-1", "held", "order-2", "loose"].map(|id| id.parse().unwrap()).to_vec()
}

fn workflow(number: u8) -> WorkflowId {
    workflows().get(usize::from(number)).cloned().unwrap_or_else(|| "nobody".parse().unwrap())
}

fn ordinal(number: u8) -> u64 {
    ORDINALS[usize::from(number) % ORDINALS.len()]
}

pub fn node(number: u8) -> NodeName {
    ["a", "b", "c"].get(usize::from(number)).unwrap_or(&"stranger").parse().unwrap()
}

pub fn boot(node: u8, number: u8) -> BootId {
    BootId::new(format!("{node}-{number}")).unwrap()
}

fn key((of, number): (u8, u8)) -> DispatchKey {
    DispatchKey { workflow: workflow(of), ordinal: ordinal(number) }
}

pub fn members(liveness: &[u8; 3]) -> Vec<Member> {
    let mut members = Vec::new();
    for (number, state) in liveness.iter().enumerate() {
        let liveness = match state {
            0 => continue,
            1 => Liveness::Up,
            2 => Liveness::Down { evidence: Evidence::LinkClosed },
            3 => Liveness::Down { evidence: Evidence::Silent },
            _ => Liveness::Joining,
        };
        let (id, name) = (number as u64 + 1, node(number as u8));
        members.push(Member { id, name, peer_addr: "peer:1".into(), http_addr: String::new(), liveness });
    }
    members
}

/// A cluster with work to do, so that random steps find something.
pub fn opening() -> Vec<Command> {
    let boots = (0..3).map(|number| Command::Boot { node: node(number), boot: boot(number, 0) });
    let owners = vec![(ShardId(0), node(0)), (ShardId(1), node(1))];
    // Finished workflows are due soon.
    let settings = NamespaceSettings { retention_ms: Some(40), ..Default::default() };
    let kept = Command::PutNamespace { namespace: namespace(0), settings };
    let commands =
        [Command::Create { shard_count: 2 }, kept].into_iter().chain(boots).chain([Command::Assign { owners }]);
    let commands = commands.chain([sessions::first()]);
    commands.chain(workflows()[..3].iter().map(|id| Command::Commit(first_commit(id)))).collect()
}

fn first_commit(id: &WorkflowId) -> Commit {
    let words = [1, 2, 3].map(|ordinal| Event::Activity {
        ordinal,
        queue: 0,
        pin: 0,
        kind: 0,
        at: 0,
        budget: 3,
        limits: Limits::default(),
    });
    commit(id, Seq::Head, &words, &[], &Oracle::default())
}

/// What has been given out and sent so far.
#[derive(Default)]
pub struct Past {
    pub tokens: Vec<(DispatchKey, ClaimToken)>,
    pub sent: Vec<Request>,
}

impl Past {
    /// The requests that an op stands for.
    pub fn requests(&mut self, op: &Op, oracle: &Oracle) -> Vec<Request> {
        if let What::Again(ago) = op.what {
            let again = self.sent.iter().rev().nth(usize::from(ago)).cloned();
            return again.into_iter().collect();
        }
        let command = self.command(&op.what, oracle);
        let fence = command.workflow().and_then(|workflow| fence(op.fence, workflow, oracle));
        let idempotency_key = op.key.map(|number| format!("key-{number}").parse().unwrap());
        let request = Request { idempotency_key, fence, command };
        self.sent.push(request.clone());
        let twice = matches!(op.what, What::Commit { twice: true, .. });
        if twice { vec![request.clone(), request] } else { vec![request] }
    }

    fn command(&self, what: &What, oracle: &Oracle) -> Command {
        let epoch = |shard: u32, off: u64| {
            let entry = oracle.shards.iter().find(|entry| entry.shard == ShardId(shard));
            Epoch(entry.map_or(0, |entry| entry.epoch.0).saturating_sub(off))
        };
        match what {
            What::Create(shard_count) => Command::Create { shard_count: *shard_count },
            What::Boot { node: of, boot: number } => Command::Boot { node: node(*of), boot: boot(*of, *number) },
            What::Assign(owners) => {
                Command::Assign { owners: owners.iter().map(|(shard, of)| (ShardId(*shard), node(*of))).collect() }
            }
            What::Adopt { shard, by, from, off } => {
                // A shard whose owner has died, if there is one.
                let orphan = oracle.shards.iter().find(|entry| oracle.is_down(&entry.owner));
                let shard = orphan.map_or(ShardId(*shard), |entry| entry.shard);
                let owner = oracle.owner(shard).cloned().unwrap_or_else(|| node(0));
                let from = from.map_or(owner, node);
                Command::Adopt { shard, from, by: node(*by), expected_epoch: epoch(shard.0, *off) }
            }
            What::Transfer { shard, to, off } => {
                Command::Transfer { shard: ShardId(*shard), to: node(*to), expected_epoch: epoch(*shard, *off) }
            }
            What::Commit { workflow: of, seq, events, settle, moves, timers, .. } => {
                let id = workflow(*of);
                let transitions = moves.iter().map(|(token, number, action)| self.part(&id, *token, *number, *action));
                Command::Commit(Commit {
                    transitions: transitions.collect(),
                    timers: timers.iter().map(|timer| timer_change(&id, *timer, oracle)).collect(),
                    ..commit(&id, *seq, events, settle, oracle)
                })
            }
            What::Timer(of, timer) => {
                let workflow = workflow(*of);
                Command::Timer { change: timer_change(&workflow, *timer, oracle), workflow }
            }
            What::Claim { .. } => Command::Claim(claim(what, oracle)),
            What::Heartbeat { token, row, lease } => {
                let (key, token) = self.token(*token, *row);
                let token = token.unwrap_or(ClaimToken { index: 0, number: 0 });
                Command::Heartbeat { key, token, lease_ms: *lease, details: Payload::text("half") }
            }
            What::Complete { token, row } => {
                let (key, token) = self.token(*token, *row);
                Command::Complete { key, token, result: Payload::octets(vec![1, 2]) }
            }
            What::Fail { token, row, retryable, error_type } => {
                let (key, token) = self.token(*token, *row);
                Command::Fail {
                    key,
                    token,
                    error: Payload::json(&"no").unwrap(),
                    error_type: [None, Some("fatal"), Some("other")][usize::from(*error_type)]
                        .map(|text| text.parse().unwrap()),
                    retryable: *retryable,
                }
            }
            What::Retry { token, row, delay } => {
                let (key, token) = self.token(*token, *row);
                Command::Retry { key, token, delay_ms: *delay }
            }
            What::Settle(of) => Command::Settle { workflow: workflow(*of) },
            What::Stage(of, of_namespace, rows) => {
                let rows =
                    rows.iter().map(|(number, limits)| new_row(ordinal(*number), 0, 0, 0, Millis(0), 2, *limits));
                let rows = rows.collect();
                Command::Stage { workflow: workflow(*of), namespace: namespace(*of_namespace), rows }
            }
            What::Mark(row) => Command::MarkFailureDelivered { key: key(*row) },
            What::Redrive(row, forced) => Command::Redrive { key: key(*row), forced: *forced },
            What::Rearm(of, rows) => {
                let rows =
                    rows.iter().map(|(number, limits)| new_row(ordinal(*number), 0, 0, 0, Millis(0), 2, *limits));
                let rows = rows.collect();
                Command::Rearm { workflow: workflow(*of), rows }
            }
            What::Reconcile { older, limit, except } => {
                let excluded = except.iter().map(|row| key(*row)).collect();
                Command::Reconcile { older_than_ms: *older, limit: *limit, excluded }
            }
            What::PutNamespace { namespace: number, ceiling, deprecated, kept, next_kept } => {
                let (claimed_max, deprecated, retention_ms) = (*ceiling, *deprecated, *kept);
                let mut settings = NamespaceSettings { claimed_max, deprecated, retention_ms, ..Default::default() };
                settings.retention_ms_by_type = next_kept.iter().map(|kept| ("next".parse().unwrap(), *kept)).collect();
                Command::PutNamespace { namespace: namespace(*number), settings }
            }
            What::Purge(of) => Command::Purge { workflows: of.iter().map(|of| workflow(*of)).collect() },
            What::Session(number, change) => sessions::command(*number, change, oracle),
            What::Delete(of) => Command::Delete { workflow: workflow(*of) },
            What::Tick | What::Again(_) => Command::Tick,
        }
    }

    /// A transition as part of a commit; most tokens are of its own rows.
    fn part(&self, workflow: &WorkflowId, token: Token, number: u8, action: Move) -> Transition {
        let own = || self.tokens.iter().rev().filter(|(key, _)| key.workflow == *workflow);
        let (ordinal, token) = match token {
            Token::Given(ago) => match own().nth(usize::from(ago)) {
                Some((key, token)) => (key.ordinal, Some(*token)),
                None => (ordinal(number), None),
            },
            Token::OfAnother(ago) => (ordinal(number), own().nth(usize::from(ago)).map(|(_, token)| *token)),
            Token::None => (ordinal(number), None),
            Token::Never => (ordinal(number), Some(ClaimToken { index: 1, number: 77 })),
        };
        let action = match action {
            Move::Complete => RowAction::Complete { result: Payload::text("fine") },
            Move::Fail(retryable, fatal) => {
                let error_type = fatal.then(|| "fatal".parse().unwrap());
                RowAction::Fail { error: Payload::text("no"), error_type, retryable }
            }
            Move::Retry(delay_ms) => RowAction::Retry { delay_ms },
        };
        Transition { ordinal, token, action }
    }

    fn token(&self, token: Token, row: (u8, u8)) -> (DispatchKey, Option<ClaimToken>) {
        let given = |ago: u8| self.tokens.iter().rev().nth(usize::from(ago)).cloned();
        match token {
            Token::Given(ago) => given(ago).map_or((key(row), None), |(key, token)| (key, Some(token))),
            Token::OfAnother(ago) => (key(row), given(ago).map(|(_, token)| token)),
            Token::None => (key(row), None),
            Token::Never => (key(row), Some(ClaimToken { index: 1, number: 77 })),
        }
    }
}

fn timer_change(workflow: &WorkflowId, timer: Timer, oracle: &Oracle) -> TimerChange {
    let name = |number: u8| ["wake", "other"][usize::from(number)].parse().unwrap();
    let arming = |number, at, armed_seq| Arming {
        timer: name(number),
        fire_at: Millis(oracle.now.0.saturating_add_signed(at)),
        armed_seq,
    };
    match timer {
        Timer::Arm(number, at, seq) => TimerChange::Schedule(arming(number, at, seq)),
        Timer::RetireAnother(number, at, seq) => TimerChange::Retire(arming(number, at, seq)),
        Timer::Retire(number) => {
            let standing = oracle.timers.iter().find(|(of, arming)| of == workflow && arming.timer == name(number));
            TimerChange::Retire(standing.map_or_else(|| arming(number, 0, 0), |(_, arming)| arming.clone()))
        }
    }
}

fn fence(fencing: Fencing, workflow: &WorkflowId, oracle: &Oracle) -> Option<Fence> {
    let shard = oracle.shard_of(workflow);
    let entry = oracle.shards.iter().find(|entry| entry.shard == shard)?;
    let (owner, epoch) = (entry.owner.clone(), entry.epoch);
    match fencing {
        Fencing::None => None,
        Fencing::Current => Some(Fence { owner, epoch }),
        Fencing::Old => Some(Fence { owner, epoch: Epoch(epoch.0 - 1) }),
        Fencing::Wrong => Some(Fence { owner: node(9), epoch }),
    }
}

fn claim(what: &What, oracle: &Oracle) -> Claim {
    let What::Claim { by, pin, queue, kinds, limit, lease, hold } = what else { panic!("not a claim") };
    let holder = match by {
        None => NewHolder::Lease { claimant: "worker".parse().unwrap(), lease_ms: *lease },
        Some(of) => {
            let current = oracle.members.iter().find(|(member, _)| member.name == node(*of));
            let current = current.and_then(|(_, boot)| boot.clone());
            NewHolder::Node { node: node(*of), boot: current.unwrap_or_else(|| boot(*of, 9)) }
        }
    };
    let pinned = match (by, pin) {
        (_, 0) => None,
        (Some(of), 1 | 2) => Some(node(*of)),
        (_, pin) => Some(node(pin - 1)),
    };
    let kinds: &[&str] = [&[][..], &["kind-0"], &["kind-1", "kind-9"]][usize::from(*kinds)];
    let scope = Scope {
        namespace: pool(*queue).0,
        task_queue: pool(*queue).1,
        activity_types: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
        node: pinned,
    };
    Claim { scope, limit: *limit, holder, hold: hold.iter().map(|of| workflow(*of)).collect() }
}

pub fn namespace(number: u8) -> Namespace {
    ["default", "other"].get(usize::from(number)).unwrap_or(&"unused").parse().unwrap()
}

/// A namespace and a task queue in it.
fn pool(number: u8) -> (Namespace, TaskQueue) {
    (namespace(number / 2), ["default", "mail"][usize::from(number % 2)].parse().unwrap())
}

fn new_row(ordinal: u64, queue: u8, pin: u8, kind: u8, visible_after: Millis, budget: u32, limits: Limits) -> NewRow {
    let final_errors = [("fatal", 1), ("timeout", 2)].into_iter().filter(|(_, bit)| limits.final_errors & bit > 0);
    let [schedule_to_start_ms, start_to_close_ms, schedule_to_close_ms, heartbeat_ms] = limits.timeouts;
    NewRow {
        ordinal,
        task_queue: pool(queue).1,
        node: pin.checked_sub(1).map(node),
        activity_type: format!("kind-{kind}").parse().unwrap(),
        input: Payload::text(format!("input {ordinal}")),
        visible_after,
        retry: RetryPolicy {
            initial_ms: 10,
            multiplier_percent: 150,
            maximum_ms: 100,
            deliveries_max: budget,
            non_retryable: final_errors.map(|(name, _)| name.parse().unwrap()).collect(),
        },
        timeouts: Timeouts { schedule_to_start_ms, start_to_close_ms, schedule_to_close_ms, heartbeat_ms },
    }
}

fn commit(id: &WorkflowId, seq: Seq, words: &[Event], settle: &[u8], oracle: &Oracle) -> Commit {
    let head = oracle.head(id);
    let expected_seq = match seq {
        Seq::Head => head,
        Seq::Behind(by) => head.saturating_sub(by),
        Seq::Ahead(by) => head + by,
    };
    let (mut events, mut rows) = (Vec::new(), Vec::new());
    // Most new workflows begin as they should, and most runs are opened before they go on.
    let ended = oracle.status(id).0.is_terminal();
    if head == 0 || (ended && words.len() > 1) {
        let namespace = namespace(u8::from(id.as_str() == "order-2"));
        let start = WorkflowStart { namespace, workflow_type: "order".parse().unwrap(), run_id: None };
        events.push(NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) });
    }
    for word in words {
        match *word {
            Event::Plain(kind) if KINDS[kind] == EventKind::WorkflowStarted => {
                events.push(NewEvent::started(WorkflowType::new("next").unwrap()));
            }
            Event::Plain(kind) => events.push(NewEvent::of(KINDS[kind].clone())),
            Event::Activity { ordinal: number, queue, pin, kind, at, budget, limits } => {
                let at = if at == 0 { 0 } else { oracle.now.0.saturating_add_signed(at) };
                let row = new_row(ordinal(number), queue, pin, kind, Millis(at), budget, limits);
                events.push(NewEvent::activity(EventKind::ActivityScheduled, row.ordinal));
                events.push(NewEvent::activity(EventKind::ActivityStarted, row.ordinal));
                rows.push(row);
            }
            Event::Rowless(number) => {
                events.push(NewEvent::activity(EventKind::ActivityScheduled, ordinal(number)));
                events.push(NewEvent::activity(EventKind::ActivityStarted, ordinal(number)));
            }
            Event::Outcome(kind, number) => {
                let kinds = [EventKind::ActivityCompleted, EventKind::ActivityFailed, EventKind::ActivityCancelled];
                events.push(NewEvent::activity(kinds[usize::from(kind)].clone(), ordinal(number)));
            }
            Event::Search { kind, name, value } => {
                let event = match kind {
                    0 => NewEvent::of(EventKind::SearchAttributesUpdated),
                    1 => NewEvent::started(WorkflowType::new("next").unwrap()),
                    _ => NewEvent::of(EventKind::SignalReceived),
                };
                let update = [(find::name(name), value.map(find::value))].into();
                events.push(NewEvent { search_attributes: Some(update), ..event });
            }
            Event::Signal(number) => events.push(NewEvent::of(EventKind::from_name(&format!("Own{number}")))),
        }
    }
    let settle = settle.iter().map(|n| ordinal(*n)).collect();
    Commit { events, rows, settle, ..Commit::new(id.clone(), expected_seq) }
}
