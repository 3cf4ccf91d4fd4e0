//! Replies, events and state as lines that people can read.

use holdfast_machine::{
    Arming, ClusterEvent, Committed, Deadline, DispatchKey, Effect, HistoryEvent, Holder, Moved, Namespace,
    NamespaceState, Payload, PendingRoute, Reject, Reply, Retirement, Route, Row, RowCounts, Run, Session, SessionId,
    ShardEntry, Staged, Workflow, WorkflowId,
};

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

pub fn reply(reply: &Result<Reply, Reject>) -> String {
    match reply {
        Ok(reply) => accepted(reply),
        Err(reject) => format!("refused, {}: {reject}", reject.code()),
    }
}

fn accepted(reply: &Reply) -> String {
    match reply {
        Reply::Created { shard_count } => format!("created, {shard_count} shards"),
        Reply::Booted { shards, rearmed } => {
            let shards: Vec<String> = shards.iter().map(|(shard, epoch)| format!("{shard}/{epoch}")).collect();
            format!("booted; shards {}; re-armed {}", list(&shards), list(rearmed))
        }
        Reply::Assigned { shards } => format!("assigned {}", list(shards)),
        Reply::Adopted(moved) => format!("adopted {}", self::moved(moved)),
        Reply::AlreadyAdopted { shard, held_by, epoch } => {
            format!("already adopted: shard {shard} is held by {held_by} under epoch {epoch}")
        }
        Reply::Transferred(moved) => format!("transferred {}", self::moved(moved)),
        Reply::Committed(committed) => self::committed(committed),
        Reply::Claimed { claims } => {
            let until = |deadline| match deadline {
                Some(deadline) => format!(" until {deadline}"),
                None => String::new(),
            };
            let claim = |c: &holdfast_machine::Claimed| format!("{} as {}{}", c.key, c.token, until(c.deadline));
            let claims: Vec<String> = claims.iter().map(claim).collect();
            format!("claimed {}", if claims.is_empty() { "none".to_owned() } else { claims.join(", ") })
        }
        Reply::Extended { deadline } => format!("extended to {deadline}"),
        Reply::Completed { seq } => format!("completed as event {seq}"),
        Reply::Returned(returned) => {
            let failed = returned.failed_seq.map_or(String::new(), |seq| format!(", failed as event {seq}"));
            let (status, count, at) = (returned.status, returned.deliveries, returned.visible_after);
            format!("returned: {status}, deliveries {count}, visible after {at}{failed}")
        }
        Reply::NoSuchRow => "no such row".to_owned(),
        Reply::Settled { keys } => format!("settled {}", list(keys)),
        Reply::Rearmed { keys } => format!("re-armed {}", list(keys)),
        Reply::Reconciled { rearmed, settled, unknown } => {
            format!("reconciled: re-armed {}; settled {}; unknown {}", list(rearmed), list(settled), list(unknown))
        }
        Reply::Session(reply) => format!("{reply:?}"),
        Reply::CheckpointTaken => "checkpoint taken".to_owned(),
        Reply::Ticked { at } => format!("log time {at}"),
        Reply::Staged { rows } => format!("staged{}", staged(rows)),
        Reply::TimerScheduled => "timer scheduled".to_owned(),
        Reply::TimerRetired(retirement) => format!("timer {}", self::retirement(*retirement)),
        Reply::FailureDelivered => "failure delivered".to_owned(),
        Reply::Redriven => "redriven".to_owned(),
        Reply::NamespacePut(state) => format!("namespace since {}", state.created_at),
        Reply::Purged { workflows, more } => format!("purged {workflows}{}", if *more { ", more is due" } else { "" }),
        Reply::Deleted => "deleted".to_owned(),
    }
}

fn moved(moved: &Moved) -> String {
    let Moved { shard, epoch, settled, rearmed } = moved;
    format!("shard {shard} under epoch {epoch}; settled {}; re-armed {}", list(settled), list(rearmed))
}

fn committed(committed: &Committed) -> String {
    let Committed { head, duplicate, staged, settled, transitions, retirements } = committed;
    let mut line = format!("committed, head {head}{}", if *duplicate { ", a duplicate" } else { "" });
    line += &self::staged(staged);
    for status in transitions {
        line += &format!("; a row is {status}");
    }
    for retirement in retirements {
        line += &format!("; a timer is {}", self::retirement(*retirement));
    }
    if !settled.is_empty() {
        line += &format!("; settled {}", list(settled));
    }
    line
}

fn staged(rows: &[Staged]) -> String {
    let word = |staged: &Staged| if staged.written { "staged" } else { "left as it is" };
    rows.iter().map(|staged| format!("; {} {}", staged.key, word(staged))).collect()
}

fn retirement(retirement: Retirement) -> &'static str {
    match retirement {
        Retirement::Retired => "retired",
        Retirement::Superseded => "superseded",
    }
}

pub fn cluster_event(event: &ClusterEvent) -> String {
    // The derived form says all there is; the names of fields make it readable enough.
    format!("{event:?}")
}

