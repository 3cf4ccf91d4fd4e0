//! A worker's stream once it is open: messages in and out of an [`Attachment`].
//!
//! Two things go on beside each other: what is to be said is made and sent, one message at a time, and what comes in is
//! read. Neither waits for the other, so that a worker that reads slowly can still be heard, and the other way round.
//! Nothing is gathered here: a message is made when the one before it was taken.

use std::time::Duration;

use axum::Error;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use holdfast_client::Problem;
use holdfast_client::wire::{Ended, NodeMessage, WorkerMessage};
use holdfast_machine::Reject;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::attachment::Attachment;
use crate::error::StoreError;
use crate::store::Store;

/// The largest message of a worker, in bytes: a registration, and the rows that it is at work on.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Beyond this a message is not even read, and the connection is cut.
const READ_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// What is set aside for reading on each connection; most of what workers say is short.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// The first message has to be there by then.
const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// Pings keep a connection open that says nothing, and find one that is dead.
const PING_EVERY_MAX: Duration = Duration::from_secs(10);
/// A peer that has not even answered a ping for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);
const SILENCE_MIN: Duration = Duration::from_secs(2);
/// How long the peer may take to read the last message.
const PARTING_MAX: Duration = Duration::from_secs(2);

/// What comes in.
enum Heard {
    Said(WorkerMessage),
    /// Something that is no message, and what is wrong with it.
    Nonsense(Problem),
    /// A ping, or the answer to one.
    Breath,
}

type Sink = SplitSink<WebSocket, Message>;
type Messages = SplitStream<WebSocket>;

/// The same upgrade with the limits of this stream.
pub(super) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade.max_message_size(READ_BYTES_MAX).max_frame_size(READ_BYTES_MAX).read_buffer_size(READ_BUFFER_BYTES)
}

/// Serves one worker until its stream ends.
pub(super) async fn serve(store: Store, socket: WebSocket) {
    let (mut sink, mut messages) = socket.split();
    let attachment = match attach(&store, &mut messages).await {
        Ok(attachment) => attachment,
        Err(Some(ended)) => return part(sink, messages, Some(ended)).await,
        Err(None) => return,
    };
    let mut speaking = Box::pin(speak(&attachment, &mut sink));
    let last = tokio::select! {
        last = &mut speaking => last,
        is_there = listen(&attachment, &mut messages) => match is_there {
            // The attachment has the last word, if the peer still takes it.
            true => timeout(PARTING_MAX, speaking.as_mut()).await.ok().flatten(),
            false => None,
        },
    };
    drop(speaking);
    drop(attachment);
    if last.is_some() {
        part(sink, messages, last).await;
    }
}

/// Attaches the session that the first message names. Otherwise what to say to the peer, if it is still there.
async fn attach(store: &Store, messages: &mut Messages) -> Result<Attachment, Option<NodeMessage>> {
    let refused = |problem| Some(ended(Ended::Refused, Some(problem)));
    let mut closed = store.shared.closed.subscribe();
    let first = async {
        loop {
            match frame(messages).await {
                Some(Heard::Breath) => {}
                first => return first,
            }
        }
    };
    let first = tokio::select! {
        first = timeout(ATTACH_WITHIN, first) => first,
        _ = closed.wait_for(|closed| *closed) => return Err(Some(ended(Ended::NodeStopping, None))),
    };
    match first.map_err(|_| refused(invalid("the first message did not come in time")))?.ok_or(None)? {
        Heard::Said(WorkerMessage::Attach { session, worker, holding }) => {
            let attached = store.attach(session, worker, holding).await;
            attached.map_err(|error| {
                let reason = if error.is_retryable() { Ended::NodeStopping } else { Ended::Refused };
                Some(ended(reason, Some(error.problem())))
            })
        }
        Heard::Nonsense(problem) => Err(refused(problem)),
        _ => Err(refused(invalid("the first message must be `attach`"))),
    }
}

