//! The demo's workflow: two waves of activities, every other one for the engines, the rest for the workers. The
//! second wave is decided once the first has all its outcomes.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use futures::future::try_join_all;
use holdfast_engine::{Workflow, WorkflowError};
use holdfast_machine::TaskQueue;
use serde::{Deserialize, Serialize};

use super::activity::{ActivityResult, Task};
use super::plan::{ENGINE_QUEUE, SIMULATE, WORKER_QUEUE};

/// How long engines and workers work on an activity, from and to.
const ENGINE_WORK_MS: (u64, u64) = (150, 400);
const WORKER_WORK_MS: (u64, u64) = (300, 600);

/// The workflow's input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FanOut {
    /// How many activities it has.
    pub activities: u64,
    /// No activity of the first wave ends before this file exists.
    pub gate: Option<PathBuf>,
}

/// How many activities are in the first wave.
pub(crate) fn first_wave(activities: u64) -> u64 {
    activities / 2
}

/// True if this activity is run in the engines.
pub(crate) fn is_for_engines(ordinal: u64) -> bool {
    ordinal % 2 == 1
}

/// The workflow function.
pub(crate) async fn fan_out(workflow: Workflow, FanOut { activities, gate }: FanOut) -> Result<(), WorkflowError> {
    let first = first_wave(activities);
    wave(&workflow, 1..=first, gate).await?;
    wave(&workflow, first + 1..=activities, None).await
}

async fn wave(workflow: &Workflow, ordinals: RangeInclusive<u64>, gate: Option<PathBuf>) -> Result<(), WorkflowError> {
    let invalid = |invalid: holdfast_machine::InvalidId| WorkflowError::failed(invalid.to_string());
    let engines: TaskQueue = ENGINE_QUEUE.parse().map_err(invalid)?;
    let workers: TaskQueue = WORKER_QUEUE.parse().map_err(invalid)?;
    let activities = ordinals.map(|ordinal| {
        let (queue, (from, to)) =
            if is_for_engines(ordinal) { (&engines, ENGINE_WORK_MS) } else { (&workers, WORKER_WORK_MS) };
        let task = Task { work_ms: from + workflow.random() % (to - from), gate: gate.clone() };
        workflow.activity::<ActivityResult>(SIMULATE, &task).on(queue.clone())
    });
    try_join_all(activities).await?;
    Ok(())
}
