//! A workflow function, replayed from its history. No I/O: events go in, decisions come out.
//!
//! Events are of two sorts. **Answers** come from outside: the start, outcomes of activities, timers that fired,
//! signals, ends of children. Each is fed to the function by itself, and the function is polled once after it.
//! **Steps** are the function's own decisions of earlier: each has to be the oldest one that the function has left and
//! the history has not shown yet. So the decisions are a function of the answers in their order, whoever replays them
//! and however they were bundled when they came; what is left when the history ends is what is to be committed.
//!
//! A step that is not what the function wants, or that it does not want at all, means that the function is not the one
//! that wrote this history. Nothing is guessed then: the workflow is left alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use holdfast_machine::{
    Arming, Commit, EventKind, HistoryEvent, Payload, Reject, WorkflowId, WorkflowStart, WorkflowType,
};
use parking_lot::Mutex;

use crate::child::{self, ChildEnd};
use crate::decision::{
    CHILD_ENDED, CHILD_SCHEDULED, ChildStart, Decided, Decision, SignalBody, TimerBody, arming, body, read,
};
use crate::program::{ActivityError, Programs, Running, message_in};
use crate::steps::{SharedSteps, Steps};
use crate::workflow::Workflow;

/// Most decisions in one commit: each is two events at most, and the store takes 1,000.
const DECISIONS_PER_COMMIT_MAX: usize = 450;

/// Why a workflow is left alone.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Halt {
    #[error("event {seq} is {found}, but the function wants {wanted}; it is not the one that wrote this history")]
    NotDeterministic { seq: u64, found: String, wanted: String },
    #[error("the function panicked: {0}")]
    Panicked(String),
    #[error("there is no function for workflow type {0}")]
    UnknownType(WorkflowType),
    #[error("it was reopened, but its function has ended")]
    Reopened,
    #[error("the store refused what it decided: {0}")]
    Refused(Reject),
}

/// A workflow's function and how far it has come.
pub(crate) struct Replay {
    programs: Programs,
    workflow: WorkflowId,
    /// The last event that was fed.
    head: u64,
    run: Option<Run>,
    paused: bool,
    ended: bool,
}

/// The run that is open.
struct Run {
    started_seq: u64,
    start: WorkflowStart,
    steps: SharedSteps,
    /// None once the function has ended.
    running: Option<Running>,
    armed: BTreeMap<u64, Arming>,
    /// Children whose end the history does not tell.
    children: BTreeMap<u64, ChildStart>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.steps.lock().closed = true;
    }
}

