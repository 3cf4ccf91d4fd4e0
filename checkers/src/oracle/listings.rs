//! The oracle's view of listings: every history is read from its beginning, and every question is put to each of them.

use holdfast_machine::{
    AttributeFilter, AttributeRange, AttributeValue, Attributes, EventKind, HistoryEvent, ListedWorkflow, Millis,
    SortOrder, TimeRange, WorkflowId, WorkflowQuery, WorkflowSort,
};

use crate::oracle::Oracle;
use crate::oracle::histories::ends_a_run;

impl Oracle {
    /// The workflows that a query asks for, in its order.
    pub fn found(&self, query: &WorkflowQuery) -> Vec<ListedWorkflow> {
        let mut ids: Vec<&WorkflowId> = self.events.iter().map(|(id, _)| id).collect();
        ids.sort();
        ids.dedup();
        let mut found: Vec<ListedWorkflow> = ids.into_iter().map(|id| self.listed(id)).collect();
        found.retain(|listed| wanted(listed, query));
        let time = |listed: &ListedWorkflow| match query.sort {
            WorkflowSort::Started => listed.started_at,
            WorkflowSort::Closed => listed.closed_at.unwrap(),
        };
        found.sort_by(|one, other| (time(one), &one.workflow).cmp(&(time(other), &other.workflow)));
        if query.order == SortOrder::Newest {
            found.reverse();
        }
        found
    }

    fn listed(&self, id: &WorkflowId) -> ListedWorkflow {
        let history = self.history(id);
        let (status, run) = self.status(id);
        let opens = |event: &&&HistoryEvent| event.kind == EventKind::WorkflowStarted || event.seq == 1;
        let opening = history.iter().rev().find(opens).unwrap();
        let start = opening.start.clone();
        let ended = history.iter().rev().find(|event| ends_a_run(&event.kind)).filter(|_| status.is_terminal());
        ListedWorkflow {
            workflow: id.clone(),
            namespace: self.namespace(id),
            workflow_type: start.as_ref().map(|start| start.workflow_type.clone()),
            status,
            run_id: start.and_then(|start| start.run_id).unwrap_or_else(|| format!("run-{run}").parse().unwrap()),
            started_at: opening.at,
            closed_at: ended.map(|event| event.at),
            head: history.len() as u64,
            search_attributes: attributes(&history),
        }
    }
}

/// What is left of all that was ever set.
fn attributes(history: &[&HistoryEvent]) -> Attributes {
    let mut attributes = Attributes::new();
    for event in history {
        for (name, value) in event.search_attributes.iter().flatten() {
            attributes.remove(name);
            attributes.extend(value.clone().map(|value| (name.clone(), value)));
        }
    }
    attributes
}

fn wanted(listed: &ListedWorkflow, query: &WorkflowQuery) -> bool {
    let filter = &query.filter;
    let closed = listed.closed_at.is_some();
    listed.namespace == filter.namespace
        && (filter.workflow_types.is_empty()
            || filter.workflow_types.iter().any(|of| listed.workflow_type.as_ref() == Some(of)))
        && (filter.statuses.is_empty() || filter.statuses.contains(&listed.status))
        && within(&filter.started, listed.started_at)
        && (filter.closed == TimeRange::default() || listed.closed_at.is_some_and(|at| within(&filter.closed, at)))
        && (query.sort == WorkflowSort::Started || closed)
        && filter.attributes.iter().all(|attribute| holds(attribute, &listed.search_attributes))
}

fn within(range: &TimeRange, at: Millis) -> bool {
    at >= range.from.unwrap_or(Millis(0)) && range.to.is_none_or(|to| at < to)
}

fn holds(wanted: &AttributeFilter, attributes: &Attributes) -> bool {
    let Some(value) = attributes.get(&wanted.name) else { return false };
    match (&wanted.equals, &wanted.range, value) {
        (Some(AttributeValue::Text(text)), None, AttributeValue::Texts(texts)) => texts.contains(text),
        (Some(equals), None, value) => equals == value,
        (None, Some(AttributeRange::Integer { from, to }), AttributeValue::Integer(number)) => {
            from.is_none_or(|from| from <= *number) && to.is_none_or(|to| *number < to)
        }
        (None, Some(AttributeRange::Time { from, to }), AttributeValue::Time(at)) => {
            within(&TimeRange { from: *from, to: *to }, *at)
        }
        _ => false,
    }
}
