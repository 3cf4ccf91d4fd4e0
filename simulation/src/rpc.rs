//! What clients and nodes say to each other: one question and one answer at a time on a connection. The node's HTTP API
//! knows only the operating system's network, so a simulation has this instead; beneath both is the same store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use holdfast_machine::{HistoryEvent, Millis, NodeName, ReadMode, Reject, Reply, Request, WorkflowId};
use holdfast_node::api::Store;
use holdfast_raft::{Handle, ProposeError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use turmoil::net::{TcpListener, TcpStream};

use crate::draw::Draw;
use crate::host::Host;
use crate::sessions::{self, Attach};
use crate::world::World;

/// Where nodes listen to clients.
pub const PORT: u16 = 7600;
/// Events in one page of a history.
const PAGE: u32 = 1_000;

/// A question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ask {
    /// A write.
    Propose(Request),
    /// A history, as it is at the leader.
    History(WorkflowId),
    /// Hand the leadership over.
    Transfer(u64),
    /// Let a node that lost its data in again.
    Replace(NodeName),
    /// From now on the connection is a worker's session.
    Attach(Attach),
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    /// The write is in the log.
    Committed {
        /// Where.
        index: u64,
        /// Log time there.
        at: Millis,
        /// What the state machine says to it.
        reply: Result<Reply, Reject>,
    },
    /// The history, as of a log index.
    History(u64, Vec<HistoryEvent>),
    /// It was done.
    Done,
    /// Nothing was done, for this reason.
    Refused(String),
    /// It may have been done.
    Unknown,
}

/// A connection over which values go.
pub struct Talk(Framed<TcpStream, LengthDelimitedCodec>);

impl Talk {
    /// Over this stream.
    pub fn over(stream: TcpStream) -> Self {
        let codec = LengthDelimitedCodec::builder().max_frame_length(64 * 1024 * 1024).new_codec();
        Self(Framed::new(stream, codec))
    }

    /// Sends a value; false if the connection is gone.
    pub async fn say(&mut self, value: &impl Serialize) -> bool {
        match postcard::to_stdvec(value) {
            Ok(bytes) => self.0.send(Bytes::from(bytes)).await.is_ok(),
            Err(_) => false,
        }
    }

    /// The next value; none if the connection is gone.
    pub async fn hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        postcard::from_bytes(&self.0.next().await?.ok()?).ok()
    }
}

/// Answers clients until the node's process ends.
pub async fn serve(store: Store, node: Handle, host: Arc<Host>, world: Arc<World>) -> std::io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (store, node, host, world) = (store.clone(), node.clone(), host.clone(), world.clone());
        tokio::spawn(async move {
            let mut talk = Talk::over(stream);
            while let Some(ask) = talk.hear().await {
                if let Ask::Attach(attach) = ask {
                    return sessions::attend(talk, &store, attach, &world).await;
                }
                let answer = answer(&store, &node, ask).await;
                if world.draw(|random| random.chance(world.lost_replies)) {
                    world.record.count("reply lost");
                    world.record.note(format_args!("{} loses a reply", host.name));
                    return;
                }
                if !talk.say(&answer).await {
                    return;
                }
            }
        });
    }
}

async fn answer(store: &Store, node: &Handle, ask: Ask) -> Answer {
    match ask {
        Ask::Propose(request) => match node.propose(request).await {
            Ok(committed) => Answer::Committed { index: committed.index, at: committed.at, reply: committed.reply },
            Err(ProposeError::Unknown) => Answer::Unknown,
            Err(error) => Answer::Refused(error.to_string()),
        },
        Ask::History(workflow) => match store.history(&workflow, 1, PAGE, ReadMode::Linearizable).await {
            Ok(answer) => Answer::History(answer.index, answer.value),
            Err(error) => Answer::Refused(error.to_string()),
        },
        Ask::Transfer(to) => match node.transfer_leader(to).await {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Refused(error.to_string()),
        },
        Ask::Replace(name) => match store.replace_member(&name, false).await {
            Ok(_) => Answer::Done,
            Err(error) => Answer::Refused(error.to_string()),
        },
        Ask::Attach(_) => Answer::Refused("that is a connection of its own".to_owned()),
    }
}

/// How long a client waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);
