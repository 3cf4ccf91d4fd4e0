//! Worker sessions: who can be given work, and whose rows end with them.
//!
//! A worker registers once and is given rows by `dispatch.rs` as long as it has room for them. All its rows hang on one
//! lease, its session's, which one heartbeat extends. The session is part of the replicated state and no node's own: when
//! the node that a worker is attached to dies, the worker attaches to another one and goes on with the rows that it has.
//!
//! An attachment is a connection between the worker and one node. A session has one at a time; a newer one takes the
//! session from an older one, whose commands are refused from then on, so that a connection that was given up and is not
//! quite dead cannot do harm. A session without an attachment is given nothing new.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{ActivityType, BootId, Claimant, Millis, Namespace, NodeName, TaskQueue};
use crate::limits::{WORKER_ACTIVITY_TYPES_MAX, WORKER_CONCURRENCY_MAX, WORKER_NAMESPACES_MAX};
use crate::reject::Reject;
use crate::validate::at_most;

/// What a worker registers as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Who, in its own words; shown to people.
    pub identity: Claimant,
    /// The namespaces that it works for, in rotation; at least one.
    pub namespaces: Vec<Namespace>,
    /// The task queue that it serves in each of them.
    #[serde(default)]
    pub task_queue: TaskQueue,
    /// Only these activity types; empty for all.
    #[serde(default)]
    pub activity_types: Vec<ActivityType>,
    /// Most rows that it holds at a time; at least 1.
    pub max_concurrency: u32,
    /// The node whose pinned rows it takes; without one it takes unpinned rows only.
    #[serde(default)]
    pub node: Option<NodeName>,
    /// How long the session lasts without a heartbeat, in milliseconds of log time.
    pub lease_ms: u64,
}

impl Worker {
    /// Refuses a registration that makes no sense or is over a limit.
    pub(crate) fn check(&self) -> Result<(), Reject> {
        let namespaces: BTreeSet<&Namespace> = self.namespaces.iter().collect();
        let problem = if namespaces.is_empty() {
            "namespaces must name at least one"
        } else if namespaces.len() < self.namespaces.len() {
            "namespaces must be distinct"
        } else if self.max_concurrency == 0 {
            "max_concurrency must be at least 1"
        } else if self.lease_ms == 0 {
            "lease_ms must be at least 1"
        } else {
            at_most("max_concurrency", self.max_concurrency.into(), WORKER_CONCURRENCY_MAX.into())?;
            at_most("the number of namespaces", self.namespaces.len() as u64, WORKER_NAMESPACES_MAX as u64)?;
            let types = self.activity_types.len() as u64;
            return at_most("the number of activity types", types, WORKER_ACTIVITY_TYPES_MAX as u64);
        };
        Err(Reject::invalid(problem))
    }
}

/// A session as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// What it registered as.
    pub worker: Worker,
    /// Log time of its first attachment.
    pub opened_at: Millis,
    /// When it ends without a further heartbeat.
    pub deadline: Millis,
    /// The number of the current or last attachment. The first one's is its log index, so that a later session of the
    /// same name has other numbers; each further one's is one more.
    pub attachment: u64,
    /// Where it is attached, if it is.
    pub attached: Option<Attached>,
    /// True once the worker takes nothing new.
    pub draining: bool,
}

/// The process that a session is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attached {
    /// The node.
    pub node: NodeName,
    /// Its boot.
    pub boot: BootId,
}

/// What [`crate::Command::Session`] does. All but the first are refused with `session_not_found` when there is no such
/// session, and with `session_moved` when `attachment` is not its current one. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionChange {
    /// Attaches the session to a node: opens it, or goes on with it under the registration that is given now.
    Attach {
        /// The registration.
        worker: Worker,
        /// Where.
        to: Attached,
    },
    /// Extends the session by its `lease_ms` from log time on.
    Extend {
        /// The attachment that asks.
        attachment: u64,
    },
    /// The connection is gone. The session keeps its rows until it ends.
    Detach {
        /// The attachment that is gone.
        attachment: u64,
    },
    /// Nothing new is given to it from now on.
    Drain {
        /// The attachment that asks.
        attachment: u64,
    },
    /// Ends the session; rows that it still holds are pending at once.
    Close {
        /// The attachment that asks.
        attachment: u64,
    },
}

/// What came of a [`SessionChange`]. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionReply {
    /// The session is attached.
    Attached {
        /// The number of this attachment.
        attachment: u64,
        /// When the session ends without a heartbeat.
        deadline: Millis,
        /// True if the session was there already, with whatever rows it holds.
        resumed: bool,
    },
    /// The session was extended.
    Extended {
        /// When it ends now.
        deadline: Millis,
    },
    /// The session has no connection.
    Detached,
    /// The session is given nothing new.
    Draining,
    /// The session has ended.
    Closed {
        /// How many of its rows are pending again.
        rearmed: u64,
    },
}

/// Why a worker is gone. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Disconnected {
    /// It said so.
    Closed,
    /// Its connection is gone; its session goes on until its lease ends.
    ConnectionLost,
    /// The node that it was attached to is gone; its session goes on until its lease ends.
    NodeGone,
    /// Its session's lease has ended.
    LeaseEnded,
}
