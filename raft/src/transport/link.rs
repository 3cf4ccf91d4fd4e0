//! The calling side of a peer connection, and the detector's evidence about that peer.
//!
//! A link belongs to one peer for the life of the process. It connects, says who it is, and then carries
//! pipelined requests until the connection breaks; then it connects again, first after 25 ms, later after
//! at most 250 ms. While there is no connection a request fails at once, as one that was never sent.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use holdfast_storage::RoomLevel;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::frame::{Frame, Kind};
use super::handshake::{Connection, HandshakeError, Purpose, connect};
use super::registry::{Refusal, Registry};
use crate::environment::{PeerNetwork, PeerStream};
use crate::wire::{PingAnswer, RoomRecord, decode};

/// First and longest pause between two attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(25);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection on which nothing was heard for this long is given up, so that a peer that vanished
/// without a word does not hold it for ever.
const MUTE_LIMIT: Duration = Duration::from_secs(5);
/// Requests that may wait to be written.
const QUEUE: usize = 1024;
/// The id of all pings, which nobody waits for.
const PING: u64 = 0;
/// What stands for a peer that has not said how much room it has.
const UNTOLD: u8 = u8::MAX;

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

type Answer = Result<Bytes, CallError>;

#[derive(Debug)]
struct Shared {
    peer: u64,
    state: watch::Sender<LinkState>,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>,
    next_id: AtomicU64,
    started: Instant,
    /// When the peer last answered anything, in milliseconds after `started`, plus one; 0: never.
    heard_ms: AtomicU64,
    /// The room that the peer last said it has.
    room: AtomicU8,
}

/// A handle to one peer's link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Frame>,
}

/// A request that was handed to the link.
pub(crate) struct Pending {
    shared: Arc<Shared>,
    id: u64,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.waiting.lock().remove(&self.id);
    }
}

