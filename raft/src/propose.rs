//! Proposals and reads on any node: to the leader in one hop, again where that is safe, and an answer
//! within the deadline whatever happens.
//!
//! A request that was certainly not appended is tried again until the deadline: there may be a leader
//! again by then. One that may have been appended is answered `Unknown` at once; its caller tries again
//! under the same idempotency key and gets the truth.

use std::time::Duration;

use bytes::Bytes;
use holdfast_machine::{ReadMode, Request, is_planted};
use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;

use crate::batcher::{Committed, Unanswered};
use crate::budget::Budget;
use crate::leader::{LeaderDesk, NotCommitted, Proposed, REQUEST_BYTES_MAX};
use crate::log_store::at_leisure;
use crate::peers::Links;
use crate::progress::Progress;
use crate::transport::frame::Kind;
use crate::transport::link::CallError;
use crate::types::Core;
use crate::wire::{ProposeAnswer, ProposeAsk, ReadAnswer, decode, encode, encoded_size};

/// Pause before another attempt when there is a leader that does not take the request.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// A node that passes a request on waits this much longer than the leader, so that it hears the leader's
/// own answer about the deadline.
const HOP: Duration = Duration::from_millis(50);

/// Why a proposal or a read has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing happened: within the deadline no leader with a quorum took the request.
    #[error("no quorum within {waited_ms} ms")]
    NoQuorum {
        /// How long it was tried, in milliseconds.
        waited_ms: u64,
    },
    /// Reads only: this node did not get as far as the caller asked within the deadline.
    #[error("log index {min_index} was not reached in time; this node is at {applied}")]
    IndexNotReached {
        /// What was asked for.
        min_index: u64,
        /// How far this node is.
        applied: u64,
    },
    /// It may have happened, or may still. Ask again under the same idempotency key.
    #[error("the outcome is unknown; ask again under the same idempotency key")]
    Unknown,
    /// Nothing happened: too much is waiting. Try again later.
    #[error("too many requests are waiting")]
    Overloaded,
    /// Nothing happened: the leader's disk is full.
    #[error("the disk is full")]
    StorageFull,
    /// Nothing happened: the request is too large for one log entry.
    #[error("the request has {actual} bytes; the limit is {limit}")]
    TooLarge {
        /// The most that is allowed, in bytes.
        limit: u64,
        /// What it has.
        actual: u64,
    },
    /// Nothing happened: this node stops or has stopped.
    #[error("the node has stopped")]
    Stopped,
}

/// The proposing side of a node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Proposer {
    pub core: Core,
    pub node: u64,
    pub desk: LeaderDesk,
    pub links: Links,
    pub progress: Progress,
    /// What this node may have under way, here or at the leader.
    pub budget: Budget,
    pub limit: Duration,
}

/// What became of one attempt.
enum Attempt<T> {
    Done(T),
    /// Certainly without effect.
    Again,
}

impl Proposer {
    /// Proposes a request.
    pub async fn propose(&self, request: Request) -> Result<Committed, ProposeError> {
        let size = encoded_size(&request);
        if size > REQUEST_BYTES_MAX {
            return Err(ProposeError::TooLarge { limit: REQUEST_BYTES_MAX as u64, actual: size as u64 });
        }
        let _place = self.budget.take(size).ok_or(ProposeError::Overloaded)?;
        let request = at_leisure(size, move || encode(&request)).await.map_err(|_| ProposeError::Stopped)?;
        let (begun, mut metrics) = (Instant::now(), self.core.server_metrics());
        while let Some(left) = self.left(begun)? {
            let leader = metrics.borrow_and_update().current_leader;
            let attempt = match leader {
                Some(leader) if leader == self.node => attempted(self.desk.propose(request.clone(), left).await)?,
                Some(leader) => self.pass_on(leader, &request, left).await?,
                None => Attempt::Again,
            };
            match attempt {
                Attempt::Done(committed) => return Ok(committed),
                Attempt::Again => a_moment(metrics.changed(), left).await?,
            }
        }
        Err(self.gave_up(begun))
    }

    /// The index that this node has applied, once it is fresh enough for `mode`.
    pub async fn read_index(&self, mode: ReadMode) -> Result<u64, ProposeError> {
        let begun = Instant::now();
        match mode {
            ReadMode::Linearizable if is_planted("read-what-is-here") => Ok(self.applied()),
            ReadMode::Stale => Ok(self.applied()),
            ReadMode::AtLeast(min_index) => self
                .wait_applied(min_index, begun)
                .await?
                .ok_or_else(|| ProposeError::IndexNotReached { min_index, applied: self.applied() }),
            ReadMode::Linearizable => {
                let index = self.confirmed_index(begun).await?;
                self.wait_applied(index, begun).await?.ok_or_else(|| self.gave_up(begun))
            }
        }
    }

