//! Staging: each workflow starts with one append, and what it wants done is decided by the engine of its shard's owner.
//! Several are under way at a time; what was acknowledged goes into the ledger.

use std::path::PathBuf;

use anyhow::Context as _;
use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_client::Write;
use holdfast_machine::{EventKind, NewEvent, Payload, WorkflowId, WorkflowStart};

use super::fan_out::FanOut;
use super::plan::{FAN_OUT, NAMESPACE};
use super::story::Demo;

/// Appends under way at a time.
const AT_A_TIME: usize = 8;

impl Demo {
    /// Starts a fan-out workflow for each id.
    ///
    /// # Errors
    /// When an append is refused or not answered in time.
    pub async fn start_all(&self, workflows: Vec<WorkflowId>) -> anyhow::Result<()> {
        let appends = stream::iter(workflows).map(|workflow| self.start_workflow(workflow, None));
        appends.buffer_unordered(AT_A_TIME).try_collect().await
    }

    /// Starts a fan-out workflow, with a gate or without.
    ///
    /// # Errors
    /// When the append is refused or not answered in time.
    pub async fn start_workflow(&self, workflow: WorkflowId, gate: Option<PathBuf>) -> anyhow::Result<()> {
        let (namespace, workflow_type) = (NAMESPACE.parse()?, FAN_OUT.parse()?);
        let start = Some(WorkflowStart { namespace, workflow_type, run_id: None });
        let input = Payload::json(&FanOut { activities: self.activities, gate })?;
        let started = NewEvent { start, ..NewEvent::of(EventKind::WorkflowStarted) }.with(input);
        let answer = self.client.append(&workflow, 0, vec![started], Write::default()).await;
        answer.with_context(|| format!("{workflow} could not be staged"))?;
        self.ledger.staged(workflow);
        Ok(())
    }
}
