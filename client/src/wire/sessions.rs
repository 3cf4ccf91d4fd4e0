//! What a worker and its node say to each other over a session's stream, and bodies of the session routes.
//!
//! The stream is a WebSocket at `GET /v1/sessions/stream`; each message is one JSON text. The worker speaks first, with
//! [`WorkerMessage::Attach`]. Outcomes do not go over the stream: `complete`, `fail` and the heartbeats of single rows are
//! calls like any other's, so that they can be repeated under their idempotency key at any node.

use holdfast_machine::{
    Attached, ClaimToken, DispatchKey, Millis, Namespace, NodeName, RowStatus, SessionId, TaskQueue, Worker,
};
use serde::{Deserialize, Serialize};

use super::Delivery;
use super::node_message::Members;
use crate::Problem;

/// From the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkerMessage {
    /// Opens the session, or goes on with it. The first message, and the first only.
    Attach {
        /// The session; a fresh name (a UUID) for each start of a worker, the same one when it attaches again.
        session: SessionId,
        /// The registration; a session that goes on takes it over.
        worker: Worker,
        /// The rows that the worker is at work on. Rows of the session that are not among them are delivered (again).
        #[serde(default)]
        holding: Vec<HeldRow>,
    },
    /// The worker lives. Extends the session, and with it all its rows, as long as what the node sends arrives as well.
    Heartbeat {
        /// The number of the last message that came from the node.
        received: u64,
    },
    /// Nothing new from now on.
    Drain,
    /// The session ends; rows that it still holds are pending at once. The last message.
    Close,
}

/// From the node. All but `Ended` are numbered, from 1 for each connection; heartbeats say which one came last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", try_from = "Members")]
pub enum NodeMessage {
    /// The session is attached.
    Attached {
        /// This message's number.
        number: u64,
        /// The node.
        node: NodeName,
        /// When the session ends without a heartbeat.
        deadline: Millis,
        /// How often the node wants to hear a heartbeat, in milliseconds.
        heartbeat_ms: u64,
        /// True if the session was there already.
        resumed: bool,
    },
    /// Work.
    Deliveries {
        /// This message's number.
        number: u64,
        /// The rows, each of them claimed for this session.
        deliveries: Vec<Delivery>,
    },
    /// Rows that the session does not hold any more; whatever is being done for them counts for nothing.
    Withdrawn {
        /// This message's number.
        number: u64,
        /// The rows.
        rows: Vec<WithdrawnRow>,
    },
    /// Rows that the session holds and whose workflow was paused. The worker may go on, or stop for a while.
    Paused {
        /// This message's number.
        number: u64,
        /// The rows.
        rows: Vec<HeldRow>,
    },
    /// Rows whose workflow goes on.
    Resumed {
        /// This message's number.
        number: u64,
        /// The rows.
        rows: Vec<HeldRow>,
    },
    /// Answer to a heartbeat.
    Extended {
        /// This message's number.
        number: u64,
        /// When the session ends now.
        deadline: Millis,
    },
    /// Answer to `Drain`: whatever comes before this is the last of the work.
    Draining {
        /// This message's number.
        number: u64,
    },
    /// The connection ends. The last message.
    Ended {
        /// Why.
        reason: Ended,
        /// The refusal, if it was one.
        problem: Option<Problem>,
    },
}

impl NodeMessage {
    /// The message's number; none for the last message, which needs none.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Attached { number, .. }
            | Self::Deliveries { number, .. }
            | Self::Withdrawn { number, .. }
            | Self::Paused { number, .. }
            | Self::Resumed { number, .. }
            | Self::Extended { number, .. }
            | Self::Draining { number } => Some(*number),
            Self::Ended { .. } => None,
        }
    }
}

/// Why a connection ends. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The worker closed its session.
    Closed,
    /// The node stops, or cannot serve; attach to another one and keep the rows.
    NodeStopping,
    /// The session has ended; its rows are handed out again. Attach under a fresh name.
    SessionOver,
    /// A newer connection has the session.
    Moved,
    /// Messages that the node sent were not confirmed in time. Attach again, and keep the rows.
    StreamDead,
    /// The registration or a message was refused; `problem` says why.
    Refused,
}

/// A row and the claim that it is held under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeldRow {
    /// The row.
    pub key: DispatchKey,
    /// The claim.
    pub token: ClaimToken,
}

/// A row that is the session's no more, by whatever hand. The worker's own outcomes are among them; it leaves out rows
/// that it has finished, or waits to hear about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WithdrawnRow {
    /// The row.
    pub key: DispatchKey,
    /// The claim that is over.
    pub token: ClaimToken,
    /// Where the row stands now: cancelled, done or failed by another hand, pending, or claimed by somebody else. None if
    /// it was removed.
    pub status: Option<RowStatus>,
}

/// A session, as `GET /v1/sessions` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionView {
    /// The session.
    pub session: SessionId,
    /// What it registered as.
    pub worker: Worker,
    /// Where it is attached; none while it has no connection.
    pub attached: Option<Attached>,
    /// Log time of its first attachment.
    pub opened_at: Millis,
    /// When it ends without a further heartbeat.
    pub deadline: Millis,
    /// True once the worker takes nothing new.
    pub draining: bool,
    /// How many rows it holds.
    pub rows: u64,
}

/// Which sessions are listed; by default all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionFilter {
    /// Only workers that work for this namespace.
    #[serde(default)]
    pub namespace: Option<Namespace>,
    /// Only workers that serve this task queue.
    #[serde(default)]
    pub task_queue: Option<TaskQueue>,
}

/// A page of sessions, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionView>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// Answer of `GET /v1/sessions/{session}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionWithRows {
    /// The session.
    pub session: SessionView,
    /// The rows that it holds, in the order in which they were given to it.
    pub held: Vec<HeldRow>,
}
