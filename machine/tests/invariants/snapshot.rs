//! What can be seen of a machine's state, and one step from one state to the next.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{
    Archive, Arming, ClaimToken, Command, DispatchKey, Effect, HistoryEvent, Holder, ListedWorkflow, Machine,
    MemberState, Millis, Namespace, NamespaceState, NodeName, PendingRoute, Reject, Reply, Request, Row, RowClaim,
    RowCounts, RowStatus, Run, Scope, Session, SessionId, ShardEntry, ShardId, SortOrder, Workflow, WorkflowFilter,
    WorkflowId, WorkflowQuery, WorkflowSort, WorkflowStatus,
};

/// A workflow with its history.
pub struct Told {
    pub workflow: Workflow,
    pub events: Vec<HistoryEvent>,
    pub runs: Vec<Run>,
}

impl Told {
    /// The run that the event with this position belongs to, from 1.
    pub fn run_of(&self, position: usize) -> u32 {
        let seq = self.events[position].seq;
        self.runs.iter().filter(|run| run.started_seq <= seq).map(|run| run.number).max().unwrap_or(0)
    }
}

/// What a claim of a scope, by an owner of shards or by anybody, may take and when.
pub struct Pending {
    pub scope: Scope,
    pub owner: Option<NodeName>,
    pub rows: Vec<(Millis, DispatchKey)>,
}

/// What an owner of shards, or anybody, is told of timers, whatever the time.
pub struct DueTimers {
    pub owner: Option<NodeName>,
    pub timers: Vec<(WorkflowId, Arming)>,
    /// The first time after log time at which one is due.
    pub next: Option<Millis>,
}

/// All that can be seen of a state.
pub struct Snapshot {
    pub now: Millis,
    pub shard_count: u32,
    pub shards: BTreeMap<ShardId, ShardEntry>,
    pub members: BTreeMap<NodeName, MemberState>,
    pub workflows: BTreeMap<WorkflowId, Told>,
    pub rows: BTreeMap<DispatchKey, Row>,
    pub live: BTreeSet<DispatchKey>,
    pub counts: RowCounts,
    pub namespaces: BTreeMap<Namespace, NamespaceState>,
    /// Live rows by namespace.
    pub namespace_counts: BTreeMap<Namespace, RowCounts>,
    pub next_deadline: Option<Millis>,
    pub sessions: BTreeMap<SessionId, Session>,
    /// What each of them holds, in the order in which it was given, read in pages of one.
    pub session_rows: BTreeMap<SessionId, Vec<(ClaimToken, DispatchKey)>>,
    pub next_session_end: Option<Millis>,
    pub next_dispatch_due: Option<Millis>,
    /// Claimed rows by claim time, then key.
    pub claimed: Vec<DispatchKey>,
    /// The keys of everything that is stored.
    pub stored: BTreeSet<Vec<u8>>,
    /// What claims may take.
    pub pending: Vec<Pending>,
    pub listings: Listings,
    /// What is armed, by workflow, then name.
    pub timers: Vec<(WorkflowId, Arming)>,
    pub due_timers: Vec<DueTimers>,
}

/// The listings of a machine, each read in pages of one.
pub struct Listings {
    pub dead_letters_of: Vec<DispatchKey>,
    pub dead_letters_in: Vec<DispatchKey>,
    pub unsettled: Vec<(WorkflowId, RowCounts)>,
    pub unsettled_by_shard: Vec<(WorkflowId, RowCounts)>,
    pub routes: Vec<PendingRoute>,
    pub heads: Vec<(WorkflowId, Workflow)>,
    pub heads_by_shard: Vec<(WorkflowId, Workflow)>,
    pub open: Vec<(WorkflowId, Workflow)>,
    /// Workflows by namespace, oldest first.
    pub by_start: Vec<ListedWorkflow>,
    pub by_close: Vec<ListedWorkflow>,
    pub by_status: BTreeMap<WorkflowStatus, u64>,
}

