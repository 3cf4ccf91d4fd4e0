//! A row as a sequential thing: staged, taken by one claim at a time, done once. Times are log times that answers told;
//! they say when a lease lets another claim in.

use std::collections::BTreeSet;

use holdfast_machine::{
    ClaimToken, Command, Commit, Committed, DispatchKey, Millis, NewHolder, Reject, Reply, RowAction, RowStatus,
    WorkflowId,
};

use super::{Sequential, Timed};
use crate::history::{Answer, Asked, Call, Outcome};

/// What a row is.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Not there.
    #[default]
    Absent,
    /// Waiting for a claim.
    Pending,
    /// Taken.
    Claimed {
        /// By this claim.
        token: ClaimToken,
        /// From this log time on another claim may have it.
        until: Millis,
    },
    /// Has its outcome, or none will come.
    Finished,
}

/// What is asked of a row, and answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowCall {
    /// Staged. Answer: whether it was written; none if the answer was lost.
    Stage(Option<bool>),
    /// Taken by a claim.
    Take {
        /// The claim.
        token: ClaimToken,
        /// When, in log time, if that can be told.
        at: Option<Millis>,
        /// From when on another claim may have it.
        until: Millis,
    },
    /// The lease was extended; none if the answer was lost.
    Extend(ClaimToken, Option<Millis>),
    /// Its outcome was recorded under this claim, or by key.
    Finish(Option<ClaimToken>),
    /// Handed back under this claim, to wait or for good: nobody knows if the answer was lost.
    HandBack(Option<ClaimToken>, Option<RowStatus>),
    /// Over, if it was not before: cancelled, or its outcome was written into the history.
    End,
    /// Put back to pending, whatever it was.
    Again,
    /// A transition under a claim was refused because of it.
    Lost,
    /// A transition was refused because the row has its outcome.
    AlreadyFinished,
    /// A read.
    Read(Option<RowStatus>),
}

impl Row {
    /// True if a transition under this token is let through.
    fn is_held_under(&self, asked: Option<ClaimToken>) -> bool {
        match (self, asked) {
            (Self::Claimed { token, .. }, Some(asked)) => *token == asked,
            (Self::Claimed { .. } | Self::Pending, None) => true,
            _ => false,
        }
    }

    /// True if a read may show this. A claim may have ended by its time, and a row may have spent its budget by that; and
    /// a session may have been given it.
    fn may_be(&self, status: Option<RowStatus>) -> bool {
        match self {
            Self::Absent => status.is_none(),
            Self::Pending | Self::Claimed { .. } => {
                matches!(status, Some(RowStatus::Pending | RowStatus::Claimed | RowStatus::Failed))
            }
            Self::Finished => status.is_some_and(|status| !status.is_live()),
        }
    }
}

impl Sequential for Row {
    type Call = RowCall;

    fn after(&self, call: &RowCall) -> Vec<Self> {
        let fits = |fits: bool, after: Self| if fits { vec![after] } else { Vec::new() };
        match call {
            RowCall::Stage(Some(false)) => fits(*self != Self::Absent, self.clone()),
            // A finished row makes way for one of a later run.
            RowCall::Stage(_) => fits(matches!(self, Self::Absent | Self::Finished), Self::Pending),
            RowCall::Take { token, at, until } => {
                let is_free = match self {
                    Self::Pending => true,
                    Self::Claimed { until: lease, .. } => at.is_none_or(|at| at >= *lease),
                    Self::Absent | Self::Finished => false,
                };
                fits(is_free, Self::Claimed { token: *token, until: *until })
            }
            RowCall::Extend(token, until) => {
                let until = until.unwrap_or_default();
                fits(self.is_held_under(Some(*token)), Self::Claimed { token: *token, until })
            }
            RowCall::Finish(token) => fits(self.is_held_under(*token), Self::Finished),
            RowCall::HandBack(token, status) => match status {
                _ if !self.is_held_under(*token) => Vec::new(),
                None => vec![Self::Pending, Self::Finished],
                Some(status) => vec![if status.is_live() { Self::Pending } else { Self::Finished }],
            },
            RowCall::End => vec![if *self == Self::Absent { Self::Absent } else { Self::Finished }],
            RowCall::Again => vec![Self::Pending],
            RowCall::Lost => fits(matches!(self, Self::Pending | Self::Claimed { .. }), self.clone()),
            RowCall::AlreadyFinished => fits(matches!(self, Self::Finished | Self::Claimed { .. }), self.clone()),
            RowCall::Read(status) => fits(self.may_be(*status), self.clone()),
        }
    }
}

