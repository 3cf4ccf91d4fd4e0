//! Workers: programs that execute activities, each attached to one node by HTTP.
//!
//! They hold their rows by plain leases and keep them alive with heartbeats. When the node that a worker
//! is attached to dies, the worker goes on at another one, with the same rows under the same tokens:
//! nothing that a worker is doing is done twice because a storage node died.

use std::time::Duration;

use anyhow::Context as _;
use holdfast_client::{ClaimCall, ClaimHolder, Client, ClientError, Delivery, Write};
use holdfast_machine::{Claimant, NodeName, Payload, Reject, Scope};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ledger::{Executor, Ledger, Outcome};
use super::plan::{ActivityResult, Names, worker_work};

/// How many workers there are; worker number n is attached to node n modulo the number of nodes.
const WORKERS: usize = 6;
/// How many rows a worker executes at a time.
const CAPACITY: usize = 3;
/// How long a lease lasts without a heartbeat: far longer than a failover.
const LEASE_MS: u64 = 10_000;
/// Between two heartbeats of one execution.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// How long a claim waits for work.
const WAIT_MS: u64 = 1_000;
/// Before a claim is repeated that no node could answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Running workers. Dropping them ends them.
#[derive(Debug)]
pub(crate) struct Workers(JoinSet<anyhow::Result<()>>);

impl Workers {
    /// Starts the workers on the nodes at these URLs.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn start(urls: &[String], names: &Names, ledger: &Ledger) -> anyhow::Result<Self> {
        let mut workers = JoinSet::new();
        for number in 1..=WORKERS {
            // Its own node comes first; the others are where it moves on to.
            let mut nodes = urls.to_vec();
            nodes.rotate_left(number % urls.len());
            let worker = Worker {
                number,
                name: format!("worker-{number}"),
                client: Client::new(nodes)?,
                names: names.clone(),
                ledger: ledger.clone(),
            };
            for _ in 0..CAPACITY {
                workers.spawn(worker.clone().lane());
            }
        }
        Ok(Self(workers))
    }

    /// Fails if a worker has given up.
    ///
    /// # Errors
    /// What the worker ran into.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.0.try_join_next() {
            Some(ended) => ended.context("a worker panicked")?.context("a worker gave up"),
            None => Ok(()),
        }
    }
}

/// True if this executor is a worker.
pub(crate) fn is_worker(by: &Executor) -> bool {
    matches!(by, Executor::Worker(_))
}

/// True if this executor is the engine of that node.
pub(crate) fn is_engine_of<'a>(node: &'a NodeName) -> impl Fn(&Executor) -> bool + 'a {
    move |by| matches!(by, Executor::Engine(name) if name == node)
}

#[derive(Debug, Clone)]
struct Worker {
    number: usize,
    name: String,
    client: Client,
    names: Names,
    ledger: Ledger,
}

impl Worker {
    /// Takes a row, executes it, and takes the next; a worker runs several of these.
    async fn lane(self) -> anyhow::Result<()> {
        loop {
            for delivery in self.claim().await? {
                self.ledger.began(Executor::Worker(self.number), delivery.key.clone(), delivery.token);
                self.execute(delivery).await?;
            }
        }
    }

    async fn claim(&self) -> anyhow::Result<Vec<Delivery>> {
        let call = ClaimCall {
            scope: Scope {
                namespace: self.names.namespace.clone(),
                task_queue: self.names.worker_queue.clone(),
                activity_types: Vec::new(),
                node: None,
            },
            limit: 1,
            holder: ClaimHolder::Lease { claimant: Claimant::new(&self.name)?, lease_ms: LEASE_MS },
            hold: Vec::new(),
            wait_ms: WAIT_MS,
        };
        match self.client.claim(call, Write::default()).await {
            Ok(answer) => Ok(answer.value),
            Err(error) if error.is_retryable() => {
                sleep(PAUSE).await;
                Ok(Vec::new())
            }
            Err(error) => Err(error).with_context(|| format!("{} could not claim", self.name)),
        }
    }

    async fn execute(&self, delivery: Delivery) -> anyhow::Result<()> {
        let Delivery { key, token, .. } = &delivery;
        tokio::select! {
            () = sleep(worker_work(key)) => {}
            () = self.keep_alive(&delivery) => {}
        }
        let result = ActivityResult { token: *token, by: self.name.clone() };
        let answer = self.client.complete(key, Some(*token), result.payload(), Write::default()).await;
        let outcome = match answer {
            Ok(answer) => answer.value.map_or(Outcome::Absorbed, |seq| Outcome::Acknowledged { seq }),
            Err(ClientError::Reject(Reject::AlreadyTerminal { .. } | Reject::ClaimLost { .. })) => Outcome::Absorbed,
            Err(error) => return Err(error).with_context(|| format!("{} could not complete {key}", self.name)),
        };
        self.ledger.ended(key, *token, outcome);
        Ok(())
    }

    /// Extends the lease for ever. A heartbeat that is not answered is followed by the next one: the
    /// lease outlives many of them.
    async fn keep_alive(&self, delivery: &Delivery) {
        loop {
            sleep(HEARTBEAT).await;
            let details = Payload::text("at work");
            let beat = self.client.heartbeat(&delivery.key, delivery.token, LEASE_MS, details, Write::default());
            if let Err(error) = beat.await {
                tracing::debug!(key = %delivery.key, %error, "heartbeat");
            }
        }
    }
}
