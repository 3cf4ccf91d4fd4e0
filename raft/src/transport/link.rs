//! The calling side of a peer's connections, and the detector's evidence about that peer.
//!
//! A link belongs to one peer for the life of the process, and has two lanes ([`super::lane`]), each a connection of its
//! own: one for what must not wait (heartbeats, votes, pings, questions), one for what may be large (entries, proposals).
//! On one connection a heartbeat would come as late as the entries in front of it.
//!
//! The urgent lane decides whether the peer can be talked to: a process that is gone closes it, and one that is stuck is
//! silent on it. The bulk lane is dialled when the urgent one stands, and falls with it; that it breaks or hangs by
//! itself says nothing of the peer.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_storage::RoomLevel;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::frame::Kind;
use super::lane::{self, Lane, Pending, Way};
use super::registry::{Refusal, Registry};
use crate::environment::{PeerNetwork, PeerStream};
use crate::wire::{PingAnswer, RoomRecord, decode};

/// What stands for a peer that has not said how much room it has.
const UNTOLD: u8 = u8::MAX;
/// Slower than this nobody takes in entries, in bytes per millisecond: they are sent, checked, and synced to the disk.
const BYTES_PER_MS_MIN: u64 = 4 * 1024;

/// Whether a peer can be talked to.
#[derive(Debug, Clone)]
pub enum LinkState {
    /// Not yet; the first attempt is under way.
    Connecting,
    /// It can.
    Connected,
    /// It cannot.
    Closed {
        /// Why, in a sentence.
        reason: Arc<str>,
        /// Set if one of the two nodes refuses the other.
        refusal: Option<Refusal>,
        /// Since when.
        since: Instant,
    },
}

impl LinkState {
    /// True while requests get through.
    pub fn is_connected(&self) -> bool {
        matches!(self, LinkState::Connected)
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    /// It was certainly not sent.
    #[error("not sent: {0}")]
    NotSent(Arc<str>),
    /// It may have been sent; the connection broke.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// It was sent; no answer came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The peer could not work on it.
    #[error("the peer failed: {0}")]
    Failed(String),
}

pub(super) type Answer = Result<Bytes, CallError>;

#[derive(Debug)]
pub(super) struct Shared {
    pub peer: u64,
    pub state: watch::Sender<LinkState>,
    next_id: AtomicU64,
    started: Instant,
    /// When the peer last answered anything, and when it last took in entries or a heartbeat.
    heard: Stamp,
    appended: Stamp,
    /// The room that the peer last said it has.
    room: AtomicU8,
}

/// A moment in milliseconds after the start, plus one; 0: never.
#[derive(Debug, Default)]
struct Stamp(AtomicU64);

impl Stamp {
    fn set(&self, started: Instant) {
        self.0.store(started.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn get(&self, started: Instant) -> Option<Instant> {
        let ms = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(started + Duration::from_millis(ms))
    }
}

/// A handle to one peer's link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    urgent: Lane,
    bulk: Lane,
}

impl Link {
    /// The peer at the other end.
    pub fn peer(&self) -> u64 {
        self.shared.peer
    }

    /// Follows whether the peer can be talked to.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// The room on the peer's disk, as it last said.
    pub fn room(&self) -> Option<RoomLevel> {
        let room = self.shared.room.load(Ordering::Relaxed);
        (room != UNTOLD).then(|| RoomRecord::from_byte(room).into())
    }

    /// When the peer last answered anything on this link.
    pub fn last_heard(&self) -> Option<Instant> {
        self.shared.heard.get(self.shared.started)
    }

    /// Notes that the peer has taken in entries or a heartbeat of this node as its leader.
    pub fn note_appended(&self) {
        self.shared.appended.set(self.shared.started);
    }

    /// When the peer last took in entries or a heartbeat.
    pub fn last_appended(&self) -> Option<Instant> {
        self.shared.appended.get(self.shared.started)
    }

