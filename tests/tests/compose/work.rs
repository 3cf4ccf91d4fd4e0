//! The work that goes through the containers, and a book of what was acknowledged, kept where it happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use holdfast_client::{ClaimCall, ClaimHolder, Client, ClientError, Delivery, Write};
use holdfast_machine::{
    ActivityType, Claimant, Commit, DispatchKey, EventKind, NewEvent, NewRow, Payload, Reject, RetryPolicy, Scope,
    ShardId, TaskQueue, WorkflowId, WorkflowType,
};
use holdfast_tests::wait::LONG;

/// One row of each workflow waits in each of these queues, in the order of the ordinals from 1.
pub const QUEUES: [&str; 3] = ["steady", "lost", "later"];

/// What was acknowledged to somebody, and must be found in every history.
#[derive(Debug, Default)]
pub struct Book {
    /// Workflows whose first commit was acknowledged.
    pub staged: BTreeSet<WorkflowId>,
    /// Each row's acknowledged completion: the event's number, and the result.
    pub completed: BTreeMap<DispatchKey, (u64, Payload)>,
}

impl Book {
    /// Starts a workflow in each of `shards`, with one row in each queue.
    pub async fn stage(&mut self, client: &Client, round: &str, shards: &[ShardId], shard_count: u32) -> Result<()> {
        let mut wanted: BTreeSet<ShardId> = shards.iter().copied().collect();
        for number in 0.. {
            if wanted.is_empty() {
                return Ok(());
            }
            let workflow = WorkflowId::new(format!("{round}-{number}"))?;
            if !wanted.remove(&ShardId::of(&workflow, shard_count)) {
                continue;
            }
            client.commit(first_commit(workflow.clone())?, Write::default()).await?;
            self.staged.insert(workflow);
        }
        Ok(())
    }

    /// Completes a claimed row; the completion must be the row's first.
    pub async fn complete(&mut self, client: &Client, delivery: &Delivery, by: &str) -> Result<()> {
        let result = result(delivery, by);
        let answer = client
            .complete(&delivery.key, Some(delivery.token), result.clone(), Write::default())
            .await
            .with_context(|| format!("{by} completes {}", delivery.key))?;
        let seq = answer.value.with_context(|| format!("{} has no row", delivery.key))?;
        let before = self.completed.insert(delivery.key.clone(), (seq, result));
        ensure!(before.is_none(), "{} was acknowledged twice: {before:?} and {seq}", delivery.key);
        Ok(())
    }

    /// Claims and completes what is in these queues until all staged rows have their outcome.
    pub async fn finish(&mut self, client: &Client, queues: &[&str], by: &str) -> Result<()> {
        let rows = self.staged.len() * QUEUES.len();
        let begin = Instant::now();
        while self.completed.len() < rows {
            ensure!(begin.elapsed() < LONG, "{} of {rows} are completed after {LONG:?}", self.completed.len());
            for queue in queues {
                for delivery in claim(client, queue, by, 60_000, 200).await? {
                    self.complete(client, &delivery, by).await?;
                }
            }
        }
        Ok(())
    }
}

/// Takes everything that is due in one queue.
pub async fn claim(client: &Client, queue: &str, by: &str, lease_ms: u64, wait_ms: u64) -> Result<Vec<Delivery>> {
    let call = ClaimCall {
        scope: Scope { task_queue: TaskQueue::new(queue)?, ..Scope::default() },
        limit: 1_000,
        holder: ClaimHolder::Lease { claimant: Claimant::new(by)?, lease_ms },
        hold: Vec::new(),
        wait_ms,
    };
    Ok(client.claim(call, Write::default()).await?.value)
}

/// A completion that comes too late: it is absorbed, the first outcome stands.
pub async fn complete_too_late(client: &Client, delivery: &Delivery, by: &str) -> Result<()> {
    let late = client.complete(&delivery.key, Some(delivery.token), result(delivery, by), Write::default()).await;
    ensure!(
        matches!(late, Err(ClientError::Reject(Reject::AlreadyTerminal { .. }))),
        "a second completion of {} was answered with {late:?}",
        delivery.key
    );
    Ok(())
}

/// Tells apart who completed the row, and under which claim.
fn result(delivery: &Delivery, by: &str) -> Payload {
    Payload::text(format!("{by} under {}", delivery.token))
}

fn first_commit(workflow: WorkflowId) -> Result<Commit> {
    let mut events = vec![NewEvent::started(WorkflowType::new("fan-out")?)];
    let mut rows = Vec::new();
    for (ordinal, queue) in (1..).zip(QUEUES) {
        events.push(NewEvent::activity(EventKind::ActivityScheduled, ordinal));
        events.push(NewEvent::activity(EventKind::ActivityStarted, ordinal));
        rows.push(NewRow {
            ordinal,
            task_queue: TaskQueue::new(queue)?,
            node: None,
            activity_type: ActivityType::new("simulate")?,
            input: Payload::text(format!("input {ordinal}")),
            visible_after: Default::default(),
            retry: RetryPolicy::default(),
            timeouts: Default::default(),
        });
    }
    Ok(Commit { events, rows, ..Commit::new(workflow, 0) })
}
