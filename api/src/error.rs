//! The one error type of the store, with its stable codes and its statuses over HTTP.

use holdfast_client::Problem;
use holdfast_machine::{ArchiveError, Reject};
use holdfast_raft::ProposeError;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The command was refused, and nothing changed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// No leader with a majority of the cluster took the call in time. Nothing was written.
    #[error("no majority of the cluster could be reached within {waited_ms} ms")]
    NoQuorum {
        /// How long it was tried, in milliseconds.
        waited_ms: u64,
    },
    /// This node did not get as far as `min_index` in time: it is behind, or nothing has that number yet.
    #[error("log index {min_index} was not reached in time; this node is at {applied}")]
    IndexNotReached {
        /// What was asked for.
        min_index: u64,
        /// How far this node is.
        applied: u64,
    },
    /// The call may or may not have taken place. The same call under the same idempotency key tells.
    #[error("the outcome is unknown; ask again under the same idempotency key")]
    Unknown,
    /// Too much is under way. Nothing was written.
    #[error("too many requests are under way; try again later")]
    Overloaded,
    /// The disk is full. Nothing was written; reads go on.
    #[error("the disk is full; free some space, nothing needs a restart")]
    StorageFull,
    /// This node is stopping. Nothing was written.
    #[error("this node is stopping; ask another one")]
    Stopped,
    /// This node cannot read its own state.
    #[error(transparent)]
    Read(#[from] ArchiveError),
    /// A reply that does not belong to its command: a mistake in Holdfast.
    #[error("the reply to {command} was of another kind; please report this")]
    WrongReply {
        /// The command.
        command: &'static str,
    },
}

impl StoreError {
    /// The stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Reject(reject) => reject.code(),
            Self::NoQuorum { .. } => "no_quorum",
            Self::IndexNotReached { .. } => "index_not_reached",
            Self::Unknown => "unknown",
            Self::Overloaded => "overloaded",
            Self::StorageFull => "storage_full",
            Self::Stopped => "stopped",
            Self::Read(_) => "state_unreadable",
            Self::WrongReply { .. } => "internal",
        }
    }

    /// The HTTP status of the error.
    pub fn status(&self) -> u16 {
        match self {
            Self::Reject(reject) => reject_status(reject),
            Self::NoQuorum { .. } | Self::IndexNotReached { .. } | Self::Stopped => 503,
            Self::Unknown => 504,
            Self::Overloaded => 429,
            Self::StorageFull => 507,
            Self::Read(_) | Self::WrongReply { .. } => 500,
        }
    }

    /// True if the very same call, under the same idempotency key, may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoQuorum { .. }
            | Self::IndexNotReached { .. }
            | Self::Unknown
            | Self::Overloaded
            | Self::StorageFull
            | Self::Stopped
            | Self::Reject(Reject::BeingRemoved { .. }) => true,
            Self::Reject(_) | Self::Read(_) | Self::WrongReply { .. } => false,
        }
    }

    /// The document that tells of the error.
    pub(crate) fn problem(&self) -> Problem {
        match self {
            Self::Reject(reject) => Problem::of_reject(self.status(), reject),
            Self::IndexNotReached { min_index, applied } => {
                let details = [("min_index", *min_index), ("applied", *applied)];
                Problem::new(self.status(), self.code(), self.to_string()).with(details)
            }
            _ => Problem::new(self.status(), self.code(), self.to_string()),
        }
    }

    /// The refusal, if it is one.
    pub fn reject(&self) -> Option<&Reject> {
        match self {
            Self::Reject(reject) => Some(reject),
            _ => None,
        }
    }
}

fn reject_status(reject: &Reject) -> u16 {
    match reject {
        Reject::InvalidArgument { .. } => 400,
        Reject::RowNotFound { .. }
        | Reject::NoSuchShard { .. }
        | Reject::WorkflowNotFound { .. }
        | Reject::NamespaceNotFound { .. }
        | Reject::SessionNotFound { .. } => 404,
        Reject::LimitExceeded { .. } => 413,
        Reject::BeingRemoved { .. } => 503,
        Reject::SequenceConflict { .. }
        | Reject::NotOwner { .. }
        | Reject::AlreadyTerminal { .. }
        | Reject::ClaimLost { .. }
        | Reject::RowNotClaimed { .. }
        | Reject::WorkflowStatus { .. }
        | Reject::IdempotencyConflict
        | Reject::NodeState { .. }
        | Reject::EpochConflict { .. }
        | Reject::WorkflowEnded { .. }
        | Reject::WorkflowOpen { .. }
        | Reject::NotDeadLetter { .. }
        | Reject::AlreadyJudged { .. }
        | Reject::NamespaceDeprecated { .. }
        | Reject::SessionMoved { .. } => 409,
    }
}

