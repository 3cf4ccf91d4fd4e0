//! What openraft sees of the transport: a client for each peer, over the peer's one link.

// The size of these errors is openraft's choice, and they are rare.
#![allow(clippy::result_large_err)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{SnapshotResponse, StreamAppendResult, TransferLeaderError, TransferLeaderResponse};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;

use super::frame::{Kind, encode_append};
use super::lane::{Pending, Way};
use super::link::{AddressBook, CallError, Link};
use super::snapshot::{self, Target};
use crate::log_store::{at_leisure, size};
use crate::transfers::Transfers;
use crate::types::{
    AppendRequest, AppendResponse, LogId, PeerNode, Snapshot, TransferRequest, TypeConfig, Vote, VoteRequest,
    VoteResponse,
};
use crate::wire::{
    AppendAnswer, TransferAnswer, TransferAsk, VoteAnswer, VoteAsk, WireLogId, WireVote, decode, encode,
};
use holdfast_storage::SnapshotFile;

/// How long one append may take, besides what its bytes take. A follower answers after its disk has synced, and syncs of
/// 300 ms were seen; a closed link ends the wait at once in any case.
const APPEND_LIMIT: Duration = Duration::from_millis(2_000);
/// Appends that may be under way to one peer.
const APPENDS_IN_FLIGHT: usize = 32;
/// How long a peer may take over a vote or a transfer.
const VOTE_LIMIT: Duration = Duration::from_millis(1_000);

/// Gives openraft its clients.
pub(crate) struct Network {
    pub links: crate::peers::Links,
    pub registry: super::registry::Registry,
    pub addresses: AddressBook,
    pub acknowledged: Acknowledged,
    pub transfers: Transfers,
}

/// How far each peer has acknowledged the log in the term that this node leads. What a peer has acknowledged it has
/// on its disk; one that denies it later has lost it, and a log that goes back is nothing that Raft can mend.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acknowledged(Arc<Mutex<BTreeMap<u64, Mark>>>);

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    term: u64,
    index: u64,
    /// So that the log says it once.
    denied: bool,
}

impl Acknowledged {
    fn note(&self, peer: u64, term: u64, last: Option<LogId>) {
        let Some(index) = last.map(|last| last.index) else { return };
        let mut marks = self.0.lock();
        let mark = marks.entry(peer).or_default();
        if mark.term != term {
            *mark = Mark { term, index, denied: false };
        }
        mark.index = mark.index.max(index);
    }

    /// True if `peer` has acknowledged `prev` in this term: nothing that is still on its way to it can be missing there.
    fn has(&self, peer: u64, term: u64, prev: Option<LogId>) -> bool {
        let marks = self.0.lock();
        let mark = marks.get(&peer).filter(|mark| mark.term == term);
        prev.is_none_or(|prev| mark.is_some_and(|mark| mark.index >= prev.index))
    }

    /// What to say when a peer has not got `prev`, if it once had.
    fn denial(&self, peer: u64, term: u64, prev: Option<LogId>) -> Option<String> {
        let prev = prev?.index;
        let mut marks = self.0.lock();
        let mark = marks.get_mut(&peer).filter(|mark| mark.term == term && mark.index >= prev)?;
        let what = format!(
            "node {peer} has lost log entry {prev}, which it had acknowledged: its disk was damaged or put back to an \
             older state. It gets nothing more and takes no part. Keep the other nodes running, move its data directory \
             aside, start it again, empty, and run `holdfast member replace` with its name"
        );
        if !std::mem::replace(&mut mark.denied, true) {
            tracing::error!("{what}");
        }
        Some(what)
    }
}

/// openraft's client for one peer.
pub(crate) struct PeerClient {
    peer: u64,
    /// A peer that has just become a member may have no link yet.
    links: crate::peers::Links,
    registry: super::registry::Registry,
    addresses: AddressBook,
    acknowledged: Acknowledged,
    transfers: Transfers,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, _node: &PeerNode) -> PeerClient {
        PeerClient {
            peer: target,
            links: self.links.clone(),
            registry: self.registry.clone(),
            addresses: self.addresses.clone(),
            acknowledged: self.acknowledged.clone(),
            transfers: self.transfers.clone(),
        }
    }
}

type RpcError = RPCError<TypeConfig>;

fn rpc_error(error: CallError) -> RpcError {
    match error {
        CallError::NotSent(_) | CallError::Failed(_) => Unreachable::new(&error).into(),
        CallError::Lost(_) | CallError::TimedOut(_) => NetworkError::new(&error).into(),
    }
}

fn undecodable(error: crate::wire::WireError) -> RpcError {
    NetworkError::new(&error).into()
}

impl PeerClient {
    fn link(&self) -> Result<Link, RpcError> {
        self.links
            .get(self.peer)
            .ok_or_else(|| Unreachable::from_string(format!("no link to node {}", self.peer)).into())
    }

    async fn call(&self, kind: Kind, body: Bytes, limit: Duration) -> Result<Bytes, RpcError> {
        self.link()?.call(kind, body, limit).await.map_err(rpc_error)
    }

    async fn ask_vote(&self, kind: Kind, rpc: VoteRequest) -> Result<VoteResponse, RpcError> {
        let ask = VoteAsk {
            vote: (&rpc.vote).into(),
            last: rpc.last_log_id.map(WireLogId::from),
            leadership_transfer: rpc.leadership_transfer,
        };
        let bytes = self.call(kind, encode(&ask), VOTE_LIMIT).await?;
        let answer: VoteAnswer = decode(&bytes).map_err(undecodable)?;
        let vote = Vote::from(answer.vote);
        Ok(VoteResponse::new(vote, answer.last.map(LogId::from), answer.granted))
    }
}

