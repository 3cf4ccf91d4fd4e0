//! Histories: the events of a workflow, and the workflow and run that the store derives from them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::attributes::AttributesUpdate;
use crate::id::{Millis, Namespace, RunId, WorkflowType};
use crate::payload::Payload;

macro_rules! event_kinds {
    ($($name:ident),+ $(,)?) => {
        /// What happened. Kinds that the store does not know are kept as they are.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)] // The names are the contract's and say what they mean.
        pub enum EventKind {
            $($name,)+
            /// A kind of the engine's own.
            Other(String),
        }

        impl EventKind {
            /// The kind of this name.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $(stringify!($name) => Self::$name,)+
                    other => Self::Other(other.to_owned()),
                }
            }

            /// The kind's name.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name => stringify!($name),)+
                    Self::Other(name) => name,
                }
            }
        }
    };
}

event_kinds!(
    WorkflowStarted,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowCancelled,
    WorkflowTimedOut,
    WorkflowContinuedAsNew,
    WorkflowReopened,
    WorkflowPaused,
    WorkflowResumed,
    SearchAttributesUpdated,
    ActivityScheduled,
    ActivityStarted,
    ActivityCompleted,
    ActivityFailed,
    ActivityCancelled,
    TimerStarted,
    TimerFired,
    TimerCancelled,
    SignalReceived,
);

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for EventKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for EventKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_name(&String::deserialize(deserializer)?))
    }
}

impl EventKind {
    /// The status that this event leads to, if it is a lifecycle event.
    pub fn leads_to(&self) -> Option<WorkflowStatus> {
        Some(match self {
            Self::WorkflowStarted | Self::WorkflowReopened | Self::WorkflowResumed => WorkflowStatus::Running,
            Self::WorkflowPaused => WorkflowStatus::Paused,
            Self::WorkflowCompleted => WorkflowStatus::Completed,
            Self::WorkflowFailed => WorkflowStatus::Failed,
            Self::WorkflowCancelled => WorkflowStatus::Cancelled,
            Self::WorkflowTimedOut => WorkflowStatus::TimedOut,
            Self::WorkflowContinuedAsNew => WorkflowStatus::ContinuedAsNew,
            _ => return None,
        })
    }

    /// True if the event is an activity's outcome.
    pub fn is_outcome(&self) -> bool {
        matches!(self, Self::ActivityCompleted | Self::ActivityFailed | Self::ActivityCancelled)
    }
}

/// A workflow's status: the last lifecycle event decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The names are the contract's and say what they mean.
pub enum WorkflowStatus {
    Running,
    Paused,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    ContinuedAsNew,
}

impl WorkflowStatus {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::ContinuedAsNew,
    ];

    /// True if nothing more can happen in this run unless it is reopened.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Running | Self::Paused)
    }
}

impl fmt::Display for WorkflowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::ContinuedAsNew => "continued_as_new",
        })
    }
}

/// What WorkflowStarted says about the run it opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkflowStart {
    /// The namespace; fixed by the first run.
    #[serde(default)]
    pub namespace: Namespace,
    /// The type.
    pub workflow_type: WorkflowType,
    /// The run's name; `run-1`, `run-2`, … if none is given.
    #[serde(default)]
    pub run_id: Option<RunId>,
}

/// An event as a caller appends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// What happened.
    pub kind: EventKind,
    /// Which activity, for Activity* events.
    #[serde(default)]
    pub ordinal: Option<u64>,
    /// The run's particulars, for WorkflowStarted.
    #[serde(default)]
    pub start: Option<WorkflowStart>,
    /// Search attributes to set or remove, for WorkflowStarted and SearchAttributesUpdated.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema::AttributesUpdate>))]
    pub search_attributes: Option<AttributesUpdate>,
    /// The body.
    #[serde(default)]
    pub payload: Payload,
}

impl NewEvent {
    /// An event of `kind` with nothing else in it.
    pub fn of(kind: EventKind) -> Self {
        Self { kind, ordinal: None, start: None, search_attributes: None, payload: Payload::default() }
    }

