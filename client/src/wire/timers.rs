//! Bodies of the timer routes.

use holdfast_machine::{Arming, Millis, Namespace, NodeName, Retirement, TimerId, WorkflowId};
use serde::{Deserialize, Serialize};

/// Which timers to wait for. The parameters of `GET /v1/timers/expired`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredCall {
    /// Only timers of the shards that this node owns.
    pub owner: Option<NodeName>,
    /// Only timers of workflows of this namespace.
    pub namespace: Option<Namespace>,
    /// Timers that are due at this time; log time if none is given.
    pub as_of: Option<Millis>,
    /// Most timers to return; at least 1.
    pub limit: u32,
    /// How long to wait for the first one, in milliseconds of wall clock; 0 answers at once. The node has a cap.
    pub wait_ms: u64,
}

/// A timer that is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DueTimer {
    /// The workflow that armed it.
    pub workflow: WorkflowId,
    /// Its name in that workflow.
    pub timer: TimerId,
    /// When it was or is due, in log time.
    pub fire_at: Millis,
    /// The number of the event that armed it.
    pub armed_seq: u64,
}

impl DueTimer {
    /// The timer of a workflow that was armed like this.
    pub fn new(workflow: WorkflowId, arming: Arming) -> Self {
        let Arming { timer, fire_at, armed_seq } = arming;
        Self { workflow, timer, fire_at, armed_seq }
    }

    /// What to retire once it has fired.
    pub fn arming(&self) -> Arming {
        Arming { timer: self.timer.clone(), fire_at: self.fire_at, armed_seq: self.armed_seq }
    }
}

/// Answer of `GET /v1/timers/expired`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DueTimers {
    /// By time, then workflow, then name.
    pub timers: Vec<DueTimer>,
    /// When the next one after that time is due, in any namespace; none if nothing else is armed.
    pub next_due: Option<Millis>,
}

/// A page of a workflow's timers. Answer of `GET /v1/workflows/{id}/timers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimerPage {
    /// By name.
    pub timers: Vec<Arming>,
    /// Where the next page begins; none at the end.
    pub next_cursor: Option<String>,
}

/// Answer of `POST /v1/workflows/{id}/timers/schedule`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Scheduled {}

/// Answer of `POST /v1/workflows/{id}/timers/retire`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetiredTimer {
    /// What came of it.
    pub retirement: Retirement,
}
