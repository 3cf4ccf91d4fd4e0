//! Reasons for people: a sentence that says what is so, and what to do about it.

use std::fmt;

use super::held::NextTimeout;
use super::row::RowReason;
use super::shard::ShardReason;
use super::workflow::WorkflowReason;
use super::{NoQuorum, since};
use crate::deadline::Deadline;
use crate::id::{Millis, NodeName};

const NOTHING_TO_DO: &str = "Nothing has to be done.";
const ALERT_LEADER: &str = "Look at the leader's log and at the connections between the nodes.";

/// A length of time for people: `850 ms`, `4.2 s`, `3 min 12 s`, `2 h 5 min`, `4 d 3 h`.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0;
        let (s, min, h, d) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
        match ms {
            0..1_000 => write!(f, "{ms} ms"),
            1_000..60_000 => write!(f, "{s}.{} s", ms % 1_000 / 100),
            60_000..3_600_000 => write!(f, "{min} min {} s", s % 60),
            3_600_000..86_400_000 => write!(f, "{h} h {} min", min % 60),
            _ => write!(f, "{d} d {} h", h % 24),
        }
    }
}

/// How long ago something was.
fn ago(now: Millis, at: Millis) -> Span {
    Span(since(now, at))
}

fn said(last: Option<&String>) -> String {
    last.map_or(String::new(), |last| format!("; the last attempt said: {last}"))
}

fn adopted_by(adopter: Option<&NodeName>) -> String {
    match adopter {
        Some(node) => format!("{node} is to adopt its shards"),
        None => "no member is there to adopt its shards".to_owned(),
    }
}

impl NoQuorum {
    fn sentence(&self) -> String {
        let Self { node, leader, linked, voters, for_ms } = self;
        let since = for_ms.map_or(String::new(), |ms| format!(" for {}", Span(ms)));
        let leader = match leader {
            Some(leader) if leader == node => ", and takes itself for the leader".to_owned(),
            Some(leader) => format!(", and takes {leader} for the leader"),
            None => ", and knows no leader".to_owned(),
        };
        format!(
            "{node} does not reach a majority{since}: it is connected to {linked} of {voters} voters, itself counted\
             {leader}."
        )
    }

    fn advice(&self) -> String {
        "Start the nodes that are away, or mend the network between them, until a majority is there; if the others \
         have a majority without this node, ask one of them. What is said here may be old."
            .to_owned()
    }
}

