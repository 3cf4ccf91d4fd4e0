//! A second opinion: the contract once more, as naive as it can be. Everything is a list that is walked from
//! its beginning, and what can be derived from a history is derived from it each time. It shares types with
//! the machine, and no logic.

mod deadlines;
mod histories;
mod listings;
mod moves;
mod namespaces;
mod nodes;
mod removal;
mod rows;
mod sessions;

use crate::replay::may_be_better_later;
use holdfast_machine::{
    Arming, BootId, ClaimToken, Command, Commit, DispatchKey, Entry, Fence, HistoryEvent, IdempotencyKey, Liveness,
    Member, Millis, Namespace, NamespaceState, NodeName, Reject, Reply, Request, Row, RowStatus, Session, SessionId,
    ShardEntry, ShardId, WorkflowId,
};

pub type Answer = Result<Reply, Reject>;

/// How long replies are remembered, from the documentation of idempotency keys.
const REMEMBERED_MS: u64 = 600_000;

/// A remembered reply.
pub struct Remembered {
    pub key: IdempotencyKey,
    pub at: Millis,
    pub asked: Command,
    pub reply: Answer,
}

#[derive(Default)]
pub struct Oracle {
    pub now: Millis,
    pub index: u64,
    pub tokens: u32,
    pub shard_count: u32,
    pub members: Vec<(Member, Option<BootId>)>,
    pub boots: Vec<(NodeName, BootId)>,
    pub shards: Vec<ShardEntry>,
    pub events: Vec<(WorkflowId, HistoryEvent)>,
    /// Commits that landed, with the head that each led to.
    pub landed: Vec<(Commit, u64)>,
    pub rows: Vec<(DispatchKey, Row)>,
    /// Workflows whose history an outcome began, with the namespace of its row.
    pub begun: Vec<(WorkflowId, Namespace)>,
    pub timers: Vec<(WorkflowId, Arming)>,
    pub remembered: Vec<Remembered>,
    pub namespaces: Vec<(Namespace, NamespaceState)>,
    pub sessions: Vec<(SessionId, Session)>,
    /// What each session was given last.
    pub turns: Vec<(SessionId, ClaimToken, Namespace)>,
    /// Sessions that the entry attached.
    pub attached: Vec<SessionId>,
    /// Workflows that the last entry removed.
    pub removed: Vec<WorkflowId>,
}

impl Oracle {
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Vec<Answer> {
        self.index = index;
        self.tokens = 0;
        self.removed.clear();
        self.now = self.now.max(entry.at);
        let now = self.now;
        let held = self.held_by_sessions();
        self.pass_time(true);
        self.remembered.retain(|remembered| remembered.at.0.saturating_add(REMEMBERED_MS) >= now.0);
        let answers = entry.requests.iter().map(|request| self.request(request)).collect();
        self.pass_time(false);
        let (rows, paused) = (self.rows.clone(), self.paused());
        self.dispatch(held);
        self.let_wait(&rows, &paused);
        answers
    }

    pub fn apply_members(&mut self, index: u64, members: &[Member]) {
        (self.index, self.tokens) = (index, 0);
        self.removed.clear();
        let held = self.held_by_sessions();
        let boot_of = |name: &NodeName| {
            let known = self.members.iter().find(|(member, _)| member.name == *name);
            known.and_then(|(_, boot)| boot.clone())
        };
        self.members = members.iter().map(|member| (member.clone(), boot_of(&member.name))).collect();
        self.detach_from_the_gone();
        self.dispatch(held);
    }

    fn request(&mut self, request: &Request) -> Answer {
        let Request { idempotency_key, fence, command } = request;
        let Some(key) = idempotency_key else { return self.fenced(fence, command) };
        if let Some(known) = self.remembered.iter().find(|known| known.key == *key) {
            return if known.asked == *command { known.reply.clone() } else { Err(Reject::IdempotencyConflict) };
        }
        let reply = self.fenced(fence, command);
        if !may_be_better_later(&reply) {
            self.remembered.push(Remembered {
                key: key.clone(),
                at: self.now,
                asked: command.clone(),
                reply: reply.clone(),
            });
        }
        reply
    }

    fn fenced(&mut self, fence: &Option<Fence>, command: &Command) -> Answer {
        let workflow = match command {
            Command::Commit(commit) => Some(&commit.workflow),
            Command::Heartbeat { key, .. }
            | Command::Complete { key, .. }
            | Command::Fail { key, .. }
            | Command::Retry { key, .. }
            | Command::MarkFailureDelivered { key }
            | Command::Redrive { key, .. } => Some(&key.workflow),
            Command::Settle { workflow }
            | Command::Rearm { workflow, .. }
            | Command::Stage { workflow, .. }
            | Command::Delete { workflow }
            | Command::Timer { workflow, .. } => Some(workflow),
            _ => None,
        };
        if let (Some(fence), Some(workflow)) = (fence, workflow) {
            let shard = self.shard_of(workflow);
            let entry = self.shards.iter().find(|entry| entry.shard == shard);
            let holds = entry.is_some_and(|entry| entry.owner == fence.owner && entry.epoch == fence.epoch);
            if !holds {
                let owner = entry.map(|entry| entry.owner.clone());
                return Err(Reject::NotOwner { shard, owner, epoch: entry.map(|e| e.epoch).unwrap_or_default() });
            }
        }
        let (rows, paused) = (self.rows.clone(), self.paused());
        let answer = self.command(command);
        self.let_wait(&rows, &paused);
        answer
    }

