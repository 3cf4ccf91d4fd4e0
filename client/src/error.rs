//! What can go wrong with a call, as the caller has to see it.

use holdfast_machine::Reject;

use crate::problem::Problem;

/// Why a call failed. Mirrors the embedded store's error; what a node refuses is the same value here.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClientError {
    /// The command was refused, and nothing changed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// Nodes answered, but none could reach a majority of the cluster. Nothing was written.
    #[error("no quorum: {0}")]
    NoQuorum(String),
    /// No node got as far as the read's `min_index` in time.
    #[error("index not reached: {0}")]
    IndexNotReached(String),
    /// The call may or may not have taken place. The same call under the same idempotency key tells.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Too much is under way. Nothing was written.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The disks are full. Nothing was written.
    #[error("storage full: {0}")]
    StorageFull(String),
    /// The node is stopping. Nothing was written.
    #[error("stopped: {0}")]
    Stopped(String),
    /// No node could be reached. Nothing was written.
    #[error("no node could be reached: {0}")]
    Unreachable(String),
    /// Another error answer of a node.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// The answer is not what a Holdfast node sends.
    #[error("not an answer of a Holdfast node: {0}")]
    Protocol(String),
    /// The call cannot be sent over HTTP; nothing was sent.
    #[error("{0}")]
    Invalid(String),
}

impl ClientError {
    /// The stable name of the error.
    pub fn code(&self) -> &str {
        match self {
            Self::Reject(reject) => reject.code(),
            Self::NoQuorum(_) => "no_quorum",
            Self::IndexNotReached(_) => "index_not_reached",
            Self::Unknown(_) => "unknown",
            Self::Overloaded(_) => "overloaded",
            Self::StorageFull(_) => "storage_full",
            Self::Stopped(_) => "stopped",
            Self::Unreachable(_) => "unreachable",
            Self::Problem(problem) => &problem.code,
            Self::Protocol(_) => "protocol",
            Self::Invalid(_) => "invalid_argument",
        }
    }

    /// True if the very same call, under the same idempotency key, may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoQuorum(_)
            | Self::IndexNotReached(_)
            | Self::Unknown(_)
            | Self::Overloaded(_)
            | Self::StorageFull(_)
            | Self::Stopped(_)
            | Self::Unreachable(_)
            | Self::Reject(Reject::BeingRemoved { .. }) => true,
            Self::Problem(problem) => matches!(problem.status, 408 | 503),
            Self::Reject(_) | Self::Protocol(_) | Self::Invalid(_) => false,
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

impl From<Problem> for ClientError {
    fn from(problem: Problem) -> Self {
        let Problem { code, detail, .. } = &problem;
        match code.as_str() {
            "no_quorum" => Self::NoQuorum(detail.clone()),
            "index_not_reached" => Self::IndexNotReached(detail.clone()),
            "unknown" => Self::Unknown(detail.clone()),
            "overloaded" => Self::Overloaded(detail.clone()),
            "storage_full" => Self::StorageFull(detail.clone()),
            "stopped" => Self::Stopped(detail.clone()),
            _ => match problem.reject() {
                Some(reject) => Self::Reject(reject),
                None => Self::Problem(Box::new(problem)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn problems_become_the_errors_they_tell_of() {
        for (code, retryable) in [
            ("no_quorum", true),
            ("index_not_reached", true),
            ("unknown", true),
            ("overloaded", true),
            ("storage_full", true),
            ("stopped", true),
            ("not_found", false),
            ("idempotency_conflict", false),
        ] {
            let error = ClientError::from(Problem::new(400, code, "why"));
            assert_eq!((error.code(), error.is_retryable()), (code, retryable));
        }
        let problem = Problem::of_reject(503, &Reject::BeingRemoved { workflow: "w".parse().unwrap() });
        assert!(ClientError::from(problem).is_retryable());
        let starting = ClientError::from(Problem::new(503, "not_ready", "the node is starting"));
        assert!(starting.is_retryable());
        assert_eq!(
            ClientError::from(Problem::new(409, "idempotency_conflict", "")).reject(),
            Some(&Reject::IdempotencyConflict)
        );
    }
}