impl Snapshot {
    /// Looks at a machine; finished things are found by the ids that the caller knows.
    pub fn of(machine: &Machine, archive: &dyn Archive, workflows: &[WorkflowId], ordinals: &[u64]) -> Self {
        let keys = workflows.iter().flat_map(|workflow| {
            ordinals.iter().map(|ordinal| DispatchKey { workflow: workflow.clone(), ordinal: *ordinal })
        });
        let rows: BTreeMap<DispatchKey, Row> =
            keys.filter_map(|key| Some((key.clone(), machine.row(archive, &key).unwrap()?))).collect();
        let now = machine.now();
        Self {
            now,
            shard_count: machine.shard_count(),
            shards: machine.shards().map(|entry| (entry.shard, entry.clone())).collect(),
            members: machine.members().map(|member| (member.member.name.clone(), member.clone())).collect(),
            workflows: workflows.iter().filter_map(|id| Some((id.clone(), told(machine, archive, id)?))).collect(),
            live: machine.live_rows().map(|(key, _)| key.clone()).collect(),
            counts: machine.row_counts(),
            namespaces: machine.namespaces_after(None).map(|(name, state)| (name.clone(), state.clone())).collect(),
            namespace_counts: machine.namespace_counts(None).map(|(name, counts)| (name.clone(), counts)).collect(),
            next_deadline: machine.next_deadline(),
            sessions: machine.sessions_after(None).map(|(id, session)| (id.clone(), session.clone())).collect(),
            session_rows: machine.sessions_after(None).map(|(id, _)| (id.clone(), rows_of(machine, id))).collect(),
            next_session_end: machine.next_session_end(),
            next_dispatch_due: machine.next_dispatch_due(),
            claimed: machine.stale_rows(now, 0, None, usize::MAX).into_iter().map(|(key, _)| key).collect(),
            stored: archive.scan(&[], &[u8::MAX], usize::MAX).unwrap().into_iter().map(|(key, _)| key).collect(),
            pending: pending(machine, &scopes(&rows)),
            listings: listings(machine, archive, workflows, &rows),
            timers: timers(machine, workflows),
            due_timers: due_timers(machine),
            rows,
        }
    }

    /// The status of a workflow; running if it has no history.
    pub fn status(&self, id: &WorkflowId) -> WorkflowStatus {
        self.workflows.get(id).map_or(WorkflowStatus::Running, |told| told.workflow.status)
    }

    /// As if a workflow had never been.
    pub fn forget(&mut self, id: &WorkflowId) {
        self.workflows.remove(id);
        self.rows.retain(|key, _| key.workflow != *id);
        self.live.retain(|key| key.workflow != *id);
        self.claimed.retain(|key| key.workflow != *id);
    }

    /// The rows of a status.
    pub fn rows_in(&self, status: RowStatus) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.rows.iter().filter(move |(_, row)| row.status == status)
    }
}

fn rows_of(machine: &Machine, session: &SessionId) -> Vec<(ClaimToken, DispatchKey)> {
    let rows = pages(|last: Option<&(ClaimToken, DispatchKey)>| {
        let mut rows = machine.rows_of_session(session, last.map(|(token, _)| *token));
        rows.next().map(|(token, key)| (token, key.clone()))
    });
    assert_eq!(machine.session_row_count(session), rows.len() as u64);
    rows
}

fn told(machine: &Machine, archive: &dyn Archive, id: &WorkflowId) -> Option<Told> {
    let workflow = machine.workflow(archive, id).unwrap()?;
    let events = machine.history(archive, id, 0, usize::MAX).unwrap();
    let runs = machine.runs(archive, id, 0, usize::MAX).unwrap();
    Some(Told { workflow, events, runs })
}