impl Pending {
    /// Waits for the answer.
    pub async fn answer(mut self, limit: Duration) -> Answer {
        match tokio::time::timeout(limit, &mut self.answer).await {
            Err(_) => Err(CallError::TimedOut(limit)),
            Ok(Err(_)) => Err(CallError::Lost("the node stops".into())),
            Ok(Ok(answer)) => answer,
        }
    }
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
        let ms = self.shared.heard_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.shared.started + Duration::from_millis(ms))
    }

    /// Hands a request over; waits only while the queue is full. Requests are sent in the order of
    /// these calls.
    pub async fn start(&self, kind: Kind, body: Bytes) -> Result<Pending, CallError> {
        if let LinkState::Closed { reason, .. } = &*self.shared.state.borrow() {
            return Err(CallError::NotSent(reason.clone()));
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.shared.waiting.lock().insert(id, sender);
        let pending = Pending { shared: self.shared.clone(), id, answer };
        let sent = self.queue.send(Frame::new(id, kind, body)).await;
        sent.map_err(|_| CallError::NotSent("the node stops".into()))?;
        Ok(pending)
    }

    /// A request and its answer, within `limit`.
    pub async fn call(&self, kind: Kind, body: Bytes, limit: Duration) -> Answer {
        let begun = Instant::now();
        let pending = match tokio::time::timeout(limit, self.start(kind, body)).await {
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

/// What a link's task works with.
struct Task {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Frame>,
    registry: Registry,
    addresses: AddressBook,
    ping_interval: Duration,
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
        waiting: Mutex::default(),
        next_id: AtomicU64::new(1),
        started: Instant::now(),
        heard_ms: AtomicU64::new(0),
        room: AtomicU8::new(UNTOLD),
    });
    let (sender, queue) = mpsc::channel(QUEUE);
    let task = Task { shared: shared.clone(), queue, registry, addresses, ping_interval };
    tasks.spawn(async move {
        let ended = stop.clone();
        let shared = task.shared.clone();
        tokio::select! {
            () = task.run() => {}
            () = ended.cancelled() => {}
        }
        shared.close("this node stops".into(), None);
        shared.fail_all(&CallError::Lost("this node stops".into()));
    });
    Link { shared, queue: sender }
}

impl Shared {
    fn close(&self, reason: Arc<str>, refusal: Option<Refusal>) {
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

    fn fail_all(&self, error: &CallError) {
        for waiting in std::mem::take(&mut *self.waiting.lock()).into_values() {
            // Whoever has stopped waiting needs no answer.
            let _ = waiting.send(Err(error.clone()));
        }
    }

    fn heard(&self) {
        let ms = self.started.elapsed().as_millis() as u64;
        self.heard_ms.store(ms + 1, Ordering::Relaxed);
    }

    fn deliver(&self, frame: Frame) {
        if frame.id == PING {
            let told = decode(&frame.body).ok().map(|PingAnswer::V1 { room }| room as u8);
            return self.room.store(told.unwrap_or(UNTOLD), Ordering::Relaxed);
        }
        let Some(waiting) = self.waiting.lock().remove(&frame.id) else { return };
        let answer = match frame.kind {
            Kind::Failed => Err(CallError::Failed(String::from_utf8_lossy(&frame.body).into_owned())),
            _ => Ok(frame.body),
        };
        let _ = waiting.send(answer);
    }
}

impl Task {
    async fn run(mut self) {
        let mut pause = BACKOFF_MIN;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    pause = BACKOFF_MIN;
                    self.shared.heard();
                    self.shared.state.send_replace(LinkState::Connected);
                    let reason: Arc<str> = self.carry(connection).await.into();
                    tracing::info!(peer = self.shared.peer, %reason, "peer link closed");
                    self.shared.close(reason.clone(), None);
                    while let Ok(frame) = self.queue.try_recv() {
                        self.turn_away(Some(frame)).await;
                    }
                    self.shared.fail_all(&CallError::Lost(reason));
                }
                Err(error) => {
                    self.note_failure(&error);
                    self.pause(pause).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    fn note_failure(&self, error: &HandshakeError) {
        let refusal = match error {
            HandshakeError::WeRefused(refusal) | HandshakeError::TheyRefused(refusal) => Some(refusal.clone()),
            HandshakeError::Broken(_) => None,
        };
        let was_refused = match &*self.shared.state.borrow() {
            LinkState::Closed { refusal, .. } => refusal.clone(),
            _ => None,
        };
        if refusal.is_some() && refusal != was_refused {
            tracing::error!(peer = self.shared.peer, %error, "no peer link");
        }
        self.shared.close(error.to_string().into(), refusal);
    }

    /// Connects, and meanwhile turns requests away.
    async fn connect(&mut self) -> Result<Connection, HandshakeError> {
        let peer = self.shared.peer;
        let (registry, addresses) = (self.registry.clone(), self.addresses.clone());
        let attempt = connect(&registry, peer, &addresses, Purpose::Requests);
        tokio::pin!(attempt);
        loop {
            tokio::select! {
                outcome = &mut attempt => return outcome,
                frame = self.queue.recv() => self.turn_away(frame).await,
            }
        }
    }

    async fn pause(&mut self, pause: Duration) {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                frame = self.queue.recv() => self.turn_away(frame).await,
            }
        }
    }

    async fn turn_away(&self, frame: Option<Frame>) {
        // No handle is left: nothing will ever come again.
        let Some(frame) = frame else { return std::future::pending().await };
        let waiting = self.shared.waiting.lock().remove(&frame.id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(Err(CallError::NotSent("there is no connection".into())));
        }
    }

    /// Carries requests and answers until the connection breaks; gives the reason.
    async fn carry(&mut self, connection: Connection) -> String {
        let (mut sink, mut stream) = connection.split();
        let (shared, queue) = (&self.shared, &mut self.queue);
        let mut ping = tokio::time::interval(self.ping_interval);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let last_heard = || {
            let ms = shared.heard_ms.load(Ordering::Relaxed).saturating_sub(1);
            shared.started + Duration::from_millis(ms)
        };
        let write = async {
            loop {
                let frame = tokio::select! {
                    frame = queue.recv() => match frame {
                        Some(frame) => frame,
                        None => return std::future::pending().await,
                    },
                    _ = ping.tick() => {
                        if last_heard().elapsed() > MUTE_LIMIT {
                            return format!("nothing was heard for {MUTE_LIMIT:?}");
                        }
                        Frame::new(PING, Kind::Ping, Bytes::new())
                    }
                };
                if let Err(error) = write_with_followers(&mut sink, frame, queue).await {
                    return error.to_string();
                }
            }
        };
        let read = async {
            loop {
                match stream.next().await {
                    None => return "the peer closed the connection".to_owned(),
                    Some(Err(error)) => return error.to_string(),
                    Some(Ok(bytes)) => match Frame::from_bytes(bytes.freeze()) {
                        Err(error) => return error.to_string(),
                        Ok(frame) => {
                            shared.heard();
                            shared.deliver(frame);
                        }
                    },
                }
            }
        };
        tokio::select! {
            reason = write => reason,
            reason = read => reason,
        }
    }
}

/// Writes a frame and all that wait behind it, then flushes once.
async fn write_with_followers<S>(
    sink: &mut S,
    first: Frame,
    queue: &mut mpsc::Receiver<Frame>,
) -> Result<(), std::io::Error>
where
    S: futures::Sink<Bytes, Error = std::io::Error> + Unpin,
{
    sink.feed(first.into_bytes()).await?;
    while let Ok(frame) = queue.try_recv() {
        sink.feed(frame.into_bytes()).await?;
    }
    sink.flush().await
}