/// Says what is to be said, up to the last message, which it gives back unsaid. None if the peer is gone.
async fn speak(attachment: &Attachment, sink: &mut Sink) -> Option<NodeMessage> {
    let mut pings = interval(attachment.heartbeat_every().clamp(SILENCE_MIN / 4, PING_EVERY_MAX));
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = attachment.next() => match message? {
                last @ NodeMessage::Ended { .. } => return Some(last),
                message => text(&message),
            },
            _ = pings.tick() => Message::Ping(Default::default()),
        };
        // Whoever takes nothing for a whole lease has lost the session.
        timeout(attachment.lease(), sink.send(message)).await.ok()?.ok()?;
    }
}

/// Hears the worker until it is gone (false), or nothing more is to be heard because the attachment has ended (true).
async fn listen(attachment: &Attachment, messages: &mut Messages) -> bool {
    let silence = attachment.lease().clamp(SILENCE_MIN, SILENCE_MAX);
    while !attachment.has_ended() {
        let Ok(Some(heard)) = timeout(silence, frame(messages)).await else { return false };
        let done = match heard {
            Heard::Breath => Ok(()),
            Heard::Said(WorkerMessage::Heartbeat { received }) => attachment.heartbeat(received).await,
            Heard::Said(WorkerMessage::Drain) => attachment.drain().await,
            Heard::Said(WorkerMessage::Close) => attachment.close().await,
            Heard::Said(WorkerMessage::Attach { .. }) => {
                attachment.refuse(invalid("the session is attached already"));
                Ok(())
            }
            Heard::Nonsense(problem) => {
                attachment.refuse(problem);
                Ok(())
            }
        };
        // What fails in another way, the attachment judges itself.
        if let Err(StoreError::Reject(reject @ Reject::InvalidArgument { .. })) = done {
            attachment.refuse(StoreError::from(reject).problem());
        }
    }
    true
}

/// Says goodbye, and waits a moment for the peer to read it: data that came unread would make the operating system
/// discard what was sent.
async fn part(mut sink: Sink, mut messages: Messages, last: Option<NodeMessage>) {
    let parting = async {
        if let Some(last) = last {
            sink.send(text(&last)).await?;
        }
        sink.send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: Default::default() }))).await?;
        while messages.next().await.is_some_and(|read| read.is_ok()) {}
        Ok::<(), Error>(())
    };
    // A peer that does not take it has seen that the connection is gone.
    let _ = timeout(PARTING_MAX, parting).await;
}

/// The next frame; none when the peer is gone.
async fn frame(messages: &mut Messages) -> Option<Heard> {
    Some(match messages.next().await?.ok()? {
        Message::Text(text) if text.len() > MESSAGE_BYTES_MAX => {
            let (what, limit, actual) = ("the size of a message", MESSAGE_BYTES_MAX as u64, text.len() as u64);
            let too_large = Reject::LimitExceeded { what: what.to_owned(), limit, actual };
            Heard::Nonsense(StoreError::from(too_large).problem())
        }
        Message::Text(text) => match serde_json::from_str(&text) {
            Ok(message) => Heard::Said(message),
            Err(error) => Heard::Nonsense(invalid(format!("the message cannot be read: {error}"))),
        },
        Message::Binary(_) => Heard::Nonsense(invalid("a message must be a text")),
        Message::Ping(_) | Message::Pong(_) => Heard::Breath,
        Message::Close(_) => return None,
    })
}

fn text(message: &NodeMessage) -> Message {
    // A message of plain values is always JSON.
    Message::text(serde_json::to_string(message).unwrap_or_default())
}

fn ended(reason: Ended, problem: Option<Problem>) -> NodeMessage {
    NodeMessage::Ended { reason, problem }
}

fn invalid(what: impl Into<String>) -> Problem {
    StoreError::from(Reject::InvalidArgument { what: what.into() }).problem()
}
