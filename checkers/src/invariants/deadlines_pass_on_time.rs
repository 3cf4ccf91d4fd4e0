//! Invariant 13: leases end and timeouts pass exactly when log time says so, and log time never decreases, whatever the
//! clocks do. (Contract, section 2: log time; section 6: leases; section 8: timeouts.)

use holdfast_machine::limits::DEADLINES_PASSED_PER_ENTRY_MAX;
use holdfast_machine::{DispatchKey, Holder, Millis, Row, RowStatus, WorkflowStatus};

use crate::step::deadline;
use crate::{Check, Snapshot, Step, broken, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for (key, row) in state.rows_in(RowStatus::Claimed) {
        let Some(claim) = &row.claim else { broken!("{key} is claimed by nobody") };
        match (&claim.holder, claim.deadline) {
            (Holder::Lease { .. }, Some(_)) | (Holder::Node { .. } | Holder::Session { .. }, None) => {}
            other => broken!("{key} is held oddly: {other:?}"),
        }
    }
    let first = deadlines(state).map(|(_, _, at)| at).min();
    ensure_eq!(state.next_deadline, first, "the next deadline");
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    let after = step.after;
    ensure!(after.now >= step.before.now, "log time went back");
    // More than an entry may let pass go on with the next one.
    let overdue = deadlines(step.before).filter(|(_, _, at)| *at <= after.now).count();
    for (key, row, at) in deadlines(after).filter(|_| overdue < DEADLINES_PASSED_PER_ENTRY_MAX) {
        let is_new = row.claim.as_ref().is_some_and(|claim| claim.token.index == step.index);
        // A timeout of no time at all passes with the next entry that lets time pass, and one of the membership does not.
        let stands_still = step.said.is_empty() && after.now == step.before.now;
        let is_untouched = stands_still && step.before.rows.get(key) == Some(row);
        ensure!(at > after.now || is_new || is_untouched, "the deadline of {key} was {at} and it is {}", after.now);
    }
    for (key, before) in step.before.rows.iter().filter(|(_, row)| row.status.is_live()) {
        if !step.deadline_passed(key) && !step.was_given(key) && step.touching(&key.workflow).count() == 0 {
            ensure_eq!(after.rows.get(key), Some(before), "something happened to {key} before its time");
        }
    }
    Ok(())
}

/// Live rows with the deadlines that run; those of rows that wait with their workflow do not.
fn deadlines(state: &Snapshot) -> impl Iterator<Item = (&DispatchKey, &Row, Millis)> {
    state.rows.iter().filter(|(_, row)| row.status.is_live()).filter_map(|(key, row)| {
        let waits = row.status == RowStatus::Pending && state.status(&key.workflow) == WorkflowStatus::Paused;
        Some((key, row, deadline(row).filter(|_| !waits)?))
    })
}
