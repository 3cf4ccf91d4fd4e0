//! Programs that do as a test says: orders on their stdin, records on their stdout, one JSON value a line.
//!
//! `bin/engine-node.rs` is a node with the reference engine inside, `bin/worker.rs` a worker that is a process of its
//! own. Both run the same activities, so that it makes no difference to a story who holds a row, but for what the store
//! promises about it.

use std::io::{BufRead, Write as _};
use std::time::Duration;

use anyhow::Context;
use holdfast_client::{Client, Write};
use holdfast_machine::{BootId, ClaimToken, DispatchKey, Epoch, NodeName, Payload, ShardId, WorkflowId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

/// The task queue that the engines' own activities come from.
pub const QUEUE: &str = "engine";
/// The task queue that workers serve.
pub const WORKERS: &str = "workers";
/// Activities of this type end when the gate is opened.
pub const HOLD: &str = "hold";
/// Activities of this type end at once.
pub const WORK: &str = "work";
/// Activities of this type take a moment.
pub const NAP: &str = "nap";
/// As [`HOLD`], but a worker tells the outcome itself, whatever it has heard about its row meanwhile.
pub const STUBBORN: &str = "stubborn";

/// How long [`NAP`] takes.
const NAP_TIME: Duration = Duration::from_millis(50);
/// The pause before a call without an answer is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// What a test tells a program to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Open the gate: end what is held, and hold nothing from now on.
    Release,
    /// Shut the gate, as it is at the start. Both are answered with [`Record::Gate`].
    Hold,
    /// The engine hears nothing of its shards and takes no rows until [`Order::Hear`].
    Deaf,
    /// The engine hears of everything that has happened to its shards.
    Hear,
    /// Append a note under the last epoch that the engine heard of for the workflow's shard, whether or not
    /// it has lost the shard since. Answered with [`Record::Appended`].
    Append {
        /// The workflow.
        workflow: WorkflowId,
        /// Its head.
        expected_seq: u64,
        /// The note.
        text: String,
    },
}

/// What a program tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A node's process runs under this boot.
    Started {
        /// The boot.
        boot: BootId,
    },
    /// The gate was opened or shut.
    Gate {
        /// True if it was opened.
        open: bool,
    },
    /// [`Order::Deaf`] is obeyed.
    Deafened,
    /// The callback: the node owns a shard.
    Acquired {
        /// The shard.
        shard: ShardId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The callback: the node owns a shard no more.
    Lost {
        /// The shard.
        shard: ShardId,
        /// The epoch of the new ownership.
        epoch: Epoch,
        /// The new owner.
        new_owner: NodeName,
    },
    /// An execution has begun.
    Began {
        /// The row.
        key: DispatchKey,
        /// The claim.
        token: ClaimToken,
    },
    /// An execution of [`STUBBORN`] has told its outcome.
    Told {
        /// The row.
        key: DispatchKey,
        /// The claim.
        token: ClaimToken,
        /// The code of the refusal, if it was refused.
        refused: Option<String>,
    },
    /// What came of [`Order::Append`].
    Appended {
        /// The note.
        text: String,
        /// The epoch it was made under.
        epoch: Epoch,
        /// The code and the sentence of the refusal, if it was refused.
        refused: Option<(String, String)>,
    },
}

/// One execution of a row, as its record tells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Execution {
    /// The process.
    pub by: String,
    /// The row.
    pub key: DispatchKey,
    /// The claim.
    pub token: ClaimToken,
}

/// What holds activities of the type [`HOLD`].
#[derive(Debug, Clone)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Gate {
    /// Opens or shuts it.
    pub fn set(&self, open: bool) {
        self.0.send_replace(open);
        record(&Record::Gate { open });
    }

    /// Runs an activity: what it is given is its result.
    pub async fn run<T>(&self, activity: &str, key: &DispatchKey, token: ClaimToken, input: T) -> T {
        record(&Record::Began { key: key.clone(), token });
        match activity {
            HOLD | STUBBORN => {
                // This gate is one of those that keep the channel open.
                let _ = self.0.subscribe().wait_for(|open| *open).await;
            }
            NAP => tokio::time::sleep(NAP_TIME).await,
            _ => {}
        }
        input
    }
}

/// Tells the outcome of a row under a token until it is answered, and records the answer.
pub async fn tell_stubbornly(client: &Client, key: &DispatchKey, token: ClaimToken, result: Payload) {
    let refused = loop {
        match client.complete(key, Some(token), result.clone(), Write::default()).await {
            Ok(_) => break None,
            Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
            Err(error) => break Some(error.code().to_owned()),
        }
    };
    record(&Record::Told { key: key.clone(), token, refused });
}

/// Reads orders on a thread of its own: stdin has no other way to be waited for.
pub fn read_orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line).context("an order") {
                Ok(order) => drop(sender.send(order)),
                Err(error) => tracing::error!(%error, line, "not understood"),
            }
        }
    });
    orders
}

/// One line, written whole, so that a kill leaves no half of it behind.
pub fn record(record: &Record) {
    if let Ok(mut line) = serde_json::to_vec(record) {
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(&line).and_then(|()| stdout.flush());
        if let Err(error) = written {
            tracing::error!(%error, "a record is lost");
        }
    }
}
