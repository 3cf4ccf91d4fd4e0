//! Activities that the engine's process runs itself, for work that needs no worker of its own.
//!
//! They are claimed as the node's ([`ClaimHolder::Node`]): without a lease, only rows of shards that the node owns.
//! When the node dies, its rows are pending again the moment a survivor adopts their shard.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use holdfast_api::{ClaimCall, ClaimHolder, Delivery, Failure, Store, StoreError};
use holdfast_machine::{
    ActivityType, ClaimToken, DispatchKey, InvalidId, Namespace, Payload, Reject, Scope, TaskQueue,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::program::{read, written};
use crate::retry::until_answered;

/// How long a claim waits for work before it asks again.
const WAIT_MS: u64 = 30_000;
/// The pause before rows are asked for again when this node cannot take any.
const PAUSE: Duration = Duration::from_millis(100);
/// Activities run at a time, unless something else is said.
const CAPACITY: usize = 8;

type Function = Arc<dyn Fn(Attempt, Payload) -> BoxFuture<'static, Result<Payload, Failure>> + Send + Sync>;

type HearResult = Arc<dyn Fn(&Attempt, Option<u64>) + Send + Sync>;

/// One execution of an activity.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The row. What must not be done twice outside can be kept apart by it.
    pub key: DispatchKey,
    /// The claim.
    pub token: ClaimToken,
    /// The activity's attempt, from 1.
    pub attempt: u32,
}

/// Activities of one task queue, run in this process.
#[derive(Clone)]
pub struct LocalActivities {
    store: Store,
    namespace: Namespace,
    task_queue: TaskQueue,
    capacity: usize,
    functions: BTreeMap<ActivityType, Function>,
    hear_result: HearResult,
}

impl fmt::Debug for LocalActivities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalActivities").field("activities", &self.functions.keys()).finish_non_exhaustive()
    }
}

impl LocalActivities {
    /// None yet, of a task queue in the default namespace.
    pub fn new(store: Store, task_queue: TaskQueue) -> Self {
        let (namespace, functions) = Default::default();
        Self { store, namespace, task_queue, capacity: CAPACITY, functions, hear_result: Arc::new(|_, _| {}) }
    }

    /// Of another namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: Namespace) -> Self {
        Self { namespace, ..self }
    }

    /// Run at most so many at a time; at least 1.
    #[must_use]
    pub fn at_most(self, capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ..self }
    }

    /// Hears of each outcome once it is told: the number of the event that a result has become in its history; none if
    /// it counts for nothing, or is no result.
    #[must_use]
    pub fn on_result(self, hear: impl Fn(&Attempt, Option<u64>) + Send + Sync + 'static) -> Self {
        Self { hear_result: Arc::new(hear), ..self }
    }

    /// The same with one more activity.
    ///
    /// # Errors
    /// When the name is no activity type.
    pub fn with<I, O, F, R>(mut self, activity: &str, function: F) -> Result<Self, InvalidId>
    where
        I: DeserializeOwned,
        O: Serialize,
        F: Fn(Attempt, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        let run = move |attempt: Attempt, input: Payload| match read::<I>(&input) {
            Ok(input) => {
                let result = function(attempt, input);
                async move { written(&result.await?).map_err(|error| Failure::for_good(said(&error))) }.boxed()
            }
            Err(error) => async move { Err(Failure::for_good(said(&error))) }.boxed(),
        };
        self.functions.insert(ActivityType::new(activity)?, Arc::new(run));
        Ok(self)
    }

    /// Runs activities until the node stops; says what it cannot go on after.
    pub async fn run(self) -> Result<(), StoreError> {
        let lanes = join_all((0..self.capacity).map(|_| self.lane())).await;
        let ended = lanes.into_iter().find(|ended| !matches!(ended, Err(StoreError::Stopped)));
        ended.unwrap_or(Ok(()))
    }

    /// Takes a row, runs it, takes the next. A claim is never dropped half way: a row that it took would have no taker.
    async fn lane(&self) -> Result<(), StoreError> {
        let scope = Scope {
            namespace: self.namespace.clone(),
            task_queue: self.task_queue.clone(),
            activity_types: self.functions.keys().cloned().collect(),
            node: Some(self.store.node().clone()),
        };
        let call = ClaimCall { scope, limit: 1, holder: ClaimHolder::Node, hold: Vec::new(), wait_ms: WAIT_MS };
        loop {
            let claimed = until_answered(|write| self.store.claim(call.clone(), write)).await;
            match claimed {
                Ok(answer) => {
                    for delivery in answer.value {
                        self.execute(delivery).await?;
                    }
                }
                // The start of this node is not committed yet.
                Err(StoreError::Reject(Reject::NodeState { .. })) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn execute(&self, delivery: Delivery) -> Result<(), StoreError> {
        let Delivery { key, token, activity_type, attempt, input, .. } = delivery;
        // Only these types are asked for.
        let Some(function) = self.functions.get(&activity_type) else { return Ok(()) };
        let attempt = Attempt { key: key.clone(), token, attempt };
        let running = function(attempt.clone(), input);
        let result = AssertUnwindSafe(running).catch_unwind().await;
        let answer = match result.unwrap_or_else(|_| Err(Failure::retryable(Payload::text("the activity panicked")))) {
            Ok(result) => {
                let completed = until_answered(|write| self.store.complete(&key, Some(token), result.clone(), write));
                completed.await.map(|answer| answer.value)
            }
            Err(failure) => {
                let failed = until_answered(|write| self.store.fail(&key, Some(token), failure.clone(), write));
                failed.await.map(|_| None)
            }
        };
        let seq = match answer {
            Err(StoreError::Reject(reject)) => {
                // Unless the row is lost, so that this execution counts for nothing: a result that the store does not
                // take, too large say, is the activity's failure.
                if !reject.is_lost_claim() {
                    let failure = Failure::for_good(said(&reject));
                    let failed = until_answered(|write| self.store.fail(&key, Some(token), failure.clone(), write));
                    match failed.await {
                        Err(StoreError::Reject(reject)) if reject.is_lost_claim() => {}
                        failed => {
                            failed?;
                        }
                    }
                }
                None
            }
            answer => answer?,
        };
        (self.hear_result)(&attempt, seq);
        Ok(())
    }
}

fn said(error: &impl fmt::Display) -> Payload {
    Payload::text(error.to_string())
}
