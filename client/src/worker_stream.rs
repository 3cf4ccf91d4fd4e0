//! A worker's stream: the WebSocket over which a node gives it rows.
//!
//! [`Client::attach`] asks the nodes in turn, each of them once. When the connection breaks, the stream says so and ends;
//! whoever reads it attaches again, under the same session and with the rows that it is at work on.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use holdfast_machine::{NodeName, Reject, SessionId, Worker};
use reqwest::Url;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::Problem;
use crate::client::Client;
use crate::error::ClientError;
use crate::wire::{Ended, HeldRow, NodeMessage, WorkerMessage};

/// The largest message that is taken from a node, in bytes. Nodes send a few MiB, or one row with a large input.
const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// A node sends something within a lease, or at least this often; one that is silent for longer is taken for gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// A shorter silence means nothing, however short the lease.
const SILENCE_MIN: Duration = Duration::from_secs(2);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A session's connection to one node.
#[derive(Debug)]
pub struct WorkerStream {
    sender: WorkerSender,
    receiver: WorkerReceiver,
}

/// What a worker says to its node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkerSender {
    sink: Arc<Mutex<SplitSink<Socket, Message>>>,
    /// The longest that the connection may take to take a message.
    patience: Duration,
}

/// What the node says.
#[derive(Debug)]
pub struct WorkerReceiver {
    messages: SplitStream<Socket>,
    /// The first message, which was read to learn whether the session is attached.
    first: Option<NodeMessage>,
    silence_max: Duration,
    /// When something came last, be it a ping.
    heard: Instant,
    received: u64,
    ended: bool,
    place: Place,
}

/// Where a stream is attached.
#[derive(Debug)]
struct Place {
    number: usize,
    url: Url,
    name: NodeName,
}

impl Client {
    /// Attaches a worker's session: opens it, or goes on with it. `holding` are the rows that the worker is at work
    /// on; rows of the session that are not among them are delivered (again). Each node is asked once, beginning with
    /// the one that answered last.
    ///
    /// # Errors
    /// A refusal of the registration, or why the last node could not be attached to; the caller may try again then.
    pub async fn attach(
        &self,
        session: SessionId,
        worker: Worker,
        holding: Vec<HeldRow>,
    ) -> Result<WorkerStream, ClientError> {
        self.attach_from(self.shared.preferred(), session, worker, holding).await
    }

