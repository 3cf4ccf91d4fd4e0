//! The order of time is the order of the log.

use crate::history::{Asked, Call, Outcome};
use crate::{Check, ensure};

/// If A returned before B was made, then A's index is smaller than that of B, and not larger if B is a read.
pub fn check(calls: &[Call]) -> Check {
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (position, call) in calls.iter().enumerate() {
        if index(call).is_some() {
            moments.push((call.invoked, false, position));
            moments.extend(call.returned.map(|returned| (returned, true, position)));
        }
    }
    moments.sort_unstable();
    // The call with the largest index that has returned so far; what it was when each call was made.
    let mut latest: Option<usize> = None;
    let mut before: Vec<Option<usize>> = vec![None; calls.len()];
    for (_, is_return, position) in moments {
        if !is_return {
            before[position] = latest;
            continue;
        }
        let at = index(&calls[position]).unwrap_or_default();
        if let Some(earlier) = before[position] {
            let floor = index(&calls[earlier]).unwrap_or_default();
            let fits = if is_read(&calls[position]) { at >= floor } else { at > floor };
            let (earlier, later) = (&calls[earlier], &calls[position]);
            ensure!(
                fits,
                "index {floor} was answered before a call was made that got {at}: {earlier:?}, then {later:?}"
            );
        }
        if latest.is_none_or(|latest| index(&calls[latest]).unwrap_or_default() < at) {
            latest = Some(position);
        }
    }
    Ok(())
}

fn index(call: &Call) -> Option<u64> {
    match call.outcome {
        Outcome::Ok { index, .. } => Some(index),
        Outcome::Refused { index, .. } => index,
        Outcome::NotDone | Outcome::Unknown => None,
    }
}

fn is_read(call: &Call) -> bool {
    !matches!(call.asked, Asked::Write(_))
}
