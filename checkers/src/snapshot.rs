//! What can be seen of a machine's state by whoever asks it: queries and the keys that are stored.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{
    Archive, ArchiveResult, Arming, ClaimToken, DispatchKey, HistoryEvent, ListedWorkflow, Machine, MemberState,
    Millis, Namespace, NamespaceState, NodeName, PendingRoute, Row, RowCounts, RowStatus, Run, Scope, Session,
    SessionId, ShardEntry, ShardId, Workflow, WorkflowId, WorkflowStatus,
};

mod ids;
mod read;

/// A workflow with its history.
pub struct Told {
    /// Its projection.
    pub workflow: Workflow,
    /// Its events, from the first one on.
    pub events: Vec<HistoryEvent>,
    /// Its runs, oldest first.
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
    /// What the claim is about.
    pub scope: Scope,
    /// Who claims; none for anybody.
    pub owner: Option<NodeName>,
    /// What it may take, in order.
    pub rows: Vec<(Millis, DispatchKey)>,
}

/// What an owner of shards, or anybody, is told of timers, whatever the time.
pub struct DueTimers {
    /// Who asks; none for anybody.
    pub owner: Option<NodeName>,
    /// What is armed, in order.
    pub timers: Vec<(WorkflowId, Arming)>,
    /// The first time after log time at which one is due.
    pub next: Option<Millis>,
}

/// All that can be seen of a state.
pub struct Snapshot {
    /// The index of the last entry that it holds.
    pub applied: u64,
    /// Log time.
    pub now: Millis,
    /// How many shards there are.
    pub shard_count: u32,
    /// The directory.
    pub shards: BTreeMap<ShardId, ShardEntry>,
    /// The members.
    pub members: BTreeMap<NodeName, MemberState>,
    /// Workflows with a history, without those that are being removed.
    pub workflows: BTreeMap<WorkflowId, Told>,
    /// Rows, live and finished.
    pub rows: BTreeMap<DispatchKey, Row>,
    /// The keys of live rows, as the machine lists them.
    pub live: BTreeSet<DispatchKey>,
    /// Live rows, as the machine counts them.
    pub counts: RowCounts,
    /// Namespaces with their settings.
    pub namespaces: BTreeMap<Namespace, NamespaceState>,
    /// Live rows by namespace.
    pub namespace_counts: BTreeMap<Namespace, RowCounts>,
    /// When the next lease ends or the next timeout passes.
    pub next_deadline: Option<Millis>,
    /// Workers' sessions.
    pub sessions: BTreeMap<SessionId, Session>,
    /// What each of them holds, in the order in which it was given, read in pages of one.
    pub session_rows: BTreeMap<SessionId, Vec<(ClaimToken, DispatchKey)>>,
    /// How many rows each of them holds, as the machine counts them.
    pub session_row_counts: BTreeMap<SessionId, u64>,
    /// When the next session ends.
    pub next_session_end: Option<Millis>,
    /// When the next row can be given to a session.
    pub next_dispatch_due: Option<Millis>,
    /// Claimed rows by claim time, then key.
    pub claimed: Vec<DispatchKey>,
    /// The keys of everything that is stored, but for what is being removed.
    pub stored: BTreeSet<Vec<u8>>,
    /// What claims may take.
    pub pending: Vec<Pending>,
    /// What is listed.
    pub listings: Listings,
    /// What is armed, by workflow, then name.
    pub timers: Vec<(WorkflowId, Arming)>,
    /// The same for each owner of shards.
    pub due_timers: Vec<DueTimers>,
}

/// The listings of a machine, each read in pages of one.
pub struct Listings {
    /// Dead letters, workflow by workflow.
    pub dead_letters_of: Vec<DispatchKey>,
    /// Dead letters, namespace by namespace.
    pub dead_letters_in: Vec<DispatchKey>,
    /// Workflows with live rows.
    pub unsettled: Vec<(WorkflowId, RowCounts)>,
    /// The same, shard by shard.
    pub unsettled_by_shard: Vec<(WorkflowId, RowCounts)>,
    /// What waits for a claim, by route.
    pub routes: Vec<PendingRoute>,
    /// Workflows by id.
    pub heads: Vec<(WorkflowId, Workflow)>,
    /// The same, shard by shard.
    pub heads_by_shard: Vec<(WorkflowId, Workflow)>,
    /// Open workflows, shard by shard.
    pub open: Vec<(WorkflowId, Workflow)>,
    /// Workflows by namespace, oldest first.
    pub by_start: Vec<ListedWorkflow>,
    /// Closed workflows by namespace, the first that closed first.
    pub by_close: Vec<ListedWorkflow>,
    /// How many there are of each status.
    pub by_status: BTreeMap<WorkflowStatus, u64>,
}

