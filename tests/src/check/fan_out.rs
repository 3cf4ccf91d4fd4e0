//! A fan-out that has completed did each thing once, as every node has it, however often its parts were executed.

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{DispatchKey, EventKind, HistoryEvent, RowStatus, WorkflowId};

use super::{history, outcomes};
use crate::programs::FanOut;
use crate::wait::{LONG, wait_until};

/// Holds what one node has, as it has it, against the plan and against the history as of now.
///
/// # Errors
/// The first thing that is missing or doubled.
pub async fn whole(node: &Client, id: &WorkflowId, plan: &FanOut, now: &[HistoryEvent]) -> Result<()> {
    let events = wait_until("a node has the whole history", LONG, async || {
        let events = history::read_as(node, id, ReadMode::Stale).await?;
        ensure!(events.len() >= now.len(), "{} of {} events", events.len(), now.len());
        Ok(events)
    })
    .await?;
    ensure!(events == now, "{id}: two nodes have different histories");
    history::dense(id, &events)?;
    outcomes::at_most_one(id, &events)?;
    outcomes::exactly_one(id, &events, 1..=plan.ordinals())?;
    let times = |kind: EventKind| events.iter().filter(|event| event.kind == kind).count() as u64;
    let timers = plan.waves.len().saturating_sub(1) as u64;
    for (kind, wanted) in [
        (EventKind::WorkflowStarted, 1),
        (EventKind::WorkflowCompleted, 1),
        (EventKind::ActivityScheduled, plan.ordinals()),
        (EventKind::ActivityCompleted, plan.ordinals()),
        (EventKind::TimerStarted, timers),
        (EventKind::TimerFired, timers),
    ] {
        let found = times(kind.clone());
        ensure!(found == wanted, "{id}: {kind} stands {found} times, {wanted} are right");
    }
    let end = events.last().context("an empty history")?;
    let result: u64 = serde_json::from_slice(&end.payload.data).context("the result")?;
    ensure!(result == plan.result(), "{id} ended with {result}, {} is right", plan.result());
    for ordinal in 1..=plan.ordinals() {
        let key = DispatchKey { workflow: id.clone(), ordinal };
        let status = node.row(&key, ReadMode::Stale).await?.value.row.status;
        ensure!(status == RowStatus::Done, "{key} is {status}");
    }
    Ok(())
}
