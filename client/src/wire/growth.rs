//! The stream of heads: which histories grow, and which rows are given up.

use holdfast_machine::{DispatchKey, Namespace, NodeName, ShardId, WorkflowId};
use serde::{Deserialize, Serialize};

/// Which histories a stream of heads is about. By default all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct HeadScope {
    /// Only those of this shard.
    #[serde(default)]
    pub shard: Option<ShardId>,
    /// Only those of the shards that this node owns at the time.
    #[serde(default)]
    pub owner: Option<NodeName>,
    /// Only those of this namespace.
    #[serde(default)]
    pub namespace: Option<Namespace>,
}

/// One message of the stream of heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadMessage {
    /// What grew up to this log index is not told: read the heads and the dead letters, with
    /// the index as `min_index`. The first message
    /// of each stream, and told again wherever something may be missing.
    Resync {
        /// The log index.
        index: u64,
    },
    /// A history grew. Where one grew several times, only the last head may be told.
    Grew(HeadGrew),
    /// A row's budget is spent and its history does not say so: what becomes of it is the engine's to decide.
    DeadLetter(DeadLetter),
}

/// The data of a `grew` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeadGrew {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its shard.
    pub shard: ShardId,
    /// Its last event's number.
    pub head: u64,
    /// Its namespace.
    pub namespace: Namespace,
}

/// The data of a `dead_letter` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLetter {
    /// The row.
    pub key: DispatchKey,
    /// Its shard.
    pub shard: ShardId,
    /// Its namespace.
    pub namespace: Namespace,
}

/// The data of a `resync` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResyncBody {
    /// The log index.
    pub index: u64,
}

impl HeadMessage {
    /// The name and the data of the message on the stream.
    ///
    /// # Errors
    /// Never for messages that a node makes; JSON has no way to say so.
    pub fn encode(&self) -> serde_json::Result<(&'static str, String)> {
        Ok(match self {
            Self::Resync { index } => ("resync", serde_json::to_string(&ResyncBody { index: *index })?),
            Self::Grew(grew) => ("grew", serde_json::to_string(grew)?),
            Self::DeadLetter(letter) => ("dead_letter", serde_json::to_string(letter)?),
        })
    }

    /// The message of this name and data; none for a name that is not known (yet).
    ///
    /// # Errors
    /// When the data is not what the name promises.
    pub fn decode(name: &str, data: &str) -> serde_json::Result<Option<Self>> {
        Ok(Some(match name {
            "resync" => Self::Resync { index: serde_json::from_str::<ResyncBody>(data)?.index },
            "grew" => Self::Grew(serde_json::from_str(data)?),
            "dead_letter" => Self::DeadLetter(serde_json::from_str(data)?),
            _ => return Ok(None),
        }))
    }
}