fn append_response(bytes: &[u8]) -> Result<AppendResponse, RpcError> {
    Ok(match decode(bytes).map_err(undecodable)? {
        AppendAnswer::Success => AppendResponse::Success,
        AppendAnswer::Partial(id) => AppendResponse::PartialSuccess(id.map(LogId::from)),
        AppendAnswer::Conflict => AppendResponse::Conflict,
        AppendAnswer::HigherVote(vote) => AppendResponse::HigherVote(vote.into()),
    })
}

async fn body_of(rpc: AppendRequest) -> Result<Bytes, CallError> {
    let bytes = rpc.entries.iter().map(size).sum();
    let encoded = at_leisure(bytes, move || encode_append(&rpc)).await;
    encoded.map_err(|_| CallError::NotSent("the node stops".into()))
}

/// One append of a stream: sent already, its answer still to come.
struct Sent {
    link: Link,
    term: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    pending: Result<Pending, CallError>,
}

async fn appended(sent: Sent, acknowledged: Acknowledged) -> Result<StreamAppendResult<TypeConfig>, RpcError> {
    let Sent { link, term, prev, last, pending } = sent;
    let peer = link.peer();
    let answer = match pending {
        Ok(pending) => pending.answer(APPEND_LIMIT + link.patience()).await,
        Err(error) => Err(error),
    };
    let response = append_response(&answer.map_err(rpc_error)?)?;
    if prev.is_none() && response.is_conflict() {
        // There is nothing before the first entry that could differ.
        return Err(NetworkError::from_string("a conflict before the first entry").into());
    }
    if !matches!(response, AppendResponse::HigherVote(_)) {
        link.note_appended();
    }
    match &response {
        AppendResponse::Success => acknowledged.note(peer, term, last),
        AppendResponse::PartialSuccess(upto) => acknowledged.note(peer, term, *upto),
        AppendResponse::Conflict => {
            if let Some(denial) = acknowledged.denial(peer, term, prev) {
                return Err(Unreachable::from_string(denial).into());
            }
        }
        AppendResponse::HigherVote(_) => {}
    }
    Ok(response.into_stream_result(prev, last))
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(&mut self, rpc: AppendRequest, _option: RPCOption) -> Result<AppendResponse, RpcError> {
        append_response(&self.call(Kind::Append, body_of(rpc).await.map_err(rpc_error)?, APPEND_LIMIT).await?)
    }

    /// Sends each request as it comes and yields the answers in the same order. The first answer that
    /// is no success ends openraft's interest in those behind it.
    ///
    /// Heartbeats are such requests without entries. They overtake those with entries, unless they would tell the peer of
    /// what it may not have yet, which it would take for a gap.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let link = self.link()?;
            let acknowledged = &self.acknowledged;
            // Sent in order; the answers are awaited later, while more is sent.
            #[allow(clippy::async_yields_async)]
            let answers = input
                .then(move |rpc| {
                    let (link, acknowledged) = (link.clone(), acknowledged.clone());
                    async move {
                        let prev = rpc.prev_log_id;
                        let last = rpc.entries.last().map(|entry| entry.log_id).or(prev);
                        let WireVote { term, .. } = (&rpc.vote).into();
                        let overtakes = rpc.entries.is_empty() && acknowledged.has(link.peer(), term, prev);
                        let way = if overtakes { Way::Urgent } else { Way::Bulk };
                        let pending = match body_of(rpc).await {
                            Ok(body) => link.start(way, Kind::Append, body).await,
                            Err(error) => Err(error),
                        };
                        appended(Sent { link, term, prev, last, pending }, acknowledged)
                    }
                })
                .buffered(APPENDS_IN_FLIGHT);
            Ok(answers.boxed() as BoxStream<'s, _>)
        })
    }

    async fn vote(&mut self, rpc: VoteRequest, _option: RPCOption) -> Result<VoteResponse, RpcError> {
        self.ask_vote(Kind::Vote, rpc).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest, _option: RPCOption) -> Result<VoteResponse, RpcError> {
        self.ask_vote(Kind::PreVote, rpc).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let attempt = self.transfers.begin(self.peer, &snapshot);
        let target = Target { registry: &self.registry, peer: self.peer, addresses: &self.addresses };
        let sent = snapshot::send(&target, &vote, &snapshot, &attempt);
        tokio::select! {
            answer = sent => match answer {
                Ok(vote) => {
                    attempt.arrived();
                    Ok(SnapshotResponse::new(vote))
                }
                Err(error) => {
                    tracing::warn!(peer = self.peer, %error, "a snapshot did not get through");
                    Err(Unreachable::from_string(error).into())
                }
            },
            closed = cancel => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferRequest,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        let ask = TransferAsk {
            from: req.from_leader().into(),
            to: *req.to_node_id(),
            last: req.last_log_id().map(|id| (*id).into()),
        };
        let bytes = self.call(Kind::TransferLeader, encode(&ask), VOTE_LIMIT).await?;
        Ok(match decode(&bytes).map_err(undecodable)? {
            TransferAnswer::Accepted => Ok(()),
            TransferAnswer::VoteChanged { expected, actual } => {
                Err(TransferLeaderError::VoteChanged { expected: expected.into(), actual: actual.into() })
            }
            TransferAnswer::LogNotFlushed { expected, actual } => Err(TransferLeaderError::LogNotFlushed {
                expected: expected.map(LogId::from),
                actual: actual.map(LogId::from),
            }),
        })
    }
}