type Asks = Vec<(DispatchKey, Timed<RowCall>)>;

/// What a recorded call asks of rows. A claim whose answer was lost took what nobody knows: those rows come back when its
/// lease ends, which the next claim of each shows.
pub fn of(call: &Call) -> Asks {
    let (known, refused) = match &call.outcome {
        Outcome::Ok { answer: Answer::Row(status), .. } => {
            let Asked::Row(key) = &call.asked else { return Vec::new() };
            return vec![(key.clone(), timed(call, RowCall::Read(*status)))];
        }
        Outcome::Ok { answer: Answer::Reply(reply), .. } => (Some(reply), None),
        Outcome::Refused { reject, .. } => (None, Some(reject)),
        Outcome::Unknown => (None, None),
        Outcome::Ok { .. } | Outcome::NotDone => return Vec::new(),
    };
    let Asked::Write(request) = &call.asked else { return Vec::new() };
    let one = |key: &DispatchKey, asked| vec![(key.clone(), timed(call, asked))];
    match (&request.command, known, refused) {
        (Command::Claim(claim), Some(Reply::Claimed { claims }), _) => {
            let lease = match claim.holder {
                NewHolder::Lease { lease_ms, .. } => Some(lease_ms),
                NewHolder::Node { .. } => None,
            };
            let taken = claims.iter().map(|claim| {
                let at = claim.deadline.zip(lease).map(|(deadline, lease)| Millis(deadline.0.saturating_sub(lease)));
                // What a node holds ends with it or with its ownership, at a time that nobody was told.
                let take = RowCall::Take { token: claim.token, at, until: claim.deadline.unwrap_or_default() };
                (claim.key.clone(), timed(call, take))
            });
            taken.collect()
        }
        (Command::Commit(commit), Some(Reply::Committed(committed)), _) if !committed.duplicate => {
            commit_of(call, commit, Some(committed))
        }
        (Command::Commit(commit), None, None) => commit_of(call, commit, None),
        (Command::Stage { .. }, Some(Reply::Staged { rows }), _) => {
            rows.iter().map(|row| (row.key.clone(), timed(call, RowCall::Stage(Some(row.written))))).collect()
        }
        (Command::Stage { workflow, rows, .. }, None, None) => {
            let key = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
            rows.iter().map(|row| (key(row.ordinal), timed(call, RowCall::Stage(None)))).collect()
        }
        (Command::Settle { .. }, Some(Reply::Settled { keys }), _) => {
            keys.iter().map(|key| (key.clone(), timed(call, RowCall::End))).collect()
        }
        (Command::Rearm { workflow, rows }, _, None) => {
            let key = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
            rows.iter().map(|row| (key(row.ordinal), timed(call, RowCall::Again))).collect()
        }
        (Command::Redrive { key, .. }, _, None) => one(key, RowCall::Again),
        (Command::Heartbeat { key, token, .. }, Some(Reply::Extended { deadline }), _) => {
            one(key, RowCall::Extend(*token, Some(*deadline)))
        }
        (Command::Heartbeat { key, token, .. }, None, None) => one(key, RowCall::Extend(*token, None)),
        (Command::Complete { key, token, .. }, Some(Reply::Completed { .. }), _)
        | (Command::Complete { key, token, .. }, None, None) => one(key, RowCall::Finish(*token)),
        (Command::Fail { key, token, .. } | Command::Retry { key, token, .. }, Some(Reply::Returned(returned)), _) => {
            one(key, RowCall::HandBack(*token, Some(returned.status)))
        }
        (Command::Fail { key, token, retryable, .. }, None, None) => {
            one(key, RowCall::HandBack(*token, (!retryable).then_some(RowStatus::Failed)))
        }
        (Command::Retry { key, token, .. }, None, None) => one(key, RowCall::HandBack(*token, None)),
        (
            Command::Complete { key, .. }
            | Command::Fail { key, .. }
            | Command::Retry { key, .. }
            | Command::Heartbeat { key, .. },
            None,
            Some(Reject::ClaimLost { .. }),
        ) => one(key, RowCall::Lost),
        (
            Command::Complete { key, .. } | Command::Fail { key, .. } | Command::Retry { key, .. },
            None,
            Some(Reject::AlreadyTerminal { .. }),
        ) => one(key, RowCall::AlreadyFinished),
        _ => Vec::new(),
    }
}