impl RowReason {
    /// What is so, at `now`.
    pub fn sentence(&self, now: Millis) -> String {
        match self {
            Self::NoSuchRow { being_removed: true, .. } => "The row's workflow is being removed.".to_owned(),
            Self::NoSuchRow { workflow_known: true, .. } => "Its workflow is there, and has no such row.".to_owned(),
            Self::NoSuchRow { .. } => "There is neither such a row nor its workflow.".to_owned(),
            Self::Finished { status, outcome_seq: Some(seq) } => {
                format!("The row is {status}; its outcome is event {seq} of the history.")
            }
            Self::Finished { status, outcome_seq: None } => format!("The row is {status}."),
            Self::DeadLetter { outcome_seq: Some(seq), last_said, .. } => {
                format!(
                    "The activity failed for good, which is event {seq} of the history{}.",
                    said(last_said.as_ref())
                )
            }
            Self::DeadLetter { deliveries, deliveries_max, failure_delivered, last_said, .. } => {
                let heard = if *failure_delivered { "has heard" } else { "has not heard" };
                let said = said(last_said.as_ref());
                format!(
                    "The row is a dead letter after {deliveries} of {deliveries_max} deliveries, and its workflow {heard} \
                     of it{said}."
                )
            }
            Self::NoQuorum(no_quorum) => no_quorum.sentence(),
            Self::StorageFull { node } => full(node),
            Self::WorkflowPaused { workflow, since: Some(at) } => {
                format!("Its workflow {workflow} has been paused for {}; its rows wait.", ago(now, *at))
            }
            Self::WorkflowPaused { workflow, since: None } => {
                format!("Its workflow {workflow} is paused; its rows wait.")
            }
            Self::NotYetVisible { visible_in_ms, .. } => {
                format!("The row becomes visible in {}.", Span(*visible_in_ms))
            }
            Self::WaitingForRetry { visible_in_ms, attempt, deliveries, deliveries_max, last_said, .. } => format!(
                "The row came back {deliveries} of at most {deliveries_max} times; attempt {attempt} is due in {}{}.",
                Span(*visible_in_ms),
                said(last_said.as_ref())
            ),
            Self::PinnedNodeAway { node, down_since: Some(at) } => {
                format!("The row is pinned to {node}, which has been down for {}.", ago(now, *at))
            }
            Self::PinnedNodeAway { node, down_since: None } => {
                format!("The row is pinned to {node}, which is no member of the cluster.")
            }
            Self::PinnedNodeUnserved { node, task_queue } => {
                format!(
                    "The row is pinned to {node}, and no worker of task queue {task_queue} takes rows of that node."
                )
            }
            Self::NamespaceFull { namespace, claimed, claimed_max } => {
                format!("Namespace {namespace} is at its ceiling of claimed rows: {claimed}/{claimed_max}.")
            }
            Self::NamespaceStopped { namespace, .. } => {
                format!("Namespace {namespace} may have no claimed rows: its ceiling is 0.")
            }
            Self::NoWorker { namespace, task_queue } => {
                format!("No worker serves task queue {task_queue} in namespace {namespace}.")
            }
            Self::NoWorkerForActivity { task_queue, activity_type, workers } => format!(
                "{} task queue {task_queue}, and none takes activity type {activity_type}.",
                counted(*workers, "worker serves", "workers serve")
            ),
            Self::WorkersFull { task_queue, workers, rows, slots } => format!(
                "Those who could take the row are at capacity: {} of task queue {task_queue}, {rows} of {slots} slots \
                 taken.",
                counted(*workers, "worker", "workers")
            ),
            Self::WorkersDraining { task_queue, workers } => format!(
                "Those who could take the row take nothing new: {} of task queue {task_queue} draining.",
                counted(*workers, "worker", "workers")
            ),
            Self::WorkersAway { task_queue, workers } => format!(
                "Those who could take the row have no connection: {} of task queue {task_queue}.",
                counted(*workers, "worker", "workers")
            ),
            Self::ClaimedBySession {
                session,
                identity,
                node,
                claimed_for_ms,
                lease_left_ms,
                heartbeat_ago_ms,
                attempt,
            } => format!(
                "Worker {identity} (session {session} on {node}) has had attempt {attempt} for {}, with {} of lease left; \
                 its last heartbeat was {} ago.",
                Span(*claimed_for_ms),
                Span(*lease_left_ms),
                Span(*heartbeat_ago_ms)
            ),
            Self::SessionAway { session, identity, claimed_for_ms, ends_in_ms } => format!(
                "Worker {identity} (session {session}) has had the row for {} and has lost its connection; its session \
                 ends in {}.",
                Span(*claimed_for_ms),
                Span(*ends_in_ms)
            ),
            Self::ClaimedByLease { claimant, claimed_for_ms, lease_left_ms, attempt } => format!(
                "{claimant} has had attempt {attempt} for {} under a plain lease, with {} left.",
                Span(*claimed_for_ms),
                Span(*lease_left_ms)
            ),
            Self::ClaimedByNode { node, claimed_for_ms, attempt } => {
                format!("The engine in {node} has had attempt {attempt} for {}.", Span(*claimed_for_ms))
            }
            Self::HolderAway { node, down_since, adopter } => {
                let away = if down_since.is_some() { "is down" } else { "is not the process that took it any more" };
                format!("{node} holds the row and {away}; {}.", adopted_by(adopter.as_ref()))
            }
            Self::DeadlineOverdue { overdue_ms, .. } => format!(
                "The row's lease, session or timeout ended {} ago, and nothing has come of it: log time stands still.",
                Span(*overdue_ms)
            ),
            Self::AboutToBeDelivered => "Nothing holds the row up; it is about to be delivered.".to_owned(),
        }
    }

