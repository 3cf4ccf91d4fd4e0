//! Load whose calls are taken down: writers that grow workflows of their own and workers that complete rows, while
//! the cluster is being broken around them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_checkers::history::{Call, Recorder};
use holdfast_client::{Client, ClientOptions, Write};
use holdfast_machine::{Commit, DispatchKey, Payload, WorkflowId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::check::calls::{self, Judged};
use crate::recorded::{Recorded, Told};
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
    recorder: Arc<Recorder>,
    /// Acknowledged writes so far.
    progress: Arc<AtomicU64>,
    /// Writes that have no answer yet.
    under_way: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug, Clone)]
struct Hand {
    calls: Recorded,
    progress: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
}

impl Load {
    /// Starts `writers` writers and as many workers against all of these nodes.
    ///
    /// # Errors
    /// When a URL is none.
    pub fn start(urls: &[&str], writers: usize) -> Result<Self> {
        let mut load = Self {
            recorder: Arc::default(),
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
            let client = Client::with_options(urls, options.clone())?;
            let hand = |number| Hand {
                calls: Recorded {
                    number,
                    client: client.clone(),
                    recorder: Arc::clone(&load.recorder),
                    under_way: Arc::clone(&load.under_way),
                },
                progress: Arc::clone(&load.progress),
                stop: load.stop.subscribe(),
            };
            let (writer, worker) = (hand(2 * number as u64), hand(2 * number as u64 + 1));
            load.tasks.push(tokio::spawn(writer.write()));
            load.tasks.push(tokio::spawn(worker.work()));
        }
        Ok(load)
    }

    /// Acknowledged writes so far.
    pub fn written(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Waits until at least so many writes more are acknowledged than at the call.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn goes_on(&self, writes: u64) -> Result<()> {
        let before = self.written();
        wait_until("the load goes on", LONG, async || {
            let written = self.written() - before;
            ensure!(written >= writes, "{written} writes");
            Ok(())
        })
        .await
    }

    /// Writes that have no answer at this moment.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.recorder.history()
    }

    /// Ends the load; every call under way gets its answer first. Then all that was told is held against what is there.
    ///
    /// # Errors
    /// When a writer or a worker met an answer that should not be possible, or when the answers contradict each other.
    pub async fn stop(self, client: &Client) -> Result<Judged> {
        self.stop.send_replace(true);
        for task in self.tasks {
            task.await??;
        }
        calls::judge(client, self.recorder).await
    }
}

impl Hand {
    fn goes_on(&self) -> bool {
        !*self.stop.borrow()
    }

    fn count<T>(&self, told: &Told<T>) {
        self.progress.fetch_add(u64::from(matches!(told, Told::Done(_))), Ordering::Relaxed);
    }

    async fn write(self) -> Result<()> {
        for workflow in 0u64.. {
            if !self.goes_on() {
                break;
            }
            let id = work::id(&format!("load-{}-{workflow}", self.calls.number))?;
            self.grow(&id).await?;
        }
        Ok(())
    }

    /// Opens a workflow and adds notes to it.
    async fn grow(&self, id: &WorkflowId) -> Result<()> {
        let rows = (1..=ROWS).map(|ordinal| work::row(ordinal, "work", QUEUE)).collect::<Result<_>>()?;
        let mut opening = work::opening(id, rows)?;
        opening.events[0].payload = Payload::text(format!("{id} opens"));
        let opened = self.calls.commit(opening).await?;
        self.count(&opened);
        if !matches!(opened, Told::Done(_)) {
            // A note must not be what opens the workflow.
            return Ok(());
        }
        for number in 0..NOTES {
            if !self.goes_on() {
                break;
            }
            self.note(id, &format!("{id} note {number}")).await?;
        }
        self.calls.row(&DispatchKey { workflow: id.clone(), ordinal: 1 }).await
    }

    /// Adds one note behind whatever the history ends with; workers write to it as well.
    async fn note(&self, id: &WorkflowId, mark: &str) -> Result<()> {
        for attempt in 0u64.. {
            if !self.goes_on() {
                break;
            }
            let Some(events) = self.calls.history(id).await? else { continue };
            // Each attempt has words of its own: one that was refused must not be found.
            let note = work::note(&format!("{mark}, attempt {attempt}"));
            let told = self.calls.commit(Commit::new(id.clone(), events.len() as u64).event(note)).await?;
            self.count(&told);
            if matches!(told, Told::Done(_) | Told::Unknown) {
                break;
            }
        }
        Ok(())
    }

    async fn work(self) -> Result<()> {
        let claimant = format!("worker {}", self.calls.number);
        while self.goes_on() {
            let mut call = work::lease(QUEUE, 4, &claimant, LEASE_MS)?;
            call.wait_ms = 200;
            let Told::Done(deliveries) = self.calls.claim(call).await? else { continue };
            for delivery in deliveries {
                let mark = format!("{} done by {claimant} under {}", delivery.key, delivery.token);
                let told = self.calls.complete(&delivery, Payload::text(&mark)).await?;
                ensure!(told != Told::Done(None), "{} is gone", delivery.key);
                self.count(&told);
            }
        }
        Ok(())
    }
}

/// Completes what rows are left, and checks that then each row of the load has one outcome.
///
/// # Errors
/// When rows stay behind, or an invariant is broken.
pub async fn drain(client: &Client, workflows: &BTreeSet<WorkflowId>) -> Result<()> {
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
    for id in workflows {
        let history = check::workflow(client, id).await?;
        if !history.is_empty() {
            check::outcomes::exactly_one(id, &history, 1..=ROWS)?;
        }
    }
    Ok(())
}
