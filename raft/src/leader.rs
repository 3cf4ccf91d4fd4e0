//! What only the leader can do, for callers on this node and for peers that pass requests on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_machine::Request;
use holdfast_storage::Storage;
use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batcher::{Batcher, Committed, Unanswered};
use crate::log_store::at_leisure;
use crate::room::Admission;
use crate::types::Core;
use crate::wire::{ProposeAnswer, ProposeAsk, ReadAnswer, decode};

/// Largest encoded request, in bytes. It has to fit into one log entry and one frame.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Reads that one round confirms, at most.
const READS_PER_ROUND: usize = 4096;

/// How a proposal ended, on the node that was asked.
pub(crate) type Proposed = Result<Committed, NotCommitted>;

/// Why a proposal has no reply from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotCommitted {
    /// See [`Unanswered`].
    Unanswered(Unanswered),
    /// There is no room for it on the disk of the leader, or of a majority; nothing was proposed.
    StorageFull,
    /// The request is too large; nothing was proposed.
    TooLarge {
        /// The most that is allowed, in bytes.
        limit: u64,
        /// What it has.
        actual: u64,
    },
}

/// The way to the leader's work; cheap to clone. On a node that does not lead it says so.
#[derive(Clone)]
pub(crate) struct LeaderDesk {
    core: Core,
    batcher: Batcher,
    storage: Arc<Storage>,
    admission: Admission,
    reads: mpsc::UnboundedSender<oneshot::Sender<Option<u64>>>,
}

impl LeaderDesk {
    /// Opens the desk.
    pub fn open(
        core: Core,
        batcher: Batcher,
        storage: Arc<Storage>,
        admission: Admission,
        stop: CancellationToken,
        tasks: &TaskTracker,
    ) -> Self {
        let (reads, waiting) = mpsc::unbounded_channel();
        let rounds = confirm_reads(core.clone(), waiting);
        tasks.spawn(async move {
            tokio::select! {
                () = rounds => {}
                () = stop.cancelled() => {}
            }
        });
        Self { core, batcher, storage, admission, reads }
    }

    /// True if this node leads, as far as it knows.
    pub fn leads(&self) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.current_leader == Some(metrics.id)
    }

    /// Proposes an encoded request, waiting at most `limit`.
    pub async fn propose(&self, request: Bytes, limit: Duration) -> Proposed {
        if request.len() > REQUEST_BYTES_MAX {
            let (limit, actual) = (REQUEST_BYTES_MAX as u64, request.len() as u64);
            return Err(NotCommitted::TooLarge { limit, actual });
        }
        if !self.leads() {
            return Err(NotCommitted::Unanswered(Unanswered::NotAppended));
        }
        if self.storage.log.is_full() || !self.admits(&request).await {
            return Err(NotCommitted::StorageFull);
        }
        self.batcher.propose(request, limit).await.map_err(NotCommitted::Unanswered)
    }

    async fn admits(&self, request: &Bytes) -> bool {
        let need = |request: Request| request.command.need();
        // Only a disk that is short of space makes it worth while to look into the request.
        self.admission.admits_all() || read_request(request, need).await.is_some_and(|need| self.admission.admits(need))
    }

    /// The log index that a read has to wait for to see everything acknowledged before now. None if this
    /// node does not lead a quorum. Reads that wait at the same time share one round of heartbeats.
    pub async fn read_index(&self) -> Option<u64> {
        if !self.leads() {
            return None;
        }
        let (sender, index) = oneshot::channel();
        self.reads.send(sender).ok()?;
        index.await.ok().flatten()
    }

    /// [`Self::propose`] for a peer.
    pub async fn propose_for_peer(&self, ask: ProposeAsk) -> ProposeAnswer {
        // The log must not take in what nobody can read.
        if read_request(&ask.request, drop).await.is_none() {
            return ProposeAnswer::NotAppended;
        }
        match self.propose(ask.request, Duration::from_millis(ask.wait_ms)).await {
            Ok(Committed { index, at, reply }) => ProposeAnswer::Committed { index, at, reply },
            Err(NotCommitted::StorageFull) => ProposeAnswer::StorageFull,
            Err(NotCommitted::TooLarge { limit, actual }) => ProposeAnswer::TooLarge { limit, actual },
            Err(NotCommitted::Unanswered(unanswered)) => match unanswered {
                Unanswered::NotAppended => ProposeAnswer::NotAppended,
                Unanswered::Unknown => ProposeAnswer::Unknown,
                Unanswered::Overloaded => ProposeAnswer::Overloaded,
                Unanswered::Stopped => ProposeAnswer::Stopped,
            },
        }
    }

    /// [`Self::read_index`] for a peer.
    pub async fn read_index_for_peer(&self) -> ReadAnswer {
        self.read_index().await.map_or(ReadAnswer::NotLeading, ReadAnswer::At)
    }
}

/// Looks into a request, if these bytes are one.
async fn read_request<T: Send + 'static>(bytes: &Bytes, look: fn(Request) -> T) -> Option<T> {
    let bytes = bytes.clone();
    at_leisure(bytes.len(), move || decode(&bytes).ok().map(look)).await.ok().flatten()
}

/// Confirms the leadership once for all reads that wait, then for those that came meanwhile.
async fn confirm_reads(core: Core, mut waiting: mpsc::UnboundedReceiver<oneshot::Sender<Option<u64>>>) {
    let mut round = Vec::new();
    while waiting.recv_many(&mut round, READS_PER_ROUND).await > 0 {
        let confirmed = core.get_read_log_id(ReadPolicy::ReadIndex).await;
        let index = match confirmed {
            Ok((read, _)) => Some(read.index()),
            Err(error) => {
                tracing::debug!(%error, "no index to read at");
                None
            }
        };
        for reader in round.drain(..) {
            // Whoever has stopped waiting needs no index.
            let _ = reader.send(index);
        }
    }
}