    /// What to do.
    pub fn advice(&self) -> String {
        match self {
            Self::NoSuchRow { .. } => "Check the key: it is the workflow's id, a colon, and the activity's ordinal.",
            Self::DeadLetter { outcome_seq: Some(_), .. } => {
                "The failure is on record and stands; the workflow goes on with it. A forced redrive would run the \
                 activity once more and change nothing of that."
            }
            Self::DeadLetter { .. } => {
                "Mend what made it fail; then redrive it (`POST /v1/outbox/rows/{key}/redrive`; forced if its workflow \
                 has heard of it), or let the workflow go on without it."
            }
            Self::NoQuorum(no_quorum) => return no_quorum.advice(),
            Self::StorageFull { .. } => FREE_SPACE,
            Self::WorkflowPaused { .. } => "Resume the workflow through its engine (an event `WorkflowResumed`).",
            Self::PinnedNodeAway { .. } => {
                "Start that node, attach a worker that takes its rows (`node` of its registration), or stage the row \
                 anew without the pin."
            }
            Self::PinnedNodeUnserved { .. } => {
                "Attach a worker that takes that node's rows (`node` of its registration)."
            }
            Self::NamespaceFull { .. } => {
                "Wait until claimed rows end, or raise the ceiling (`claimed_max` of the namespace)."
            }
            Self::NamespaceStopped { .. } => "Raise the ceiling (`claimed_max` of the namespace) to go on.",
            Self::NoWorker { .. } => {
                "Start a worker for this queue, or correct the queue's name where the row is staged or where the \
                 workers are set up; the census says which queues have workers."
            }
            Self::NoWorkerForActivity { .. } => {
                "Start a worker that has this activity type, or correct the type's name; the census says which types \
                 the workers take."
            }
            Self::WorkersFull { .. } => "Start more workers, or let them hold more rows (`max_concurrency`).",
            Self::WorkersDraining { .. } => "Start a worker in the place of those that stop.",
            Self::WorkersAway { .. } => {
                "See whether the workers run and reach a node; they come back under their sessions, or those end."
            }
            Self::SessionAway { .. } => {
                "Nothing, if the worker comes back; else the row is handed out again when the session ends."
            }
            Self::HolderAway { adopter: None, .. } => "Start a node.",
            Self::HolderAway { .. } => {
                "Nothing: the adoption makes the row pending again. If it takes longer than seconds, look at the shard."
            }
            Self::DeadlineOverdue { .. } => ALERT_LEADER,
            Self::Finished { .. }
            | Self::NotYetVisible { .. }
            | Self::WaitingForRetry { .. }
            | Self::ClaimedBySession { .. }
            | Self::ClaimedByLease { .. }
            | Self::ClaimedByNode { .. }
            | Self::AboutToBeDelivered => NOTHING_TO_DO,
        }
        .to_owned()
    }
}

impl NextTimeout {
    /// What is so.
    pub fn sentence(&self) -> String {
        let span = Span(self.in_ms);
        match self.timeout {
            Deadline::ScheduleToClose => format!("Without an outcome, its activity fails for good in {span}."),
            Deadline::ScheduleToStart => format!("If nobody takes it, its activity fails for good in {span}."),
            Deadline::StartToClose => format!("Without an outcome, the attempt times out in {span}."),
            Deadline::Heartbeat => format!("Without a heartbeat of the row, the attempt times out in {span}."),
            Deadline::Lease => format!("Without a heartbeat, its lease ends in {span}."),
        }
    }
}

const FREE_SPACE: &str = "Free some space on that node's disk; nothing else needs a restart while the node runs.";

fn full(node: &NodeName) -> String {
    format!("The disk of {node} is full, so nothing can be written.")
}

fn counted(count: u64, one: &str, several: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {several}") }
}

