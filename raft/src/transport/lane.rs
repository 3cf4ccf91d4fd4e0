//! One of the two connections of a link: connects, says who it is, and then carries pipelined requests until the
//! connection breaks; then it connects again, first after 25 ms, later after at most 250 ms. While the peer cannot be
//! talked to a request fails at once, as one that was never sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{Frame, Kind};
use super::handshake::{Connection, HandshakeError, Purpose, connect};
use super::link::{AddressBook, Answer, CallError, LinkState, Shared};
use super::registry::Registry;

/// First and longest pause between two attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(25);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// An urgent connection on which nothing was heard for this long is given up, so that a peer that vanished without a word
/// does not hold it for ever.
const MUTE_LIMIT: Duration = Duration::from_secs(5);
/// The same for a bulk connection on which nothing moves either way. Longer, since an answer comes behind all that the
/// network has still in its buffers; a peer that is gone ends it with the urgent one.
const BULK_MUTE_LIMIT: Duration = Duration::from_secs(20);
/// Requests that may wait to be written.
const QUEUE: usize = 1024;
/// The id of all pings, which nobody waits for.
const PING: u64 = 0;

/// Which of a link's connections a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Urgent,
    Bulk,
}

impl Way {
    /// The way of this kind of request. Appends without entries may be sent on the urgent one.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Append | Kind::Propose | Kind::Replace | Kind::StateHash => Self::Bulk,
            _ => Self::Urgent,
        }
    }

    fn mute_limit(self) -> Duration {
        match self {
            Self::Urgent => MUTE_LIMIT,
            Self::Bulk => BULK_MUTE_LIMIT,
        }
    }
}

/// The requests that have no answer yet.
#[derive(Debug, Default)]
struct Calls {
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>,
    bytes: AtomicU64,
}

impl Calls {
    fn settle(&self, id: u64, answer: Answer) {
        let waiting = self.waiting.lock().remove(&id);
        if let Some(waiting) = waiting {
            // Whoever has stopped waiting needs no answer.
            let _ = waiting.send(answer);
        }
    }

    fn answer(&self, frame: Frame) {
        let answer = match frame.kind {
            Kind::Failed => Err(CallError::Failed(String::from_utf8_lossy(&frame.body).into_owned())),
            _ => Ok(frame.body),
        };
        self.settle(frame.id, answer);
    }

