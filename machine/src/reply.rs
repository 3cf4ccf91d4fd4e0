//! What a command answers when it was not refused.

use serde::{Deserialize, Serialize};

use crate::id::{ClaimToken, DispatchKey, Epoch, Millis, NodeName, ShardId};
use crate::namespace::NamespaceState;
use crate::outbox::RowStatus;
use crate::session::SessionReply;
use crate::timer::Retirement;

/// The answer to one [`crate::Command`]. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The cluster has this many shards (what the first `Create` said).
    Created {
        /// The number that holds.
        shard_count: u32,
    },
    /// A boot was recorded.
    Booted {
        /// The shards that the node still owns, with their new epochs.
        shards: Vec<(ShardId, Epoch)>,
        /// Rows of the node's last process that are pending again.
        rearmed: Vec<DispatchKey>,
    },
    /// Shards that got their first owner.
    Assigned {
        /// Those of the request that had none.
        shards: Vec<ShardId>,
    },
    /// This adoption won.
    Adopted(Moved),
    /// An earlier change won; not an error.
    AlreadyAdopted {
        /// The shard.
        shard: ShardId,
        /// Who owns it.
        held_by: NodeName,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A transfer took place.
    Transferred(Moved),
    /// A commit took place, or had taken place.
    Committed(Committed),
    /// The rows taken, oldest `visible_after` first, then by key.
    Claimed {
        /// One for each row.
        claims: Vec<Claimed>,
    },
    /// The lease was extended.
    Extended {
        /// When it ends now.
        deadline: Millis,
    },
    /// The result was recorded as event `seq`; the row is done.
    Completed {
        /// The event's number.
        seq: u64,
    },
    /// What became of a failed or returned row.
    Returned(Returned),
    /// A transition by key found no such row; nothing changed.
    NoSuchRow,
    /// The rows that were cancelled.
    Settled {
        /// Their keys, ascending.
        keys: Vec<DispatchKey>,
    },
    /// The rows that are pending again.
    Rearmed {
        /// Their keys, in the request's order.
        keys: Vec<DispatchKey>,
    },
    /// What a reconciliation did.
    Reconciled {
        /// Pending again.
        rearmed: Vec<DispatchKey>,
        /// Cancelled, because their workflow has ended.
        settled: Vec<DispatchKey>,
        /// Left claimed, because nothing is known of their workflow.
        unknown: Vec<DispatchKey>,
    },
    /// Log time moved on.
    Ticked {
        /// Log time now.
        at: Millis,
    },
    /// Rows were staged by themselves.
    Staged {
        /// Each row of the request, and whether it was written.
        rows: Vec<Staged>,
    },
    /// A timer is armed.
    TimerScheduled,
    /// What came of a timer's retirement.
    TimerRetired(Retirement),
    /// The mark is set.
    FailureDelivered,
    /// The dead letter is pending again.
    Redriven,
    /// The namespace as it is now.
    NamespacePut(NamespaceState),
    /// What a purge removed.
    Purged {
        /// Finished workflows that are not to be seen any more.
        workflows: u64,
        /// True if something is left to be cleared away.
        more: bool,
    },
    /// The workflow is not to be seen any more.
    Deleted,
    /// What came of a change of a session.
    Session(SessionReply),
    /// Each node compares the hash with its own.
    CheckpointTaken,
}

/// A change of a shard's owner and what it did to the shard's rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moved {
    /// The shard.
    pub shard: ShardId,
    /// The new epoch.
    pub epoch: Epoch,
    /// Rows of finished workflows, now cancelled.
    pub settled: Vec<DispatchKey>,
    /// Rows that the last owner itself held, now pending.
    pub rearmed: Vec<DispatchKey>,
}

/// What a commit did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Committed {
    /// The number of the last event.
    pub head: u64,
    /// True if the very same events were there already; nothing changed then.
    pub duplicate: bool,
    /// Each row of the request, and whether it was written.
    pub staged: Vec<Staged>,
    /// Rows cancelled by the request or by the end of the workflow.
    pub settled: Vec<DispatchKey>,
    /// For each transition of the request, where it left its row.
    pub transitions: Vec<RowStatus>,
    /// For each retirement among the request's timers, what came of it.
    pub retirements: Vec<Retirement>,
}

/// One staged row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Staged {
    /// Its key.
    pub key: DispatchKey,
    /// False if a row with that key stood there and was left as it is.
    pub written: bool,
}

/// One row taken by a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The row.
    pub key: DispatchKey,
    /// The proof of this claim.
    pub token: ClaimToken,
    /// When the lease ends; none for a node's own claim.
    pub deadline: Option<Millis>,
}

/// What became of a row that was failed or handed back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Returned {
    /// Pending or failed.
    pub status: RowStatus,
    /// The delivery count now.
    pub deliveries: u32,
    /// When it is due again, if pending.
    pub visible_after: Millis,
    /// The number of the ActivityFailed event, if one was recorded. Failed without one: a dead letter.
    pub failed_seq: Option<u64>,
}