    fn command(&mut self, command: &Command) -> Answer {
        match command {
            Command::Create { shard_count } => self.create(*shard_count),
            Command::Boot { node, boot } => self.boot(node, boot),
            Command::Assign { owners } => self.assign(owners),
            Command::Adopt { shard, from, by, expected_epoch } => self.adopt(*shard, from, by, *expected_epoch),
            Command::Transfer { shard, to, expected_epoch } => self.transfer(*shard, to, *expected_epoch),
            Command::Commit(commit) => self.commit(commit),
            Command::Claim(claim) => self.claim(claim),
            Command::Heartbeat { key, token, lease_ms, .. } => self.heartbeat(key, *token, *lease_ms),
            Command::Complete { key, token, result } => self.complete(key, *token, result),
            Command::Fail { key, token, error, error_type, retryable } => {
                self.fail(key, *token, error, error_type.as_ref(), *retryable)
            }
            Command::Retry { key, token, delay_ms } => self.retry(key, *token, *delay_ms),
            Command::Settle { workflow } => Ok(Reply::Settled { keys: self.cancel_all(workflow) }),
            Command::Rearm { workflow, rows } => self.rearm(workflow, rows),
            Command::Reconcile { older_than_ms, limit, excluded } => self.reconcile(*older_than_ms, *limit, excluded),
            Command::PutNamespace { namespace, settings } => Ok(self.put_namespace(namespace, settings)),
            Command::Timer { workflow, change } => self.timer(workflow, change),
            Command::Tick => Ok(Reply::Ticked { at: self.now }),
            Command::Checkpoint { .. } => Ok(Reply::CheckpointTaken),
            Command::Stage { workflow, namespace, rows } => self.stage_alone(workflow, namespace, rows),
            Command::MarkFailureDelivered { key } => self.mark(key),
            Command::Redrive { key, forced } => self.redrive(key, *forced),
            Command::Purge { workflows } => self.purge(workflows),
            Command::Delete { workflow } => self.delete(workflow),
            Command::Session { session, change } => self.change_session(session, change),
        }
    }

    pub fn shard_of(&self, workflow: &WorkflowId) -> ShardId {
        ShardId::of(workflow, self.shard_count)
    }

    pub fn owner(&self, shard: ShardId) -> Option<&NodeName> {
        self.shards.iter().find(|entry| entry.shard == shard).map(|entry| &entry.owner)
    }

    pub fn is_down(&self, node: &NodeName) -> bool {
        let member = self.members.iter().find(|(member, _)| member.name == *node);
        member.is_none_or(|(member, _)| matches!(member.liveness, Liveness::Down { .. }))
    }

    pub fn row(&self, key: &DispatchKey) -> Option<&Row> {
        self.rows.iter().find(|(known, _)| known == key).map(|(_, row)| row)
    }

    pub fn row_mut(&mut self, key: &DispatchKey) -> Option<&mut Row> {
        self.rows.iter_mut().find(|(known, _)| known == key).map(|(_, row)| row)
    }

    pub fn put_row(&mut self, key: &DispatchKey, row: Row) {
        self.rows.retain(|(known, _)| known != key);
        self.rows.push((key.clone(), row));
    }

    /// Cancels all live rows of a workflow; their keys, ascending.
    pub fn cancel_all(&mut self, workflow: &WorkflowId) -> Vec<DispatchKey> {
        let mut keys = Vec::new();
        for (key, row) in &mut self.rows {
            if key.workflow == *workflow && row.status.is_live() {
                row.status = RowStatus::Cancelled;
                row.claim = None;
                keys.push(key.clone());
            }
        }
        keys.sort();
        keys
    }
}

/// Back to pending, visible at once, counts kept.
pub fn to_pending(row: &mut Row, now: Millis) {
    row.status = RowStatus::Pending;
    row.claim = None;
    row.visible_after = now;
}

/// A refusal whose words do not matter.
pub fn invalid<T>() -> Result<T, Reject> {
    Err(Reject::InvalidArgument { what: String::new() })
}

/// The same answer without the words that only people read.
pub fn plain(answer: Answer) -> Answer {
    answer.map_err(|reject| match reject {
        Reject::InvalidArgument { .. } => Reject::InvalidArgument { what: String::new() },
        Reject::NodeState { node, .. } => Reject::NodeState { node, problem: String::new() },
        Reject::LimitExceeded { limit, actual, .. } => Reject::LimitExceeded { what: String::new(), limit, actual },
        other => other,
    })
}