    /// How long the peer may be at what is on its way to it at the moment. A follower answers heartbeats only when it has
    /// synced the entries before them.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.bulk.bytes_under_way() / BYTES_PER_MS_MIN)
    }

    /// Hands a request over; waits only while the lane's queue is full. The requests of a lane are sent in the order of
    /// these calls.
    pub async fn start(&self, way: Way, kind: Kind, body: Bytes) -> Result<Pending, CallError> {
        if let LinkState::Closed { reason, .. } = &*self.shared.state.borrow() {
            return Err(CallError::NotSent(reason.clone()));
        }
        let lane = match way {
            Way::Urgent => &self.urgent,
            Way::Bulk => &self.bulk,
        };
        lane.start(self.shared.next_id.fetch_add(1, Ordering::Relaxed), kind, body).await
    }

    /// A request and its answer, within `limit`.
    pub async fn call(&self, kind: Kind, body: Bytes, limit: Duration) -> Answer {
        let begun = Instant::now();
        let pending = match tokio::time::timeout(limit, self.start(Way::of(kind), kind, body)).await {
            Err(_) => return Err(CallError::NotSent("the queue to the peer is full".into())),
            Ok(started) => started?,
        };
        pending.answer(limit.saturating_sub(begun.elapsed())).await
    }
}

/// Where each node's peers listen, by id, and the network that leads there. The configuration's word counts before the
/// membership's.
#[derive(Clone)]
pub(crate) struct AddressBook {
    network: Arc<dyn PeerNetwork>,
    addresses: Arc<RwLock<BTreeMap<u64, String>>>,
}

impl AddressBook {
    /// The book with nothing in it.
    pub fn new(network: Arc<dyn PeerNetwork>) -> Self {
        Self { network, addresses: Arc::default() }
    }

    /// Notes where `peer` listens.
    pub fn note(&self, peer: u64, address: String) {
        self.addresses.write().insert(peer, address);
    }

    /// Where `peer` listens; empty if that is not known.
    pub fn address(&self, peer: u64) -> String {
        self.addresses.read().get(&peer).cloned().unwrap_or_default()
    }

    /// Connects to an address.
    pub async fn dial(&self, address: &str) -> io::Result<Box<dyn PeerStream>> {
        self.network.connect(address).await
    }
}

/// Starts a link to `peer`; it ends with `stop`.
pub(crate) fn open(
    peer: u64,
    registry: Registry,
    addresses: AddressBook,
    ping_interval: Duration,
    stop: CancellationToken,
    tasks: &tokio_util::task::TaskTracker,
) -> Link {
    let shared = Arc::new(Shared {
        peer,
        state: watch::Sender::new(LinkState::Connecting),
        next_id: AtomicU64::new(1),
        started: Instant::now(),
        heard: Stamp::default(),
        appended: Stamp::default(),
        room: AtomicU8::new(UNTOLD),
    });
    let lane = |way| {
        let dialling = (registry.clone(), addresses.clone());
        lane::open(way, shared.clone(), dialling, ping_interval, stop.clone(), tasks)
    };
    let (urgent, bulk) = (lane(Way::Urgent), lane(Way::Bulk));
    Link { shared, urgent, bulk }
}

impl Shared {
    pub fn close(&self, reason: Arc<str>, refusal: Option<Refusal>) {
        self.state.send_if_modified(|state| match state {
            // The first reason stays; an attempt that fails again is no news.
            LinkState::Closed { refusal: old, .. } if *old == refusal => false,
            _ => {
                let since = match state {
                    LinkState::Closed { since, .. } => *since,
                    LinkState::Connecting | LinkState::Connected => Instant::now(),
                };
                *state = LinkState::Closed { reason, refusal, since };
                true
            }
        });
    }

    pub fn heard(&self) {
        self.heard.set(self.started);
    }

    /// Takes in the answer to a ping.
    pub fn pinged(&self, answer: &[u8]) {
        let told = decode(answer).ok().map(|PingAnswer::V1 { room }| room as u8);
        self.room.store(told.unwrap_or(UNTOLD), Ordering::Relaxed);
    }
}
