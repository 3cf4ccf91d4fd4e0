//! Invariant 13: a lease ends exactly when log time says so, and log time never decreases, whatever the clocks do.
//! (Contract, section 2: log time; section 6: leases.)

use holdfast_machine::{Holder, Millis, RowStatus};

use super::Step;

pub fn check(step: &Step<'_>) {
    assert!(step.after.now >= step.before.now, "log time went back");
    let mut ends: Vec<Millis> = Vec::new();
    for (key, row) in step.after.rows_in(RowStatus::Claimed) {
        let Some(claim) = &row.claim else { panic!("{key} is claimed by nobody") };
        match (&claim.holder, claim.deadline) {
            (Holder::Lease { .. }, Some(deadline)) => {
                let is_new = claim.token.index == step.index;
                let in_time = deadline > step.after.now || (is_new && step.after.now == Millis(u64::MAX));
                assert!(in_time, "the lease of {key} ended at {deadline} and it is {}", step.after.now);
                ends.push(deadline);
            }
            (Holder::Node { .. } | Holder::Session { .. }, None) => {}
            other => panic!("{key} is held oddly: {other:?}"),
        }
    }
    assert_eq!(step.after.next_lease_end, ends.into_iter().min(), "the next end of a lease is another");
    for (key, before) in step.before.rows_in(RowStatus::Claimed) {
        let leased = before.claim.as_ref().is_some_and(|claim| claim.deadline.is_some());
        if leased && !step.lease_ended(key) && step.touching(&key.workflow).count() == 0 {
            assert_eq!(step.after.rows.get(key), Some(before), "the lease of {key} ended before its time");
        }
    }
}
