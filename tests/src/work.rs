//! Workflows with rows, as an engine would stage them, and workers that take them.

use anyhow::{Context, Result, ensure};
use holdfast_client::{ClaimCall, ClaimHolder, Client, Delivery, Write};
use holdfast_machine::{
    ActivityType, Claimant, Commit, Committed, DispatchKey, EventKind, NewEvent, NewRow, Payload, RowStatus, Scope,
    TaskQueue, WorkflowId, WorkflowType,
};

use crate::check;
use crate::wait::{LONG, wait_until};

/// A lease that outlives every story.
pub const LONG_LEASE_MS: u64 = 3_600_000;

/// A workflow's id.
///
/// # Errors
/// When the text is no id.
pub fn id(text: &str) -> Result<WorkflowId> {
    Ok(WorkflowId::new(text)?)
}

/// The key of a row.
pub fn key(workflow: &WorkflowId, ordinal: u64) -> DispatchKey {
    DispatchKey { workflow: workflow.clone(), ordinal }
}

/// The event that opens a workflow.
///
/// # Errors
/// Never.
pub fn started() -> Result<NewEvent> {
    Ok(NewEvent::started(WorkflowType::new("test")?))
}

/// An event of the engine's own with a text in it.
pub fn note(text: &str) -> NewEvent {
    NewEvent::of(EventKind::Other("Note".to_owned())).with(Payload::text(text))
}

/// A row of this activity type in this queue, with `deliveries_max` as by default.
///
/// # Errors
/// When a name is no name.
pub fn row(ordinal: u64, activity: &str, queue: &str) -> Result<NewRow> {
    Ok(NewRow {
        task_queue: TaskQueue::new(queue)?,
        input: Payload::text(format!("input {ordinal}")),
        ..NewRow::new(ordinal, ActivityType::new(activity)?)
    })
}

/// The commit that opens a workflow and stages these rows.
///
/// # Errors
/// Never.
pub fn opening(workflow: &WorkflowId, rows: Vec<NewRow>) -> Result<Commit> {
    let opening = Commit::new(workflow.clone(), 0).event(started()?);
    Ok(rows.into_iter().fold(opening, Commit::activity))
}

/// Opens a workflow with rows 1 to `rows` of one activity type and queue.
///
/// # Errors
/// When the commit does not succeed.
pub async fn open(client: &Client, workflow: &WorkflowId, rows: u64, activity: &str, queue: &str) -> Result<Committed> {
    let rows = (1..=rows).map(|ordinal| row(ordinal, activity, queue)).collect::<Result<_>>()?;
    let committed = client.commit(opening(workflow, rows)?, Write::default()).await.context("opening a workflow")?;
    Ok(committed.value)
}

/// A claim under a plain lease.
///
/// # Errors
/// When a name is no name.
pub fn lease(queue: &str, limit: u32, claimant: &str, lease_ms: u64) -> Result<ClaimCall> {
    let scope = Scope { task_queue: TaskQueue::new(queue)?, ..anywhere() };
    let holder = ClaimHolder::Lease { claimant: Claimant::new(claimant)?, lease_ms };
    Ok(ClaimCall { scope, limit, holder, hold: Vec::new(), wait_ms: 0 })
}

fn anywhere() -> Scope {
    Scope { namespace: Default::default(), task_queue: Default::default(), activity_types: Vec::new(), node: None }
}

/// Claims exactly `count` rows of a queue, or fails.
///
/// # Errors
/// When there are fewer.
pub async fn claim(client: &Client, queue: &str, count: usize, claimant: &str) -> Result<Vec<Delivery>> {
    let call = lease(queue, count as u32, claimant, LONG_LEASE_MS)?;
    let deliveries = client.claim(call, Write::default()).await?.value;
    ensure!(deliveries.len() == count, "{} rows instead of {count}", deliveries.len());
    Ok(deliveries)
}

/// Completes a delivery under its token with a text.
///
/// # Errors
/// When the completion is refused.
pub async fn complete(client: &Client, delivery: &Delivery, result: &str) -> Result<u64> {
    let result = Payload::text(result);
    let completed = client.complete(&delivery.key, Some(delivery.token), result, Write::default()).await?;
    completed.value.context("the row is gone")
}

/// The status of a row as of now.
///
/// # Errors
/// When there is no such row.
pub async fn status(client: &Client, key: &DispatchKey) -> Result<RowStatus> {
    Ok(client.row(key, holdfast_client::ReadMode::Linearizable).await?.value.row.status)
}

/// Waits until the rows of a workflow, from ordinal 1 on, are done, and checks that each has exactly one outcome.
///
/// # Errors
/// When they do not get there, or an invariant is broken.
pub async fn all_done(client: &Client, id: &WorkflowId, rows: u64) -> Result<()> {
    wait_until("every row is done", LONG, async || {
        for ordinal in 1..=rows {
            let status = status(client, &key(id, ordinal)).await?;
            ensure!(status == RowStatus::Done, "row {ordinal} is {status}");
        }
        Ok(())
    })
    .await?;
    let history = check::workflow(client, id).await?;
    check::outcomes::exactly_one(id, &history, 1..=rows)
}

/// The code of a refusal.
///
/// # Errors
/// When it was none.
pub fn refusal<T: std::fmt::Debug>(
    result: Result<T, holdfast_client::ClientError>,
) -> Result<holdfast_client::ClientError> {
    match result {
        Err(error) => Ok(error),
        Ok(value) => anyhow::bail!("this should have been refused: {value:?}"),
    }
}
