//! What a handler is told of its execution, and what it may say while it works.

use std::future::Future;
use std::sync::Arc;

use holdfast_client::{Client, ClientError, Delivery, ReadMode};
use holdfast_machine::{ActivityType, ClaimToken, DispatchKey, Namespace, Payload, RowStatus, RunId, TaskQueue};
use serde::Serialize;
use tokio::sync::watch;

/// Why an execution is to stop. Whatever it returns after that counts for nothing, but for a result in
/// [`Cancelled::Stopping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The row was taken away: its workflow ended, it timed out, somebody else recorded its outcome. Where it stood
    /// then; none if it was removed.
    Withdrawn(Option<RowStatus>),
    /// The worker was out of reach for longer than its session's lease; its rows are handed out again.
    SessionOver,
    /// The worker stops. A result that comes soon is still recorded; a row without one goes back to the queue.
    Stopping,
}

/// What is known of an execution from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub cancelled: Option<Cancelled>,
    pub paused: bool,
}

/// One execution of an activity. Clones are the same execution.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    delivery: Delivery,
    client: Client,
    standing: watch::Receiver<Standing>,
    details: watch::Sender<Option<Payload>>,
}

impl Activity {
    pub(crate) fn new(delivery: Delivery, client: Client, standing: watch::Receiver<Standing>) -> Self {
        Self(Arc::new(Inner { delivery, client, standing, details: watch::Sender::new(None) }))
    }

    /// The row's key: the same for all attempts, and for no other activity.
    pub fn key(&self) -> &DispatchKey {
        &self.0.delivery.key
    }

    /// The claim that it is executed under: another one each time that the row is given out.
    pub fn token(&self) -> ClaimToken {
        self.0.delivery.token
    }

    /// What is run.
    pub fn activity_type(&self) -> &ActivityType {
        &self.0.delivery.activity_type
    }

    /// The activity's attempt, from 1. It grows when an attempt fails, and not when a worker dies.
    pub fn attempt(&self) -> u32 {
        self.0.delivery.attempt
    }

    /// How often the row came back before: failed or handed back.
    pub fn deliveries(&self) -> u32 {
        self.0.delivery.deliveries
    }

    /// The run of the workflow that staged the row.
    pub fn run_id(&self) -> &RunId {
        &self.0.delivery.run_id
    }

    /// The workflow's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.0.delivery.namespace
    }

    /// The queue that the row came from.
    pub fn task_queue(&self) -> &TaskQueue {
        &self.0.delivery.task_queue
    }

    /// The input as it was staged.
    pub fn input(&self) -> &Payload {
        &self.0.delivery.input
    }

    /// Says that the work goes on, and how far it is; people see it, and so does whoever is given the row next
    /// ([`Activity::last_details`]). Costs nothing to call often: the newest details are sent, at most one call in
    /// [`Worker::heartbeat_interval`](crate::Worker::heartbeat_interval). Only activities with a heartbeat timeout have
    /// to; the claim itself is kept by the worker's session. Details that cannot be written as JSON are sent as none.
    pub fn heartbeat<T: Serialize + ?Sized>(&self, details: &T) {
        let details = Payload::json(details).unwrap_or_else(|error| {
            tracing::warn!(key = %self.key(), %error, "the details of a heartbeat cannot be written");
            Payload::default()
        });
        self.0.details.send_replace(Some(details));
    }

    /// What the last heartbeat of this or an earlier attempt said, or the error of a failed attempt if that came after
    /// it.
    ///
    /// # Errors
    /// When no node answers.
    pub async fn last_details(&self) -> Result<Payload, ClientError> {
        Ok(self.0.client.row(self.key(), ReadMode::Linearizable).await?.value.details)
    }

    /// Waits until the execution is to stop, and says why. A handler that goes on regardless is dropped at one of its
    /// await points, after [`Worker::cancel_grace`](crate::Worker::cancel_grace).
    pub fn cancelled(&self) -> impl Future<Output = Cancelled> + Send + 'static {
        let mut standing = self.0.standing.clone();
        async move {
            // The sender is gone together with the worker.
            let found = standing.wait_for(|standing| standing.cancelled.is_some()).await;
            found.ok().and_then(|standing| standing.cancelled).unwrap_or(Cancelled::Stopping)
        }
    }

    /// Why the execution is to stop, if it is; for code that cannot wait.
    pub fn is_cancelled(&self) -> Option<Cancelled> {
        self.0.standing.borrow().cancelled
    }

    /// True while the workflow is paused. The execution may go on, or rest until [`Activity::resumed`].
    pub fn is_paused(&self) -> bool {
        self.0.standing.borrow().paused
    }

    /// Waits until the workflow is not paused, or the execution is to stop.
    pub fn resumed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut standing = self.0.standing.clone();
        async move {
            let _ = standing.wait_for(|standing| !standing.paused || standing.cancelled.is_some()).await;
        }
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    /// The details that [`Activity::heartbeat`] leaves.
    pub(crate) fn details(&self) -> watch::Receiver<Option<Payload>> {
        self.0.details.subscribe()
    }

    pub(crate) fn newest_details(&self) -> Option<Payload> {
        self.0.details.borrow().clone()
    }
}
