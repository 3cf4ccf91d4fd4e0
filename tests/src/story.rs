//! The workflow that engine nodes drive: a gated fan-out, a timer, a child, and an activity that adds it all up.

use std::time::Duration;

use futures::future::try_join_all;
use holdfast_engine::{Workflow, WorkflowError};
use holdfast_machine::{NewEvent, Payload, TaskQueue};
use serde::{Deserialize, Serialize};

use crate::engine::{HOLD, QUEUE, WORK};

/// The workflow type of the story.
pub const STORY: &str = "story";

/// What a story is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plot {
    /// Activities of the fan-out.
    pub width: u64,
    /// The fan-out is held until engines are told to release it.
    pub held: bool,
    /// Stories inside this one, each a child of the one before.
    pub depth: u64,
}

impl Plot {
    /// Activities that a story of this kind schedules, without those of its children.
    pub fn activities(self) -> u64 {
        self.width + 1
    }

    /// The event that starts such a story.
    ///
    /// # Errors
    /// Never.
    pub fn started(self) -> anyhow::Result<NewEvent> {
        Ok(NewEvent::started(STORY.parse()?).with(Payload::json(&self)?))
    }
}

pub(crate) async fn story(workflow: Workflow, plot: Plot) -> Result<u64, WorkflowError> {
    let queue = TaskQueue::new(QUEUE).map_err(|invalid| WorkflowError::failed(invalid.to_string()))?;
    let run = |activity: &str| workflow.activity::<()>(activity, &()).on(queue.clone());
    let wave = (0..plot.width).map(|_| run(if plot.held { HOLD } else { WORK }));
    let mut done = try_join_all(wave).await?.len() as u64;
    workflow.sleep(Duration::from_millis(50)).await;
    if plot.depth > 0 {
        let inside = Plot { depth: plot.depth - 1, ..plot };
        done += workflow.child::<u64>(STORY, &format!("{}/inside", workflow.id()), &inside).await?;
    }
    run(WORK).await?;
    Ok(done + 1)
}