impl Snapshot {
    /// Looks at a machine whose writes are all in the archive.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn of(machine: &Machine, archive: &dyn Archive) -> ArchiveResult<Self> {
        let mut stored = ids::stored(archive)?;
        stored.retain(|key| !ids::workflow_of(key).is_some_and(|id| machine.is_being_removed(&id)));
        let workflows: BTreeSet<WorkflowId> = stored.iter().filter_map(|key| ids::workflow_of(key)).collect();
        let mut rows = BTreeMap::new();
        let live = machine.live_rows().map(|(key, _)| key.clone());
        for key in stored.iter().filter_map(|key| ids::row_of(key)).chain(live) {
            if let Some(row) = machine.row(archive, &key)? {
                rows.insert(key, row);
            }
        }
        let told = |id: &WorkflowId| {
            let told = read::told(machine, archive, id).transpose()?;
            Some(told.map(|told| (id.clone(), told)))
        };
        let now = machine.now();
        Ok(Self {
            applied: machine.applied(),
            now,
            shard_count: machine.shard_count(),
            shards: machine.shards().map(|entry| (entry.shard, entry.clone())).collect(),
            members: machine.members().map(|member| (member.member.name.clone(), member.clone())).collect(),
            workflows: workflows.iter().filter_map(told).collect::<ArchiveResult<_>>()?,
            live: machine.live_rows().map(|(key, _)| key.clone()).collect(),
            counts: machine.row_counts(),
            namespaces: machine.namespaces_after(None).map(|(name, state)| (name.clone(), state.clone())).collect(),
            namespace_counts: machine.namespace_counts(None).map(|(name, counts)| (name.clone(), counts)).collect(),
            next_deadline: machine.next_deadline(),
            sessions: machine.sessions_after(None).map(|(id, session)| (id.clone(), session.clone())).collect(),
            session_rows: machine
                .sessions_after(None)
                .map(|(id, _)| (id.clone(), read::rows_of(machine, id)))
                .collect(),
            session_row_counts: machine
                .sessions_after(None)
                .map(|(id, _)| (id.clone(), machine.session_row_count(id)))
                .collect(),
            next_session_end: machine.next_session_end(),
            next_dispatch_due: machine.next_dispatch_due(),
            claimed: machine.stale_rows(now, 0, None, usize::MAX).into_iter().map(|(key, _)| key).collect(),
            pending: read::pending(machine, &rows),
            listings: read::listings(machine, archive, &workflows, &rows)?,
            timers: read::timers(machine, &workflows),
            due_timers: read::due_timers(machine),
            rows,
            stored,
        })
    }

    /// The status of a workflow; running if it has no history.
    pub fn status(&self, id: &WorkflowId) -> WorkflowStatus {
        self.workflows.get(id).map_or(WorkflowStatus::Running, |told| told.workflow.status)
    }

    /// As if a workflow had never been: what comes after it has nothing to do with what was before. Gives the status
    /// that it had.
    pub fn forget(&mut self, id: &WorkflowId) -> Option<WorkflowStatus> {
        let told = self.workflows.remove(id);
        self.rows.retain(|key, _| key.workflow != *id);
        self.live.retain(|key| key.workflow != *id);
        self.claimed.retain(|key| key.workflow != *id);
        told.map(|told| told.workflow.status)
    }

    /// The rows of a status.
    pub fn rows_in(&self, status: RowStatus) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.rows.iter().filter(move |(_, row)| row.status == status)
    }

    /// How many keys a table holds.
    pub fn stored_in(&self, table: u8) -> usize {
        self.stored.range(vec![table]..vec![table + 1]).count()
    }
}
