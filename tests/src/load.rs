//! Load with a ledger: writers that grow workflows of their own and workers that complete rows, while the
//! cluster is being broken around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ClientError, ClientOptions, ReadMode, Write};
use holdfast_machine::{Payload, WorkflowId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::check::ledger::{Ledger, Told};
use crate::wait::{LONG, wait_until};
use crate::{check, work};

/// The task queue of the load's rows.
pub const QUEUE: &str = "load";
/// Rows that each workflow of the load opens with.
pub const ROWS: u64 = 2;
/// Notes that a writer adds to one workflow before it opens the next.
const NOTES: u64 = 8;
/// A worker that is not heard of for this long loses its rows; short, so that rows of calls whose answer was
/// lost come back while the story runs.
const LEASE_MS: u64 = 2_000;

/// Running writers and workers.
#[derive(Debug)]
pub struct Load {
    ledger: Arc<Ledger>,
    /// Acknowledged writes so far.
    progress: Arc<AtomicU64>,
    /// Calls that have no answer yet.
    under_way: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug, Clone)]
struct Hand {
    number: usize,
    client: Client,
    ledger: Arc<Ledger>,
    progress: Arc<AtomicU64>,
    under_way: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
}

impl Load {
    /// Starts `writers` writers and as many workers against all of these nodes.
    ///
    /// # Errors
    /// When a URL is none.
    pub fn start(urls: &[&str], writers: usize) -> Result<Self> {
        let mut load = Self {
            ledger: Arc::default(),
            progress: Arc::default(),
            under_way: Arc::default(),
            stop: watch::Sender::new(false),
            tasks: Vec::new(),
        };
        // A call may outlast a restart of everything; what it does not outlast becomes an unknown outcome.
        let options = ClientOptions {
            deadline: Duration::from_secs(4),
            attempt_timeout: Duration::from_secs(3),
            ..ClientOptions::default()
        };
        for number in 0..writers {
            // Each begins at another node.
            let mut urls = urls.to_vec();
            let places = urls.len();
            urls.rotate_left(number % places);
            let hand = Hand {
                number,
                client: Client::with_options(urls, options.clone())?,
                ledger: Arc::clone(&load.ledger),
                progress: Arc::clone(&load.progress),
                under_way: Arc::clone(&load.under_way),
                stop: load.stop.subscribe(),
            };
            load.tasks.push(tokio::spawn(hand.clone().write()));
            load.tasks.push(tokio::spawn(hand.work()));
        }
        Ok(load)
    }

    /// What was written.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Acknowledged writes so far.
    pub fn written(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Writes that have no answer at this moment.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Ends the load; every call under way gets its answer first.
    ///
    /// # Errors
    /// When a writer or a worker met an answer that should not be possible.
    pub async fn stop(self) -> Result<Arc<Ledger>> {
        self.stop.send_replace(true);
        for task in self.tasks {
            task.await??;
        }
        Ok(self.ledger)
    }
}

impl Hand {
    fn goes_on(&self) -> bool {
        !*self.stop.borrow()
    }

    /// The answer of a write, which counts as under way until it is there.
    async fn answer<T>(&self, call: impl Future<Output = T>) -> T {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let answer = call.await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    fn enter(&self, workflow: &WorkflowId, mark: &str, told: Told) {
        self.ledger.enter(workflow, mark, told);
        if matches!(told, Told::Written(_)) {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn write(self) -> Result<()> {
        for workflow in 0u64.. {
            if !self.goes_on() {
                break;
            }
            let id = work::id(&format!("load-{}-{workflow}", self.number))?;
            self.grow(&id).await?;
        }
        Ok(())
    }

    /// Opens a workflow and adds notes to it.
    async fn grow(&self, id: &WorkflowId) -> Result<()> {
        let rows = (1..=ROWS).map(|ordinal| work::row(ordinal, "work", QUEUE)).collect::<Result<_>>()?;
        let mut opening = work::opening(id, rows)?;
        let mark = format!("{id} opens");
        opening.events[0].payload = Payload::text(&mark);
        let opened = self.answer(self.client.commit(opening, Write::default())).await;
        // The mark is on the first event.
        let told = told(opened.map(|_| 1))?;
        self.enter(id, &mark, told);
        if !matches!(told, Told::Written(_)) {
            // A note must not be what opens the workflow.
            return Ok(());
        }
        for number in 0..NOTES {
            if !self.goes_on() {
                break;
            }
            self.note(id, &format!("{id} note {number}")).await?;
        }
        Ok(())
    }

    /// Adds one note behind whatever the history ends with; workers write to it as well.
    async fn note(&self, id: &WorkflowId, mark: &str) -> Result<()> {
        let mut end = Told::Refused;
        while self.goes_on() {
            let Some(head) = self.head(id).await else { continue };
            let append = self.client.append(id, head, vec![work::note(mark)], Write::default());
            let answer = self.answer(append).await;
            end = told(answer.map(|committed| committed.value.head))?;
            if end != Told::Refused {
                break;
            }
        }
        self.enter(id, mark, end);
        Ok(())
    }

    async fn head(&self, id: &WorkflowId) -> Option<u64> {
        let view = self.client.workflow(id, ReadMode::Linearizable).await.ok()?;
        Some(view.value.workflow.map_or(0, |workflow| workflow.head))
    }

    async fn work(self) -> Result<()> {
        let claimant = format!("worker {}", self.number);
        while self.goes_on() {
            let mut call = work::lease(QUEUE, 4, &claimant, LEASE_MS)?;
            call.wait_ms = 200;
            let Ok(deliveries) = self.client.claim(call, Write::default()).await else { continue };
            for delivery in deliveries.value {
                let mark = format!("{} done by {claimant} under {}", delivery.key, delivery.token);
                let result = Payload::text(&mark);
                let complete = self.client.complete(&delivery.key, Some(delivery.token), result, Write::default());
                let answer = self.answer(complete).await.map(|completed| completed.value);
                let told = match answer {
                    Ok(None) => anyhow::bail!("{} is gone", delivery.key),
                    Ok(Some(seq)) => told(Ok(seq))?,
                    Err(error) => told(Err(error))?,
                };
                self.enter(&delivery.key.workflow, &mark, told);
            }
        }
        Ok(())
    }
}

/// Completes what rows are left, and checks that then each row of the load has one outcome.
///
/// # Errors
/// When rows stay behind, or an invariant is broken.
pub async fn drain(client: &Client, ledger: &Ledger) -> Result<()> {
    wait_until("no row is left", LONG, async || {
        let call = work::lease(QUEUE, 100, "the last worker", work::LONG_LEASE_MS)?;
        for delivery in client.claim(call, Write::default()).await?.value {
            work::complete(client, &delivery, "at last").await?;
        }
        let rows = client.cluster().await?.value.rows;
        ensure!(rows.pending + rows.claimed == 0, "{rows:?}");
        Ok(())
    })
    .await?;
    for id in ledger.workflows() {
        let history = check::workflow(client, &id).await?;
        if !history.is_empty() {
            check::outcomes::exactly_one(&id, &history, 1..=ROWS)?;
        }
    }
    Ok(())
}

/// What an answer says of a write. A refusal or a failure to reach anybody means that nothing was written.
fn told(answer: Result<u64, ClientError>) -> Result<Told> {
    Ok(match answer {
        Ok(seq) => Told::Written(seq),
        Err(ClientError::Unknown(_)) => Told::Unknown,
        Err(ClientError::Reject(_)) => Told::Refused,
        Err(error) if error.is_retryable() => Told::Refused,
        Err(error) => return Err(error).context("an answer that no story expects"),
    })
}
