//! What a test and the engine inside an engine node say to each other: orders on its stdin, records on its
//! stdout, one JSON value a line.

use holdfast_machine::{BootId, ClaimToken, DispatchKey, Epoch, NodeName, ShardId, WorkflowId};
use serde::{Deserialize, Serialize};

/// The task queue that engines take rows from.
pub const QUEUE: &str = "engine";
/// Rows of this type are held until [`Order::Release`].
pub const HOLD: &str = "hold";
/// Rows of this type are completed at once.
pub const WORK: &str = "work";

/// What a test tells an engine to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Complete what is held, and hold nothing from now on.
    Release,
    /// Append a note under the last epoch that the engine heard of for the workflow's shard, whether or not
    /// it has lost the shard since. Answered with [`Record::Appended`].
    Append {
        /// The workflow.
        workflow: WorkflowId,
        /// Its head.
        expected_seq: u64,
        /// The note.
        text: String,
    },
}

/// What an engine tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The process runs under this boot.
    Started {
        /// The boot.
        boot: BootId,
    },
    /// The callback: the node owns a shard.
    Acquired {
        /// The shard.
        shard: ShardId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The callback: the node owns a shard no more.
    Lost {
        /// The shard.
        shard: ShardId,
        /// The epoch of the new ownership.
        epoch: Epoch,
        /// The new owner.
        new_owner: NodeName,
    },
    /// An execution has begun.
    Began {
        /// The row.
        key: DispatchKey,
        /// The claim.
        token: ClaimToken,
    },
    /// An execution has ended and was answered.
    Ended {
        /// The row.
        key: DispatchKey,
        /// The claim.
        token: ClaimToken,
        /// The code of the refusal, if it was refused.
        refused: Option<String>,
    },
    /// What came of [`Order::Append`].
    Appended {
        /// The note.
        text: String,
        /// The epoch it was made under.
        epoch: Epoch,
        /// The code and the sentence of the refusal, if it was refused.
        refused: Option<(String, String)>,
    },
}