impl From<ProposeError> for StoreError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NoQuorum { waited_ms } => Self::NoQuorum { waited_ms },
            ProposeError::IndexNotReached { min_index, applied } => Self::IndexNotReached { min_index, applied },
            ProposeError::Unknown => Self::Unknown,
            ProposeError::Overloaded => Self::Overloaded,
            ProposeError::StorageFull => Self::StorageFull,
            ProposeError::TooLarge { limit, actual } => {
                Self::Reject(Reject::LimitExceeded { what: "the size of the request".to_owned(), limit, actual })
            }
            ProposeError::Stopped => Self::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Epoch, EventKind, NodeName, RowStatus, ShardId, WorkflowStatus};

    use super::*;

    #[test]
    fn codes_and_statuses_are_what_the_docs_say() {
        let key = || "w:1".parse().unwrap();
        let (shard, epoch) = (ShardId(1), Epoch(1));
        let node = NodeName::new("n").unwrap();
        let conflict = Reject::SequenceConflict { workflow: "w".parse().unwrap(), expected: 0, found: 1 };
        let kind = EventKind::WorkflowPaused;
        let ended = Reject::WorkflowEnded { workflow: "w".parse().unwrap(), status: WorkflowStatus::Failed };
        let open = Reject::WorkflowOpen { workflow: "w".parse().unwrap(), status: WorkflowStatus::Paused };
        let refusals = [
            (conflict, "sequence_conflict", 409),
            (Reject::NotOwner { shard, owner: None, epoch }, "not_owner", 409),
            (Reject::AlreadyTerminal { key: key(), status: None }, "already_terminal", 409),
            (Reject::ClaimLost { key: key() }, "claim_lost", 409),
            (Reject::RowNotFound { key: key() }, "row_not_found", 404),
            (Reject::RowNotClaimed { key: key(), status: RowStatus::Done }, "row_not_claimed", 409),
            (Reject::WorkflowStatus { kind, status: WorkflowStatus::Failed }, "workflow_status", 409),
            (Reject::InvalidArgument { what: String::new() }, "invalid_argument", 400),
            (Reject::LimitExceeded { what: String::new(), limit: 1, actual: 2 }, "limit_exceeded", 413),
            (Reject::IdempotencyConflict, "idempotency_conflict", 409),
            (Reject::NoSuchShard { shard, shard_count: 1 }, "no_such_shard", 404),
            (Reject::NodeState { node, problem: String::new() }, "node_state", 409),
            (Reject::EpochConflict { shard, owner: None, epoch }, "epoch_conflict", 409),
            (Reject::WorkflowNotFound { workflow: "w".parse().unwrap() }, "workflow_not_found", 404),
            (ended, "workflow_ended", 409),
            (Reject::NotDeadLetter { key: key(), status: RowStatus::Done }, "not_dead_letter", 409),
            (Reject::AlreadyJudged { key: key() }, "already_judged", 409),
            (open, "workflow_open", 409),
            (Reject::NamespaceNotFound { namespace: "acme".parse().unwrap() }, "namespace_not_found", 404),
            (Reject::NamespaceDeprecated { namespace: "acme".parse().unwrap() }, "namespace_deprecated", 409),
            (Reject::SessionNotFound { session: "s".parse().unwrap() }, "session_not_found", 404),
            (Reject::SessionMoved { session: "s".parse().unwrap() }, "session_moved", 409),
        ];
        for (reject, code, status) in refusals {
            let error = StoreError::from(reject);
            assert_eq!((error.code(), error.status(), error.is_retryable()), (code, status, false));
        }
        let failures = [
            (StoreError::NoQuorum { waited_ms: 1 }, "no_quorum", 503, true),
            (StoreError::IndexNotReached { min_index: 9, applied: 5 }, "index_not_reached", 503, true),
            (Reject::BeingRemoved { workflow: "w".parse().unwrap() }.into(), "being_removed", 503, true),
            (StoreError::Stopped, "stopped", 503, true),
            (StoreError::Unknown, "unknown", 504, true),
            (StoreError::Overloaded, "overloaded", 429, true),
            (StoreError::StorageFull, "storage_full", 507, true),
            (StoreError::Read(ArchiveError(String::new())), "state_unreadable", 500, false),
            (StoreError::WrongReply { command: "claim" }, "internal", 500, false),
        ];
        for (error, code, status, retryable) in failures {
            assert_eq!((error.code(), error.status(), error.is_retryable()), (code, status, retryable));
        }
    }
}
