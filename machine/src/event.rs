//! What apply tells the world: cluster events (facts for subscribers) and effects (work for this node).
//!
//! Neither is part of the state. Effects may be delivered again after a restart; whatever they cause
//! is fenced, so a repeated one is harmless.

use serde::{Deserialize, Serialize};

use crate::id::{
    BootId, Claimant, DispatchKey, Epoch, Millis, Namespace, NodeName, SessionId, ShardId, TaskQueue, WorkflowId,
};
use crate::member::Evidence;
use crate::row_index::Route;
use crate::session::Disconnected;

/// A fact about the cluster. Committed ones are numbered by log index and position; local ones are
/// known to one node only. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ClusterEvent {
    /// A member joined the configuration.
    PeerAdded {
        /// The member.
        node: NodeName,
    },
    /// A member left the configuration.
    PeerRemoved {
        /// The member.
        node: NodeName,
    },
    /// A member was committed as down.
    PeerDown {
        /// The member.
        node: NodeName,
        /// What the leader saw.
        evidence: Evidence,
    },
    /// A member was committed as up.
    PeerUp {
        /// The member.
        node: NodeName,
    },
    /// A node's process started.
    PeerBooted {
        /// The node.
        node: NodeName,
        /// This start of it.
        boot: BootId,
    },
    /// A shard got its first owner, or its owner started again under a new epoch.
    ShardAssigned {
        /// The shard.
        shard: ShardId,
        /// The owner.
        owner: NodeName,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A survivor took a shard over.
    ShardAdopted {
        /// The shard.
        shard: ShardId,
        /// The owner that died.
        from: NodeName,
        /// The new owner.
        by: NodeName,
        /// Its epoch.
        epoch: Epoch,
        /// How many rows of finished workflows were cancelled.
        settled: u64,
        /// How many rows became pending again.
        rearmed: u64,
    },
    /// An adoption came too late.
    ShardAdoptionSkipped {
        /// The shard.
        shard: ShardId,
        /// Who tried.
        by: NodeName,
        /// Who holds it.
        held_by: NodeName,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A shard was moved between live nodes.
    ShardTransferred {
        /// The shard.
        shard: ShardId,
        /// The last owner.
        from: NodeName,
        /// The new owner.
        to: NodeName,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Rows of a workflow were cancelled.
    SettledRows {
        /// The workflow.
        workflow: WorkflowId,
        /// How many.
        rows: u64,
    },
    /// Local: this node knows a leader, or has lost it.
    LeaderChanged {
        /// The leader's name, if there is one.
        leader: Option<NodeName>,
        /// The term.
        term: u64,
    },
    /// Local: this node's detector has doubts about a peer.
    PeerSuspected {
        /// The peer.
        node: NodeName,
        /// Bad observations in a row.
        consecutive: u32,
        /// True if there were enough of them to act.
        confirmed: bool,
    },
    /// Local: a snapshot was made.
    SnapshotTaken {
        /// The log index it covers.
        index: u64,
    },
    /// Local: a proposal to adopt did not get through; it is tried again.
    AdoptionFailed {
        /// The shard.
        shard: ShardId,
        /// Why.
        error: String,
    },
    /// A namespace was created or first used.
    NamespaceCreated {
        /// The namespace.
        namespace: Namespace,
    },
    /// A namespace's ceiling of claimed rows was changed.
    NamespaceQuotaChanged {
        /// The namespace.
        namespace: Namespace,
        /// The new ceiling.
        claimed_max: Option<u32>,
    },
    /// Finished workflows were removed, their retention having run out or an operator having said so.
    WorkflowsRemoved {
        /// How many.
        workflows: u64,
    },
    /// A worker's session was attached to a node.
    WorkerConnected {
        /// The session.
        session: SessionId,
        /// Who, in the worker's words.
        identity: Claimant,
        /// Where.
        node: NodeName,
        /// True if the session was there already.
        resumed: bool,
    },
    /// A worker's session lost its attachment, or has ended.
    WorkerDisconnected {
        /// The session.
        session: SessionId,
        /// Who, in the worker's words.
        identity: Claimant,
        /// Why.
        reason: Disconnected,
        /// How many of its rows are pending again; none while the session goes on.
        rearmed: u64,
    },
    /// Local: rows of a route are due and nobody takes them, for another reason than before.
    DispatchParked {
        /// The route.
        route: Route,
        /// Why.
        reason: Parked,
        /// How many rows wait.
        rows: u64,
    },
    /// Local: the rows of a route that was parked move again.
    DispatchUnparked {
        /// The route.
        route: Route,
    },
}

/// Why due rows of a route wait. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Parked {
    /// No worker serves the task queue.
    NoWorker,
    /// Workers serve the task queue, but not this activity type.
    NoWorkerForActivity,
    /// Those that serve it hold as many rows as they can.
    WorkersFull,
    /// The rows are pinned to a node, and no worker takes rows of that node.
    PinnedNodeMissing,
    /// The namespace has as many claimed rows as it may.
    NamespaceFull,
}

impl ClusterEvent {
    /// True if the event is known to one node only.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Self::LeaderChanged { .. }
                | Self::PeerSuspected { .. }
                | Self::SnapshotTaken { .. }
                | Self::AdoptionFailed { .. }
                | Self::DispatchParked { .. }
                | Self::DispatchUnparked { .. }
        )
    }
}

