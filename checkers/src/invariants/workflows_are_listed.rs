//! Listings and counts are what the histories say: each workflow stands in the order of starts once, in that of closes
//! once if it is closed, with the attributes that its events left behind, and nothing else stands there. (Contract,
//! section 5: listing. A leak in an index would be a workflow that is found twice, or never.)

use std::collections::BTreeMap;

use holdfast_machine::{Attributes, ListedWorkflow, WorkflowStatus};

use crate::{Check, Snapshot, broken, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let mut expected = Vec::new();
    for (id, told) in &state.workflows {
        let mut search_attributes = Attributes::new();
        for (name, value) in told.events.iter().filter_map(|event| event.search_attributes.as_ref()).flatten() {
            match value {
                Some(value) => search_attributes.insert(name.clone(), value.clone()),
                None => search_attributes.remove(name),
            };
        }
        let Some(run) = told.runs.last() else { broken!("{id} has no run") };
        ensure_eq!(run, &told.workflow.run, "the last run of {id}");
        expected.push(ListedWorkflow {
            workflow: id.clone(),
            namespace: told.workflow.namespace.clone(),
            workflow_type: run.workflow_type.clone(),
            status: run.status,
            run_id: run.run_id.clone(),
            started_at: run.started_at,
            closed_at: run.closed_at,
            head: told.events.last().map_or(0, |event| event.seq),
            search_attributes,
        });
    }
    let by_start = |listed: &ListedWorkflow| (listed.namespace.clone(), listed.started_at, listed.workflow.clone());
    expected.sort_by_key(by_start);
    ensure_eq!(state.listings.by_start, expected, "workflows by start");
    let mut counts: BTreeMap<WorkflowStatus, u64> = BTreeMap::new();
    expected.iter().for_each(|listed| *counts.entry(listed.status).or_default() += 1);
    ensure_eq!(state.listings.by_status, counts, "workflows by status");

    let in_table = |letter| state.stored_in(letter);
    ensure_eq!(in_table(b'V'), expected.len(), "rows in the order of starts");
    let searched = expected.iter().filter(|listed| !listed.search_attributes.is_empty()).count();
    ensure_eq!(in_table(b'P'), searched, "workflows with search attributes");
    expected.retain(|listed| listed.closed_at.is_some());
    expected.sort_by_key(|listed| (listed.namespace.clone(), listed.closed_at, listed.workflow.clone()));
    ensure_eq!(state.listings.by_close, expected, "workflows by close");
    ensure_eq!(in_table(b'Z'), expected.len(), "rows in the order of closes");
    Ok(())
}
