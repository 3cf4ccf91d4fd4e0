//! A worker as it is set up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use holdfast_client::Client;
use holdfast_machine::{ActivityType, Claimant, InvalidId, Namespace, NodeName, Payload, TaskQueue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::activity::Activity;
use crate::counters::{Counters, Tally};
use crate::error::{ActivityError, WorkerError};
use crate::execution::{Handler, read_input, write_output};
use crate::runner::Runner;
use crate::shutdown::Signals;

/// What hears of results.
pub(crate) type HearResult = Arc<dyn Fn(&Activity, Option<u64>) + Send + Sync>;

/// A worker that is being set up; [`Worker::run`] and [`Worker::run_until`] set it to work. What was given wrongly is
/// told then.
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    pub(crate) client: Client,
    identity: Option<Claimant>,
    namespaces: Vec<Namespace>,
    task_queue: TaskQueue,
    pub(crate) max_concurrency: u32,
    node: Option<NodeName>,
    pub(crate) lease_ms: u64,
    pub(crate) handlers: BTreeMap<ActivityType, Handler>,
    pub(crate) drain_deadline: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) counters: Counters,
    pub(crate) hear_result: HearResult,
    problems: Vec<String>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let activities: Vec<_> = self.handlers.keys().collect();
        f.debug_struct("Worker")
            .field("identity", &self.identity)
            .field("activities", &activities)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for the default queue of the default namespace, with room for 16 activities and a lease of 30 s.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            identity: None,
            namespaces: vec![Namespace::default()],
            task_queue: TaskQueue::default(),
            max_concurrency: 16,
            node: None,
            lease_ms: 30_000,
            handlers: BTreeMap::new(),
            drain_deadline: Duration::from_secs(30),
            cancel_grace: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(1),
            counters: Counters::default(),
            hear_result: Arc::new(|_, _| {}),
            problems: Vec::new(),
        }
    }

    /// Who it is, for people who look at the cluster; `worker` and the process's number unless set.
    pub fn identity(mut self, identity: &str) -> Self {
        self.identity = named(&mut self.problems, Claimant::new(identity));
        self
    }

    /// The namespaces that it works for, in rotation.
    pub fn namespaces<N: AsRef<str>>(mut self, namespaces: impl IntoIterator<Item = N>) -> Self {
        let names = namespaces.into_iter().filter_map(|name| named(&mut self.problems, Namespace::new(name)));
        self.namespaces = names.collect();
        self
    }

    /// The queue that it serves in each of them.
    pub fn task_queue(mut self, queue: &str) -> Self {
        if let Some(queue) = named(&mut self.problems, TaskQueue::new(queue)) {
            self.task_queue = queue;
        }
        self
    }

    /// The node whose pinned rows it takes as well.
    pub fn node(mut self, node: &str) -> Self {
        self.node = named(&mut self.problems, NodeName::new(node));
        self
    }

    /// Most activities at a time; at least 1.
    pub fn max_concurrency(mut self, most: u32) -> Self {
        self.max_concurrency = most;
        self
    }

    /// How long its rows stay with it while it cannot reach any node.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// How long it works on what it has once it is told to end; 30 s unless set.
    pub fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.drain_deadline = deadline;
        self
    }

    /// How long a handler may go on once it is to stop; 5 s unless set.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// The least time between two heartbeats of one activity that are sent; 1 s unless set. Has to be well below the
    /// heartbeat timeouts of the activities.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat_interval = interval;
        self
    }

    /// Registers what executes activities of a type: an async function of the activity and its input. The input is read
    /// from JSON (text is read as a string, no input as `null`), the output is written as JSON. An input that cannot be
    /// read fails the activity for good, under the error type `invalid_input`; a panic is a failed attempt of the type
    /// `panic`.
    pub fn activity<I, O, F, Fut>(self, activity_type: &str, handler: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize,
        F: Fn(Activity, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, ActivityError>> + Send + 'static,
    {
        self.raw_activity(activity_type, move |activity| {
            let work = read_input(activity.input()).map(|input| handler(activity, input));
            async move { write_output(&work?.await?) }
        })
    }

    /// As [`Worker::activity`], for payloads of any kind; the input is [`Activity::input`].
    pub fn raw_activity<F, Fut>(mut self, activity_type: &str, handler: F) -> Self
    where
        F: Fn(Activity) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Payload, ActivityError>> + Send + 'static,
    {
        if let Some(activity_type) = named(&mut self.problems, ActivityType::new(activity_type)) {
            let handler: Handler = Arc::new(move |activity| Box::pin(handler(activity)));
            if self.handlers.insert(activity_type.clone(), handler).is_some() {
                self.problems.push(format!("{activity_type} is registered twice"));
            }
        }
        self
    }

    /// Hears of each outcome once it is told: the number of the event that a result has become in its history; none if it
    /// counts for nothing, or is no result.
    pub fn on_result(mut self, hear: impl Fn(&Activity, Option<u64>) + Send + Sync + 'static) -> Self {
        self.hear_result = Arc::new(hear);
        self
    }

    /// What the worker does, in figures; also while it runs.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Works until SIGTERM or SIGINT, then takes nothing new and finishes what it has, as [`Worker::run_until`] does. A
    /// second signal ends it at once.
    ///
    /// # Errors
    /// As [`Worker::run_until`]; when signals cannot be heard.
    pub async fn run(self) -> Result<Tally, WorkerError> {
        let signals = Signals::listen()?;
        let (told, mut once) = watch::channel(0);
        let mut twice = once.clone();
        let run = self.run_until_or(async move { drop(once.wait_for(|times| *times > 0).await) }, async move {
            drop(twice.wait_for(|times| *times > 1).await)
        });
        tokio::select! {
            ended = run => ended,
            never = count(signals, told) => match never {},
        }
    }

    /// Works until `shutdown` is ready; then takes nothing new and finishes what it has. What is not finished by
    /// [`Worker::drain_deadline`] is cancelled, and goes back to the queue at once. A worker whose future is dropped
    /// stops on the spot; its rows go back when its lease ends.
    ///
    /// # Errors
    /// [`WorkerError::Invalid`] when it was not set up well, [`WorkerError::Refused`] when the nodes do not take it.
    /// That no node is to be reached is no error: it tries on.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Tally, WorkerError> {
        self.run_until_or(shutdown, pending()).await
    }

    /// As [`Worker::run_until`]; once `at_once` is ready, what is not finished goes back to the queue without further
    /// patience.
    ///
    /// # Errors
    /// As [`Worker::run_until`].
    pub async fn run_until_or(
        mut self,
        shutdown: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<Tally, WorkerError> {
        let registration = self.registration();
        if self.handlers.is_empty() {
            self.problems.push("it has no activities".to_owned());
        }
        match registration {
            Some(registration) if self.problems.is_empty() => {
                Runner::new(self, registration).run(shutdown, at_once).await
            }
            _ => Err(WorkerError::Invalid(self.problems.join("; "))),
        }
    }

    fn registration(&mut self) -> Option<holdfast_machine::Worker> {
        let by_number = || Claimant::new(format!("worker {}", std::process::id()));
        let identity = self.identity.clone().map_or_else(by_number, Ok);
        Some(holdfast_machine::Worker {
            identity: named(&mut self.problems, identity)?,
            namespaces: self.namespaces.clone(),
            task_queue: self.task_queue.clone(),
            activity_types: self.handlers.keys().cloned().collect(),
            max_concurrency: self.max_concurrency,
            node: self.node.clone(),
            lease_ms: self.lease_ms,
        })
    }
}

/// Counts signals for ever.
async fn count(mut signals: Signals, told: watch::Sender<u32>) -> Infallible {
    loop {
        signals.next().await;
        told.send_modify(|times| *times += 1);
    }
}

/// A name, or a note of what is wrong with it.
fn named<T>(problems: &mut Vec<String>, name: Result<T, InvalidId>) -> Option<T> {
    name.map_err(|error| problems.push(error.to_string())).ok()
}
