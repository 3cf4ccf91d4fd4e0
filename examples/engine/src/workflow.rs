//! What a workflow function holds, and the futures that it gets from there.
//!
//! Each future asks when it is polled for the first time: it takes the next number of its kind and leaves a decision.
//! As the function is polled at the same places of the history in each replay, its n-th activity is always the same.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use holdfast_machine::{
    ActivityType, Millis, NewRow, NodeName, Payload, RetryPolicy, TaskQueue, Timeouts, TimerId, WorkflowId,
    WorkflowStatus, WorkflowType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::decision::{ChildStart, Decision};
use crate::program::{ActivityError, ChildError, WorkflowError, read, value_of, written};
use crate::steps::SharedSteps;

/// A workflow, as its own function sees it. Cheap to clone.
#[derive(Clone)]
pub struct Workflow {
    pub(crate) steps: SharedSteps,
}

impl fmt::Debug for Workflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workflow").field(&self.id()).finish()
    }
}

impl Workflow {
    /// Its id.
    pub fn id(&self) -> WorkflowId {
        self.steps.lock().workflow.clone()
    }

    /// The time: log time of the last event that the function was told of.
    pub fn now(&self) -> Millis {
        self.steps.lock().now
    }

    /// A number that looks random and is the same in each replay.
    pub fn random(&self) -> u64 {
        self.steps.lock().random()
    }

    /// Has an activity run by a worker, and waits for its result. By default in the task queue `default`, with the
    /// store's retry policy and no time limits.
    pub fn activity<T: DeserializeOwned>(&self, activity: &str, input: &(impl Serialize + ?Sized)) -> Activity<T> {
        let row = activity.parse::<ActivityType>().map_err(|invalid| invalid.to_string()).and_then(|activity| {
            let input = written(input).map_err(|error| format!("the input: {error}"))?;
            Ok(NewRow { input, ..NewRow::new(0, activity) })
        });
        let asked = Asked::new(&self.steps);
        Activity { asked, activity: activity.to_owned(), row, output: PhantomData }
    }

    /// Waits for a time, in log time. Dropped before it is over, the timer is cancelled.
    pub fn sleep(&self, time: Duration) -> Sleep {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Sleep { asked: Asked::new(&self.steps), time_ms }
    }

    /// Waits for the next signal of this name; those that came before are kept, in order.
    pub fn signal<T: DeserializeOwned>(&self, name: &str) -> Signal<T> {
        Signal { steps: Arc::clone(&self.steps), name: name.to_owned(), output: PhantomData }
    }

    /// Starts a workflow of its own, in this one's namespace, and waits for its result. It goes on when this one ends.
    pub fn child<T: DeserializeOwned>(
        &self,
        workflow_type: &str,
        id: &str,
        input: &(impl Serialize + ?Sized),
    ) -> Child<T> {
        let start = || -> Result<ChildStart, String> {
            Ok(ChildStart {
                child: 0,
                workflow: id.parse::<WorkflowId>().map_err(|invalid| invalid.to_string())?,
                workflow_type: workflow_type.parse::<WorkflowType>().map_err(|invalid| invalid.to_string())?,
                input: written(input).and_then(|input| value_of(&input)).map_err(|error| error.to_string())?,
            })
        };
        Child { asked: Asked::new(&self.steps), id: id.to_owned(), start: start(), output: PhantomData }
    }

    /// What a function returns as its error to begin anew, with this input and an empty history.
    pub fn continue_as_new(&self, input: &(impl Serialize + ?Sized)) -> WorkflowError {
        match written(input) {
            Ok(input) => WorkflowError::ContinueAsNew(input),
            Err(error) => WorkflowError::failed(format!("the input of the next run: {error}")),
        }
    }
}

/// A question of a workflow function: asked once it has a number, answered once.
struct Asked {
    steps: SharedSteps,
    number: Option<u64>,
    answered: bool,
}

impl Asked {
    fn new(steps: &SharedSteps) -> Self {
        Self { steps: Arc::clone(steps), number: None, answered: false }
    }

    /// The number of a question that has been asked and is not answered.
    fn open(&self) -> Option<u64> {
        self.number.filter(|_| !self.answered)
    }
}

/// The result of an activity; see [`Workflow::activity`].
#[must_use = "an activity is run when it is awaited"]
pub struct Activity<T> {
    asked: Asked,
    activity: String,
    row: Result<NewRow, String>,
    output: PhantomData<fn() -> T>,
}

impl<T> Activity<T> {
    fn set(mut self, set: impl FnOnce(&mut NewRow)) -> Self {
        if let Ok(row) = &mut self.row {
            set(row);
        }
        self
    }

