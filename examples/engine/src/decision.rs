//! Decisions: what a workflow function wants that its history does not know of yet, as parts of a commit, and
//! as the events that they have become.
//!
//! The bodies of the engine's events are JSON, so that people can read a history.

use std::collections::BTreeMap;

use holdfast_machine::{
    Arming, Commit, EventKind, HistoryEvent, Millis, NewEvent, NewRow, Payload, TimerChange, TimerId, WorkflowId,
    WorkflowStart, WorkflowType,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::program::WorkflowError;
use crate::workflow::timer_name;

/// The engine's own kind of event: a child is to be started.
pub(crate) const CHILD_SCHEDULED: &str = "ChildWorkflowScheduled";
/// The engine's own kind of event: a child has ended.
pub(crate) const CHILD_ENDED: &str = "ChildWorkflowEnded";

/// What a workflow function wants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    Activity(Box<NewRow>),
    StartTimer { timer: u64, fire_at: Millis },
    CancelTimer { timer: u64 },
    Child(Box<ChildStart>),
    Complete(Payload),
    Fail(Payload),
    ContinueAsNew(Payload),
}

/// The body of ActivityScheduled.
#[derive(Debug, Serialize, Deserialize)]
struct ActivityBody {
    activity: String,
}

/// The body of TimerStarted, TimerFired and TimerCancelled.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TimerBody {
    pub timer: u64,
    /// In TimerStarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fire_at: Option<Millis>,
}

/// The body of SignalReceived.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SignalBody {
    pub signal: String,
    /// Keeps it apart from the same signal of somebody else.
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub input: Value,
}

/// A child as its parent wants it; the body of ChildWorkflowScheduled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChildStart {
    pub child: u64,
    pub workflow: WorkflowId,
    pub workflow_type: WorkflowType,
    pub input: Value,
}

/// A body of the engine's own, written as JSON. Numbers and texts always can be.
pub(crate) fn body<T: Serialize>(body: &T) -> Payload {
    Payload::json(body).unwrap_or_default()
}

impl Decision {
    /// How a function's end is decided.
    pub fn of_end(end: Result<Payload, WorkflowError>) -> Self {
        match end {
            Ok(result) => Self::Complete(result),
            Err(WorkflowError::ContinueAsNew(input)) => Self::ContinueAsNew(input),
            Err(WorkflowError::Failed { message }) => Self::Fail(Payload::text(message)),
        }
    }

    /// What kind of event it becomes.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Activity(_) => EventKind::ActivityScheduled,
            Self::StartTimer { .. } => EventKind::TimerStarted,
            Self::CancelTimer { .. } => EventKind::TimerCancelled,
            Self::Child(_) => EventKind::from_name(CHILD_SCHEDULED),
            Self::Complete(_) => EventKind::WorkflowCompleted,
            Self::Fail(_) => EventKind::WorkflowFailed,
            Self::ContinueAsNew(_) => EventKind::WorkflowContinuedAsNew,
        }
    }

    /// True if `event` is this decision, taken before. What does not change which step it is may differ: an activity's
    /// input and options, a timer's time, a result.
    pub fn is(&self, event: &HistoryEvent) -> bool {
        if self.kind() != event.kind {
            return false;
        }
        match self {
            Self::Activity(row) => {
                let named = read::<ActivityBody>(event).is_none_or(|body| body.activity == row.activity_type.as_str());
                named && event.ordinal == Some(row.ordinal)
            }
            Self::StartTimer { timer, .. } | Self::CancelTimer { timer } => {
                read::<TimerBody>(event).is_some_and(|body| body.timer == *timer)
            }
            Self::Child(start) => read::<ChildStart>(event).is_some_and(|body| {
                let same = (&body.workflow, &body.workflow_type) == (&start.workflow, &start.workflow_type);
                same && body.child == start.child
            }),
            Self::Complete(_) | Self::Fail(_) | Self::ContinueAsNew(_) => true,
        }
    }

    /// For people: what the function wants.
    pub fn describe(&self) -> String {
        match self {
            Self::Activity(row) => format!("activity {} ({})", row.ordinal, row.activity_type),
            Self::StartTimer { timer, .. } => format!("timer {timer}"),
            Self::CancelTimer { timer } => format!("the cancellation of timer {timer}"),
            Self::Child(start) => format!("child {} ({})", start.child, start.workflow),
            Self::Complete(_) | Self::Fail(_) | Self::ContinueAsNew(_) => format!("the end ({})", self.kind()),
        }
    }
}

/// Puts decisions into one commit.
pub(crate) struct Decided<'a> {
    pub commit: Commit,
    /// How the run was started: its next run is the same.
    pub start: &'a WorkflowStart,
    /// Timers that are armed; those of this commit are added.
    pub armed: BTreeMap<u64, Arming>,
}

impl Decided<'_> {
    pub fn add(&mut self, decision: &Decision) {
        // The number that the next event gets.
        let seq = self.commit.expected_seq + self.commit.events.len() as u64 + 1;
        let event = NewEvent::of(decision.kind());
        match decision {
            Decision::Activity(row) => {
                let activity = row.activity_type.to_string();
                self.event(NewEvent { ordinal: Some(row.ordinal), ..event }.with(body(&ActivityBody { activity })));
                self.event(NewEvent::activity(EventKind::ActivityStarted, row.ordinal));
                self.commit.rows.push(NewRow::clone(row));
            }
            Decision::StartTimer { timer, fire_at } => {
                self.event(event.with(body(&TimerBody { timer: *timer, fire_at: Some(*fire_at) })));
                if let Some(arming) = arming(*timer, *fire_at, seq) {
                    self.commit.timers.push(TimerChange::Schedule(arming.clone()));
                    self.armed.insert(*timer, arming);
                }
            }
            Decision::CancelTimer { timer } => {
                self.event(event.with(body(&TimerBody { timer: *timer, fire_at: None })));
                self.commit.timers.extend(self.armed.remove(timer).map(TimerChange::Retire));
            }
            Decision::Child(start) => self.event(event.with(body(start))),
            Decision::Complete(payload) | Decision::Fail(payload) => self.event(event.with(payload.clone())),
            Decision::ContinueAsNew(input) => {
                self.event(event);
                let start = WorkflowStart { run_id: None, ..self.start.clone() };
                let started = NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) };
                self.event(started.with(input.clone()));
            }
        }
    }

    fn event(&mut self, event: NewEvent) {
        self.commit.events.push(event);
    }
}

/// The arming of a run's timer by the event with this number.
pub(crate) fn arming(timer: u64, fire_at: Millis, armed_seq: u64) -> Option<Arming> {
    timer_name(timer).map(|timer: TimerId| Arming { timer, fire_at, armed_seq })
}

/// The body of an event, if it is one of the engine's.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(event: &HistoryEvent) -> Option<T> {
    serde_json::from_slice(&event.payload.data).ok()
}
