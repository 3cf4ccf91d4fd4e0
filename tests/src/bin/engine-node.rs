//! A node with engines inside, for stories about what an engine holds and hears: the reference engine, which drives the
//! workflows of `holdfast_tests::story`, and a dispatcher that holds rows until it is told to let go. Configured as
//! `holdfast serve` is, by its environment; told what to do on stdin; what it does is on stdout.

use std::collections::BTreeMap;
use std::io::{BufRead, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_api::{ClaimCall, ClaimHolder, Delivery, Store, StoreError, Write};
use holdfast_engine::Engine;
use holdfast_machine::{Epoch, Fence, Payload, Scope, ShardId, TaskQueue, WorkflowId};
use holdfast_node::{Node, ShardChange, ShardChanges};
use holdfast_tests::engine::{HOLD, Order, QUEUE, Record};
use holdfast_tests::{story, work};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// How long a claim waits for work before it asks again.
const CLAIM_WAIT_MS: u64 = 30_000;
/// Rows taken at a time.
const CLAIM_LIMIT: u32 = 16;
/// The pause after a call that found no quorum.
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    let config = holdfast_node::config::load(None, Default::default())?;
    holdfast_node::telemetry::log_to_stderr(&config.log);
    let shard_count = config.shard_count;
    let orders = read_orders();
    let node = Node::start(config).await?;
    record(&Record::Started { boot: node.boot().clone() });
    let (release, released) = watch::channel(false);
    let workflows = Engine::new(node.store(), story::programs()?);
    let dispatcher = Dispatcher { store: node.store(), shard_count, released, epochs: Arc::default() };
    tokio::spawn(dispatcher.clone().hear(node.shards(), workflows));
    tokio::spawn(dispatcher.clone().take_rows());
    tokio::spawn(dispatcher.obey(orders, release));
    tokio::select! {
        _ = holdfast_node::signalled() => node.shutdown().await,
        reason = node.failed() => anyhow::bail!(reason),
    }
    Ok(())
}

#[derive(Clone)]
struct Dispatcher {
    store: Store,
    shard_count: u32,
    released: watch::Receiver<bool>,
    /// The last epoch heard of for each shard, kept when the shard is lost.
    epochs: Arc<Mutex<BTreeMap<ShardId, Epoch>>>,
}

impl Dispatcher {
    async fn hear(self, mut changes: ShardChanges, workflows: Engine) {
        while let Some(change) = changes.next().await {
            match change {
                ShardChange::Acquired { shard, epoch, .. } => {
                    self.epochs.lock().insert(shard, epoch);
                    workflows.acquire(shard, epoch);
                    record(&Record::Acquired { shard, epoch });
                }
                ShardChange::Lost { shard, epoch, new_owner } => {
                    workflows.lose(shard);
                    record(&Record::Lost { shard, epoch, new_owner });
                }
            }
        }
    }

    async fn take_rows(self) {
        loop {
            match self.claim().await {
                Ok(deliveries) => deliveries.into_iter().for_each(|delivery| {
                    tokio::spawn(self.clone().execute(delivery));
                }),
                Err(error) => {
                    tracing::debug!(%error, "a claim failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn claim(&self) -> Result<Vec<Delivery>> {
        let scope = Scope {
            namespace: Default::default(),
            task_queue: TaskQueue::new(QUEUE)?,
            activity_types: Vec::new(),
            node: Some(self.store.node().clone()),
        };
        let call = ClaimCall {
            scope,
            limit: CLAIM_LIMIT,
            holder: ClaimHolder::Node,
            hold: Vec::new(),
            wait_ms: CLAIM_WAIT_MS,
        };
        Ok(self.store.claim(call, Write::default()).await?.value)
    }

    async fn execute(mut self, delivery: Delivery) {
        let Delivery { key, token, activity_type, .. } = delivery;
        record(&Record::Began { key: key.clone(), token });
        if activity_type.as_str() == HOLD && self.released.wait_for(|released| *released).await.is_err() {
            return;
        }
        let refused = loop {
            let result = Payload::text(format!("by {} under {token}", self.store.node()));
            match self.store.complete(&key, Some(token), result, Write::default()).await {
                Ok(_) => break None,
                Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
                Err(error) => break Some(error.code().to_owned()),
            }
        };
        record(&Record::Ended { key, token, refused });
    }

    async fn obey(self, mut orders: mpsc::UnboundedReceiver<Order>, release: watch::Sender<bool>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Release => {
                    release.send_replace(true);
                }
                Order::Append { workflow, expected_seq, text } => self.append(workflow, expected_seq, text).await,
            }
        }
    }

    async fn append(&self, workflow: WorkflowId, expected_seq: u64, text: String) {
        let shard = ShardId::of(&workflow, self.shard_count);
        let epoch = self.epochs.lock().get(&shard).copied().unwrap_or_default();
        let fence = Fence { owner: self.store.node().clone(), epoch };
        let answer: Result<_, StoreError> = loop {
            let store = self.store.with_fence(fence.clone());
            match store.append(&workflow, expected_seq, vec![work::note(&text)], Write::default()).await {
                Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
                answer => break answer,
            }
        };
        let refused = answer.err().map(|error| (error.code().to_owned(), error.to_string()));
        record(&Record::Appended { text, epoch, refused });
    }
}

/// Reads orders on a thread of its own: stdin has no other way to be waited for.
fn read_orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).context("an order");
            match order {
                Ok(order) => drop(sender.send(order)),
                Err(error) => tracing::error!(%error, line, "not understood"),
            }
        }
    });
    orders
}

/// One line, written whole, so that a kill leaves no half of it behind.
fn record(record: &Record) {
    if let Ok(mut line) = serde_json::to_vec(record) {
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(&line).and_then(|()| stdout.flush());
        if let Err(error) = written {
            tracing::error!(%error, "a record is lost");
        }
    }
}