    fn fail_all(&self, error: &CallError) {
        for waiting in std::mem::take(&mut *self.waiting.lock()).into_values() {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

/// The way into a lane.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    queue: mpsc::Sender<Frame>,
    calls: Arc<Calls>,
}

/// A request that was handed to a lane.
pub(crate) struct Pending {
    calls: Arc<Calls>,
    id: u64,
    bytes: u64,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.calls.waiting.lock().remove(&self.id);
        self.calls.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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

impl Lane {
    /// Hands a request over; waits only while the queue is full.
    pub async fn start(&self, id: u64, kind: Kind, body: Bytes) -> Result<Pending, CallError> {
        let (sender, answer) = oneshot::channel();
        let (calls, bytes) = (self.calls.clone(), body.len() as u64);
        calls.waiting.lock().insert(id, sender);
        calls.bytes.fetch_add(bytes, Ordering::Relaxed);
        let pending = Pending { calls, id, bytes, answer };
        let sent = self.queue.send(Frame::new(id, kind, body)).await;
        sent.map_err(|_| CallError::NotSent("the node stops".into()))?;
        Ok(pending)
    }

    /// Bytes of requests that have no answer yet.
    pub fn bytes_under_way(&self) -> u64 {
        self.calls.bytes.load(Ordering::Relaxed)
    }
}

/// What a lane's task works with.
struct Task {
    way: Way,
    shared: Arc<Shared>,
    calls: Arc<Calls>,
    queue: mpsc::Receiver<Frame>,
    registry: Registry,
    addresses: AddressBook,
    ping_interval: Duration,
}

/// Starts a lane; it ends with `stop`.
pub(super) fn open(
    way: Way,
    shared: Arc<Shared>,
    (registry, addresses): (Registry, AddressBook),
    ping_interval: Duration,
    stop: CancellationToken,
    tasks: &TaskTracker,
) -> Lane {
    let (sender, queue) = mpsc::channel(QUEUE);
    let calls = Arc::new(Calls::default());
    let lane = Lane { queue: sender, calls: calls.clone() };
    let task = Task { way, shared: shared.clone(), calls: calls.clone(), queue, registry, addresses, ping_interval };
    tasks.spawn(async move {
        tokio::select! {
            () = task.run() => {}
            () = stop.cancelled() => {}
        }
        shared.close("this node stops".into(), None);
        calls.fail_all(&CallError::Lost("this node stops".into()));
    });
    lane
}

impl Task {
    async fn run(mut self) {
        let mut pause = BACKOFF_MIN;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    pause = BACKOFF_MIN;
                    if self.way == Way::Urgent {
                        self.shared.heard();
                        self.shared.state.send_replace(LinkState::Connected);
                    }
                    let reason: Arc<str> = self.carry(connection).await.into();
                    tracing::info!(peer = self.shared.peer, way = ?self.way, %reason, "peer link closed");
                    if self.way == Way::Urgent {
                        self.shared.close(reason.clone(), None);
                    }
                    self.turn_all_away();
                    self.calls.fail_all(&CallError::Lost(reason));
                }
                Err(error) => {
                    self.note_failure(&error);
                    self.turn_all_away();
                    let over = tokio::time::sleep(pause);
                    self.turning_away(over).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    fn note_failure(&self, error: &HandshakeError) {
        if self.way == Way::Bulk {
            return tracing::debug!(peer = self.shared.peer, %error, "no bulk connection");
        }
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

    /// Connects. Meanwhile requests are turned away, but for those that the bulk connection is about to take.
    async fn connect(&mut self) -> Result<Connection, HandshakeError> {
        let peer = self.shared.peer;
        let (registry, addresses) = (self.registry.clone(), self.addresses.clone());
        let attempt = connect(&registry, peer, &addresses, Purpose::Requests);
        if self.way == Way::Urgent {
            return self.turning_away(attempt).await;
        }
        let mut state = self.shared.state.subscribe();
        // The sender is in what this task holds.
        let reached = async { state.wait_for(LinkState::is_connected).await.map(drop).unwrap_or(()) };
        self.turning_away(reached).await;
        attempt.await
    }

    /// Waits for `end`, and turns requests away until then.
    async fn turning_away<T>(&mut self, end: impl Future<Output = T>) -> T {
        tokio::pin!(end);
        loop {
            tokio::select! {
                ended = &mut end => return ended,
                frame = self.queue.recv() => match frame {
                    Some(frame) => self.turn_away(&frame),
                    // No handle is left: nothing will ever come again.
                    None => return std::future::pending().await,
                },
            }
        }
    }

    fn turn_all_away(&mut self) {
        while let Ok(frame) = self.queue.try_recv() {
            self.turn_away(&frame);
        }
    }

    fn turn_away(&self, frame: &Frame) {
        self.calls.settle(frame.id, Err(CallError::NotSent("there is no connection".into())));
    }

    /// Carries requests and answers until the connection breaks; gives the reason.
    async fn carry(&mut self, connection: Connection) -> String {
        let parts = connection.into_parts();
        let (input, output) = tokio::io::split(parts.io);
        let mut stream = FramedRead::new(input, parts.codec);
        *stream.read_buffer_mut() = parts.read_buf;
        let mut output = BufWriter::new(output);
        let Self { way, shared, calls, queue, ping_interval, .. } = self;
        let limit = way.mute_limit();
        let mut state = shared.state.subscribe();
        let fallen = async {
            match way {
                Way::Urgent => std::future::pending().await,
                Way::Bulk => _ = state.wait_for(|state| !state.is_connected()).await,
            }
        };
        let moved = Mutex::new(Instant::now());
        let write = async {
            let mut ping = tokio::time::interval(*ping_interval);
            ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                let first = tokio::select! {
                    frame = queue.recv() => match frame {
                        Some(frame) => frame,
                        None => return std::future::pending().await,
                    },
                    _ = ping.tick() => {
                        if moved.lock().elapsed() > limit {
                            return format!("nothing was heard for {limit:?}");
                        }
                        Frame::new(PING, Kind::Ping, Bytes::new())
                    }
                };
                // What waits behind it goes with it, and all is flushed once.
                let mut next = Some(first);
                while let Some(frame) = next {
                    if let Err(error) = frame.write(&mut output, limit, || *moved.lock() = Instant::now()).await {
                        return error.to_string();
                    }
                    next = queue.try_recv().ok();
                }
                match tokio::time::timeout(limit, output.flush()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return format!("nothing could be sent for {limit:?}"),
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
                            *moved.lock() = Instant::now();
                            shared.heard();
                            match frame.id {
                                PING => shared.pinged(&frame.body),
                                _ => calls.answer(frame),
                            }
                        }
                    },
                }
            }
        };
        tokio::select! {
            reason = write => reason,
            reason = read => reason,
            () = fallen => "the urgent connection was lost".to_owned(),
        }
    }
}
