//! Timeouts of rows and types of errors: what ends an attempt or an activity without anybody's doing.

use anyhow::Result;
use holdfast_client::{Failure, Write};
use holdfast_machine::{EventKind, NewRow, Payload, Reject, RetryPolicy, Row, RowStatus, Timeouts};

use crate::checks::checks;
use crate::trial::{Trial, refused, refused_as, row_key, same};

checks! {
    "timeouts":
    schedule_to_start = "a row that nobody takes in time fails for good",
    start_to_close = "an attempt that takes too long has failed and is repeated, and its late completion is refused",
    heartbeat = "an attempt that is not heard of for too long has failed and is repeated",
    schedule_to_close = "an activity that takes too long in all fails for good, under whoever's claim",
    final_timeouts = "a timeout is final where the retry policy calls it so",
    error_types = "a failure of a type that the retry policy calls non-retryable is recorded at once",
    delivered = "a delivery says by when it has to be finished",
    refused_values = "a timeout of nothing makes no sense, and one over the limit is refused",
}

async fn open(
    trial: &Trial,
    name: &str,
    timeouts: Timeouts,
    non_retryable: &str,
) -> Result<holdfast_machine::WorkflowId> {
    let workflow = trial.id(name)?;
    let retry = RetryPolicy { initial_ms: 0, non_retryable: vec![non_retryable.parse()?], ..RetryPolicy::default() };
    trial.open_with(&workflow, vec![NewRow { retry, timeouts, ..trial.row(1)? }]).await?;
    Ok(workflow)
}

/// Waits until the row stands so.
async fn becomes(trial: &Trial, workflow: &holdfast_machine::WorkflowId, status: RowStatus) -> Result<Row> {
    let key = row_key(workflow, 1);
    trial
        .eventually("the timeout has passed", || async { same("the row's status", trial.status(&key).await?, status) })
        .await?;
    Ok(trial.view(&key).await?.row)
}

fn error(timeout: &str) -> Payload {
    let text = format!(r#"{{"type":"timeout","timeout":"{timeout}"}}"#);
    Payload { content_type: "application/json".to_owned(), data: text.into() }
}

/// The workflow's last event is the failure of its activity, by this timeout.
async fn failed_by(trial: &Trial, workflow: &holdfast_machine::WorkflowId, timeout: &str) -> Result<()> {
    let row = becomes(trial, workflow, RowStatus::Failed).await?;
    let events = trial.history(workflow).await?;
    let last = events.last().map(|event| (event.kind.clone(), event.ordinal, event.payload.clone()));
    same("the last event", last, Some((EventKind::ActivityFailed, Some(1), error(timeout))))?;
    same("outcome and mark", (row.outcome_seq, row.failure_delivered), (Some(4), true))
}

async fn schedule_to_start(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts { schedule_to_start_ms: Some(1), ..Timeouts::default() };
    let workflow = open(trial, "nobody", timeouts, "other").await?;
    failed_by(trial, &workflow, "schedule_to_start").await?;
    same("what is due", trial.claim(10).await?, Vec::new())
}

async fn attempt_fails(trial: &Trial, name: &str, timeouts: Timeouts, timeout: &str) -> Result<()> {
    let workflow = open(trial, name, timeouts, "other").await?;
    let late = trial.claim_one().await?;
    let row = becomes(trial, &workflow, RowStatus::Pending).await?;
    same("attempt and deliveries", (row.attempt, row.deliveries), (2, 1))?;
    same("the details", trial.view(&late.key).await?.details, error(timeout))?;
    let lost = Reject::ClaimLost { key: late.key.clone() };
    refused("a late completion", trial.complete(&late, "late").await, lost)?;
    same("the head", trial.head(&workflow).await?, 3)
}

async fn start_to_close(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts { start_to_close_ms: Some(1), ..Timeouts::default() };
    attempt_fails(trial, "slow", timeouts, "start_to_close").await
}

async fn heartbeat(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts { heartbeat_ms: Some(1), ..Timeouts::default() };
    attempt_fails(trial, "silent", timeouts, "heartbeat").await
}

async fn schedule_to_close(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts { schedule_to_close_ms: Some(4_000), ..Timeouts::default() };
    let workflow = open(trial, "long", timeouts, "other").await?;
    let late = trial.claim_one().await?;
    failed_by(trial, &workflow, "schedule_to_close").await?;
    let terminal = Reject::AlreadyTerminal { key: late.key.clone(), status: Some(RowStatus::Failed) };
    refused("a late completion", trial.complete(&late, "late").await, terminal)
}

async fn final_timeouts(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts { start_to_close_ms: Some(1), ..Timeouts::default() };
    let workflow = open(trial, "final", timeouts, "timeout").await?;
    trial.claim_one().await?;
    failed_by(trial, &workflow, "start_to_close").await
}

async fn error_types(trial: &Trial) -> Result<()> {
    let workflow = open(trial, "typed", Timeouts::default(), "declined").await?;
    for (error_type, status) in [("busy", RowStatus::Pending), ("declined", RowStatus::Failed)] {
        let delivery = trial.claim_one().await?;
        let failure = Failure::retryable(Payload::text("no")).of_type(error_type.parse()?);
        let write = Write::default();
        let returned = trial.store.fail(&delivery.key, Some(delivery.token), failure, write).await?.value;
        same("what came of it", returned.map(|returned| returned.status), Some(status))?;
    }
    same("the last event", trial.kinds(&workflow).await?.last(), Some(&EventKind::ActivityFailed))
}

async fn delivered(trial: &Trial) -> Result<()> {
    let timeouts = Timeouts {
        start_to_close_ms: Some(1_000_000),
        schedule_to_close_ms: Some(9_000_000),
        heartbeat_ms: Some(600_000),
        ..Timeouts::default()
    };
    open(trial, "delivered", timeouts.clone(), "other").await?;
    let delivery = trial.claim_one().await?;
    let row = trial.view(&delivery.key).await?.row;
    let claimed_at = row.claim.as_ref().map(|claim| claim.claimed_at).unwrap_or_default();
    same("its timeouts", (delivery.timeouts, delivery.scheduled_at), (timeouts, row.scheduled_at))?;
    same("its end", delivery.finish_by, Some(claimed_at.plus(1_000_000)))
}

async fn refused_values(trial: &Trial) -> Result<()> {
    let workflow = trial.open("values", []).await?;
    for (ms, code) in [(0, "invalid_argument"), (u64::MAX, "limit_exceeded")] {
        let timeouts = Timeouts { heartbeat_ms: Some(ms), ..Timeouts::default() };
        let rows = vec![NewRow { timeouts, ..trial.row(1)? }];
        let staged = trial.store.stage(&workflow, trial.namespace()?, rows, Write::default()).await;
        refused_as("stage", staged, &[code])?;
    }
    Ok(())
}
