//! The types that openraft is configured with, and how ours and openraft's are turned into each other.
//!
//! openraft's own types stop at this crate's edge and are never stored or sent: its alphas may change
//! them. What is stored and sent is in [`crate::wire`].

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use holdfast_machine::{Liveness, Member, Millis, NodeName, Reject, Reply};
use openraft::RaftTypeConfig;

use crate::wire::{LogPayload, MembershipRecord, NodeRecord, WireLogId, WireVote};

/// openraft's configuration: plain Raft, one leader in a term, a log id is (term, index).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeConfig;

pub(crate) type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
pub(crate) type Term = <LeaderId as openraft::vote::RaftLeaderId>::Committed;
pub(crate) type LogId = openraft::LogId<Term>;
pub(crate) type Vote = openraft::impls::Vote<LeaderId>;
pub(crate) type Payload = openraft::EntryPayload<Proposal, u64, PeerNode>;
pub(crate) type LogEntry = openraft::Entry<Term, Payload>;
pub(crate) type Membership = openraft::Membership<u64, PeerNode>;
pub(crate) type StoredMembership = openraft::StoredMembership<Term, u64, PeerNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<Term, u64, PeerNode>;
pub(crate) type Snapshot = openraft::Snapshot<Term, u64, PeerNode, holdfast_storage::SnapshotFile>;
pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(crate) type AppendResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
pub(crate) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(crate) type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
pub(crate) type TransferRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;
pub(crate) type Metrics = openraft::RaftMetrics<TypeConfig>;
pub(crate) type Core = openraft::Raft<TypeConfig, crate::state_machine::StateMachine>;

impl RaftTypeConfig for TypeConfig {
    type D = Proposal;
    type R = Outcome;
    type NodeId = u64;
    type Node = PeerNode;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = LogEntry;
    type AsyncRuntime = openraft::TokioRuntime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// The id of a data directory, drawn when it was made. A member that comes with another one has lost
/// its disk, and with it its vote.
pub type Incarnation = u128;

/// What the membership says of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerNode {
    pub name: NodeName,
    pub peer_addr: String,
    pub http_addr: String,
    pub liveness: Liveness,
    /// The data directory that the node was first seen with.
    pub incarnation: Option<Incarnation>,
    /// The member of the same name whose place it takes or has taken.
    pub replaces: Option<u64>,
}

impl PeerNode {
    /// The node as the state machine knows it.
    pub fn member(&self, id: u64) -> Member {
        Member {
            id,
            name: self.name.clone(),
            peer_addr: self.peer_addr.clone(),
            http_addr: self.http_addr.clone(),
            liveness: self.liveness,
        }
    }
}

/// The members of a membership, one for each name. Of two with the same name it is the one that votes, or is about to:
/// whoever is to take its place counts for nothing until then.
pub(crate) fn members(membership: &Membership) -> Vec<Member> {
    let voters = membership.get_joint_config().last();
    let votes = |id: &u64| voters.is_some_and(|voters| voters.contains(id));
    let mut by_name: BTreeMap<&NodeName, (bool, u64)> = BTreeMap::new();
    for (id, node) in membership.nodes() {
        let standing = (votes(id), *id);
        let best = by_name.entry(&node.name).or_insert(standing);
        *best = standing.max(*best);
    }
    let counts = |(id, node): &(&u64, &PeerNode)| by_name.get(&node.name).is_some_and(|(_, best)| best == *id);
    membership.nodes().filter(counts).map(|(id, node)| node.member(*id)).collect()
}

/// One batch of requests on its way into the log: the payload as it will be stored and sent, encoded
/// once by the batcher.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proposal(pub LogPayload);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.as_bytes().len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What apply answers for one log entry: log time after it, and a reply for each of its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub at: Millis,
    pub replies: Vec<Result<Reply, Reject>>,
}

/// The payload of an entry, as bytes.
pub(crate) fn encode_payload(payload: &Payload) -> LogPayload {
    match payload {
        Payload::Blank => LogPayload::blank(),
        Payload::Normal(proposal) => proposal.0.clone(),
        Payload::Membership(membership) => LogPayload::membership(&record_of(membership)),
    }
}

/// The payload that these bytes stand for.
pub(crate) fn decode_payload(bytes: Bytes) -> Result<Payload, crate::wire::WireError> {
    let payload = LogPayload::from_bytes(bytes)?;
    Ok(match payload.kind()? {
        crate::wire::PayloadKind::Blank => Payload::Blank,
        crate::wire::PayloadKind::Normal => Payload::Normal(Proposal(payload)),
        crate::wire::PayloadKind::Membership => Payload::Membership(membership_of(payload.as_membership()?)?),
    })
}

/// A membership as it is stored and sent.
pub(crate) fn record_of(membership: &Membership) -> MembershipRecord {
    MembershipRecord::V1 {
        configs: membership.get_joint_config().iter().map(|config| config.iter().copied().collect()).collect(),
        nodes: membership.nodes().map(|(id, node)| (*id, NodeRecord::from(node))).collect(),
    }
}

/// The membership that a record stands for.
pub(crate) fn membership_of(record: MembershipRecord) -> Result<Membership, crate::wire::WireError> {
    let MembershipRecord::V1 { configs, nodes } = record;
    let configs = configs.into_iter().map(|config| config.into_iter().collect()).collect();
    let nodes: BTreeMap<u64, PeerNode> = nodes.into_iter().map(|(id, node)| (id, node.into())).collect();
    Membership::new(configs, nodes).map_err(|error| crate::wire::WireError(format!("membership: {error}")))
}

impl From<&PeerNode> for NodeRecord {
    fn from(node: &PeerNode) -> Self {
        NodeRecord::V1 {
            name: node.name.clone(),
            peer_addr: node.peer_addr.clone(),
            http_addr: node.http_addr.clone(),
            liveness: node.liveness,
            incarnation: node.incarnation,
            replaces: node.replaces,
        }
    }
}

impl From<NodeRecord> for PeerNode {
    fn from(record: NodeRecord) -> Self {
        let NodeRecord::V1 { name, peer_addr, http_addr, liveness, incarnation, replaces } = record;
        PeerNode { name, peer_addr, http_addr, liveness, incarnation, replaces }
    }
}

impl From<LogId> for WireLogId {
    fn from(id: LogId) -> Self {
        WireLogId { term: id.leader_id.term, index: id.index }
    }
}

impl From<WireLogId> for LogId {
    fn from(id: WireLogId) -> Self {
        LogId::new_term_index(id.term, id.index)
    }
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        let leader = vote.leader_id();
        WireVote { term: leader.term, node: leader.voted_for, committed: vote.is_committed() }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        if vote.committed { Vote::new_committed(vote.term, vote.node) } else { Vote::new(vote.term, vote.node) }
    }
}

impl From<WireLogId> for holdfast_storage::LogId {
    fn from(id: WireLogId) -> Self {
        Self { term: id.term, index: id.index }
    }
}

impl From<holdfast_storage::LogId> for WireLogId {
    fn from(id: holdfast_storage::LogId) -> Self {
        Self { term: id.term, index: id.index }
    }
}

/// A log id as storage wants it.
pub(crate) fn to_storage(id: LogId) -> holdfast_storage::LogId {
    WireLogId::from(id).into()
}

/// A log id as openraft wants it.
pub(crate) fn from_storage(id: holdfast_storage::LogId) -> LogId {
    WireLogId::from(id).into()
}
