//! The work that is measured: workflows that start with four activities, and workers that finish those. It is told to
//! Holdfast's client as a good user would; other systems (see `system`) take the ids and the payloads from here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use holdfast_client::{Answer, ClaimCall, ClaimHolder, Client, ClientError, Delivery, ReadMode, RowResult, Write};
use holdfast_machine::{
    Claimant, Commit, EventKind, Namespace, NewEvent, NewRow, Payload, Scope, TaskQueue, WorkflowFilter, WorkflowId,
    WorkflowStart,
};
use uuid::Uuid;

use crate::system::same;

/// Rows that a workflow starts with. Its events are one for itself, and two for each of them.
pub const ROWS: u64 = 4;
/// Events of a workflow whose rows are staged, and not finished.
pub const STAGED_EVENTS: u64 = 1 + 2 * ROWS;
/// Longer than anything here takes.
const LEASE_MS: u64 = 600_000;
/// Where payloads are cut out of; larger than what a compression looks back.
const POOL_BYTES: usize = 4 << 20;

/// Work of one measurement, in a namespace of its own.
#[derive(Debug)]
pub struct Work {
    /// The namespace.
    pub namespace: Namespace,
    /// What the ids of its workflows begin with.
    pub tag: String,
    pool: Bytes,
    payload_bytes: usize,
    cut: AtomicU64,
}

impl Work {
    /// Work that nobody has done before.
    ///
    /// # Errors
    /// When payloads are larger than the pool that they are cut out of.
    pub fn new(payload_bytes: usize) -> Result<Self> {
        ensure!(payload_bytes < POOL_BYTES / 2, "--payload-bytes has to be less than {}", POOL_BYTES / 2);
        let (high, low) = Uuid::new_v4().as_u64_pair();
        let tag = format!("{:08x}", low & 0xffff_ffff);
        let (namespace, pool) = (Namespace::new(format!("bench-{tag}"))?, noise(high));
        Ok(Self { namespace, tag, pool, payload_bytes, cut: AtomicU64::new(0) })
    }

    /// The id of the workflow number `number` of this client.
    ///
    /// # Errors
    /// Never: it is short and has no odd characters.
    pub fn id(&self, client: usize, number: u64) -> Result<WorkflowId> {
        Ok(WorkflowId::new(format!("{}-{client}-{number}", self.tag))?)
    }

    /// A payload of the size that was asked for, which cannot be compressed.
    pub fn payload(&self) -> Payload {
        self.payload_of(self.payload_bytes)
    }

    /// A payload of this size.
    pub fn payload_of(&self, bytes: usize) -> Payload {
        // Steps of a prime number: the same bytes come again late.
        let at = self.cut.fetch_add(9_973, Ordering::Relaxed) % (POOL_BYTES - bytes) as u64;
        Payload::octets(self.pool.slice(at as usize..at as usize + bytes))
    }

    /// The event that opens a workflow.
    ///
    /// # Errors
    /// Never.
    pub fn started(&self) -> Result<NewEvent> {
        let start = WorkflowStart { namespace: self.namespace.clone(), workflow_type: "bench".parse()?, run_id: None };
        Ok(NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) }.with(self.payload()))
    }

    /// The commit that opens a workflow with these many rows in this queue.
    ///
    /// # Errors
    /// Never.
    pub fn opening(&self, id: WorkflowId, rows: u64, queue: &TaskQueue) -> Result<Commit> {
        let mut commit = Commit::new(id, 0).event(self.started()?);
        for ordinal in 1..=rows {
            let row = NewRow::new(ordinal, "work".parse()?);
            commit = commit.activity(NewRow { task_queue: queue.clone(), input: self.payload(), ..row });
        }
        Ok(commit)
    }

    /// One operation of `stage`.
    ///
    /// # Errors
    /// When it is refused or not answered.
    pub async fn stage(&self, client: &Client, id: WorkflowId, queue: &TaskQueue) -> Result<()> {
        let committed = client.commit(self.opening(id, ROWS, queue)?, Write::default()).await?.value;
        ensure!(committed.head == STAGED_EVENTS, "a workflow of {STAGED_EVENTS} events has {}", committed.head);
        Ok(())
    }

    /// Takes up to `limit` rows of a queue.
    ///
    /// # Errors
    /// As [`Work::stage`].
    pub async fn claim(&self, client: &Client, queue: &TaskQueue, limit: u32, wait: Duration) -> Result<Vec<Delivery>> {
        let call = self.claim_call(queue, limit, wait)?;
        Ok(client.claim(call, Write::default()).await?.value)
    }

    /// See [`Work::claim`].
    ///
    /// # Errors
    /// Never.
    pub fn claim_call(&self, queue: &TaskQueue, limit: u32, wait: Duration) -> Result<ClaimCall> {
        let scope = Scope {
            namespace: self.namespace.clone(),
            task_queue: queue.clone(),
            activity_types: Vec::new(),
            node: None,
        };
        let holder = ClaimHolder::Lease { claimant: Claimant::new("bench")?, lease_ms: LEASE_MS };
        Ok(ClaimCall { scope, limit, holder, hold: Vec::new(), wait_ms: u64::try_from(wait.as_millis())? })
    }

    /// Completes all of these in one call.
    ///
    /// # Errors
    /// When one is refused or not answered.
    pub async fn complete_together(&self, client: &Client, rows: &[Delivery]) -> Result<()> {
        let call = |row: &Delivery| {
            let (key, token) = (row.key.clone(), Some(row.token));
            (RowResult { key, token, result: self.payload() }, Write::default())
        };
        let answers = client.complete_all(rows.iter().map(call).collect()).await;
        ensure!(answers.len() == rows.len(), "{} answers for {} rows", answers.len(), rows.len());
        rows.iter().zip(answers).try_for_each(|(row, answer)| completed(row, answer))
    }

    /// Completes one row.
    ///
    /// # Errors
    /// When it is refused or not answered.
    pub async fn complete(&self, client: &Client, row: &Delivery) -> Result<()> {
        completed(row, client.complete(&row.key, Some(row.token), self.payload(), Write::default()).await)
    }

    /// Fails unless a completion that comes again, as a call of its own, is refused.
    ///
    /// # Errors
    /// When it is taken, or not answered.
    pub async fn refuses_second_completion(&self, client: &Client, row: &Delivery) -> Result<()> {
        match client.complete(&row.key, Some(row.token), self.payload(), Write::default()).await {
            Ok(_) => bail!("{} was completed twice", row.key),
            Err(error) if error.reject().is_some() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails unless exactly so many workflows are stored as were acknowledged.
    ///
    /// # Errors
    /// When there are more or fewer.
    pub async fn stored(&self, client: &Client, acknowledged: u64) -> Result<u64> {
        same(acknowledged, self.workflows(client).await?)
    }

    /// How many workflows are stored.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn workflows(&self, client: &Client) -> Result<u64> {
        let filter = WorkflowFilter { namespace: self.namespace.clone(), ..WorkflowFilter::default() };
        Ok(client.count_workflows(&filter, ReadMode::Linearizable).await?.value)
    }
}

/// Fails unless a completion has become an event.
fn completed(row: &Delivery, answer: Result<Answer<Option<u64>>, ClientError>) -> Result<()> {
    let seq = answer.with_context(|| format!("completing {}", row.key))?.value;
    ensure!(seq.is_some(), "{} is gone", row.key);
    Ok(())
}

/// Bytes without any pattern (xorshift).
fn noise(seed: u64) -> Bytes {
    let mut state = seed | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(POOL_BYTES / 8).flatten().collect::<Vec<u8>>().into()
}
