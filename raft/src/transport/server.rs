//! The answering side of peer connections.
//!
//! Requests of one connection are handed to Raft in the order in which they came; their answers go back
//! as they are ready. So a follower appends in order while its disk syncs for earlier entries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use holdfast_storage::Storage;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{Frame, Kind, decode_append};
use super::handshake::{Arrival, Connection, Knock, Purpose, accept, answer_guest};
use super::registry::{Reception, Registry};
use super::snapshot;
use crate::checkpoint;
use crate::environment::{PeerListener, PeerStream};
use crate::leader::LeaderDesk;
use crate::membership::Keeper;
use crate::peers::Lookout;
use crate::progress::Progress;
use crate::state_machine::Replica;
use crate::succession;
use crate::types::{AppendResponse, Core, LogId, TransferRequest, VoteRequest, VoteResponse};
use crate::wire::{
    AppendAnswer, LeaderGoneAsk, PingAnswer, ProposeAsk, ReplaceAnswer, ReplaceAsk, StateHashAsk, TransferAnswer,
    TransferAsk, VoteAnswer, VoteAsk, WireLogId, decode, encode,
};

/// Answers that may wait to be written on one connection.
const ANSWERS: usize = 1024;
/// Pause after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What answers peers' requests.
#[derive(Clone)]
pub(crate) struct Server {
    pub registry: Registry,
    pub core: Core,
    pub desk: LeaderDesk,
    pub lookout: Lookout,
    pub keeper: Keeper,
    pub storage: Arc<Storage>,
    pub replica: Arc<Replica>,
    pub progress: Progress,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

/// The answer to a request, or a sentence why there is none.
type Outcome = Result<Bytes, String>;

impl Server {
    /// Takes connections until the node stops.
    pub async fn run(self, mut listener: Box<dyn PeerListener>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok(stream) => {
                    let server = self.clone();
                    self.tasks.spawn(async move {
                        let stop = server.stop.clone();
                        tokio::select! {
                            () = server.serve(stream) => {}
                            () = stop.cancelled() => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection could not be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(self, stream: Box<dyn PeerStream>) {
        match accept(&self.registry, stream).await {
            Err(error) => tracing::warn!(%error, "a connection was turned away"),
            Ok(Arrival::Guest { knock, mut connection }) => {
                let reception = self.receive(&knock).await;
                // It asks again.
                let _ = answer_guest(&mut connection, &reception).await;
            }
            Ok(Arrival::Peer { node: peer, purpose: Purpose::Snapshot, connection }) => {
                tracing::info!(peer, "receiving a snapshot");
                snapshot::serve(connection, &self.core, self.storage.snapshots.clone()).await;
            }
            Ok(Arrival::Peer { node: peer, purpose: Purpose::Requests, connection }) => {
                let reason = self.answer_requests(connection).await;
                tracing::debug!(peer, reason, "a peer's connection ended");
            }
        }
    }

    async fn receive(&self, knock: &Knock) -> Reception {
        if let Err(refusal) = knock.check(&self.registry.cluster, &self.registry.name) {
            return Reception::Refused(refusal);
        }
        match self.registry.receive(&knock.from, knock.incarnation) {
            // Another node may know better; a leader that a majority follows knows all that is committed.
            Reception::Expected { .. } if self.desk.read_index().await.is_some() => {
                match self.registry.receive(&knock.from, knock.incarnation) {
                    Reception::Expected { node, .. } => Reception::Expected { node, confirmed: true },
                    otherwise => otherwise,
                }
            }
            reception => reception,
        }
    }

    /// Answers until the connection ends; gives the reason.
    async fn answer_requests(&self, connection: Connection) -> String {
        let (mut sink, mut stream) = connection.split();
        let (answers, mut ready) = mpsc::channel::<Frame>(ANSWERS);
        let write = async {
            while let Some(frame) = ready.recv().await {
                let mut written = sink.feed(frame.into_bytes()).await;
                while let (Ok(()), Ok(frame)) = (&written, ready.try_recv()) {
                    written = sink.feed(frame.into_bytes()).await;
                }
                if let Err(error) = written.and(sink.flush().await) {
                    return error.to_string();
                }
            }
            "no more answers".to_owned()
        };
        let read = async {
            loop {
                let frame = match stream.next().await {
                    None => return "closed by the peer".to_owned(),
                    Some(Err(error)) => return error.to_string(),
                    Some(Ok(bytes)) => Frame::from_bytes(bytes.freeze()),
                };
                match frame {
                    Ok(frame) => self.begin(frame, &answers).await,
                    Err(error) => return error.to_string(),
                }
            }
        };
        tokio::select! {
            reason = write => reason,
            reason = read => reason,
        }
    }

    /// Begins the work on a request. The first step is taken here and now: it puts the request into
    /// Raft's queue, and so keeps the order. The rest goes on by itself.
    async fn begin(&self, frame: Frame, answers: &mpsc::Sender<Frame>) {
        let (id, answers) = (frame.id, answers.clone());
        let work = self.clone().work(frame);
        // Without the scheduler's budget, which could put the first step off.
        let mut task = Box::pin(tokio::task::unconstrained(async move {
            let frame = match work.await {
                Ok(body) => Frame::new(id, Kind::Answer, body),
                Err(error) => Frame::new(id, Kind::Failed, Bytes::from(error)),
            };
            // A peer that is gone needs no answer.
            let _ = answers.send(frame).await;
        }));
        if futures::poll!(task.as_mut()).is_pending() {
            self.tasks.spawn(task);
        }
    }

    async fn work(self, frame: Frame) -> Outcome {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let body = frame.body;
        match frame.kind {
            Kind::Append => {
                let request = decode_append(body).map_err(|e| text(&e))?;
                let response = self.core.append_entries(request).await.map_err(|e| text(&e))?;
                Ok(encode(&append_answer(response)))
            }
            Kind::Vote => {
                let ask = decode(&body).map_err(|e| text(&e))?;
                let response = self.core.vote(vote_request(ask)).await.map_err(|e| text(&e))?;
                Ok(encode(&vote_answer(&response)))
            }
            Kind::PreVote => {
                let ask = decode(&body).map_err(|e| text(&e))?;
                let response = self.core.pre_vote(vote_request(ask)).await.map_err(|e| text(&e))?;
                Ok(encode(&vote_answer(&response)))
            }
            Kind::TransferLeader => self.transfer(&body).await,
            Kind::Propose => {
                let ask = ProposeAsk::within(&body).map_err(|e| text(&e))?;
                Ok(encode(&self.desk.propose_for_peer(ask).await))
            }
            Kind::ReadIndex => Ok(encode(&self.desk.read_index_for_peer().await)),
            Kind::LeaderGone => {
                let ask: LeaderGoneAsk = decode(&body).map_err(|e| text(&e))?;
                Ok(encode(&succession::answer(&self.core, &self.lookout, &ask)))
            }
            Kind::StateHash => {
                let ask: StateHashAsk = decode(&body).map_err(|e| text(&e))?;
                Ok(encode(&checkpoint::answer(self.replica.hashes(), &self.progress, &ask).await))
            }
            Kind::Replace => {
                let ReplaceAsk { name, dry_run } = decode(&body).map_err(|e| text(&e))?;
                let answer: ReplaceAnswer = self.keeper.replace(&name, dry_run).await;
                Ok(encode(&answer))
            }
            Kind::Ping => Ok(encode(&PingAnswer::V1 { room: self.storage.room.level().into() })),
            Kind::Hello
            | Kind::Knock
            | Kind::SnapshotOffer
            | Kind::SnapshotHead
            | Kind::SnapshotChunk
            | Kind::Answer
            | Kind::Failed => Err("this is no request".to_owned()),
        }
    }

    async fn transfer(&self, body: &[u8]) -> Outcome {
        use openraft::raft::TransferLeaderError::{LogNotFlushed, VoteChanged};
        let ask: TransferAsk = decode(body).map_err(|error| error.to_string())?;
        let request = TransferRequest::new(ask.from.into(), ask.to, ask.last.map(LogId::from));
        let response = self.core.handle_transfer_leader(request).await.map_err(|error| error.to_string())?;
        Ok(encode(&match response {
            Ok(()) => TransferAnswer::Accepted,
            Err(VoteChanged { expected, actual }) => {
                TransferAnswer::VoteChanged { expected: (&expected).into(), actual: (&actual).into() }
            }
            Err(LogNotFlushed { expected, actual }) => TransferAnswer::LogNotFlushed {
                expected: expected.map(WireLogId::from),
                actual: actual.map(WireLogId::from),
            },
        }))
    }
}

fn append_answer(response: AppendResponse) -> AppendAnswer {
    match response {
        AppendResponse::Success => AppendAnswer::Success,
        AppendResponse::PartialSuccess(id) => AppendAnswer::Partial(id.map(WireLogId::from)),
        AppendResponse::Conflict => AppendAnswer::Conflict,
        AppendResponse::HigherVote(vote) => AppendAnswer::HigherVote((&vote).into()),
    }
}

fn vote_request(ask: VoteAsk) -> VoteRequest {
    let mut request = VoteRequest::new(ask.vote.into(), ask.last.map(LogId::from));
    request.leadership_transfer = ask.leadership_transfer;
    request
}

fn vote_answer(response: &VoteResponse) -> VoteAnswer {
    VoteAnswer {
        vote: (&response.vote).into(),
        granted: response.vote_granted,
        last: response.last_log_id.map(WireLogId::from),
    }
}