impl Replay {
    /// Nothing fed yet; the history is read from behind `head`.
    pub fn new(programs: Programs, workflow: WorkflowId, head: u64) -> Self {
        Self { programs, workflow, head, run: None, paused: false, ended: false }
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn paused(&self) -> bool {
        self.paused
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Feeds the next event.
    pub fn feed(&mut self, event: &HistoryEvent) -> Result<(), Halt> {
        self.head = event.seq;
        match &event.kind {
            EventKind::WorkflowStarted => return self.start(event),
            EventKind::WorkflowPaused => self.paused = true,
            EventKind::WorkflowResumed => self.paused = false,
            EventKind::WorkflowReopened => return self.reopen(),
            kind if kind.leads_to().is_some() => {
                // An end: the function's own, or somebody's from outside.
                self.ended = true;
                if let Some(run) = &self.run {
                    let mut steps = run.steps.lock();
                    if steps.decisions.front().is_some_and(|decision| decision.is(event)) {
                        steps.decisions.pop_front();
                    }
                }
            }
            _ => {
                if let Some(run) = &mut self.run {
                    return run.feed(event);
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, event: &HistoryEvent) -> Result<(), Halt> {
        let Some(start) = event.start.clone() else { return Ok(()) };
        (self.paused, self.ended) = (false, false);
        let steps = Arc::new(Mutex::new(Steps::new(self.workflow.clone(), event.seq, event.at)));
        let workflow = Workflow { steps: Arc::clone(&steps) };
        let running = self.programs.run(&start.workflow_type, workflow, event.payload.clone());
        let running = Some(running.ok_or_else(|| Halt::UnknownType(start.workflow_type.clone()))?);
        let (armed, children) = Default::default();
        self.run.insert(Run { started_seq: event.seq, start, steps, running, armed, children }).poll()
    }

    fn reopen(&mut self) -> Result<(), Halt> {
        self.ended = false;
        match &self.run {
            Some(run) if run.running.is_none() && run.steps.lock().decisions.is_empty() => Err(Halt::Reopened),
            _ => Ok(()),
        }
    }

    /// What the function wants and the history does not say, as one commit; none if there is nothing.
    pub fn decided(&self) -> Option<Commit> {
        let run = self.run.as_ref()?;
        let steps = run.steps.lock();
        if steps.decisions.is_empty() {
            return None;
        }
        let commit = Commit::new(self.workflow.clone(), self.head);
        let mut decided = Decided { commit, start: &run.start, armed: run.armed.clone() };
        steps.decisions.iter().take(DECISIONS_PER_COMMIT_MAX).for_each(|decision| decided.add(decision));
        Some(decided.commit)
    }

    /// True if this very arming is waited for; it is told as the timer's number.
    pub fn armed(&self, arming: &Arming) -> Option<u64> {
        let run = self.run.as_ref()?;
        run.armed.iter().find(|(_, armed)| *armed == arming).map(|(timer, _)| *timer)
    }

    /// True if an activity's outcome is waited for, and the history of this run has announced it.
    pub fn awaits_activity(&self, ordinal: u64) -> bool {
        self.run.as_ref().is_some_and(|run| {
            let steps = run.steps.lock();
            let is_new = |decision: &Decision| matches!(decision, Decision::Activity(row) if row.ordinal == ordinal);
            steps.activities.awaits(ordinal) && !steps.decisions.iter().any(is_new)
        })
    }

    /// The number of the event that opened the run.
    pub fn run(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.started_seq)
    }

    /// Children whose ends are to be found out, and how the run was started.
    pub fn children(&self) -> impl Iterator<Item = (&ChildStart, &WorkflowStart)> {
        self.run.iter().flat_map(|run| run.children.values().map(|child| (child, &run.start)))
    }

    /// True while the end of this child is not told.
    pub fn awaits_child(&self, child: u64) -> bool {
        self.run.as_ref().is_some_and(|run| run.children.contains_key(&child))
    }
}

impl Run {
    fn feed(&mut self, event: &HistoryEvent) -> Result<(), Halt> {
        match &event.kind {
            EventKind::ActivityScheduled => self.step(event),
            EventKind::ActivityCompleted | EventKind::ActivityFailed | EventKind::ActivityCancelled => {
                let Some(ordinal) = event.ordinal else { return Ok(()) };
                self.answer(event, |steps| steps.activities.give(ordinal, outcome(event)))
            }
            EventKind::TimerStarted => {
                self.step(event)?;
                if let Some(TimerBody { timer, fire_at: Some(fire_at) }) = read(event) {
                    self.armed.extend(arming(timer, fire_at, event.seq).map(|arming| (timer, arming)));
                }
                Ok(())
            }
            EventKind::TimerCancelled => {
                self.step(event)?;
                if let Some(TimerBody { timer, .. }) = read(event) {
                    self.armed.remove(&timer);
                }
                Ok(())
            }
            EventKind::TimerFired => {
                let Some(TimerBody { timer, .. }) = read(event) else { return Ok(()) };
                self.armed.remove(&timer);
                self.answer(event, |steps| steps.timers.give(timer, ()))
            }
            EventKind::SignalReceived => {
                let Some(SignalBody { signal, input, .. }) = read(event) else { return Ok(()) };
                self.answer(event, |steps| steps.signals.entry(signal).or_default().give(body(&input)))
            }
            EventKind::Other(kind) if kind == CHILD_SCHEDULED => {
                self.step(event)?;
                self.children.extend(read(event).map(|start: ChildStart| (start.child, start)));
                Ok(())
            }
            EventKind::Other(kind) if kind == CHILD_ENDED => {
                let Some(end) = read::<ChildEnd>(event) else { return Ok(()) };
                let Some(start) = self.children.remove(&end.child) else { return Ok(()) };
                self.answer(event, |steps| steps.children.give(end.child, child::result(&start, end)))
            }
            // ActivityStarted goes with ActivityScheduled; what others write is theirs.
            _ => Ok(()),
        }
    }

    /// A step of the function: it has to be the oldest one that is not in the history yet.
    fn step(&mut self, event: &HistoryEvent) -> Result<(), Halt> {
        let decisions = &mut self.steps.lock().decisions;
        if decisions.front().is_some_and(|decision| decision.is(event)) {
            decisions.pop_front();
            return Ok(());
        }
        let found = match event.ordinal {
            Some(ordinal) => format!("{} of activity {ordinal}", event.kind),
            None => event.kind.to_string(),
        };
        let wanted = decisions.front().map_or_else(|| "nothing here".to_owned(), Decision::describe);
        Err(Halt::NotDeterministic { seq: event.seq, found, wanted })
    }

    fn answer(&mut self, event: &HistoryEvent, give: impl FnOnce(&mut Steps)) -> Result<(), Halt> {
        {
            let mut steps = self.steps.lock();
            steps.now = event.at;
            give(&mut steps);
        }
        self.poll()
    }

    /// Lets the function go on until it waits again. Its parts wake each other; nobody has to wake the whole.
    fn poll(&mut self) -> Result<(), Halt> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let mut cx = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(end)) => {
                self.running = None;
                self.steps.lock().decide(Decision::of_end(end));
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
                return Err(Halt::Panicked(text.to_owned()));
            }
        }
        Ok(())
    }
}

/// An activity's outcome, as its function hears it.
fn outcome(event: &HistoryEvent) -> Result<Payload, ActivityError> {
    if event.kind == EventKind::ActivityCompleted {
        return Ok(event.payload.clone());
    }
    let message = match event.kind {
        EventKind::ActivityCancelled => "it was cancelled".to_owned(),
        _ => message_in(&event.payload),
    };
    Err(ActivityError { activity: String::new(), message, error: event.payload.clone() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
