//! What does the work, as one of its clients sees it: Holdfast, or another system under the same load (`bench/peers`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_client::{Client, Delivery, ReadMode};
use holdfast_machine::{EventKind, TaskQueue, WorkflowId};

use crate::work::Work;

/// A system that stores workflows as they start.
pub trait Stages: Send + Sync + 'static {
    /// Stores a workflow with its events and its rows, durably.
    fn stage(&self, id: WorkflowId) -> impl Future<Output = Result<()>> + Send;

    /// How many workflows of this measurement are stored.
    fn workflows(&self) -> impl Future<Output = Result<u64>> + Send;
}

/// A system that gives out the rows, too.
pub trait Completes: Stages {
    /// A row that was claimed.
    type Row: Send + Sync + 'static;

    /// The workflow that a row is of.
    fn workflow(row: &Self::Row) -> &WorkflowId;

    /// Takes up to `limit` rows, and waits for so long if there is none.
    fn claim(&self, limit: u32, wait: Duration) -> impl Future<Output = Result<Vec<Self::Row>>> + Send;

    /// Completes one row.
    fn complete(&self, row: &Self::Row) -> impl Future<Output = Result<()>> + Send;

    /// Completes all of these, in as few calls as can be.
    fn complete_together(&self, rows: &[Self::Row]) -> impl Future<Output = Result<()>> + Send;

    /// Fails unless the completion of a row that is completed is refused.
    fn refuses_second_completion(&self, row: &Self::Row) -> impl Future<Output = Result<()>> + Send;

    /// How many rows of this measurement are not finished.
    fn rows_left(&self) -> impl Future<Output = Result<u64>> + Send;

    /// What is stored of one workflow.
    fn history(&self, workflow: &WorkflowId) -> impl Future<Output = Result<History>> + Send;
}

/// How many events a workflow has, and how many of them are outcomes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// All events.
    pub events: u64,
    /// Those that are outcomes.
    pub outcomes: u64,
}

/// Fails unless exactly so many workflows are stored as were acknowledged.
///
/// # Errors
/// When there are more or fewer.
pub fn same(acknowledged: u64, stored: u64) -> Result<u64> {
    ensure!(stored == acknowledged, "{acknowledged} workflows were acknowledged, and {stored} are stored");
    Ok(stored)
}

/// Holdfast, over one of its clients.
#[derive(Debug)]
pub struct Holdfast {
    /// The work that is done on it.
    pub work: Arc<Work>,
    /// The client.
    pub client: Client,
}

impl Stages for Holdfast {
    async fn stage(&self, id: WorkflowId) -> Result<()> {
        self.work.stage(&self.client, id, &TaskQueue::default()).await
    }

    async fn workflows(&self) -> Result<u64> {
        self.work.workflows(&self.client).await
    }
}

impl Completes for Holdfast {
    type Row = Delivery;

    fn workflow(row: &Delivery) -> &WorkflowId {
        &row.key.workflow
    }

    async fn claim(&self, limit: u32, wait: Duration) -> Result<Vec<Delivery>> {
        self.work.claim(&self.client, &TaskQueue::default(), limit, wait).await
    }

    async fn complete(&self, row: &Delivery) -> Result<()> {
        self.work.complete(&self.client, row).await
    }

    async fn complete_together(&self, rows: &[Delivery]) -> Result<()> {
        self.work.complete_together(&self.client, rows).await
    }

    async fn refuses_second_completion(&self, row: &Delivery) -> Result<()> {
        self.work.refuses_second_completion(&self.client, row).await
    }

    async fn rows_left(&self) -> Result<u64> {
        let rows = self.client.namespace(&self.work.namespace, ReadMode::Linearizable).await?.value;
        Ok(rows.pending + rows.claimed)
    }

    async fn history(&self, workflow: &WorkflowId) -> Result<History> {
        let events = self.client.history(workflow, 1, 100, ReadMode::Linearizable).await?.value;
        let outcomes = events.iter().filter(|event| event.kind == EventKind::ActivityCompleted).count() as u64;
        Ok(History { events: events.len() as u64, outcomes })
    }
}
