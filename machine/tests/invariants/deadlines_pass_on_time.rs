//! Invariant 13: leases end and timeouts pass exactly when log time says so, and log time never decreases, whatever the
//! clocks do. (Contract, section 2: log time; section 6: leases; section 8: timeouts.)

use holdfast_machine::{Holder, Millis, RowStatus, WorkflowStatus};

use super::Step;
use super::snapshot::deadline;

pub fn check(step: &Step<'_>) {
    let after = step.after;
    assert!(after.now >= step.before.now, "log time went back");
    for (key, row) in after.rows_in(RowStatus::Claimed) {
        let Some(claim) = &row.claim else { panic!("{key} is claimed by nobody") };
        match (&claim.holder, claim.deadline) {
            (Holder::Lease { .. }, Some(_)) | (Holder::Node { .. } | Holder::Session { .. }, None) => {}
            other => panic!("{key} is held oddly: {other:?}"),
        }
    }
    let mut deadlines: Vec<Millis> = Vec::new();
    for (key, row) in after.rows.iter().filter(|(_, row)| row.status.is_live()) {
        let waits = row.status == RowStatus::Pending && after.status(&key.workflow) == WorkflowStatus::Paused;
        let Some(at) = deadline(row).filter(|_| !waits) else { continue };
        let is_new = row.claim.as_ref().is_some_and(|claim| claim.token.index == step.index);
        // A timeout of no time at all passes with the next entry that lets time pass, and one of the membership does not.
        let stands_still = step.said.is_empty() && after.now == step.before.now;
        let is_untouched = stands_still && step.before.rows.get(key) == Some(row);
        assert!(at > after.now || is_new || is_untouched, "the deadline of {key} was {at} and it is {}", after.now);
        deadlines.push(at);
    }
    assert_eq!(after.next_deadline, deadlines.into_iter().min(), "the next deadline is another");
    for (key, before) in step.before.rows.iter().filter(|(_, row)| row.status.is_live()) {
        if !step.deadline_passed(key) && !step.was_given(key) && step.touching(&key.workflow).count() == 0 {
            assert_eq!(after.rows.get(key), Some(before), "something happened to {key} before its time");
        }
    }
}
