//! Listings and indexes, read as their users do: page by page.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{
    Archive, ArchiveResult, Arming, ClaimToken, DispatchKey, ListedWorkflow, Machine, Millis, Namespace, NodeName,
    PendingRoute, Row, RowCounts, Scope, SessionId, ShardId, SortOrder, Workflow, WorkflowFilter, WorkflowId,
    WorkflowQuery, WorkflowSort, WorkflowStatus,
};

use super::{DueTimers, Listings, Pending, Told};

type Rows = BTreeMap<DispatchKey, Row>;
type Headed = (WorkflowId, Workflow);

pub fn rows_of(machine: &Machine, session: &SessionId) -> Vec<(ClaimToken, DispatchKey)> {
    let next = |last: Option<&(ClaimToken, DispatchKey)>| {
        let mut rows = machine.rows_of_session(session, last.map(|(token, _)| *token));
        rows.next().map(|(token, key)| (token, key.clone()))
    };
    pages(next)
}

pub fn told(machine: &Machine, archive: &dyn Archive, id: &WorkflowId) -> ArchiveResult<Option<Told>> {
    let Some(workflow) = machine.workflow(archive, id)? else { return Ok(None) };
    let events = machine.history(archive, id, 0, usize::MAX)?;
    let runs = machine.runs(archive, id, 0, usize::MAX)?;
    Ok(Some(Told { workflow, events, runs }))
}

pub fn listings(
    machine: &Machine,
    archive: &dyn Archive,
    workflows: &BTreeSet<WorkflowId>,
    rows: &Rows,
) -> ArchiveResult<Listings> {
    let namespaces: BTreeSet<&Namespace> = rows.values().map(|row| &row.namespace).collect();
    // Before a cluster has shards, all is in the first.
    let shards = || (0..machine.shard_count().max(1)).map(ShardId);
    let key = |(key, _): (DispatchKey, Row)| key;
    let letters_of = |id| {
        try_pages(|last: Option<&DispatchKey>| {
            let letters = machine.dead_letters_of(archive, id, last.map(|key| key.ordinal), 1)?;
            Ok(letters.rows.into_iter().map(key).next())
        })
    };
    let letters_in = |namespace| {
        try_pages(|last: Option<&DispatchKey>| {
            Ok(machine.dead_letters_in(archive, namespace, last, 1)?.rows.into_iter().map(key).next())
        })
    };
    let unsettled = |shard| {
        pages(|last: Option<&(WorkflowId, RowCounts)>| machine.unsettled(shard, last.map(|(id, _)| id), 1).pop())
    };
    let by_shard = |open_only| all(shards().map(|shard| heads(machine, archive, Some(shard), open_only)));
    let heads = heads(machine, archive, None, false)?;
    let homes: BTreeSet<Namespace> = heads.iter().map(|(_, workflow)| workflow.namespace.clone()).collect();
    let mut by_status = BTreeMap::new();
    for status in STATUSES {
        let count = counted(machine, archive, &homes, status)?;
        by_status.extend((count > 0).then_some((status, count)));
    }
    Ok(Listings {
        dead_letters_of: all(workflows.iter().map(letters_of))?,
        dead_letters_in: all(namespaces.into_iter().map(letters_in))?,
        unsettled: unsettled(None),
        unsettled_by_shard: shards().flat_map(|shard| unsettled(Some(shard))).collect(),
        routes: pages(|last: Option<&PendingRoute>| machine.pending_routes(last.map(|last| &last.route), 1).pop()),
        heads_by_shard: by_shard(false)?,
        open: by_shard(true)?,
        heads,
        by_start: listed(machine, archive, &homes, WorkflowSort::Started)?,
        by_close: listed(machine, archive, &homes, WorkflowSort::Closed)?,
        by_status,
    })
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
) -> ArchiveResult<Vec<ListedWorkflow>> {
    let of = |namespace: &Namespace| {
        let filter = WorkflowFilter { namespace: namespace.clone(), ..WorkflowFilter::default() };
        let query = WorkflowQuery { filter, sort, order: SortOrder::Oldest };
        Ok(machine.list_workflows(archive, &query, None, usize::MAX, usize::MAX)?.workflows)
    };
    all(namespaces.iter().map(of))
}

fn counted(
    machine: &Machine,
    archive: &dyn Archive,
    namespaces: &BTreeSet<Namespace>,
    status: WorkflowStatus,
) -> ArchiveResult<u64> {
    let of = |namespace: &Namespace| {
        let (namespace, statuses) = (namespace.clone(), vec![status]);
        let filter = WorkflowFilter { namespace, statuses, ..WorkflowFilter::default() };
        Ok(machine.count_workflows(archive, &filter, None, 1)?.count)
    };
    namespaces.iter().map(of).sum()
}

/// All items of a listing that is read one by one.
fn pages<T>(mut next: impl FnMut(Option<&T>) -> Option<T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    while let Some(item) = next(all.last()) {
        all.push(item);
    }
    all
}

/// The same for a listing that may fail.
fn try_pages<T>(mut next: impl FnMut(Option<&T>) -> ArchiveResult<Option<T>>) -> ArchiveResult<Vec<T>> {
    let mut all: Vec<T> = Vec::new();
    while let Some(item) = next(all.last())? {
        all.push(item);
    }
    Ok(all)
}

/// Several lists as one.
fn all<T>(lists: impl Iterator<Item = ArchiveResult<Vec<T>>>) -> ArchiveResult<Vec<T>> {
    Ok(lists.collect::<ArchiveResult<Vec<_>>>()?.into_iter().flatten().collect())
}

fn heads(
    machine: &Machine,
    archive: &dyn Archive,
    shard: Option<ShardId>,
    open_only: bool,
) -> ArchiveResult<Vec<Headed>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = machine.heads(archive, shard, open_only, after.as_ref(), 1)?;
        all.extend(page.workflows);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

pub fn timers(machine: &Machine, workflows: &BTreeSet<WorkflowId>) -> Vec<(WorkflowId, Arming)> {
    let of = |id: &WorkflowId| {
        let timers = machine.timers_of(id, None, usize::MAX).into_iter();
        timers.map(|arming| (id.clone(), arming)).collect::<Vec<_>>()
    };
    workflows.iter().flat_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

pub fn due_timers(machine: &Machine) -> Vec<DueTimers> {
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

pub fn pending(machine: &Machine, rows: &Rows) -> Vec<Pending> {
    let owners = owners(machine);
    let mut all = Vec::new();
    for scope in scopes(rows) {
        for owner in &owners {
            let rows = machine.pending(&scope, owner.as_ref()).map(|(at, key)| (at, key.clone())).collect();
            all.push(Pending { scope: scope.clone(), owner: owner.clone(), rows });
        }
    }
    all
}

/// One scope for each pool and node that a row speaks of, and one without a node.
fn scopes(rows: &Rows) -> Vec<Scope> {
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