    /// As [`Client::attach`], beginning with the node of this number: its place in the list that the client was made
    /// with. To avoid the node that was lost, begin with [`WorkerStream::node_number`] plus one.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub async fn attach_from(
        &self,
        first: usize,
        session: SessionId,
        worker: Worker,
        holding: Vec<HeldRow>,
    ) -> Result<WorkerStream, ClientError> {
        let lease = Duration::from_millis(worker.lease_ms);
        let attach = text(&WorkerMessage::Attach { session, worker, holding })?;
        let mut last = None;
        for attempt in 0..self.shared.nodes.len() {
            let (number, url) = self.shared.node(first, attempt);
            match self.attach_at(number, url, attach.clone(), lease).await {
                Ok(stream) => {
                    self.shared.prefer(number);
                    return Ok(stream);
                }
                // A node that is about to start, or that the cluster takes for dead, speaks of nobody but itself.
                Err(error) if !error.is_retryable() && !matches!(error.reject(), Some(Reject::NodeState { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!(%url, %error, "attaching to the next node");
                    last = Some(error);
                }
            }
        }
        // A client has at least one node.
        Err(last.unwrap_or_else(|| ClientError::Unreachable("there is no node".to_owned())))
    }

    async fn attach_at(
        &self,
        number: usize,
        url: &Url,
        attach: Message,
        lease: Duration,
    ) -> Result<WorkerStream, ClientError> {
        let options = &self.shared.options;
        let deadline = Instant::now() + options.attempt_timeout;
        let connect_by = deadline.min(Instant::now() + 2 * options.connect_timeout);
        let socket = in_time(url, connect_by, connect(url)).await?;
        let (mut sink, mut messages) = socket.split();
        in_time(url, deadline, async { sink.send(attach).await.map_err(|error| lost(&error)) }).await?;
        let first = in_time(url, deadline, async {
            loop {
                if let Some(message) = read(&mut messages).await? {
                    return Ok(message);
                }
            }
        });
        let first = first.await?;
        let name = match &first {
            NodeMessage::Attached { node, .. } => node.clone(),
            NodeMessage::Ended { reason, problem } => return Err(not_attached(*reason, problem.clone())),
            _ => return Err(ClientError::Protocol("the stream does not begin with `attached`".to_owned())),
        };
        let sender = WorkerSender { sink: Arc::new(Mutex::new(sink)), patience: options.attempt_timeout };
        let receiver = WorkerReceiver {
            messages,
            first: Some(first),
            silence_max: lease.clamp(SILENCE_MIN, SILENCE_MAX),
            heard: Instant::now(),
            received: 0,
            ended: false,
            place: Place { number, url: url.clone(), name },
        };
        Ok(WorkerStream { sender, receiver })
    }
}

impl WorkerStream {
    /// The two directions, for two tasks.
    pub fn split(self) -> (WorkerSender, WorkerReceiver) {
        (self.sender, self.receiver)
    }

    /// See [`WorkerReceiver::next`].
    pub async fn next(&mut self) -> Option<Result<NodeMessage, ClientError>> {
        self.receiver.next().await
    }

    /// See [`WorkerReceiver::received`].
    pub fn received(&self) -> u64 {
        self.receiver.received()
    }

    /// See [`WorkerReceiver::node`].
    pub fn node(&self) -> &NodeName {
        self.receiver.node()
    }

    /// See [`WorkerReceiver::node_number`].
    pub fn node_number(&self) -> usize {
        self.receiver.node_number()
    }

    /// See [`WorkerReceiver::url`].
    pub fn url(&self) -> &str {
        self.receiver.url()
    }

    /// See [`WorkerSender::heartbeat`].
    ///
    /// # Errors
    /// As there; so with `drain` and `close`.
    pub async fn heartbeat(&self, received: u64) -> Result<(), ClientError> {
        self.sender.heartbeat(received).await
    }

    /// See [`WorkerSender::drain`].
    pub async fn drain(&self) -> Result<(), ClientError> {
        self.sender.drain().await
    }

    /// See [`WorkerSender::close`].
    pub async fn close(&self) -> Result<(), ClientError> {
        self.sender.close().await
    }
}

impl WorkerSender {
    /// The worker lives, and has received the messages up to this number. The answer is [`NodeMessage::Extended`].
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when the connection is lost; so with all of these.
    pub async fn heartbeat(&self, received: u64) -> Result<(), ClientError> {
        self.send(&WorkerMessage::Heartbeat { received }).await
    }

    /// Nothing new from now on. The answer is [`NodeMessage::Draining`], behind the last of the work.
    pub async fn drain(&self) -> Result<(), ClientError> {
        self.send(&WorkerMessage::Drain).await
    }

    /// The session ends, and its rows with it. The answer is [`NodeMessage::Ended`].
    pub async fn close(&self) -> Result<(), ClientError> {
        self.send(&WorkerMessage::Close).await
    }

    async fn send(&self, message: &WorkerMessage) -> Result<(), ClientError> {
        let message = text(message)?;
        let send = async { self.sink.lock().await.send(message).await.map_err(|error| lost(&error)) };
        let late = |_| ClientError::Unreachable("the node takes nothing from this connection".to_owned());
        tokio::time::timeout(self.patience, send).await.map_err(late)?
    }
}

impl WorkerReceiver {
    /// The next message; the first is [`NodeMessage::Attached`]. None behind [`NodeMessage::Ended`] and behind an
    /// error. An error is retryable if attaching again may help, as it does when the connection was lost. May be dropped
    /// while it waits; nothing is lost.
    pub async fn next(&mut self) -> Option<Result<NodeMessage, ClientError>> {
        if self.ended {
            return None;
        }
        let message = match self.first.take() {
            Some(first) => Ok(first),
            None => self.read().await,
        };
        match &message {
            Ok(message) => match message.number() {
                Some(number) => self.received = number,
                None => self.ended = true,
            },
            Err(_) => self.ended = true,
        }
        Some(message)
    }

    async fn read(&mut self) -> Result<NodeMessage, ClientError> {
        loop {
            let silent = |_| ClientError::Unreachable(format!("{} fell silent", self.place.url));
            let read = timeout_at(self.heard + self.silence_max, read(&mut self.messages)).await.map_err(silent)??;
            self.heard = Instant::now();
            if let Some(message) = read {
                return Ok(message);
            }
        }
    }

    /// The number of the last message that [`WorkerReceiver::next`] gave: what a heartbeat confirms.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The node that the session is attached to.
    pub fn node(&self) -> &NodeName {
        &self.place.name
    }

    /// The node's place in the list that the client was made with.
    pub fn node_number(&self) -> usize {
        self.place.number
    }

    /// The node's URL.
    pub fn url(&self) -> &str {
        self.place.url.as_str()
    }
}

async fn connect(url: &Url) -> Result<Socket, ClientError> {
    // A client's URLs begin with `http://` and end with a slash.
    let address = format!("ws{}v1/sessions/stream", url.as_str().trim_start_matches("http"));
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .read_buffer_size(16 * 1024);
    match connect_async_with_config(address, Some(config), true).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => {
            let problem = response.body().as_ref().and_then(|body| serde_json::from_slice::<Problem>(body).ok());
            let status = response.status();
            Err(problem.map_or_else(
                || ClientError::Protocol(format!("status {status} instead of a worker's stream")),
                ClientError::from,
            ))
        }
        Err(error) => Err(lost(&error)),
    }
}

/// The next message; none for a ping, which is answered by the way.
async fn read(messages: &mut SplitStream<Socket>) -> Result<Option<NodeMessage>, ClientError> {
    let ended = || ClientError::Unreachable("the node ended the connection".to_owned());
    match messages.next().await.ok_or_else(ended)?.map_err(|error| lost(&error))? {
        Message::Text(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| ClientError::Protocol(format!("a message of the stream cannot be read: {error}"))),
        Message::Binary(_) => Err(ClientError::Protocol("a message of the stream is no text".to_owned())),
        Message::Close(_) => Err(ended()),
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
    }
}

async fn in_time<T>(
    url: &Url,
    deadline: Instant,
    step: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let late = |_| ClientError::Unreachable(format!("{url} did not answer in time"));
    timeout_at(deadline, step).await.map_err(late)?
}

fn text(message: &WorkerMessage) -> Result<Message, ClientError> {
    let text = serde_json::to_string(message);
    text.map(Message::text).map_err(|error| ClientError::Invalid(format!("the message cannot be written: {error}")))
}

/// What a broken connection is to the caller. Whatever the cause, a new connection may do better.
fn lost(error: &tungstenite::Error) -> ClientError {
    ClientError::Unreachable(crate::send::sentence(error))
}

/// Why a stream ended before it began.
fn not_attached(reason: Ended, problem: Option<Problem>) -> ClientError {
    match problem {
        Some(problem) => problem.into(),
        None => ClientError::Stopped(format!("the node ended the stream at once: {reason:?}")),
    }
}
