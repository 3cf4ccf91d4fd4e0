//! With a log at hand: it is played through the [`crate::oracle`], which shares no logic with the machine, and every
//! answer must be the one that follows. What became of calls without an answer is there to be read.

use std::collections::BTreeMap;

use holdfast_machine::{Entry, IdempotencyKey, Member, Reject, Reply, Request};

use crate::history::{Answer, Asked, Call, Outcome};
use crate::oracle::{Oracle, plain};
use crate::replay::may_be_better_later;
use crate::{Broken, broken, ensure};

/// What stands at an index of a log.
#[derive(Debug, Clone)]
pub enum Logged {
    /// Commands.
    Entry(Entry),
    /// A change of the membership.
    Members(Vec<Member>),
}

/// What the log says of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Entries that were played.
    pub entries: u64,
    /// Calls whose answer is the one that follows from the log.
    pub confirmed: usize,
    /// Calls of unknown outcome that are in the log.
    pub unknown_found: usize,
    /// Calls of unknown outcome that are not.
    pub unknown_absent: usize,
}

/// What was found of a call.
#[derive(Default)]
struct Found {
    times: usize,
    /// One of the times gave the answer that the client had.
    is_confirmed: bool,
    /// One of the times did something.
    was_done: bool,
}

/// Plays a whole log, from its first entry on. Calls are found in it by their idempotency keys; a call without one is
/// found at the index of its answer.
///
/// # Errors
/// The first answer that does not follow from the log, or whose call is not in it.
pub fn judge(calls: &[Call], log: impl IntoIterator<Item = (u64, Logged)>) -> Result<Resolved, Broken> {
    let mut by_key: BTreeMap<&IdempotencyKey, Vec<usize>> = BTreeMap::new();
    let mut by_index: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (position, call) in calls.iter().enumerate() {
        let Asked::Write(request) = &call.asked else { continue };
        match (&request.idempotency_key, index(call)) {
            (Some(key), _) => by_key.entry(key).or_default().push(position),
            (None, Some(index)) => by_index.entry(index).or_default().push(position),
            (None, None) => {}
        }
    }
    let (mut oracle, mut resolved) = (Oracle::default(), Resolved::default());
    let mut found: Vec<Found> = calls.iter().map(|_| Found::default()).collect();
    for (at, logged) in log {
        resolved.entries += 1;
        let entry = match logged {
            Logged::Members(members) => {
                oracle.apply_members(at, &members);
                continue;
            }
            Logged::Entry(entry) => entry,
        };
        let answers = oracle.apply(at, &entry);
        for (request, answer) in entry.requests.iter().zip(answers) {
            let keyed = request.idempotency_key.as_ref().and_then(|key| by_key.get(key));
            for position in keyed.or_else(|| by_index.get(&at)).into_iter().flatten() {
                let call = &calls[*position];
                if asked(call) == Some(request) {
                    let found = &mut found[*position];
                    found.times += 1;
                    found.was_done |= answer.is_ok() && !may_be_better_later(&answer);
                    found.is_confirmed |= is_told(call, at, &answer);
                }
            }
        }
    }
    for (call, found) in calls.iter().zip(&found).filter(|(call, _)| asked(call).is_some()) {
        match &call.outcome {
            Outcome::Ok { .. } if found.times == 0 => broken!("{call:?} was acknowledged, and is not in the log"),
            Outcome::Ok { .. } => ensure!(found.is_confirmed, "no entry of the log gives the answer of {call:?}"),
            // Some refusals do not come as far as the log.
            Outcome::Refused { .. } => {
                let fits = found.times == 0 || (found.is_confirmed && !found.was_done);
                ensure!(fits, "no entry of the log refuses {call:?}");
            }
            Outcome::NotDone => ensure!(!found.was_done, "{call:?} was done"),
            Outcome::Unknown if found.was_done => resolved.unknown_found += 1,
            Outcome::Unknown => resolved.unknown_absent += 1,
        }
        resolved.confirmed += usize::from(found.is_confirmed);
    }
    Ok(resolved)
}

fn asked(call: &Call) -> Option<&Request> {
    match &call.asked {
        Asked::Write(request) => Some(request),
        Asked::History(_) | Asked::Row(_) => None,
    }
}

fn index(call: &Call) -> Option<u64> {
    match &call.outcome {
        Outcome::Ok { index, .. } => Some(*index),
        Outcome::Refused { index, .. } => *index,
        Outcome::NotDone | Outcome::Unknown => None,
    }
}

/// True if this answer at this index is what the client was told.
fn is_told(call: &Call, at: u64, answer: &Result<Reply, Reject>) -> bool {
    if index(call).is_some_and(|index| index != at) {
        return false;
    }
    match (&call.outcome, plain(answer.clone())) {
        (Outcome::Ok { answer: Answer::Reply(told), .. }, Ok(reply)) => *told == reply,
        (Outcome::Refused { reject, .. }, Err(refused)) => plain(Err(reject.clone())) == Err(refused),
        _ => false,
    }
}
