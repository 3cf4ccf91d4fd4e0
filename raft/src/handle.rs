//! What users of this crate hold: a running node.

use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{Archive, Effect, Machine, NodeName, ReadMode, Request};
use holdfast_storage::Storage;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batcher::Committed;
use crate::clock::Clock;
use crate::feed::Feed;
use crate::leader::LeaderDesk;
use crate::membership::Keeper;
use crate::options::MemberConfig;
use crate::peers::Links;
use crate::progress::Progress;
use crate::propose::{ProposeError, Proposer};
use crate::replacement::{ReplaceError, Replacement};
use crate::state_machine::Replica;
use crate::status::{Standing, Status, outside, status};
use crate::transport::frame::Kind;
use crate::types::Core;
use crate::wire::{ReplaceAnswer, ReplaceAsk, decode, encode};

/// How long the leader may take over one request to replace a member.
const REPLACE_LIMIT: Duration = Duration::from_secs(5);
const REPLACE_PAUSE: Duration = Duration::from_millis(50);

/// A running node; cheap to clone. The node runs until [`Handle::shutdown`], or until the last handle is
/// dropped, which does not wait for its end.
#[derive(Clone)]
pub struct Handle(Arc<Running>);

/// Why leadership was not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Only the leader can hand over.
    #[error("this node does not lead")]
    NotLeader,
    /// The target is no voter.
    #[error("node {0} is no voter")]
    NoVoter(u64),
    /// The target did not take over in time.
    #[error("node {0} did not take over in time")]
    TimedOut(u64),
    /// The node stops or has stopped.
    #[error("the node has stopped")]
    Stopped,
}

/// What a node has that takes part in its cluster; cheap to clone.
#[derive(Clone)]
pub(crate) struct Seat {
    pub core: Core,
    pub proposer: Proposer,
    pub desk: LeaderDesk,
    pub links: Links,
    pub keeper: Keeper,
}

/// All that belongs to a running node.
pub(crate) struct Running {
    pub clock: Arc<dyn Clock>,
    pub seat: watch::Receiver<Option<Seat>>,
    pub standing: Arc<watch::Sender<Standing>>,
    pub configured: Arc<[MemberConfig]>,
    /// How long callers wait.
    pub limit: Duration,
    pub replica: Arc<Replica>,
    pub progress: Progress,
    pub feed: Feed,
    pub effects: broadcast::Sender<(u64, Effect)>,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

impl Drop for Running {
    /// A node without handles is of no use to anybody.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Handle {
    pub(crate) fn new(running: Running) -> Self {
        Self(Arc::new(running))
    }

    /// Proposes a request on any node, which passes it on to the leader, and waits for its reply, at
    /// most [`crate::Timing::answer_ms`].
    ///
    /// # Errors
    /// See [`ProposeError`]; only `Unknown` leaves open whether anything happened.
    pub async fn propose(&self, request: Request) -> Result<Committed, ProposeError> {
        let begun = Instant::now();
        let seat = self.seat(begun).await?;
        seat.proposer.propose(request).await
    }

    /// Waits until this node's state is fresh enough for `mode`; gives the index that it has applied.
    ///
    /// # Errors
    /// `NoQuorum` if it does not get there in time, `Stopped` if it never will.
    pub async fn read_index(&self, mode: ReadMode) -> Result<u64, ProposeError> {
        if mode == ReadMode::Stale {
            return Ok(self.0.progress.applied().borrow().unwrap_or(0));
        }
        let begun = Instant::now();
        let seat = self.seat(begun).await?;
        seat.proposer.read_index(mode).await
    }

    /// Waits until the node takes part.
    async fn seat(&self, begun: Instant) -> Result<Seat, ProposeError> {
        let mut seat = self.0.seat.clone();
        let mut fatal = self.0.progress.fatal();
        tokio::select! {
            seated = seat.wait_for(Option::is_some) => {
                seated.ok().and_then(|seat| seat.clone()).ok_or(ProposeError::Stopped)
            }
            _ = fatal.wait_for(Option::is_some) => Err(ProposeError::Stopped),
            () = tokio::time::sleep(self.0.limit) => {
                Err(ProposeError::NoQuorum { waited_ms: begun.elapsed().as_millis() as u64 })
            }
        }
    }

    fn seated(&self) -> Option<Seat> {
        self.0.seat.borrow().clone()
    }

    /// Has a member replaced that has lost its data and waits for it: the node gets the data under its old name, and
    /// a Raft id that nobody had before. Asks the leader, from any node. Returns as soon as the new member is
    /// committed; the rest happens by itself, and [`Status::replacements`] tells of it. With `dry_run` nothing is
    /// changed.
    ///
    /// # Errors
    /// See [`ReplaceError`]; nothing was changed then.
    pub async fn replace_member(&self, name: &NodeName, dry_run: bool) -> Result<Replacement, ReplaceError> {
        let Some(seat) = self.seated() else { return Err(ReplaceError::NoLeader) };
        let begun = Instant::now();
        loop {
            let leader = seat.core.server_metrics().borrow_watched().current_leader;
            let answer = match leader {
                Some(_) if self.is_leader() => Some(seat.keeper.replace(name, dry_run).await),
                Some(leader) => {
                    let ask = encode(&ReplaceAsk { name: name.clone(), dry_run });
                    match seat.links.get(leader) {
                        None => None,
                        Some(link) => {
                            let answer = link.call(Kind::Replace, ask, REPLACE_LIMIT).await.ok();
                            answer.and_then(|bytes| decode::<ReplaceAnswer>(&bytes).ok())
                        }
                    }
                }
                None => None,
            };
            match answer {
                Some(Err(ReplaceError::NoLeader)) | None if begun.elapsed() < self.0.limit => {
                    tokio::time::sleep(REPLACE_PAUSE).await;
                }
                Some(Err(ReplaceError::NoLeader)) | None => return Err(seat.keeper.why_no_leader()),
                Some(answer) => return answer,
            }
        }
    }

