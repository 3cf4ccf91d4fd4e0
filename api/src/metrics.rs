//! What is counted, and under which names. A node renders it at `/metrics`.

use holdfast_client::wire::{Ended, NodeMessage};
use holdfast_machine::Command;
use metrics::{counter, gauge, histogram};
use tokio::time::Instant;

use crate::error::StoreError;
use crate::store::Store;

/// Commands by kind and outcome (`ok`, or the error's code).
const COMMANDS: &str = "holdfast_commands_total";
/// Seconds from proposal to reply, by kind of command.
const COMMAND_SECONDS: &str = "holdfast_command_seconds";

/// Messages to workers by kind.
const SESSION_MESSAGES: &str = "holdfast_session_messages_total";
/// Rows that were pushed to workers.
const SESSION_DELIVERIES: &str = "holdfast_session_deliveries_total";
/// Rows that workers were told to let go.
const SESSION_WITHDRAWN: &str = "holdfast_session_withdrawn_rows_total";
/// Attachments of sessions that ended, by reason.
const SESSIONS_ENDED: &str = "holdfast_session_attachments_ended_total";

/// Counts one message to a worker.
pub(crate) fn session_message(message: &NodeMessage) {
    let kind = match message {
        NodeMessage::Attached { .. } => "attached",
        NodeMessage::Deliveries { deliveries, .. } => {
            counter!(SESSION_DELIVERIES).increment(deliveries.len() as u64);
            "deliveries"
        }
        NodeMessage::Withdrawn { rows, .. } => {
            counter!(SESSION_WITHDRAWN).increment(rows.len() as u64);
            "withdrawn"
        }
        NodeMessage::Paused { .. } => "paused",
        NodeMessage::Resumed { .. } => "resumed",
        NodeMessage::Extended { .. } => "extended",
        NodeMessage::Draining { .. } => "draining",
        NodeMessage::Ended { .. } => "ended",
    };
    counter!(SESSION_MESSAGES, "kind" => kind).increment(1);
}

/// Counts one attachment that ended, for this reason or because the worker was gone.
pub(crate) fn session_ended(reason: Option<Ended>) {
    let reason = match reason {
        Some(Ended::Closed) => "closed",
        Some(Ended::NodeStopping) => "node_stopping",
        Some(Ended::SessionOver) => "session_over",
        Some(Ended::Moved) => "moved",
        Some(Ended::StreamDead) => "stream_dead",
        Some(Ended::Refused) => "refused",
        None => "connection_lost",
    };
    counter!(SESSIONS_ENDED, "reason" => reason).increment(1);
}

/// Counts one command that was proposed, or refused before.
pub(crate) fn command(kind: &'static str, begun: Instant, error: Option<&StoreError>) {
    let outcome = error.map_or("ok", StoreError::code);
    counter!(COMMANDS, "command" => kind, "outcome" => outcome).increment(1);
    histogram!(COMMAND_SECONDS, "command" => kind).record(begun.elapsed().as_secs_f64());
}

/// A command's name in metrics and messages.
pub(crate) fn name(command: &Command) -> &'static str {
    match command {
        Command::Create { .. } => "create",
        Command::Boot { .. } => "boot",
        Command::Assign { .. } => "assign",
        Command::Adopt { .. } => "adopt",
        Command::Transfer { .. } => "transfer",
        Command::Commit(_) => "commit",
        Command::Claim(_) => "claim",
        Command::Heartbeat { .. } => "heartbeat",
        Command::Complete { .. } => "complete",
        Command::Fail { .. } => "fail",
        Command::Retry { .. } => "retry",
        Command::Settle { .. } => "settle",
        Command::Rearm { .. } => "rearm",
        Command::Reconcile { .. } => "reconcile",
        Command::Tick => "tick",
        Command::Checkpoint { .. } => "checkpoint",
        Command::Stage { .. } => "stage",
        Command::Timer { .. } => "timer",
        Command::MarkFailureDelivered { .. } => "mark_failure_delivered",
        Command::Redrive { .. } => "redrive",
        Command::PutNamespace { .. } => "put_namespace",
        Command::Purge { .. } => "purge",
        Command::Delete { .. } => "delete",
        Command::Session { .. } => "session",
    }
}

/// Brings the gauges up to date; called before they are rendered.
pub(crate) fn refresh(store: &Store) {
    let view = store.cluster_now();
    let leads = view.leader.as_ref() == Some(&view.node);
    let status = store.shared.raft.status();
    for (name, value) in [
        ("holdfast_log_last_index", view.last),
        ("holdfast_log_committed_index", view.committed),
        ("holdfast_log_applied_index", view.applied),
        ("holdfast_log_purged_index", status.purged.unwrap_or(0)),
        ("holdfast_snapshot_index", status.snapshot.unwrap_or(0)),
        ("holdfast_term", view.term),
        ("holdfast_leads", u64::from(leads)),
        ("holdfast_members", view.members.len() as u64),
        ("holdfast_claims_waiting", store.claims_waiting() as u64),
        ("holdfast_sessions", store.shared.raft.view(|machine, _| machine.sessions_after(None).count()) as u64),
        ("holdfast_sessions_attached", store.sessions_attached() as u64),
    ] {
        // Prometheus has floating-point values only; these stay exact up to 2^53.
        gauge!(name).set(value as f64);
    }
    if let Some(free) = status.disk_free {
        gauge!("holdfast_disk_free_bytes").set(free as f64);
    }
    for (name, value) in [
        ("holdfast_log_syncs_total", status.log.groups),
        ("holdfast_log_written_entries_total", status.log.records),
        ("holdfast_log_written_bytes_total", status.log.bytes),
    ] {
        counter!(name).absolute(value);
    }
    gauge!("holdfast_disk_level").set(f64::from(store.disk_space() as u8));
    let claims = store.claims_now();
    gauge!("holdfast_claims_overdue").set(claims.overdue as f64);
    gauge!("holdfast_oldest_claim_age_seconds").set(claims.oldest_age.as_secs_f64());
    gauge!("holdfast_rows", "status" => "pending").set(view.rows.pending as f64);
    gauge!("holdfast_rows", "status" => "claimed").set(view.rows.claimed as f64);
}