    async fn confirmed_index(&self, begun: Instant) -> Result<u64, ProposeError> {
        let mut metrics = self.core.server_metrics();
        while let Some(left) = self.left(begun)? {
            let leader = metrics.borrow_and_update().current_leader;
            let index = match leader {
                Some(leader) if leader == self.node => {
                    tokio::time::timeout(left, self.desk.read_index()).await.ok().flatten()
                }
                Some(leader) => self.ask_index(leader, left).await,
                None => None,
            };
            match index {
                Some(index) => return Ok(index),
                None => a_moment(metrics.changed(), left).await?,
            }
        }
        Err(self.gave_up(begun))
    }

    async fn ask_index(&self, leader: u64, limit: Duration) -> Option<u64> {
        let bytes = self.links.get(leader)?.call(Kind::ReadIndex, Bytes::new(), limit).await.ok()?;
        match decode(&bytes).ok()? {
            ReadAnswer::At(index) => Some(index),
            ReadAnswer::NotLeading => None,
        }
    }

    /// The index that this node has applied, once it is `index` or later; none if that takes too long.
    async fn wait_applied(&self, index: u64, begun: Instant) -> Result<Option<u64>, ProposeError> {
        let mut applied = self.progress.applied();
        let mut fatal = self.progress.fatal();
        let left = self.limit.saturating_sub(begun.elapsed());
        tokio::select! {
            reached = applied.wait_for(|applied| *applied >= Some(index)) => {
                reached.map(|applied| *applied).map_err(|_| ProposeError::Stopped)
            }
            _ = fatal.wait_for(Option::is_some) => Err(ProposeError::Stopped),
            () = tokio::time::sleep(left) => Ok(None),
        }
    }

    async fn pass_on(&self, leader: u64, request: &Bytes, left: Duration) -> Result<Attempt<Committed>, ProposeError> {
        let Some(link) = self.links.get(leader) else { return Ok(Attempt::Again) };
        let wait_ms = left.saturating_sub(HOP).as_millis() as u64;
        let ask = ProposeAsk { wait_ms, request: request.clone() };
        let body = at_leisure(request.len(), move || encode(&ask)).await.map_err(|_| ProposeError::Stopped)?;
        let answer = match link.call(Kind::Propose, body, left).await {
            Ok(bytes) => decode::<ProposeAnswer>(&bytes).map_err(|_| ProposeError::Unknown)?,
            Err(CallError::NotSent(_)) => return Ok(Attempt::Again),
            Err(CallError::Lost(_) | CallError::TimedOut(_) | CallError::Failed(_)) => {
                return Err(ProposeError::Unknown);
            }
        };
        match answer {
            ProposeAnswer::Committed { index, at, reply } => Ok(Attempt::Done(Committed { index, at, reply })),
            // The leader stops; another one will take the request.
            ProposeAnswer::NotAppended | ProposeAnswer::Stopped => Ok(Attempt::Again),
            ProposeAnswer::Unknown => Err(ProposeError::Unknown),
            ProposeAnswer::Overloaded => Err(ProposeError::Overloaded),
            ProposeAnswer::StorageFull => Err(ProposeError::StorageFull),
            ProposeAnswer::TooLarge { limit, actual } => Err(ProposeError::TooLarge { limit, actual }),
        }
    }

    /// The time left, none when the deadline has passed.
    fn left(&self, begun: Instant) -> Result<Option<Duration>, ProposeError> {
        if self.progress.fatal().borrow().is_some() {
            return Err(ProposeError::Stopped);
        }
        Ok(self.limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()))
    }

    fn gave_up(&self, begun: Instant) -> ProposeError {
        ProposeError::NoQuorum { waited_ms: begun.elapsed().as_millis() as u64 }
    }

    fn applied(&self) -> u64 {
        self.progress.applied().borrow().unwrap_or(0)
    }
}

/// A moment, or until the leadership is another than was looked at last; an error once nothing will change any more.
async fn a_moment<E>(changed: impl Future<Output = Result<(), E>>, left: Duration) -> Result<(), ProposeError> {
    match tokio::time::timeout(RETRY_PAUSE.min(left), changed).await {
        Ok(Err(_)) => Err(ProposeError::Stopped),
        // Either is a reason to look again.
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

fn attempted(proposed: Proposed) -> Result<Attempt<Committed>, ProposeError> {
    match proposed {
        Ok(committed) => Ok(Attempt::Done(committed)),
        Err(NotCommitted::StorageFull) => Err(ProposeError::StorageFull),
        Err(NotCommitted::TooLarge { limit, actual }) => Err(ProposeError::TooLarge { limit, actual }),
        Err(NotCommitted::Unanswered(unanswered)) => match unanswered {
            Unanswered::NotAppended => Ok(Attempt::Again),
            Unanswered::Unknown => Err(ProposeError::Unknown),
            Unanswered::Overloaded => Err(ProposeError::Overloaded),
            Unanswered::Stopped => Err(ProposeError::Stopped),
        },
    }
}
