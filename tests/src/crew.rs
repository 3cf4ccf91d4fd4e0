//! Real workers in the test's own process, and a record of what they executed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_client::Client;
use holdfast_machine::{DispatchKey, WorkflowId};
use holdfast_worker::{Activity, ActivityError, Cancelled, Tally, Worker, WorkerError};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::engine::{HOLD, WORK};
use crate::wait::LONG;

/// Workers that keep one record.
#[derive(Debug, Clone, Default)]
pub struct Crew {
    executions: Arc<Mutex<Vec<Execution>>>,
}

/// An execution that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// By whom.
    pub worker: String,
    /// Of what.
    pub key: DispatchKey,
    /// The attempt that the worker was told of.
    pub attempt: u32,
    /// Why it was told to stop, if it was.
    pub cancelled: Option<Cancelled>,
}

/// A worker at work: rows of type [`WORK`] are completed at once, rows of type [`HOLD`] once it is told to let go.
#[derive(Debug)]
pub struct Hand {
    worker: JoinHandle<Result<Tally, WorkerError>>,
    counters: holdfast_worker::Counters,
    let_go: watch::Sender<bool>,
    end: oneshot::Sender<()>,
}

impl Crew {
    /// Sets a worker to work on a queue; `set_up` sets what else there is to be set.
    pub fn hire(&self, client: &Client, name: &str, queue: &str, set_up: impl FnOnce(Worker) -> Worker) -> Hand {
        let (let_go, gate) = watch::channel(false);
        let (end, ended) = oneshot::channel::<()>();
        let work = |held: bool| {
            let (record, worker, gate) = (self.clone(), name.to_owned(), gate.clone());
            move |activity: Activity, _: String| {
                let (record, worker, gate) = (record.clone(), worker.clone(), gate.clone());
                async move {
                    let place = record.begin(worker, &activity);
                    if held {
                        record.hold(place, &activity, gate).await?;
                    }
                    Ok("done")
                }
            }
        };
        let worker = Worker::new(client.clone())
            .identity(name)
            .task_queue(queue)
            .activity(WORK, work(false))
            .activity(HOLD, work(true))
            .cancel_grace(Duration::from_millis(200));
        let worker = set_up(worker);
        let counters = worker.counters();
        let worker = tokio::spawn(worker.run_until(async move { drop(ended.await) }));
        Hand { worker, counters, let_go, end }
    }

    /// The executions of a workflow's rows, in the order in which they began.
    pub fn executions(&self, id: &WorkflowId) -> Vec<Execution> {
        self.executions.lock().iter().filter(|execution| execution.key.workflow == *id).cloned().collect()
    }

    fn begin(&self, worker: String, activity: &Activity) -> usize {
        let (key, attempt) = (activity.key().clone(), activity.attempt());
        let mut executions = self.executions.lock();
        executions.push(Execution { worker, key, attempt, cancelled: None });
        executions.len() - 1
    }

    async fn hold(
        &self,
        place: usize,
        activity: &Activity,
        mut gate: watch::Receiver<bool>,
    ) -> Result<(), ActivityError> {
        tokio::select! {
            opened = gate.wait_for(|open| *open) => drop(opened?),
            why = activity.cancelled() => {
                self.executions.lock()[place].cancelled = Some(why);
                return Err(ActivityError::retryable("told to stop"));
            }
        }
        Ok(())
    }
}

impl Hand {
    /// What it has done so far.
    pub fn tally(&self) -> Tally {
        self.counters.tally()
    }

    /// Completes what it holds, and holds nothing from now on.
    pub fn let_go(&self) {
        self.let_go.send_replace(true);
    }

    /// It is gone, without a word to anybody.
    pub async fn kill(self) {
        self.worker.abort();
        // It was told to be gone, and is.
        let _ = self.worker.await;
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// When it does not end, or has ended before, with an error.
    pub async fn end(self) -> Result<Tally> {
        let _ = self.end.send(());
        let ended = tokio::time::timeout(LONG, self.worker).await.context("the worker goes on")?;
        Ok(ended??)
    }
}
