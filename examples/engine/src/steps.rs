//! What a workflow function and its replay share: the decisions that the function has left, and the answers that it
//! waits for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use holdfast_machine::{Millis, Payload, WorkflowId};
use parking_lot::Mutex;

use crate::decision::Decision;
use crate::program::{ActivityError, ChildError};

/// A run's steps. A lock rather than a cell, so that the function may move between threads; nobody waits for it.
pub(crate) type SharedSteps = Arc<Mutex<Steps>>;

#[derive(Debug)]
pub(crate) struct Steps {
    pub workflow: WorkflowId,
    /// Log time of the event that the function was told of last.
    pub now: Millis,
    /// What the function wants and the history, as far as it was read, does not know of.
    pub decisions: VecDeque<Decision>,
    pub activities: Answers<Result<Payload, ActivityError>>,
    pub timers: Answers<()>,
    pub children: Answers<Result<Payload, ChildError>>,
    pub signals: BTreeMap<String, Signals>,
    pub random: u64,
    /// True once the function is let go of: what its parts do while they are dropped is no decision.
    pub closed: bool,
}

impl Steps {
    pub fn new(workflow: WorkflowId, started_seq: u64, now: Millis) -> Self {
        let random = seed(&workflow, started_seq);
        let (activities, timers, children) = Default::default();
        let (decisions, signals) = Default::default();
        Self { workflow, now, decisions, activities, timers, children, signals, random, closed: false }
    }

    pub fn decide(&mut self, decision: Decision) {
        if !self.closed {
            self.decisions.push_back(decision);
        }
    }

    /// The next number of a sequence that is the same in each replay of this run (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A number that follows from the workflow and the run alone (FNV-1a).
fn seed(workflow: &WorkflowId, started_seq: u64) -> u64 {
    let bytes = workflow.as_str().bytes().chain(started_seq.to_be_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Answers to the numbered questions of one kind: activities, timers, children. Numbers are given in the order in
/// which the function asks, which is what makes them the same in each replay.
#[derive(Debug)]
pub(crate) struct Answers<T> {
    asked: u64,
    open: BTreeMap<u64, Answer<T>>,
}

#[derive(Debug)]
enum Answer<T> {
    Awaited(Waker),
    Given(T),
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self { asked: 0, open: BTreeMap::new() }
    }
}

impl<T> Answers<T> {
    /// Asks the next question; its number, from 1.
    pub fn ask(&mut self, waker: &Waker) -> u64 {
        self.asked += 1;
        self.open.insert(self.asked, Answer::Awaited(waker.clone()));
        self.asked
    }

    /// Gives an answer. One that nobody waits for (any more) is passed over; so is a second one.
    pub fn give(&mut self, number: u64, answer: T) {
        if let Some(place) = self.open.get_mut(&number)
            && let Answer::Awaited(waker) = place
        {
            waker.wake_by_ref();
            *place = Answer::Given(answer);
        }
    }

    pub fn poll(&mut self, number: u64, cx: &Context<'_>) -> Poll<T> {
        if let Some(Answer::Awaited(waker)) = self.open.get_mut(&number) {
            waker.clone_from(cx.waker());
        }
        if !matches!(self.open.get(&number), Some(Answer::Given(_))) {
            return Poll::Pending;
        }
        match self.open.remove(&number) {
            Some(Answer::Given(answer)) => Poll::Ready(answer),
            _ => Poll::Pending,
        }
    }

    /// True while the answer has not come and is waited for.
    pub fn awaits(&self, number: u64) -> bool {
        matches!(self.open.get(&number), Some(Answer::Awaited(_)))
    }

    /// Nobody waits for the answer any more.
    pub fn forget(&mut self, number: u64) {
        self.open.remove(&number);
    }
}

/// Signals of one name: those that came and were not taken, and who waits for the next.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    came: VecDeque<Payload>,
    waiting: Vec<Waker>,
}

impl Signals {
    pub fn give(&mut self, payload: Payload) {
        self.came.push_back(payload);
        self.waiting.drain(..).for_each(Waker::wake);
    }

    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Payload> {
        match self.came.pop_front() {
            Some(payload) => Poll::Ready(payload),
            None => {
                if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    self.waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}