fn listings(
    machine: &Machine,
    archive: &dyn Archive,
    workflows: &[WorkflowId],
    rows: &BTreeMap<DispatchKey, Row>,
) -> Listings {
    let namespaces: BTreeSet<&Namespace> = rows.values().map(|row| &row.namespace).collect();
    let shards = || (0..machine.shard_count()).map(ShardId);
    let key = |(key, _): (DispatchKey, Row)| key;
    let letters_of = |id| {
        pages(|last: Option<&DispatchKey>| {
            let letters = machine.dead_letters_of(archive, id, last.map(|key| key.ordinal), 1).unwrap();
            letters.rows.into_iter().map(key).next()
        })
    };
    let letters_in = |namespace| {
        pages(|last: Option<&DispatchKey>| {
            machine.dead_letters_in(archive, namespace, last, 1).unwrap().rows.into_iter().map(key).next()
        })
    };
    let unsettled = |shard| {
        pages(|last: Option<&(WorkflowId, RowCounts)>| machine.unsettled(shard, last.map(|(id, _)| id), 1).pop())
    };
    let heads = |shard, open_only| heads(machine, archive, shard, open_only);
    let homes: BTreeSet<Namespace> = heads(None, false).into_iter().map(|(_, workflow)| workflow.namespace).collect();
    Listings {
        dead_letters_of: workflows.iter().flat_map(letters_of).collect(),
        dead_letters_in: namespaces.into_iter().flat_map(letters_in).collect(),
        unsettled: unsettled(None),
        unsettled_by_shard: shards().flat_map(|shard| unsettled(Some(shard))).collect(),
        routes: pages(|last: Option<&PendingRoute>| machine.pending_routes(last.map(|last| &last.route), 1).pop()),
        heads: heads(None, false),
        heads_by_shard: shards().flat_map(|shard| heads(Some(shard), false)).collect(),
        open: shards().flat_map(|shard| heads(Some(shard), true)).collect(),
        by_start: listed(machine, archive, &homes, WorkflowSort::Started),
        by_close: listed(machine, archive, &homes, WorkflowSort::Closed),
        by_status: STATUSES
            .into_iter()
            .filter_map(|status| Some((status, counted(machine, archive, &homes, status)?)))
            .collect(),
    }
}

const STATUSES: [WorkflowStatus; 7] = [
    WorkflowStatus::Running,
    WorkflowStatus::Paused,
    WorkflowStatus::Completed,
    WorkflowStatus::Failed,
    WorkflowStatus::Cancelled,
    WorkflowStatus::TimedOut,
    WorkflowStatus::ContinuedAsNew,
];

/// The workflows of all namespaces, one after the other.
fn listed(
    machine: &Machine,
    archive: &dyn Archive,
    namespaces: &BTreeSet<Namespace>,
    sort: WorkflowSort,
) -> Vec<ListedWorkflow> {
    let of = |namespace: &Namespace| {
        let filter = WorkflowFilter { namespace: namespace.clone(), ..WorkflowFilter::default() };
        let query = WorkflowQuery { filter, sort, order: SortOrder::Oldest };
        machine.list_workflows(archive, &query, None, usize::MAX, usize::MAX).unwrap().workflows
    };
    namespaces.iter().flat_map(of).collect()
}

/// None if there are none.
fn counted(
    machine: &Machine,
    archive: &dyn Archive,
    namespaces: &BTreeSet<Namespace>,
    status: WorkflowStatus,
) -> Option<u64> {
    let of = |namespace: &Namespace| {
        let (namespace, statuses) = (namespace.clone(), vec![status]);
        let filter = WorkflowFilter { namespace, statuses, ..WorkflowFilter::default() };
        machine.count_workflows(archive, &filter, None, 1).unwrap().count
    };
    Some(namespaces.iter().map(of).sum()).filter(|count| *count > 0)
}

/// All items of a listing that is read one by one.
fn pages<T>(next: impl Fn(Option<&T>) -> Option<T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    while let Some(item) = next(all.last()) {
        all.push(item);
    }
    all
}

fn heads(
    machine: &Machine,
    archive: &dyn Archive,
    shard: Option<ShardId>,
    open_only: bool,
) -> Vec<(WorkflowId, Workflow)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = machine.heads(archive, shard, open_only, after.as_ref(), 1).unwrap();
        all.extend(page.workflows);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