    /// The WorkflowStarted that opens a run of `workflow_type` in the default namespace.
    pub fn started(workflow_type: WorkflowType) -> Self {
        let start = WorkflowStart { namespace: Namespace::default(), workflow_type, run_id: None };
        Self { start: Some(start), ..Self::of(EventKind::WorkflowStarted) }
    }

    /// An Activity* event of the activity with this ordinal.
    pub fn activity(kind: EventKind, ordinal: u64) -> Self {
        Self { ordinal: Some(ordinal), ..Self::of(kind) }
    }

    /// The same event with a body.
    pub fn with(self, payload: Payload) -> Self {
        Self { payload, ..self }
    }
}

/// An event in a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryEvent {
    /// 1, 2, 3 … without gaps.
    pub seq: u64,
    /// Log time of the append.
    pub at: Millis,
    /// What happened.
    pub kind: EventKind,
    /// Which activity, for Activity* events.
    pub ordinal: Option<u64>,
    /// The run's particulars, for WorkflowStarted.
    pub start: Option<WorkflowStart>,
    /// Search attributes set or removed, for WorkflowStarted and SearchAttributesUpdated.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema::AttributesUpdate>))]
    pub search_attributes: Option<AttributesUpdate>,
    /// The body.
    pub payload: Payload,
}

impl HistoryEvent {
    pub(crate) fn new(seq: u64, at: Millis, event: NewEvent) -> Self {
        let NewEvent { kind, ordinal, start, search_attributes, payload } = event;
        Self { seq, at, kind, ordinal, start, search_attributes, payload }
    }

    /// True if this is what appending `event` left behind.
    pub(crate) fn is_same_as(&self, event: &NewEvent) -> bool {
        self.kind == event.kind
            && self.ordinal == event.ordinal
            && self.start == event.start
            && self.search_attributes == event.search_attributes
            && self.payload == event.payload
    }
}

/// An event as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredEvent {
    pub event: HistoryEvent,
    /// On the last event of a commit: a hash of the rows that came with it, to tell its retry.
    pub ends_commit: Option<u64>,
}

/// What the store keeps about a workflow besides its events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workflow {
    /// The namespace of its first run.
    pub namespace: Namespace,
    /// The projection of its lifecycle events.
    pub status: WorkflowStatus,
    /// The last event's number.
    pub head: u64,
    /// The run that is open, or was open last.
    pub run: Run,
    /// How many search attributes it has; they are kept beside it.
    pub attribute_count: u32,
}

/// One execution inside a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// 1, 2, 3 … in the order of the history.
    pub number: u32,
    /// Its name.
    pub run_id: RunId,
    /// The run that it continues.
    pub parent: Option<RunId>,
    /// Its type; none if the history does not open with WorkflowStarted.
    pub workflow_type: Option<WorkflowType>,
    /// Its status.
    pub status: WorkflowStatus,
    /// Log time of its first event.
    pub started_at: Millis,
    /// The number of its first event.
    pub started_seq: u64,
    /// Log time of its terminal event.
    pub closed_at: Option<Millis>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_their_names_in_both_encodings() {
        for name in ["WorkflowStarted", "ActivityCancelled", "ChildWorkflowStarted", "my.own kind"] {
            let kind = EventKind::from_name(name);
            assert_eq!(kind.to_string(), name);
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{name:?}"));
            assert_eq!(postcard::from_bytes::<EventKind>(&postcard::to_stdvec(&kind).unwrap()).unwrap(), kind);
        }
        assert_eq!(EventKind::from_name("WorkflowStarted"), EventKind::WorkflowStarted);
        assert_eq!(EventKind::from_name("workflowstarted"), EventKind::Other("workflowstarted".to_owned()));
    }

    #[test]
    fn an_event_is_short_to_write() {
        let event: NewEvent = serde_json::from_str(r#"{"kind":"SignalReceived"}"#).unwrap();
        assert_eq!(event, NewEvent::of(EventKind::SignalReceived));
        assert!(serde_json::from_str::<NewEvent>(r#"{"kind":"SignalReceived","seq":4}"#).is_err());
    }
}
