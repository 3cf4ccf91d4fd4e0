//! At most one outcome for each (run, ordinal), and none without its being scheduled (invariant 10).

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use holdfast_machine::{EventKind, HistoryEvent, WorkflowId};

/// What a history says of one activity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// How often it was scheduled.
    pub scheduled: u32,
    /// How many outcomes it has.
    pub outcomes: u32,
}

/// The activities of a history by run (from 1) and ordinal.
pub fn activities(events: &[HistoryEvent]) -> BTreeMap<(u32, u64), Activity> {
    let mut found: BTreeMap<(u32, u64), Activity> = BTreeMap::new();
    let mut run = 0;
    for event in events {
        run += u32::from(event.kind == EventKind::WorkflowStarted);
        let Some(ordinal) = event.ordinal else { continue };
        let activity = found.entry((run, ordinal)).or_default();
        activity.scheduled += u32::from(event.kind == EventKind::ActivityScheduled);
        activity.outcomes += u32::from(event.kind.is_outcome());
    }
    found
}

/// No activity was scheduled twice or has two outcomes, and no run was closed twice.
///
/// # Errors
/// The first that was.
pub fn at_most_one(id: &WorkflowId, events: &[HistoryEvent]) -> Result<()> {
    for ((run, ordinal), activity) in activities(events) {
        let fits = activity.scheduled <= 1 && activity.outcomes <= 1;
        ensure!(fits, "{id}, run {run}, ordinal {ordinal}: {activity:?}");
    }
    let mut open = false;
    for event in events {
        match event.kind.leads_to() {
            Some(status) if status.is_terminal() => {
                ensure!(open || event.seq == 1, "{id}: event {} closes a run that is closed", event.seq);
                open = false;
            }
            _ => open = true,
        }
    }
    Ok(())
}

/// Each of these ordinals of the first run was scheduled once and has one outcome.
///
/// # Errors
/// The first that was not or has not.
pub fn exactly_one(id: &WorkflowId, events: &[HistoryEvent], ordinals: impl IntoIterator<Item = u64>) -> Result<()> {
    let found = activities(events);
    for ordinal in ordinals {
        let activity = found.get(&(1, ordinal)).copied().unwrap_or_default();
        let one = Activity { scheduled: 1, outcomes: 1 };
        ensure!(activity == one, "{id}, ordinal {ordinal}: {activity:?}");
    }
    Ok(())
}