/// A commit moves rows, ends them with their outcomes or with the workflow, and stages others.
fn commit_of(call: &Call, commit: &Commit, committed: Option<&Committed>) -> Asks {
    let key = |ordinal| DispatchKey { workflow: commit.workflow.clone(), ordinal };
    let mut asks: Vec<(DispatchKey, RowCall)> = Vec::new();
    for (position, transition) in commit.transitions.iter().enumerate() {
        let status = committed.and_then(|committed| committed.transitions.get(position).copied());
        let status = match &transition.action {
            RowAction::Complete { .. } => Some(RowStatus::Done),
            RowAction::Fail { retryable: false, .. } => Some(RowStatus::Failed),
            RowAction::Fail { .. } | RowAction::Retry { .. } => status,
        };
        asks.push((key(transition.ordinal), RowCall::HandBack(transition.token, status)));
    }
    let staged: Vec<u64> = commit.rows.iter().map(|row| row.ordinal).collect();
    let outcomes = commit.events.iter().filter(|event| event.kind.is_outcome()).filter_map(|event| event.ordinal);
    // A row that is staged and ended by one commit is not followed: it can be seen in no other state.
    asks.extend(outcomes.filter(|ordinal| !staged.contains(ordinal)).map(|ordinal| (key(ordinal), RowCall::End)));
    match committed {
        Some(committed) => {
            let stages = committed.staged.iter().map(|row| (row.key.clone(), RowCall::Stage(Some(row.written))));
            asks.extend(stages);
            asks.extend(committed.settled.iter().map(|key| (key.clone(), RowCall::End)));
        }
        None => {
            asks.extend(staged.into_iter().map(|ordinal| (key(ordinal), RowCall::Stage(None))));
            asks.extend(commit.settle.iter().map(|ordinal| (key(*ordinal), RowCall::End)));
        }
    }
    asks.into_iter().map(|(key, asked)| (key, timed(call, asked))).collect()
}

/// A call that may have ended all rows of a workflow, and whose answer, which names them, was lost.
pub fn end_of_all(call: &Call) -> Option<(&WorkflowId, Timed<RowCall>)> {
    let Asked::Write(request) = &call.asked else { return None };
    let ends = match &request.command {
        Command::Settle { .. } => true,
        Command::Commit(commit) => {
            commit.events.iter().any(|event| event.kind.leads_to().is_some_and(|status| status.is_terminal()))
        }
        _ => false,
    };
    let is_unknown = matches!(call.outcome, Outcome::Unknown);
    Some((request.command.workflow()?, timed(call, RowCall::End))).filter(|_| ends && is_unknown)
}

/// Claims that no call shows: of sessions, which are given rows, and of calls whose answers were lost. Their tokens are
/// known by what was done under them.
pub fn given_unseen(calls: &[Timed<RowCall>]) -> Vec<Timed<RowCall>> {
    let mut unseen: BTreeSet<ClaimToken> = BTreeSet::new();
    for call in calls {
        match &call.call {
            RowCall::Extend(token, _) | RowCall::Finish(Some(token)) | RowCall::HandBack(Some(token), _) => {
                unseen.insert(*token);
            }
            _ => {}
        }
    }
    for call in calls {
        if let RowCall::Take { token, .. } = &call.call {
            unseen.remove(token);
        }
    }
    let take = |token| RowCall::Take { token, at: None, until: Millis(0) };
    unseen.into_iter().map(|token| Timed { invoked: 0, returned: None, call: take(token) }).collect()
}

fn timed(call: &Call, asked: RowCall) -> Timed<RowCall> {
    let is_known = !matches!(call.outcome, Outcome::Unknown);
    Timed { invoked: call.invoked, returned: call.returned.filter(|_| is_known), call: asked }
}
