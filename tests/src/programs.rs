//! Workflows for the engine inside an engine node.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use futures::future::try_join_all;
use holdfast_engine::{Programs, Workflow, WorkflowError};
use holdfast_machine::TaskQueue;
use serde::{Deserialize, Serialize};

use crate::engine::{QUEUE, WORK, WORKERS};
use crate::story::{STORY, story};

/// The workflow type of [`FanOut`].
pub const FAN_OUT: &str = "fan-out";
/// The workflow type of a workflow that takes one small step after the other until it gets the signal [`ENOUGH`].
pub const STEADY: &str = "steady";
/// See [`STEADY`].
pub const ENOUGH: &str = "enough";

/// The time between two steps of a steady workflow.
const STEP: Duration = Duration::from_millis(20);

/// Waves of activities, one after the other, with a timer in between. The result is the sum of what the activities were
/// given: their own numbers, from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOut {
    /// The waves.
    pub waves: Vec<Vec<Part>>,
    /// Time between two waves, in milliseconds.
    pub pause_ms: u64,
}

/// Activities of one type in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The queue.
    pub queue: String,
    /// The activity type.
    pub activity: String,
    /// How many.
    pub count: u64,
}

impl Part {
    /// Some activities of a type in a queue.
    pub fn of(count: u64, activity: &str, queue: &str) -> Self {
        Self { queue: queue.to_owned(), activity: activity.to_owned(), count }
    }
}

impl FanOut {
    /// How many activities it has: its ordinals are 1 to this.
    pub fn ordinals(&self) -> u64 {
        self.waves.iter().flatten().map(|part| part.count).sum()
    }

    /// What it must end with.
    pub fn result(&self) -> u64 {
        (1..=self.ordinals()).sum()
    }
}

/// All of them.
///
/// # Errors
/// Never.
pub fn all() -> Result<Programs> {
    Ok(Programs::new().with(FAN_OUT, fan_out)?.with(STEADY, steady)?.with(STORY, story)?)
}

async fn fan_out(workflow: Workflow, plan: FanOut) -> Result<u64, WorkflowError> {
    let (mut number, mut sum) = (0, 0);
    for (wave, parts) in plan.waves.iter().enumerate() {
        if wave > 0 {
            workflow.sleep(Duration::from_millis(plan.pause_ms)).await;
        }
        let mut activities = Vec::new();
        for part in parts {
            for _ in 0..part.count {
                number += 1;
                activities.push(workflow.activity::<u64>(&part.activity, &number).on(queue(&part.queue)?));
            }
        }
        sum += try_join_all(activities).await?.iter().sum::<u64>();
    }
    Ok(sum)
}

async fn steady(workflow: Workflow, (): ()) -> Result<u64, WorkflowError> {
    for step in 1.. {
        workflow.activity::<u64>(WORK, &step).on(queue(QUEUE)?).await?;
        workflow.activity::<u64>(WORK, &step).on(queue(WORKERS)?).await?;
        if workflow.signal::<()>(ENOUGH).now_or_never().is_some() {
            return Ok(step);
        }
        workflow.sleep(STEP).await;
    }
    Err(WorkflowError::failed("there is no end of numbers"))
}

fn queue(name: &str) -> Result<TaskQueue, WorkflowError> {
    name.parse().map_err(|invalid: holdfast_machine::InvalidId| WorkflowError::failed(invalid.to_string()))
}
