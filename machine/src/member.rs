//! Members as the state machine sees them: the node records of committed membership entries, and the
//! boot that each node reported last.

use serde::{Deserialize, Serialize};

use crate::id::{BootId, Millis, NodeName};

/// A member's record in the Raft membership.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// The numeric Raft id.
    pub id: u64,
    /// The stable name.
    pub name: NodeName,
    /// Where its peers reach it, `host:port`.
    pub peer_addr: String,
    /// Where clients reach it, `host:port`; empty if it has not said so.
    pub http_addr: String,
    /// What is committed about its life.
    pub liveness: Liveness,
}

/// What is committed about a member's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// In the configuration, but never seen yet; not watched.
    Joining,
    /// Seen, and not known to be dead.
    Up,
    /// Committed as down.
    Down {
        /// What the leader saw.
        evidence: Evidence,
    },
}

/// Why a member was taken for dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Its connection was closed and could not be made again.
    LinkClosed,
    /// It did not acknowledge a heartbeat for the configured time.
    Silent,
}

/// A member together with what its node said of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberState {
    /// The membership record.
    pub member: Member,
    /// The last boot that was committed; none before the first.
    pub boot: Option<BootId>,
    /// Log time of the last change of liveness.
    pub since: Millis,
}

impl MemberState {
    /// True if the member may take shards: committed as up, with a boot on record.
    pub fn serves(&self) -> bool {
        self.member.liveness == Liveness::Up && self.boot.is_some()
    }

    /// True if the member is committed as down.
    pub fn is_down(&self) -> bool {
        matches!(self.member.liveness, Liveness::Down { .. })
    }
}