/// Something for this node to do or to pass to its engine, after the entry is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A node owns a shard from now on.
    ShardAcquired {
        /// The new owner.
        node: NodeName,
        /// The shard.
        shard: ShardId,
        /// The epoch of the ownership.
        epoch: Epoch,
        /// Rows of finished workflows that were cancelled with it.
        settled: Vec<DispatchKey>,
        /// Rows that are pending again.
        rearmed: Vec<DispatchKey>,
    },
    /// A node does not own a shard any more.
    ShardLost {
        /// The last owner.
        node: NodeName,
        /// The shard.
        shard: ShardId,
        /// The epoch of the new ownership.
        epoch: Epoch,
        /// The new owner.
        new_owner: NodeName,
    },
    /// Rows of this scope are due, or will be at `at`.
    RowsDue {
        /// The namespace.
        namespace: Namespace,
        /// The task queue.
        task_queue: TaskQueue,
        /// From when on.
        at: Millis,
    },
    /// A history grew.
    HistoryGrew {
        /// The workflow.
        workflow: WorkflowId,
        /// Its shard.
        shard: ShardId,
        /// Its last event's number.
        head: u64,
        /// Its namespace.
        namespace: Namespace,
    },
    /// Members, their liveness or the directory changed.
    TopologyChanged,
    /// Log time has passed a timer of this shard, or one that it had passed before is there to be seen.
    TimersDue {
        /// The shard.
        shard: ShardId,
    },
    /// A row's budget is spent, and its workflow has not heard of it.
    DeadLetter {
        /// The row.
        key: DispatchKey,
        /// Its shard.
        shard: ShardId,
        /// Its namespace.
        namespace: Namespace,
    },
    /// A namespace that was at its ceiling has room for claims.
    RoomForClaims {
        /// The namespace.
        namespace: Namespace,
    },
    /// A session was given rows.
    RowsGiven {
        /// The session.
        session: SessionId,
    },
    /// What a session holds has changed in another way: rows were taken from it, or held up by a pause, or it was attached
    /// elsewhere, or it has ended.
    SessionChanged {
        /// The session.
        session: SessionId,
    },
    /// The cluster agrees on what the state's hash was as of `index`.
    Checkpoint {
        /// The log index.
        index: u64,
        /// The rolling hash as of it.
        hash: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_facts_are_told_from_local_ones() {
        assert!(ClusterEvent::SnapshotTaken { index: 1 }.is_local());
        assert!(ClusterEvent::LeaderChanged { leader: None, term: 1 }.is_local());
        assert!(!ClusterEvent::PeerAdded { node: "a".parse().unwrap() }.is_local());
    }
}