    /// Reads this node's state as of one log entry. Apply waits meanwhile, so be short.
    pub fn view<T>(&self, read: impl FnOnce(&Machine, &dyn Archive) -> T) -> T {
        self.0.replica.view(|machine, state| read(machine, state))
    }

    /// The cluster's events.
    pub fn feed(&self) -> Feed {
        self.0.feed.clone()
    }

    /// Effects of applied entries with their log index, from now on. A slow receiver loses the oldest;
    /// it looks at the state instead.
    pub fn effects(&self) -> broadcast::Receiver<(u64, Effect)> {
        self.0.effects.subscribe()
    }

    /// The last applied log index, to follow.
    pub fn applied(&self) -> watch::Receiver<Option<u64>> {
        self.0.progress.applied()
    }

    /// Set once the node cannot go on (a failed disk), with the reason. It acknowledges nothing from then on.
    pub fn fatal(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.progress.fatal()
    }

    /// The wall clock that this node goes by.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock.clone()
    }

    /// This node's picture of itself and of the cluster.
    pub fn status(&self) -> Status {
        let standing = self.0.standing.borrow().clone();
        match self.seated() {
            None => outside(standing, &self.0.configured, &self.0.progress, self.storage()),
            Some(seat) => status(&seat.keeper, standing, &self.0.progress, self.storage()),
        }
    }

    /// The node's data directory.
    pub(crate) fn storage(&self) -> &Storage {
        self.0.replica.storage()
    }

    /// Has a snapshot taken of what is applied, unless one is being written.
    pub(crate) async fn take_snapshot(&self) -> Result<(), ProposeError> {
        let seat = self.seat(Instant::now()).await?;
        seat.core.trigger().snapshot().await.map_err(|_| ProposeError::Stopped)
    }

    /// True if this node leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.seated().is_some_and(|seat| seat.desk.leads())
    }

    /// Hands the leadership over to another voter, and waits until it leads.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferError> {
        let Some(seat) = self.seated().filter(|seat| seat.desk.leads()) else { return Err(TransferError::NotLeader) };
        let mut metrics = seat.core.server_metrics();
        if !metrics.borrow_watched().membership_config.voter_ids().any(|voter| voter == to) {
            return Err(TransferError::NoVoter(to));
        }
        let asked = seat.core.trigger().transfer_leader(to).await;
        asked.map_err(|_| TransferError::Stopped)?;
        let leads = async {
            while metrics.borrow_watched().current_leader != Some(to) {
                metrics.changed().await.map_err(|_| TransferError::Stopped)?;
            }
            Ok(())
        };
        tokio::time::timeout(self.0.limit, leads).await.unwrap_or(Err(TransferError::TimedOut(to)))
    }

    /// Stops the node. Its links close at once; what it had acknowledged is on its disk. The data
    /// directory is free again when the last handle is dropped. Safe to repeat.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        // Nothing must wait for space any more.
        self.0.replica.storage().room.close();
        self.0.tasks.close();
        if let Some(seat) = self.seated()
            && let Err(error) = seat.core.shutdown().await
        {
            tracing::warn!(%error, "the node's core ended badly");
        }
        self.0.tasks.wait().await;
        let replica = self.0.replica.clone();
        if let Err(error) = crate::log_store::blocking(move || replica.sync()).await {
            tracing::warn!(%error, "the state was not synced at the end; the log brings it back");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use holdfast_machine::{Command, NodeName, ReadMode};

    use super::Handle;
    use crate::options::{MemberConfig, Options, PeerListen, Timing};
    use crate::propose::ProposeError;
    use crate::start::Raft;

    /// Starts the first of `members` nodes; the others are not there.
    async fn start(dir: &std::path::Path, members: u64) -> Handle {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap().to_string();
        let member = |id| MemberConfig {
            id,
            name: NodeName::new(format!("node-{id}")).unwrap(),
            peer_addr: if id == 1 { addr.clone() } else { "127.0.0.1:1".to_owned() },
            http_addr: String::new(),
        };
        let (members, listen) = ((1..=members).map(member).collect(), PeerListen::Bound(socket));
        Raft::start(Options::new("c", 1, dir.join("data"), members, listen)).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_has_stopped_says_so_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let node = start(dir.path(), 3).await;
        node.shutdown().await;
        let begun = std::time::Instant::now();
        assert_eq!(node.propose(Command::Tick.into()).await, Err(ProposeError::Stopped));
        assert_eq!(node.read_index(ReadMode::Linearizable).await, Err(ProposeError::Stopped));
        let limit = Duration::from_millis(Timing::default().answer_ms);
        assert!(begun.elapsed() < limit, "it went round until the time was over");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_failed_write_nothing_more_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let node = start(dir.path(), 1).await;
        node.propose(Command::Tick.into()).await.unwrap();

        let poison = node.0.replica.storage().dir.poison();
        poison.strike("syncing", &std::io::Error::other("the disk is gone"));
        for _ in 0..3 {
            let answer = node.propose(Command::Tick.into()).await;
            assert!(answer.is_err(), "{answer:?}");
        }
        let mut fatal = node.fatal();
        let told = tokio::time::timeout(Duration::from_secs(10), fatal.wait_for(Option::is_some));
        assert!(told.await.unwrap().unwrap().is_some());
        assert!(node.status().fatal.is_some());
        node.shutdown().await;
    }
}
