//! Bodies of the shard and cluster routes.

use holdfast_machine::{BootId, Epoch, Member, Millis, Moved, NodeName, RowCounts, ShardEntry};
use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/shards`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Directory {
    /// How many shards the cluster has; 0 before it is created.
    pub shard_count: u32,
    /// Those that have an owner, by number.
    pub shards: Vec<ShardEntry>,
}

/// Body of `POST /v1/shards/{id}/transfer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TransferBody {
    /// The new owner.
    pub to: NodeName,
    /// The epoch that the shard is moved from.
    pub expected_epoch: Epoch,
}

/// Body of `POST /v1/shards/{id}/adopt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AdoptBody {
    /// The owner that died.
    pub from: NodeName,
    /// The survivor that takes the shard.
    pub by: NodeName,
    /// The epoch under which `from` owned it.
    pub expected_epoch: Epoch,
}

/// What came of a proposal to adopt a shard. To come too late is an answer and not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Adoption {
    /// This one won.
    Adopted(Moved),
    /// An earlier one won.
    AlreadyAdopted {
        /// The owner.
        held_by: NodeName,
        /// Its epoch.
        epoch: Epoch,
    },
}

/// Answer of `GET /v1/cluster`: the cluster as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterView {
    /// The node that answers.
    pub node: NodeName,
    /// The leader that it knows.
    pub leader: Option<NodeName>,
    /// The Raft term.
    pub term: u64,
    /// The last log index on this node.
    pub last: u64,
    /// The last one it knows to be committed.
    pub committed: u64,
    /// The last one that it has applied; `state_hash`, `rows` and `now` are of this index.
    pub applied: u64,
    /// The rolling hash of the state, in hex; equal on all nodes at equal `applied`.
    pub state_hash: String,
    /// Log time.
    pub now: Millis,
    /// How many shards the cluster has; 0 before it is created.
    pub shard_count: u32,
    /// Live rows by status.
    pub rows: RowCounts,
    /// The members, by name.
    pub members: Vec<MemberView>,
    /// Members that have lost their data: those that wait to be replaced, and those that are being replaced.
    pub replacements: Vec<Replacement>,
    /// Why the answering node takes no part in the cluster; null if it does.
    pub outside: Option<String>,
}

/// How far a replacement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplacementStage {
    /// The node has no data and waits; nothing has been done.
    Waiting,
    /// The new member receives the data, and does not vote yet.
    CatchingUp,
    /// The new member takes over the vote.
    TakingOver,
}

/// The replacement of a member that has lost its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replacement {
    /// The member.
    pub name: NodeName,
    /// The Raft id that lost its data. It never comes back.
    pub old_id: u64,
    /// The Raft id in its place; null while nothing has been decided.
    pub new_id: Option<u64>,
    /// How far it is.
    pub stage: ReplacementStage,
    /// How far the new member's log is known to match; known to the leader only.
    pub matched: Option<u64>,
    /// The voters that agree to it, all of them reached and close to the leader; only in the answer to a request.
    pub others: Vec<NodeName>,
}

/// Body of `POST /v1/cluster/members/{name}/replace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplaceBody {
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// A member as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberView {
    /// The membership record.
    pub member: Member,
    /// The last boot that was committed.
    pub boot: Option<BootId>,
    /// Log time of the last change of liveness.
    pub since: Millis,
    /// Whether the answering node has a connection to it; null for itself.
    pub connected: Option<bool>,
    /// Why it has none, if so.
    pub link_problem: Option<String>,
    /// How far its log is known to match; known to the leader only.
    pub matched: Option<u64>,
    /// The space on its disk, as the answering node last heard; null if it has not.
    #[serde(default)]
    pub disk: Option<DiskSpace>,
}

/// The space on a node's disk, from good to bad. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskSpace {
    /// There is more than the reserve.
    Plenty,
    /// Only the reserve is left: no new work is begun on it.
    Low,
    /// Next to nothing is left: only what keeps the cluster going is written.
    Out,
}