/// Only what owners and claimants are told; that rows are due and histories grow is seen from the state.
pub fn effect(effect: &Effect) -> Option<String> {
    match effect {
        Effect::ShardAcquired { node, shard, epoch, settled, rearmed } => {
            let rows = format!("settled {}; re-armed {}", list(settled), list(rearmed));
            Some(format!("{node} acquired shard {shard} under epoch {epoch}; {rows}"))
        }
        Effect::RoomForClaims { namespace } => Some(format!("room for claims in {namespace}")),
        Effect::ShardLost { node, shard, epoch, new_owner } => {
            Some(format!("{node} lost shard {shard} to {new_owner} under epoch {epoch}"))
        }
        Effect::RowsGiven { session } => Some(format!("{session} was given rows")),
        Effect::SessionChanged { session } => Some(format!("what {session} holds has changed")),
        Effect::TimersDue { shard } => Some(format!("timers of shard {shard} are due")),
        Effect::Checkpoint { index, hash } => Some(format!("the hash as of {index} is to be {hash}")),
        _ => None,
    }
}

pub fn timer(workflow: &WorkflowId, arming: &Arming) -> String {
    format!("timer {workflow}/{}: at {}, armed by event {}", arming.timer, arming.fire_at, arming.armed_seq)
}

pub fn namespace(name: &Namespace, state: &NamespaceState, counts: RowCounts) -> String {
    let NamespaceState { created_at, settings } = state;
    let kept = |ms: Option<u64>| ms.map_or("for ever".to_owned(), |ms| format!("for {ms}"));
    let ceiling = settings.claimed_max.map_or(String::new(), |most| format!(" of {most}"));
    let mut line = format!(
        "namespace {name} since {created_at}: {} pending, {} claimed{ceiling}, ",
        counts.pending, counts.claimed
    );
    line += &format!("kept {}", kept(settings.retention_ms));
    for (of_type, ms) in &settings.retention_ms_by_type {
        line += &format!(", {of_type} {}", kept(*ms));
    }
    line + if settings.deprecated { ", deprecated" } else { "" }
}

pub fn shard(entry: &ShardEntry) -> String {
    let previous = entry.previous.as_ref().map_or(String::new(), |node| format!(", before it {node}"));
    format!("shard {}: {} under epoch {} since {}{previous}", entry.shard, entry.owner, entry.epoch, entry.since)
}

pub fn workflow(id: &WorkflowId, workflow: &Workflow) -> String {
    format!("workflow {id}: {}, head {}, {}", workflow.status, workflow.head, run(&workflow.run))
}

pub fn run(run: &Run) -> String {
    let parent = run.parent.as_ref().map_or(String::new(), |parent| format!(" after {parent}"));
    let closed = run.closed_at.map_or(String::new(), |at| format!(", closed at {at}"));
    let (number, id, status) = (run.number, &run.run_id, run.status);
    format!("run {number} ({id}{parent}) {status}, from event {} at {}{closed}", run.started_seq, run.started_at)
}

pub fn row(key: &DispatchKey, row: &Row) -> String {
    let claim = row.claim.as_ref().map_or(String::new(), |claim| {
        let holder = match &claim.holder {
            Holder::Node { node, boot } => format!("node {node}/{boot}"),
            Holder::Lease { claimant } => format!("lease {claimant}"),
            Holder::Session { session } => format!("session {session}"),
        };
        let until = claim.deadline.map_or(String::new(), |at| format!(" until {at}"));
        format!(" by {holder} as {} at {}{until}", claim.token, claim.claimed_at)
    });
    let outcome = row.outcome_seq.map_or(String::new(), |seq| format!(", outcome {seq}"));
    let judged = if row.failure_delivered { ", judged" } else { "" };
    let deadline = row.next_deadline().filter(|(_, deadline)| *deadline != Deadline::Lease);
    let deadline = deadline.map_or(String::new(), |(at, deadline)| format!(", {deadline:?} at {at}"));
    let counts = format!("run {}, attempt {}, deliveries {}", row.run, row.attempt, row.deliveries);
    format!(
        "row {key}: {}{claim}, {counts}, visible after {}{deadline}{outcome}{judged}",
        row.status, row.visible_after
    )
}

pub fn session(id: &SessionId, session: &Session, rows: u64) -> String {
    let attached =
        session.attached.as_ref().map_or("not attached".to_owned(), |to| format!("on {}/{}", to.node, to.boot));
    let draining = if session.draining { ", draining" } else { "" };
    let (attachment, most, until) = (session.attachment, session.worker.max_concurrency, session.deadline);
    format!("session {id}: {rows} of {most} rows, {attached} as {attachment}, until {until}{draining}")
}

pub fn unsettled((workflow, counts): &(WorkflowId, RowCounts)) -> String {
    format!("{workflow} {} pending {} claimed", counts.pending, counts.claimed)
}

pub fn route(PendingRoute { route, pending, next_due }: &PendingRoute) -> String {
    let Route { namespace, task_queue, node, activity_type } = route;
    let node = node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    format!("{namespace}/{task_queue}/{activity_type}{node}: {pending} from {next_due}")
}

pub fn event(event: &HistoryEvent) -> String {
    let ordinal = event.ordinal.map_or(String::new(), |ordinal| format!(" {ordinal}"));
    let body = if event.payload.is_empty() { String::new() } else { format!(": {}", payload(&event.payload)) };
    format!("{} at {}: {}{ordinal}{body}", event.seq, event.at, event.kind)
}

pub fn payload(payload: &Payload) -> String {
    if payload.is_empty() { "none".to_owned() } else { String::from_utf8_lossy(&payload.data).into_owned() }
}
