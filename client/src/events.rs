//! The streams of cluster events and of heads, over as many connections and nodes as they take.
//!
//! Committed events have the same numbers on all nodes. When a connection breaks, the stream goes on
//! at the next node from the last number, so that nothing is missing and nothing comes twice; where a
//! node no longer has what is asked for, it says `lagged` and sends a fresh snapshot.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use reqwest::Response;
use reqwest::header::ACCEPT;
use tokio::time::{sleep, timeout};

use crate::calls::with_words;
use crate::client::Client;
use crate::error::ClientError;
use crate::send::{backoff, error_of, sentence};
use crate::sse::{Message, Reader};
use crate::wire::{EventId, EventMessage, HeadMessage, HeadScope, ReadMode};

/// A node sends at least a comment this often; one that is silent for longer is taken for gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// Messages, for ever. An error is told once for each time that no node could be reached in a whole
/// round; the stream goes on trying. It ends after an error that is not retryable.
pub struct MessageStream<M>(BoxStream<'static, Result<M, ClientError>>);

/// Cluster events.
pub type EventStream = MessageStream<EventMessage>;

/// The heads of histories that grow. After a connection broke there is a [`HeadMessage::Resync`].
pub type HeadStream = MessageStream<HeadMessage>;

impl<M> std::fmt::Debug for MessageStream<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageStream").finish_non_exhaustive()
    }
}

impl<M> Stream for MessageStream<M> {
    type Item = Result<M, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl Client {
    /// Cluster events: a snapshot of the topology, then facts; or, from a number, the facts above it.
    pub fn events(&self, from: Option<EventId>) -> EventStream {
        self.follow("/v1/events".to_owned(), from)
    }

    /// The heads of histories that grow, as they do.
    pub fn watch_heads(&self, scope: HeadScope) -> HeadStream {
        let HeadScope { shard, owner, namespace } = scope;
        let words = [
            ("shard", shard.map(|shard| shard.to_string())),
            ("owner", owner.map(|owner| owner.to_string())),
            ("namespace", namespace.map(|namespace| namespace.to_string())),
        ];
        self.follow(with_words("/v1/heads/watch".to_owned(), &words, ReadMode::Linearizable), None)
    }

    fn follow<M: StreamMessage>(&self, path: String, from: Option<EventId>) -> MessageStream<M> {
        let follower = Follower {
            client: self.clone(),
            path,
            last: from,
            first: self.shared.preferred(),
            attempt: 0,
            failures: 0,
            connection: None,
            ended: false,
        };
        let items = stream::unfold(follower, |mut follower| async move {
            let item = follower.next().await?;
            Some((item, follower))
        });
        MessageStream(items.boxed())
    }
}

/// What comes over a stream.
trait StreamMessage: Sized + Send + 'static {
    /// The message of this name and data; none for a name that is not known (yet).
    fn decode(name: &str, data: &str) -> serde_json::Result<Option<Self>>;
    /// Where a stream that has delivered this message resumes, if it can.
    fn id(&self) -> Option<EventId>;
}

impl StreamMessage for EventMessage {
    fn decode(name: &str, data: &str) -> serde_json::Result<Option<Self>> {
        Self::decode(name, data)
    }

    fn id(&self) -> Option<EventId> {
        self.id()
    }
}

impl StreamMessage for HeadMessage {
    fn decode(name: &str, data: &str) -> serde_json::Result<Option<Self>> {
        Self::decode(name, data)
    }

    fn id(&self) -> Option<EventId> {
        None
    }
}

struct Follower {
    client: Client,
    path: String,
    /// The last number that was delivered.
    last: Option<EventId>,
    first: usize,
    attempt: usize,
    failures: usize,
    connection: Option<Connection>,
    ended: bool,
}

struct Connection {
    response: Response,
    reader: Reader,
    ready: std::vec::IntoIter<Message>,
}

impl Follower {
    async fn next<M: StreamMessage>(&mut self) -> Option<Result<M, ClientError>> {
        while !self.ended {
            let error = match self.message::<M>().await {
                Ok(Some(message)) => {
                    self.failures = 0;
                    self.last = message.id().or(self.last);
                    return Some(Ok(message));
                }
                Ok(None) => continue,
                Err(error) => error,
            };
            self.connection = None;
            self.attempt = self.attempt.wrapping_add(1);
            self.failures += 1;
            self.ended = !error.is_retryable();
            let nodes = self.client.shared.nodes.len();
            if self.ended || self.failures.is_multiple_of(nodes) {
                sleep(if self.ended { Duration::ZERO } else { backoff(self.failures / nodes) }).await;
                return Some(Err(error));
            }
        }
        None
    }

    /// The next message of this connection; none for one that this version does not know.
    async fn message<M: StreamMessage>(&mut self) -> Result<Option<M>, ClientError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                none.insert(connect(&self.client, &self.path, self.first.wrapping_add(self.attempt), self.last).await?)
            }
        };
        let Message { name, data } = connection.next().await?;
        M::decode(&name, &data)
            .map_err(|error| ClientError::Protocol(format!("the stream's {name} cannot be read: {error}")))
    }
}

async fn connect(
    client: &Client,
    path: &str,
    attempt: usize,
    last: Option<EventId>,
) -> Result<Connection, ClientError> {
    let shared = &client.shared;
    let (node, url) = shared.node(0, attempt);
    let url = format!("{}{path}", url.as_str().trim_end_matches('/'));
    let mut request = shared.http.get(url).header(ACCEPT, "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last.to_string());
    }
    let unreachable = |what: String| ClientError::Unreachable(what);
    let response = timeout(shared.options.attempt_timeout, request.send())
        .await
        .map_err(|_| unreachable("no answer in time".to_owned()))?
        .map_err(|error| unreachable(sentence(&error)))?;
    let status = response.status();
    if !status.is_success() {
        return Err(error_of(status, response).await);
    }
    shared.prefer(node);
    Ok(Connection { response, reader: Reader::default(), ready: Vec::new().into_iter() })
}

impl Connection {
    async fn next(&mut self) -> Result<Message, ClientError> {
        loop {
            if let Some(message) = self.ready.next() {
                return Ok(message);
            }
            let chunk = timeout(SILENCE_MAX, self.response.chunk())
                .await
                .map_err(|_| ClientError::Unreachable("the event stream fell silent".to_owned()))?
                .map_err(|error| ClientError::Unreachable(sentence(&error)))?
                .ok_or_else(|| ClientError::Unreachable("the node ended the event stream".to_owned()))?;
            let messages = self.reader.push(&chunk).map_err(|error| ClientError::Protocol(error.0.to_owned()))?;
            self.ready = messages.into_iter();
        }
    }
}
