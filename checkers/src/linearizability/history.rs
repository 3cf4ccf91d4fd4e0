//! A history as a sequential thing: appends at its end, outcomes of activities, reads of the whole.

use holdfast_machine::{Command, EventKind, NewEvent, Reject, Reply, RowAction, Transition, WorkflowId};

use super::{Sequential, Timed};
use crate::history::{Answer, Asked, Call, Outcome, digest_with};

/// Length and contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct History {
    head: u64,
    digest: u64,
}

/// What is asked of a history, and answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryCall {
    /// These events behind `expected`. Answer: the head that they led to.
    Append {
        /// The head that the caller knew.
        expected: u64,
        /// The events.
        events: Vec<NewEvent>,
        /// None if the answer was lost.
        head: Option<u64>,
    },
    /// Not appended, because the head was this one.
    Conflict {
        /// What the caller knew.
        expected: u64,
        /// What it was told.
        found: u64,
    },
    /// One event behind whatever there is. Answer: its number.
    Outcome {
        /// The event.
        event: NewEvent,
        /// None if the answer was lost.
        seq: Option<u64>,
    },
    /// A read of the whole.
    Read {
        /// The number of the last event.
        head: u64,
        /// The digest of all.
        digest: u64,
    },
}

impl History {
    fn with<'a>(&self, events: impl IntoIterator<Item = &'a NewEvent>) -> Self {
        events.into_iter().fold(self.clone(), |before, event| Self {
            head: before.head + 1,
            digest: digest_with(before.digest, event.kind.name(), event.ordinal, &event.payload.data),
        })
    }
}

impl Sequential for History {
    type Call = HistoryCall;

    fn after(&self, call: &HistoryCall) -> Vec<Self> {
        let (fits, after) = match call {
            HistoryCall::Append { expected, events, head } => {
                let after = self.with(events);
                (self.head == *expected && head.is_none_or(|head| head == after.head), after)
            }
            HistoryCall::Conflict { expected, found } => (self.head == *found && found != expected, self.clone()),
            HistoryCall::Outcome { event, seq } => {
                let after = self.with([event]);
                (seq.is_none_or(|seq| seq == after.head), after)
            }
            HistoryCall::Read { head, digest } => (self.head == *head && self.digest == *digest, self.clone()),
        };
        fits.then_some(after).into_iter().collect()
    }
}

/// What a recorded call asks of a history, if it does. Calls that were not done, and refusals that say nothing of the
/// history's head, are none.
pub fn of(call: &Call) -> Option<(WorkflowId, Timed<HistoryCall>)> {
    let reply = match &call.outcome {
        Outcome::Ok { answer: Answer::Reply(reply), .. } => Some(Ok(reply)),
        Outcome::Ok { answer: Answer::History { head, digest }, .. } => {
            let Asked::History(workflow) = &call.asked else { return None };
            let call = timed(call, HistoryCall::Read { head: *head, digest: *digest });
            return Some((workflow.clone(), call));
        }
        Outcome::Refused { reject, .. } => Some(Err(reject)),
        Outcome::Unknown => None,
        Outcome::Ok { .. } | Outcome::NotDone => return None,
    };
    let Asked::Write(request) = &call.asked else { return None };
    let asked = match (&request.command, reply) {
        (Command::Commit(commit), reply) => {
            let expected = commit.expected_seq;
            let events = commit.events.iter().cloned().chain(commit.transitions.iter().filter_map(outcome)).collect();
            match reply {
                None => HistoryCall::Append { expected, events, head: None },
                // Somebody else's call did it, or this one's did before its answer was lost.
                Some(Ok(Reply::Committed(committed))) if committed.duplicate => return None,
                Some(Ok(Reply::Committed(committed))) => {
                    HistoryCall::Append { expected, events, head: Some(committed.head) }
                }
                Some(Err(Reject::SequenceConflict { expected, found, .. })) => {
                    HistoryCall::Conflict { expected: *expected, found: *found }
                }
                Some(_) => return None,
            }
        }
        (Command::Complete { key, result, .. }, reply) => {
            let event = NewEvent::activity(EventKind::ActivityCompleted, key.ordinal).with(result.clone());
            match reply {
                None => HistoryCall::Outcome { event, seq: None },
                Some(Ok(Reply::Completed { seq })) => HistoryCall::Outcome { event, seq: Some(*seq) },
                Some(_) => return None,
            }
        }
        (Command::Fail { key, error, .. }, reply) => {
            let event = NewEvent::activity(EventKind::ActivityFailed, key.ordinal).with(error.clone());
            match reply {
                None => HistoryCall::Outcome { event, seq: None },
                Some(Ok(Reply::Returned(returned))) => HistoryCall::Outcome { event, seq: Some(returned.failed_seq?) },
                Some(_) => return None,
            }
        }
        _ => return None,
    };
    let workflow = request.command.workflow()?.clone();
    Some((workflow, timed(call, asked)))
}

/// The event that a transition leaves. An attempt that may be tried again leaves none, if its error is not one that the
/// row's policy takes for final; whoever records such errors has them fail for good.
fn outcome(transition: &Transition) -> Option<NewEvent> {
    let (kind, payload) = match &transition.action {
        RowAction::Complete { result } => (EventKind::ActivityCompleted, result),
        RowAction::Fail { error, retryable: false, .. } => (EventKind::ActivityFailed, error),
        RowAction::Fail { .. } | RowAction::Retry { .. } => return None,
    };
    Some(NewEvent::activity(kind, transition.ordinal).with(payload.clone()))
}

fn timed(call: &Call, asked: HistoryCall) -> Timed<HistoryCall> {
    let is_known = !matches!(call.outcome, Outcome::Unknown);
    Timed { invoked: call.invoked, returned: call.returned.filter(|_| is_known), call: asked }
}
