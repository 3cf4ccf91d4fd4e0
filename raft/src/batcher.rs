//! Turns many requests into few log entries, on the leader.
//!
//! What is waiting goes into one entry, up to a number and a size; nothing is held back to make an entry
//! fuller, so an idle cluster answers at once and a busy one batches by itself. A few entries are under
//! way at a time, in number and in bytes: what is sent and synced in one go must not hold up heartbeats for long. What may
//! wait is bounded: past the bound a request is turned away at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_machine::{Millis, Reject, Reply};
use openraft::errors::ClientWriteError;
use openraft::impls::OneshotResponder;
use openraft::raft::ClientWriteResult;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::budget::{Budget, Place};
use crate::clock::Clock;
use crate::log_store::at_leisure;
use crate::options::Batching;
use crate::types::{Core, Outcome, Proposal, TypeConfig};
use crate::wire::LogPayload;

/// A request that was committed and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The log index of the entry that it was part of.
    pub index: u64,
    /// Log time after that entry.
    pub at: Millis,
    /// What the state machine answered.
    pub reply: Result<Reply, Reject>,
}

/// Why the batcher has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Certainly not in any log.
    NotAppended,
    /// It may be committed, now or later, or never.
    Unknown,
    /// Too much is waiting.
    Overloaded,
    /// The node stops or has stopped. The request is in no log.
    Stopped,
}

type Answer = Result<Committed, Unanswered>;

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// A request that waits for its entry.
struct Waiting {
    request: Bytes,
    answer: oneshot::Sender<Answer>,
    /// Decides the race between an entry that takes the request and a caller that gives up.
    fate: Arc<AtomicU8>,
    _place: Place,
}

/// The way into the batcher; cheap to clone.
#[derive(Clone)]
pub(crate) struct Batcher {
    queue: mpsc::UnboundedSender<Waiting>,
    budget: Budget,
}

struct Task {
    core: Core,
    clock: Arc<dyn Clock>,
    limits: Batching,
    queue: mpsc::UnboundedReceiver<Waiting>,
    entries: Arc<Semaphore>,
    kibibytes: Arc<Semaphore>,
}

/// An entry's part of what may be under way.
type Slot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Batcher {
    /// Starts the batcher; it ends with `tasks` when all handles are gone or the queue is closed.
    pub fn start(
        core: Core,
        clock: Arc<dyn Clock>,
        limits: Batching,
        stop: tokio_util::sync::CancellationToken,
        tasks: &tokio_util::task::TaskTracker,
    ) -> Self {
        let (sender, queue) = mpsc::unbounded_channel();
        let batcher =
            Self { queue: sender, budget: Budget::new(limits.requests_waiting_max, limits.bytes_waiting_max) };
        let entries = Arc::new(Semaphore::new(limits.entries_in_flight));
        let kibibytes = Arc::new(Semaphore::new(limits.bytes_in_flight / 1024));
        let task = Task { core, clock, limits, queue, entries, kibibytes };
        tasks.spawn(task.run(stop));
        batcher
    }

    /// Proposes an encoded request and waits for its reply, at most `limit`.
    pub async fn propose(&self, request: Bytes, limit: Duration) -> Answer {
        let place = self.budget.take(request.len()).ok_or(Unanswered::Overloaded)?;
        let (sender, answer) = oneshot::channel();
        let fate = Arc::new(AtomicU8::new(WAITING));
        let waiting = Waiting { request, answer: sender, fate: fate.clone(), _place: place };
        self.queue.send(waiting).map_err(|_| Unanswered::Stopped)?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            // The answer's sender is only dropped when the node stops.
            Ok(Err(_)) if withdraw(&fate) => Err(Unanswered::Stopped),
            Err(_) if withdraw(&fate) => Err(Unanswered::NotAppended),
            Ok(Err(_)) | Err(_) => Err(Unanswered::Unknown),
        }
    }
}

/// Takes a request back, if no entry has taken it.
fn withdraw(fate: &AtomicU8) -> bool {
    fate.compare_exchange(WAITING, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

fn take(fate: &AtomicU8) -> bool {
    fate.compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Task {
    async fn run(mut self, stop: tokio_util::sync::CancellationToken) {
        tokio::select! {
            () = self.batch() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn batch(&mut self) {
        while let Some(first) = self.queue.recv().await {
            // More may come while the entries under way make room; that is what fills the next entry.
            let Ok(slot) = self.entries.clone().acquire_owned().await else { return };
            let batch = self.gather(first);
            if batch.is_empty() {
                continue;
            }
            // An entry that is larger than all that may be under way goes alone.
            let kibibytes = batch.iter().map(|waiting| waiting.request.len()).sum::<usize>() / 1024;
            let kibibytes = kibibytes.min(self.limits.bytes_in_flight / 1024) as u32;
            let Ok(bytes) = self.kibibytes.clone().acquire_many_owned(kibibytes).await else { return };
            self.append(batch, (slot, bytes)).await;
        }
    }

    /// What waits, up to one entry's worth.
    fn gather(&mut self, first: Waiting) -> Vec<Waiting> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(waiting) = next {
            if take(&waiting.fate) {
                bytes += waiting.request.len();
                batch.push(waiting);
            }
            if batch.len() >= self.limits.requests_per_entry || bytes >= self.limits.bytes_per_entry {
                break;
            }
            next = self.queue.try_recv().ok();
        }
        batch
    }

    async fn append(&self, batch: Vec<Waiting>, slot: Slot) {
        let at = Millis(self.clock.now_ms());
        let requests: Vec<Bytes> = batch.iter().map(|waiting| waiting.request.clone()).collect();
        let bytes = requests.iter().map(Bytes::len).sum();
        let Ok(payload) = at_leisure(bytes, move || LogPayload::entry(at, requests.iter())).await else {
            return answer_all(batch, &Unanswered::Stopped);
        };
        let (responder, outcome) = OneshotResponder::new_pair();
        let written = self.core.client_write_ff(Proposal(payload), Some(responder)).await;
        if let Err(fatal) = written {
            tracing::debug!(%fatal, "nothing can be appended any more");
            return answer_all(batch, &Unanswered::Stopped);
        }
        tokio::spawn(async move {
            match outcome.await {
                Ok(result) => settle(batch, result),
                Err(_) => answer_all(batch, &Unanswered::Unknown),
            }
            drop(slot);
        });
    }
}

fn settle(batch: Vec<Waiting>, result: ClientWriteResult<TypeConfig>) {
    let response = match result {
        Ok(response) => response,
        Err(ClientWriteError::LogEntryDiscarded(_)) => {
            return answer_all(batch, &Unanswered::Unknown);
        }
        Err(_) => return answer_all(batch, &Unanswered::NotAppended),
    };
    let index = response.log_id.index;
    let Outcome { at, replies } = response.data;
    debug_assert_eq!(replies.len(), batch.len(), "a reply for each request");
    for (waiting, reply) in batch.into_iter().zip(replies) {
        // Whoever has stopped waiting gets the reply by its idempotency key.
        let _ = waiting.answer.send(Ok(Committed { index, at, reply }));
    }
}

fn answer_all(batch: Vec<Waiting>, unanswered: &Unanswered) {
    for waiting in batch {
        let _ = waiting.answer.send(Err(unanswered.clone()));
    }
}
