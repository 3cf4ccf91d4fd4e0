//! Children: workflows that a workflow starts, and whose ends it waits for.
//!
//! All of it is done for the parent, by whoever drives the parent: the child is started by an append at 0, which done
//! twice is a duplicate, and its end is read from its own history, wherever its owner is. So nothing has to be
//! handed over between two histories, and an engine that dies in between leaves nothing behind that the next one would
//! not find: a child that the parent's history announces is started again, and its end is looked up.

use std::time::Duration;

use holdfast_api::{ReadMode, Store, StoreError, StoreResult};
use holdfast_machine::{
    EventKind, HistoryEvent, NewEvent, Payload, Reject, Workflow, WorkflowId, WorkflowStart, WorkflowStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision::{ChildStart, body};
use crate::program::{ChildError, message_in, value_of, written};
use crate::retry::{until_answered, until_read};

/// How long one call waits for a history to grow.
const WAIT: Duration = Duration::from_secs(30);
/// Events that are looked at with one call when an end is searched, from the back.
const PAGE: u64 = 50;

/// How a child ended; the body of ChildWorkflowEnded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChildEnd {
    pub child: u64,
    pub status: WorkflowStatus,
    /// Its result or its error.
    #[serde(default)]
    pub result: Value,
}

/// The event that tells a parent of it.
pub(crate) fn ended(end: &ChildEnd) -> NewEvent {
    NewEvent::of(EventKind::from_name(crate::decision::CHILD_ENDED)).with(body(end))
}

/// What the parent's function hears.
pub(crate) fn result(start: &ChildStart, end: ChildEnd) -> Result<Payload, ChildError> {
    let result = body(&end.result);
    if end.status == WorkflowStatus::Completed {
        return Ok(result);
    }
    Err(ChildError { child: start.workflow.to_string(), status: end.status, message: message_in(&result) })
}

/// Starts a child unless it runs already, and waits for its end.
pub(crate) async fn run(store: Store, start: ChildStart, parent: WorkflowStart) -> Result<ChildEnd, StoreError> {
    match until_end(&store, &start, parent).await {
        Err(StoreError::Reject(reject)) => {
            let result = Value::String(format!("it cannot be started or followed: {reject}"));
            Ok(ChildEnd { child: start.child, status: WorkflowStatus::Failed, result })
        }
        end => end,
    }
}

async fn until_end(store: &Store, start: &ChildStart, parent: WorkflowStart) -> Result<ChildEnd, StoreError> {
    let input = written(&start.input).unwrap_or_default();
    let opening = WorkflowStart { workflow_type: start.workflow_type.clone(), run_id: None, ..parent };
    let started = NewEvent { start: Some(opening), ..NewEvent::of(EventKind::WorkflowStarted) }.with(input);
    until_answered(|write| store.append(&start.workflow, 0, vec![started.clone()], write)).await?;
    let (status, end) = wait_for_end(store, &start.workflow).await?;
    let result = end.and_then(|end| value_of(&end.payload).ok()).unwrap_or_default();
    Ok(ChildEnd { child: start.child, status, result })
}

/// Waits until a workflow has ended: how, and the event that says so.
pub(crate) async fn wait_for_end(
    store: &Store,
    id: &WorkflowId,
) -> Result<(WorkflowStatus, Option<HistoryEvent>), StoreError> {
    let mut mode = ReadMode::Linearizable;
    loop {
        let view = until_read(|| store.workflow(id, mode)).await?;
        let Some(workflow) = view.value.workflow else {
            return Err(Reject::WorkflowNotFound { workflow: id.clone() }.into());
        };
        if workflow.status.is_terminal() {
            let end = find_end(store, id, &workflow).await?.value;
            return Ok((workflow.status, end));
        }
        let (next, seen) = (workflow.head + 1, ReadMode::AtLeast(view.index));
        mode = ReadMode::AtLeast(until_read(|| store.next_events(id, next, 1, WAIT, seen)).await?.index);
    }
}

/// The event that ended a workflow: the last one that says anything of its life, most often the last of all.
async fn find_end(store: &Store, id: &WorkflowId, workflow: &Workflow) -> StoreResult<Option<HistoryEvent>> {
    let mut until = workflow.head;
    loop {
        let from = until.saturating_sub(PAGE - 1).max(workflow.run.started_seq);
        let page = until_read(|| store.history(id, from, PAGE as u32, ReadMode::Stale)).await?;
        let end = page.map(|events| events.into_iter().rfind(|event| event.kind.leads_to().is_some()));
        if end.value.is_some() || from <= workflow.run.started_seq {
            return Ok(end);
        }
        until = from - 1;
    }
}