    /// Run by the workers of another task queue.
    pub fn on(self, task_queue: TaskQueue) -> Self {
        self.set(|row| row.task_queue = task_queue)
    }

    /// Repeated in another way when it fails.
    pub fn retried(self, retry: RetryPolicy) -> Self {
        self.set(|row| row.retry = retry)
    }

    /// Limited in time.
    pub fn within(self, timeouts: Timeouts) -> Self {
        self.set(|row| row.timeouts = timeouts)
    }

    /// Run by workers of this node alone.
    pub fn pinned_to(self, node: NodeName) -> Self {
        self.set(|row| row.node = Some(node))
    }

    fn error(&self, message: String) -> ActivityError {
        ActivityError { activity: self.activity.clone(), message, error: Payload::default() }
    }
}

impl<T: DeserializeOwned> Future for Activity<T> {
    type Output = Result<T, ActivityError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let row = match &this.row {
            Ok(row) => row,
            Err(message) => return Poll::Ready(Err(this.error(message.clone()))),
        };
        let mut steps = this.asked.steps.lock();
        let number = *this.asked.number.get_or_insert_with(|| {
            let ordinal = steps.activities.ask(cx.waker());
            steps.decide(Decision::Activity(Box::new(NewRow { ordinal, ..row.clone() })));
            ordinal
        });
        let outcome = ready!(steps.activities.poll(number, cx));
        drop(steps);
        this.asked.answered = true;
        let result = outcome.map_err(|error| ActivityError { activity: this.activity.clone(), ..error });
        Poll::Ready(result.and_then(|result| read(&result).map_err(|error| this.error(format!("its result: {error}")))))
    }
}

impl<T> Drop for Activity<T> {
    fn drop(&mut self) {
        // The activity itself goes on; its outcome is passed over.
        if let Some(number) = self.asked.open() {
            self.asked.steps.lock().activities.forget(number);
        }
    }
}

/// The end of a time; see [`Workflow::sleep`].
#[must_use = "a timer is armed when it is awaited"]
pub struct Sleep {
    asked: Asked,
    time_ms: u64,
}

/// The name of a run's n-th timer.
pub(crate) fn timer_name(number: u64) -> Option<TimerId> {
    TimerId::new(format!("timer-{number}")).ok()
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut steps = this.asked.steps.lock();
        let number = *this.asked.number.get_or_insert_with(|| {
            let number = steps.timers.ask(cx.waker());
            let fire_at = steps.now.plus(this.time_ms);
            steps.decide(Decision::StartTimer { timer: number, fire_at });
            number
        });
        ready!(steps.timers.poll(number, cx));
        this.asked.answered = true;
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.asked.open() {
            let mut steps = self.asked.steps.lock();
            let rings = steps.timers.awaits(number);
            steps.timers.forget(number);
            if rings {
                steps.decide(Decision::CancelTimer { timer: number });
            }
        }
    }
}

/// The next signal of a name; see [`Workflow::signal`].
#[must_use = "a signal is taken when it is awaited"]
pub struct Signal<T> {
    steps: SharedSteps,
    name: String,
    output: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Future for Signal<T> {
    type Output = Result<T, WorkflowError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut steps = self.steps.lock();
        let input = ready!(steps.signals.entry(self.name.clone()).or_default().poll(cx));
        Poll::Ready(read(&input).map_err(|error| WorkflowError::failed(format!("signal {}: {error}", self.name))))
    }
}

/// The result of a child; see [`Workflow::child`].
#[must_use = "a child is started when it is awaited"]
pub struct Child<T> {
    asked: Asked,
    id: String,
    start: Result<ChildStart, String>,
    output: PhantomData<fn() -> T>,
}

impl<T> Child<T> {
    fn error(&self, message: String) -> ChildError {
        ChildError { child: self.id.clone(), status: WorkflowStatus::Failed, message }
    }
}

impl<T: DeserializeOwned> Future for Child<T> {
    type Output = Result<T, ChildError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let start = match &this.start {
            Ok(start) => start,
            Err(message) => return Poll::Ready(Err(this.error(message.clone()))),
        };
        let mut steps = this.asked.steps.lock();
        let number = *this.asked.number.get_or_insert_with(|| {
            let child = steps.children.ask(cx.waker());
            steps.decide(Decision::Child(Box::new(ChildStart { child, ..start.clone() })));
            child
        });
        let end = ready!(steps.children.poll(number, cx));
        drop(steps);
        this.asked.answered = true;
        Poll::Ready(end.and_then(|result| read(&result).map_err(|error| this.error(format!("its result: {error}")))))
    }
}

impl<T> Drop for Child<T> {
    fn drop(&mut self) {
        if let Some(number) = self.asked.open() {
            self.asked.steps.lock().children.forget(number);
        }
    }
}
