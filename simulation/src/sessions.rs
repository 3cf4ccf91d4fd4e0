//! A worker's session over the simulated network: what the socket of the HTTP API is elsewhere. Beneath both is the same
//! attachment.

use holdfast_machine::{ClaimToken, DispatchKey, SessionId, Worker};
use holdfast_node::api::{HeldRow, NodeMessage, Store};
use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::rpc::Talk;
use crate::world::World;

/// The first word of a worker: who it is, and what it has in hand.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attach {
    /// Its session.
    pub session: SessionId,
    /// What it registers as.
    pub worker: Worker,
    /// Rows that it is at work on.
    pub holding: Vec<(ClaimToken, DispatchKey)>,
}

/// What it says then.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Said {
    /// It lives, and has had all messages up to this one.
    Heartbeat {
        /// The number of the last message.
        received: u64,
    },
    /// Its session ends.
    Close,
}

/// What a node tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Told {
    /// Rows are its own now.
    Given(u64, Vec<(ClaimToken, DispatchKey)>),
    /// Rows are its own no more.
    Withdrawn(u64, Vec<ClaimToken>),
    /// Nothing about rows.
    Nothing(u64),
    /// The connection ends, for this reason.
    Ended(String),
}

impl Told {
    fn from(message: NodeMessage) -> Self {
        let number = message.number().unwrap_or_default();
        match message {
            NodeMessage::Deliveries { deliveries, .. } => {
                Self::Given(number, deliveries.into_iter().map(|row| (row.token, row.key)).collect())
            }
            NodeMessage::Withdrawn { rows, .. } => {
                Self::Withdrawn(number, rows.into_iter().map(|row| row.token).collect())
            }
            NodeMessage::Ended { reason, .. } => Self::Ended(format!("{reason:?}")),
            _ => Self::Nothing(number),
        }
    }
}

/// Serves a worker until its connection or its attachment ends.
pub async fn attend(mut talk: Talk, store: &Store, attach: Attach, world: &World) {
    let holding = attach.holding.into_iter().map(|(token, key)| HeldRow { key, token }).collect();
    let attachment = match store.attach(attach.session, attach.worker, holding).await {
        Ok(attachment) => attachment,
        Err(error) => {
            talk.say(&Told::Ended(error.to_string())).await;
            return;
        }
    };
    loop {
        tokio::select! {
            message = attachment.next() => {
                let Some(message) = message else { return };
                if world.draw(|random| random.chance(world.lost_replies)) {
                    world.record.count("session's connection lost");
                    return;
                }
                if !talk.say(&Told::from(message)).await {
                    return;
                }
            }
            // What fails, the attachment judges itself.
            said = talk.hear() => match said {
                Some(Said::Heartbeat { received }) => _ = attachment.heartbeat(received).await,
                Some(Said::Close) => _ = attachment.close().await,
                None => return,
            },
        }
    }
}
