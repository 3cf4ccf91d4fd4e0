//! The event stream: messages, and the topology it begins with.

use holdfast_machine::{ClusterEvent, EventId, MemberState, NodeName, ShardEntry};
use serde::{Deserialize, Serialize};

/// Who is there and who owns what, at one log index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Topology {
    /// The log index.
    pub index: u64,
    /// The leader that the node knows.
    pub leader: Option<NodeName>,
    /// The Raft term.
    pub term: u64,
    /// How many shards the cluster has.
    pub shard_count: u32,
    /// The members, by name.
    pub members: Vec<MemberState>,
    /// The shards that have an owner, by number.
    pub shards: Vec<ShardEntry>,
}

/// One message of the event stream. A stream begins with a snapshot unless it resumes from a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventMessage {
    /// The topology; the events that follow are above its index.
    Snapshot(Topology),
    /// A fact.
    Event {
        /// Its number; none for a fact that one node alone knows.
        id: Option<EventId>,
        /// The fact.
        event: ClusterEvent,
    },
    /// Events after this number are missing; a snapshot follows.
    Lagged {
        /// The last number that was delivered, if any was.
        after: Option<EventId>,
    },
}

/// The data of an `event` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventBody {
    /// Its number; null for a fact that one node alone knows.
    pub id: Option<EventId>,
    /// The fact.
    pub event: ClusterEvent,
}

/// The data of a `lagged` message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LaggedBody {
    /// The last number that was delivered, if any was.
    pub after: Option<EventId>,
}

impl EventMessage {
    /// The name and the data of the message on an event stream.
    ///
    /// # Errors
    /// Never for messages that a node makes; JSON has no way to say so.
    pub fn encode(self) -> serde_json::Result<(&'static str, String)> {
        Ok(match self {
            Self::Snapshot(topology) => ("snapshot", serde_json::to_string(&topology)?),
            Self::Event { id, event } => ("event", serde_json::to_string(&EventBody { id, event })?),
            Self::Lagged { after } => ("lagged", serde_json::to_string(&LaggedBody { after })?),
        })
    }

    /// The message of this name and data; none for a name that is not known (yet).
    ///
    /// # Errors
    /// When the data is not what the name promises.
    pub fn decode(name: &str, data: &str) -> serde_json::Result<Option<Self>> {
        Ok(Some(match name {
            "snapshot" => Self::Snapshot(serde_json::from_str(data)?),
            "event" => {
                let EventBody { id, event } = serde_json::from_str(data)?;
                Self::Event { id, event }
            }
            "lagged" => Self::Lagged { after: serde_json::from_str::<LaggedBody>(data)?.after },
            _ => return Ok(None),
        }))
    }

    /// Where a stream that has delivered this message resumes; none for local facts and gaps.
    pub fn id(&self) -> Option<EventId> {
        match self {
            Self::Snapshot(topology) => Some(EventId { index: topology.index, position: u32::MAX }),
            Self::Event { id, .. } => *id,
            Self::Lagged { .. } => None,
        }
    }
}
