//! What must hold whenever the cluster is at rest: every node tells the same story, and it is the one that was
//! acknowledged.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{HistoryEvent, WorkflowId};
use holdfast_tests::wait::{LONG, wait_until};

use super::work::{Book, QUEUES};

/// Asks each node on its own for each history, and holds it against the book.
pub async fn histories(nodes: &[Client], book: &Book) -> Result<()> {
    for node in nodes {
        for workflow in &book.staged {
            let events = node.history(workflow, 1, 1_000, ReadMode::Linearizable).await?.value;
            judge(workflow, &events, book).with_context(|| format!("the history of {workflow}: {events:#?}"))?;
        }
    }
    Ok(())
}

fn judge(workflow: &WorkflowId, events: &[HistoryEvent], book: &Book) -> Result<()> {
    for (expected, event) in (1..).zip(events) {
        ensure!(event.seq == expected, "event {} stands where {expected} belongs", event.seq);
    }
    let mut ended = BTreeSet::new();
    for event in events.iter().filter(|event| event.kind.is_outcome()) {
        let ordinal = event.ordinal.context("an outcome without its ordinal")?;
        ensure!(ended.insert(ordinal), "activity {ordinal} has two outcomes");
    }
    let acknowledged: Vec<_> = book.completed.iter().filter(|(key, _)| key.workflow == *workflow).collect();
    ensure!(acknowledged.len() == QUEUES.len(), "{} outcomes were acknowledged", acknowledged.len());
    for (key, (seq, result)) in acknowledged {
        let event = events.iter().find(|event| event.seq == *seq).with_context(|| format!("event {seq} is gone"))?;
        ensure!(
            event.kind.is_outcome() && event.ordinal == Some(key.ordinal) && event.payload == *result,
            "{key} was acknowledged as event {seq} with {result:?}"
        );
    }
    ensure!(ended.len() == QUEUES.len(), "{} of {} activities have an outcome", ended.len(), QUEUES.len());
    Ok(())
}

/// Waits until all nodes have applied the same log, and compares their state.
pub async fn states_are_equal(nodes: &[Client]) -> Result<()> {
    let (applied, hashes) = wait_until("all nodes have applied the same log", LONG, async || {
        let mut views = Vec::new();
        for node in nodes {
            views.push(node.cluster().await?.value);
        }
        let applied: BTreeSet<u64> = views.iter().map(|view| view.applied).collect();
        ensure!(applied.len() == 1, "they are at {applied:?}");
        Ok((applied, views.into_iter().map(|view| view.state_hash).collect::<BTreeSet<_>>()))
    })
    .await?;
    ensure!(hashes.len() == 1, "the states differ at index {applied:?}: {hashes:?}");
    Ok(())
}