fn timers(machine: &Machine, workflows: &[WorkflowId]) -> Vec<(WorkflowId, Arming)> {
    let of = |id: &WorkflowId| {
        let timers = machine.timers_of(id, None, usize::MAX).into_iter();
        timers.map(|arming| (id.clone(), arming)).collect::<Vec<_>>()
    };
    workflows.iter().flat_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

fn due_timers(machine: &Machine) -> Vec<DueTimers> {
    let due = |owner: Option<NodeName>| DueTimers {
        timers: machine.expired_timers(owner.as_ref(), None, Millis(u64::MAX), usize::MAX),
        next: machine.next_timer_due(owner.as_ref(), machine.now()),
        owner,
    };
    owners(machine).into_iter().map(due).collect()
}

/// All owners of shards, and nobody in particular.
fn owners(machine: &Machine) -> BTreeSet<Option<NodeName>> {
    machine.shards().map(|entry| Some(entry.owner.clone())).chain([None]).collect()
}

fn pending(machine: &Machine, scopes: &[Scope]) -> Vec<Pending> {
    let owners = owners(machine);
    let mut all = Vec::new();
    for scope in scopes {
        for owner in &owners {
            let rows = machine.pending(scope, owner.as_ref()).map(|(at, key)| (at, key.clone())).collect();
            all.push(Pending { scope: scope.clone(), owner: owner.clone(), rows });
        }
    }
    all
}

/// One scope for each pool and node that a row speaks of, and one without a node.
fn scopes(rows: &BTreeMap<DispatchKey, Row>) -> Vec<Scope> {
    let mut scopes = BTreeMap::new();
    for row in rows.values() {
        for node in [None, row.node.clone()] {
            let (namespace, task_queue) = (row.namespace.clone(), row.task_queue.clone());
            let scope = Scope { namespace, task_queue, activity_types: Vec::new(), node };
            scopes.insert((scope.namespace.clone(), scope.task_queue.clone(), scope.node.clone()), scope);
        }
    }
    scopes.into_values().collect()
}

/// One log entry: the state before it, the state after it, and what was said.
pub struct Step<'a> {
    pub index: u64,
    pub before: &'a Snapshot,
    pub after: &'a Snapshot,
    pub said: &'a [(Request, Result<Reply, Reject>)],
    pub effects: &'a [Effect],
    /// Everything that was said before under an idempotency key and is not forgotten.
    pub remembered: &'a [(Request, Result<Reply, Reject>)],
}

impl Step<'_> {
    /// The requests of this entry that may have touched this workflow or its rows, by number.
    pub fn touching<'s>(&'s self, workflow: &'s WorkflowId) -> impl Iterator<Item = &'s Request> {
        self.said.iter().map(|(request, _)| request).filter(move |request| match request.command.workflow() {
            Some(touched) => touched == workflow,
            None => !matches!(request.command, Command::Tick | Command::Create { .. } | Command::Assign { .. }),
        })
    }

    /// True if something could have happened to this row by itself at the entry's time: its lease or its session has
    /// ended, or a timeout has passed.
    pub fn deadline_passed(&self, key: &DispatchKey) -> bool {
        let Some(row) = self.before.rows.get(key).filter(|row| row.status.is_live()) else { return false };
        let session = match row.claim.as_ref().map(|claim| &claim.holder) {
            Some(Holder::Session { session }) => self.before.sessions.get(session).map(|session| session.deadline),
            _ => None,
        };
        deadline(row).into_iter().chain(session).any(|at| at <= self.after.now)
    }

    /// True if this entry gave the row to somebody.
    pub fn was_given(&self, key: &DispatchKey) -> bool {
        let claim = self.after.rows.get(key).and_then(|row| row.claim.as_ref());
        claim.is_some_and(|claim| claim.token.index == self.index)
    }
}

/// The first deadline of a live row.
pub fn deadline(row: &Row) -> Option<Millis> {
    let claim = row.claim.as_ref();
    let attempt = |from: fn(&RowClaim) -> Millis, ms: Option<u64>| Some(from(claim?).plus(ms?));
    let all = [
        row.timeouts.schedule_to_close_ms.map(|ms| row.scheduled_at.plus(ms)),
        row.start_by,
        attempt(|claim| claim.claimed_at, row.timeouts.start_to_close_ms),
        attempt(|claim| claim.heartbeat_at, row.timeouts.heartbeat_ms),
        claim.and_then(|claim| claim.deadline),
    ];
    all.into_iter().flatten().min()
}
