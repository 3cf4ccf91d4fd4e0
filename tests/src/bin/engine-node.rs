//! A node with the reference engine inside, for stories about what an engine holds and hears. Configured as `holdfast
//! serve` is, by its environment; told what to do on stdin; what it does is on stdout.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use holdfast_api::{Failure, Store, StoreError, Write};
use holdfast_engine::{Attempt, Engine, LocalActivities};
use holdfast_machine::{Epoch, Fence, ShardId, TaskQueue, WorkflowId};
use holdfast_node::{Node, ShardChange, ShardChanges};
use holdfast_tests::engine::{Gate, HOLD, NAP, Order, QUEUE, Record, WORK, read_orders, record};
use holdfast_tests::{programs, work};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

/// Rows that the engine holds at a time.
const CAPACITY: usize = 16;
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
    let (hearing, gate) = (watch::Sender::new(true), Gate::default());
    let puppet = Puppet { store: node.store(), shard_count, hearing, gate, epochs: Arc::default() };
    tokio::spawn(puppet.clone().hear(node.shards()));
    tokio::spawn(puppet.clone().take_rows(puppet.activities()?));
    tokio::spawn(puppet.obey(orders));
    tokio::select! {
        _ = holdfast_node::signalled() => node.shutdown().await,
        reason = node.failed() => anyhow::bail!(reason),
    }
    Ok(())
}

#[derive(Clone)]
struct Puppet {
    store: Store,
    shard_count: u32,
    /// False while the engine is deaf.
    hearing: watch::Sender<bool>,
    gate: Gate,
    /// The last epoch heard of for each shard, kept when the shard is lost.
    epochs: Arc<Mutex<BTreeMap<ShardId, Epoch>>>,
}

impl Puppet {
    async fn hears(&self, hears: bool) {
        // This sender keeps the channel open.
        let _ = self.hearing.subscribe().wait_for(|now| *now == hears).await;
    }

    async fn hear(self, mut changes: ShardChanges) -> Result<()> {
        let engine = Engine::new(self.store.clone(), programs::all()?);
        while let Some(change) = changes.next().await {
            self.hears(true).await;
            match change {
                ShardChange::Acquired { shard, epoch, .. } => {
                    self.epochs.lock().insert(shard, epoch);
                    engine.acquire(shard, epoch);
                    record(&Record::Acquired { shard, epoch });
                }
                ShardChange::Lost { shard, epoch, new_owner } => {
                    engine.lose(shard);
                    record(&Record::Lost { shard, epoch, new_owner });
                }
            }
        }
        Ok(())
    }

    fn activities(&self) -> Result<LocalActivities> {
        let mut activities = LocalActivities::new(self.store.clone(), TaskQueue::new(QUEUE)?).at_most(CAPACITY);
        for activity in [HOLD, WORK, NAP] {
            let gate = self.gate.clone();
            activities = activities.with(activity, move |Attempt { key, token, .. }, input: Value| {
                let gate = gate.clone();
                async move { Ok::<_, Failure>(gate.run(activity, &key, token, input).await) }
            })?;
        }
        Ok(activities)
    }

    async fn take_rows(self, activities: LocalActivities) {
        loop {
            self.hears(true).await;
            tokio::select! {
                ended = activities.clone().run() => return tracing::info!(?ended, "no more rows are taken"),
                () = self.hears(false) => record(&Record::Deafened),
            }
        }
    }

    async fn obey(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Release => self.gate.set(true),
                Order::Hold => self.gate.set(false),
                Order::Deaf => drop(self.hearing.send_replace(false)),
                Order::Hear => drop(self.hearing.send_replace(true)),
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