impl WorkflowReason {
    /// What is so, at `now`.
    pub fn sentence(&self, now: Millis) -> String {
        match self {
            Self::NoSuchWorkflow => "There is no such workflow.".to_owned(),
            Self::BeingRemoved => "The workflow has ended and is being removed.".to_owned(),
            Self::Finished { status, head, .. } => format!("The workflow is {status}; its history has {head} events."),
            Self::NoQuorum(no_quorum) => no_quorum.sentence(),
            Self::StorageFull { node } => full(node),
            Self::Paused { since, pending, claimed } => {
                let paused = since.map_or(String::new(), |at| format!(" and has been for {}", ago(now, at)));
                format!("The workflow is paused{paused}; {pending} of its rows wait, {claimed} are under way.")
            }
            Self::ShardWithoutOwner { shard, shard_reason } => {
                format!(
                    "No engine drives the workflow: its shard {shard} has no live owner. {}",
                    shard_reason.sentence(now)
                )
            }
            Self::RowHeldUp { pending, claimed, row, row_reason } => format!(
                "The workflow waits for its rows ({pending} pending, {claimed} claimed), and {row} is held up. {}",
                row_reason.sentence(now)
            ),
            Self::UnheardDeadLetter { row, row_reason } => {
                format!("The workflow waits for {row}, which was given up. {}", row_reason.sentence(now))
            }
            Self::WaitingForRows { pending, claimed, row, row_reason } => format!(
                "The workflow waits for its rows ({pending} pending, {claimed} claimed), and they move. {row}: {}",
                row_reason.sentence(now)
            ),
            Self::TimerDue { timer, due_for_ms, owner, .. } => {
                format!(
                    "Timer {timer} has been due for {}, and the engine in {owner} has not fired it.",
                    Span(*due_for_ms)
                )
            }
            Self::WaitingForTimer { timer, due_in_ms, timers, .. } => format!(
                "The workflow waits for {}; the first, {timer}, is due in {}.",
                counted(*timers, "timer", "timers"),
                Span(*due_in_ms)
            ),
            Self::WaitingForEngine { owner, head, .. } => format!(
                "Nothing is pending: after event {head} the engine in {owner} has decided nothing, or the workflow \
                 waits for a signal."
            ),
        }
    }

    /// What to do.
    pub fn advice(&self) -> String {
        match self {
            Self::NoSuchWorkflow => "Check the id.",
            Self::NoQuorum(no_quorum) => return no_quorum.advice(),
            Self::StorageFull { .. } => FREE_SPACE,
            Self::Paused { .. } => "Resume the workflow through its engine (an event `WorkflowResumed`).",
            Self::ShardWithoutOwner { shard_reason, .. } => return shard_reason.advice(),
            Self::RowHeldUp { row_reason, .. } => return row_reason.advice(),
            Self::UnheardDeadLetter { .. } => {
                "The engine has to decide what the failure means for the workflow (`GET /v1/heads/watch` tells it); or \
                 mend what made it fail, and redrive the row (`POST /v1/outbox/rows/{key}/redrive`)."
            }
            Self::TimerDue { .. } => "See whether the engine runs, and whether it waits for its timers.",
            Self::WaitingForEngine { .. } => {
                "If it waits for no signal: see whether the engine runs, and what it says of this workflow."
            }
            Self::BeingRemoved | Self::Finished { .. } | Self::WaitingForRows { .. } | Self::WaitingForTimer { .. } => {
                NOTHING_TO_DO
            }
        }
        .to_owned()
    }
}

impl ShardReason {
    /// What is so, at `now`.
    pub fn sentence(&self, now: Millis) -> String {
        match self {
            Self::NoQuorum(no_quorum) => no_quorum.sentence(),
            Self::ClusterNotCreated { started, members } => {
                format!("The cluster has not been created yet; {started} of {members} members have started.")
            }
            Self::NoSuchShard { shard_count } => format!("The cluster has {shard_count} shards, numbered from 0."),
            Self::NeverOwned { started, members } => {
                format!("Nobody has owned the shard yet; {started} of {members} members have started.")
            }
            Self::OwnerDown { owner, epoch, down_since, adopter } => {
                let down = match down_since {
                    Some(at) => format!("has been down for {}", ago(now, *at)),
                    None => "is no member of the cluster any more".to_owned(),
                };
                format!("Its owner {owner} (epoch {epoch}) {down}; {}.", adopted_by(adopter.as_ref()))
            }
            Self::Owned { owner, epoch, .. } => format!("{owner} owns the shard under epoch {epoch}."),
        }
    }

    /// What to do.
    pub fn advice(&self) -> String {
        match self {
            Self::NoQuorum(no_quorum) => return no_quorum.advice(),
            Self::ClusterNotCreated { .. } => "Start a majority of the members.",
            Self::NoSuchShard { .. } => "Check the number.",
            Self::NeverOwned { .. } => {
                "Wait a moment: shards are given out once the members have started, or after \
                 `adoption.first_assignment_grace_ms`."
            }
            Self::OwnerDown { adopter: None, .. } => "Start a node.",
            Self::OwnerDown { .. } => {
                "Nothing: the adoption is under way. If it takes longer than seconds, look at the log of the adopter \
                 and at `AdoptionFailed` in its events."
            }
            Self::Owned { .. } => NOTHING_TO_DO,
        }
        .to_owned()
    }
}
