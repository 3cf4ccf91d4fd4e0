//! Invariant 14: a delivery count over the budget makes a dead letter, once; rows staged are pending, claimed,
//! done, failed or cancelled, and none is lost. (Contract, section 6.)

use std::collections::{BTreeMap, BTreeSet};

use holdfast_machine::{Command, DispatchKey, Namespace, RowCounts, RowStatus};

use crate::{Check, Snapshot, Step, broken, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let in_status = |status| state.rows_in(status).count() as u64;
    ensure_eq!(state.counts.pending, in_status(RowStatus::Pending), "pending rows are miscounted");
    ensure_eq!(state.counts.claimed, in_status(RowStatus::Claimed), "claimed rows are miscounted");
    let mut counts: BTreeMap<Namespace, RowCounts> = BTreeMap::new();
    for (_, row) in state.rows_in(RowStatus::Pending) {
        counts.entry(row.namespace.clone()).or_default().pending += 1;
    }
    for (_, row) in state.rows_in(RowStatus::Claimed) {
        counts.entry(row.namespace.clone()).or_default().claimed += 1;
    }
    ensure_eq!(state.namespace_counts, counts, "rows are miscounted by namespace");
    let live = state.rows.iter().filter(|(_, row)| row.status.is_live()).map(|(key, _)| key.clone());
    ensure_eq!(state.live, live.collect::<BTreeSet<DispatchKey>>(), "a live row is missing, or a finished one lives");
    for (key, row) in state.rows_in(RowStatus::Failed) {
        let is_spent = row.deliveries >= row.retry.deliveries_max;
        ensure!(is_spent || row.outcome_seq.is_some(), "{key} failed with budget left and no outcome");
    }
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    for (key, before) in &step.before.rows {
        let Some(after) = step.after.rows.get(key) else { broken!("the row {key} is gone") };
        if after.run == before.run {
            let mut touching = step.touching(&key.workflow);
            let is_redriven =
                touching.any(|request| matches!(&request.command, Command::Redrive { key: of, .. } if of == key));
            ensure!(is_redriven || after.deliveries >= before.deliveries, "the delivery count of {key} went back");
            ensure!(after.attempt >= before.attempt, "the attempt of {key} went back");
        }
    }
    for (key, row) in step.after.rows.iter().filter(|(_, row)| row.status.is_live()) {
        let is_spent = row.deliveries >= row.retry.deliveries_max && row.deliveries > 0;
        let was_spent = step.before.rows.get(key).is_some_and(|before| before.deliveries >= row.retry.deliveries_max);
        let by_rearm = step.touching(&key.workflow).any(|request| matches!(request.command, Command::Rearm { .. }));
        ensure!(!is_spent || was_spent || by_rearm, "{key} has spent its budget and is {}", row.status);
    }
    Ok(())
}
