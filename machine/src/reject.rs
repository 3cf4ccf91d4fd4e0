//! Every refusal, with the stable code that users program against. A refused command changes nothing.

use serde::{Deserialize, Serialize};

use crate::history::{EventKind, WorkflowStatus};
use crate::id::{DispatchKey, Epoch, Namespace, NodeName, SessionId, ShardId, WorkflowId};
use crate::outbox::RowStatus;

/// Why a command was refused. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Reject {
    /// The history's head is not where the caller thought.
    #[error("the history of {workflow} ends at {found}, not at {expected}")]
    SequenceConflict {
        /// The workflow.
        workflow: WorkflowId,
        /// What the caller expected.
        expected: u64,
        /// Where it ends.
        found: u64,
    },
    /// The fence does not match the directory.
    #[error("shard {shard} is owned by {} under epoch {epoch}", owner.as_ref().map_or("nobody", NodeName::as_str))]
    NotOwner {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: Option<NodeName>,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// The activity has its outcome, or its workflow has ended; nothing is left to record. (A row that was
    /// re-armed although its activity had its outcome is finished by this answer, in the sense of that
    /// outcome, so that it is not delivered for ever.)
    #[error("{key} is already terminal")]
    AlreadyTerminal {
        /// The row.
        key: DispatchKey,
        /// Its row's status, if it has a row.
        status: Option<RowStatus>,
    },
    /// The claim under this token is over: its lease ended, or somebody else holds the row.
    #[error("the claim on {key} is no longer held")]
    ClaimLost {
        /// The row.
        key: DispatchKey,
    },
    /// No row with that key.
    #[error("there is no row {key}")]
    RowNotFound {
        /// The key.
        key: DispatchKey,
    },
    /// The row is not in a status from which this transition starts.
    #[error("row {key} is {status} and not claimed, so it cannot be handed back")]
    RowNotClaimed {
        /// The row.
        key: DispatchKey,
        /// Its status.
        status: RowStatus,
    },
    /// The event does not fit the workflow's status.
    #[error("{kind} does not fit: the workflow is {status}")]
    WorkflowStatus {
        /// The event that was refused.
        kind: EventKind,
        /// The workflow's status before it.
        status: WorkflowStatus,
    },
    /// Something in the command makes no sense.
    #[error("{what}")]
    InvalidArgument {
        /// A sentence that names the field.
        what: String,
    },
    /// A limit was passed.
    #[error("{what} is {actual}; the limit is {limit}")]
    LimitExceeded {
        /// Which size or number.
        what: String,
        /// The most that is allowed.
        limit: u64,
        /// What was asked.
        actual: u64,
    },
    /// The same idempotency key came with another command.
    #[error("this idempotency key was used for another request")]
    IdempotencyConflict,
    /// A shard outside the cluster's count.
    #[error("there is no shard {shard}; the cluster has {shard_count}")]
    NoSuchShard {
        /// What was asked for.
        shard: ShardId,
        /// How many there are; 0 before the cluster is created.
        shard_count: u32,
    },
    /// The node is unknown, not up, or has another boot than the caller thinks.
    #[error("node {node} {problem}")]
    NodeState {
        /// The node.
        node: NodeName,
        /// What is the matter, as the end of a sentence.
        problem: String,
    },
    /// An ownership change was made under an old epoch.
    #[error("shard {shard} is at epoch {epoch}, owned by {}", owner.as_ref().map_or("nobody", NodeName::as_str))]
    EpochConflict {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: Option<NodeName>,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The workflow has no history.
    #[error("there is no workflow {workflow}")]
    WorkflowNotFound {
        /// The workflow.
        workflow: WorkflowId,
    },
    /// The workflow has ended, and this is for open ones only.
    #[error("workflow {workflow} is {status}")]
    WorkflowEnded {
        /// The workflow.
        workflow: WorkflowId,
        /// Its status.
        status: WorkflowStatus,
    },
    /// The workflow has not ended, and this is for finished ones only.
    #[error("workflow {workflow} is {status}; only a finished workflow can be removed")]
    WorkflowOpen {
        /// The workflow.
        workflow: WorkflowId,
        /// Its status.
        status: WorkflowStatus,
    },
    /// The workflow was removed and what it left is still being cleared away; its id is free again soon.
    #[error("workflow {workflow} is being removed; try again in a moment")]
    BeingRemoved {
        /// The workflow.
        workflow: WorkflowId,
    },
    /// The row is no dead letter.
    #[error("row {key} is {status}, not a dead letter")]
    NotDeadLetter {
        /// The row.
        key: DispatchKey,
        /// Its status.
        status: RowStatus,
    },
    /// The workflow has heard of the dead letter; only a forced redrive takes it back.
    #[error("the workflow of {key} has heard of its failure; only a forced redrive takes it back")]
    AlreadyJudged {
        /// The row.
        key: DispatchKey,
    },
    /// Nothing is known of the namespace.
    #[error("there is no namespace {namespace}")]
    NamespaceNotFound {
        /// The namespace.
        namespace: Namespace,
    },
    /// The namespace takes no new workflows.
    #[error("namespace {namespace} is deprecated and takes no new workflows")]
    NamespaceDeprecated {
        /// The namespace.
        namespace: Namespace,
    },
    /// There is no such session: it has ended, or never was.
    #[error("there is no session {session}; it has ended, or never was")]
    SessionNotFound {
        /// The session.
        session: SessionId,
    },
    /// A newer connection has taken the session over.
    #[error("session {session} is attached elsewhere since")]
    SessionMoved {
        /// The session.
        session: SessionId,
    },
}

impl Reject {
    /// The stable name of this refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SequenceConflict { .. } => "sequence_conflict",
            Self::NotOwner { .. } => "not_owner",
            Self::AlreadyTerminal { .. } => "already_terminal",
            Self::ClaimLost { .. } => "claim_lost",
            Self::RowNotFound { .. } => "row_not_found",
            Self::RowNotClaimed { .. } => "row_not_claimed",
            Self::WorkflowStatus { .. } => "workflow_status",
            Self::InvalidArgument { .. } => "invalid_argument",
            Self::LimitExceeded { .. } => "limit_exceeded",
            Self::IdempotencyConflict => "idempotency_conflict",
            Self::NoSuchShard { .. } => "no_such_shard",
            Self::NodeState { .. } => "node_state",
            Self::EpochConflict { .. } => "epoch_conflict",
            Self::WorkflowNotFound { .. } => "workflow_not_found",
            Self::WorkflowEnded { .. } => "workflow_ended",
            Self::WorkflowOpen { .. } => "workflow_open",
            Self::BeingRemoved { .. } => "being_removed",
            Self::NotDeadLetter { .. } => "not_dead_letter",
            Self::AlreadyJudged { .. } => "already_judged",
            Self::NamespaceNotFound { .. } => "namespace_not_found",
            Self::NamespaceDeprecated { .. } => "namespace_deprecated",
            Self::SessionNotFound { .. } => "session_not_found",
            Self::SessionMoved { .. } => "session_moved",
        }
    }

    /// True if the refusal tells of the moment: the very same command may be taken later, by itself. Such a refusal is
    /// not remembered under an idempotency key.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NotOwner { .. } | Self::NodeState { .. } | Self::BeingRemoved { .. } => true,
            Self::SequenceConflict { .. }
            | Self::AlreadyTerminal { .. }
            | Self::ClaimLost { .. }
            | Self::RowNotFound { .. }
            | Self::RowNotClaimed { .. }
            | Self::WorkflowStatus { .. }
            | Self::InvalidArgument { .. }
            | Self::LimitExceeded { .. }
            | Self::IdempotencyConflict
            | Self::NoSuchShard { .. }
            | Self::EpochConflict { .. }
            | Self::WorkflowNotFound { .. }
            | Self::WorkflowEnded { .. }
            | Self::WorkflowOpen { .. }
            | Self::NotDeadLetter { .. }
            | Self::AlreadyJudged { .. }
            | Self::NamespaceNotFound { .. }
            | Self::NamespaceDeprecated { .. }
            | Self::SessionNotFound { .. }
            | Self::SessionMoved { .. } => false,
        }
    }

    /// True if the row is not, or not any more, that of whoever spoke under a claim: what was done for it counts for
    /// nothing.
    pub fn is_lost_claim(&self) -> bool {
        matches!(
            self,
            Self::ClaimLost { .. }
                | Self::AlreadyTerminal { .. }
                | Self::RowNotFound { .. }
                | Self::RowNotClaimed { .. }
        )
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_sentence_with_its_figures() {
        let reject = Reject::SequenceConflict { workflow: "w".parse().unwrap(), expected: 3, found: 5 };
        assert_eq!(
            (reject.code(), reject.to_string().as_str()),
            ("sequence_conflict", "the history of w ends at 5, not at 3")
        );
        let reject = Reject::NotOwner { shard: ShardId(1), owner: None, epoch: Epoch(0) };
        assert_eq!(reject.to_string(), "shard 1 is owned by nobody under epoch 0");
        let reject = Reject::LimitExceeded { what: "the size of result".into(), limit: 5, actual: 6 };
        assert_eq!(reject.to_string(), "the size of result is 6; the limit is 5");
    }
}
