//! Status, runs and outcomes are a projection of a history's events, kept up to date in apply. [`project`]
//! computes it for a batch before anything is written, so a batch is taken whole or refused whole.

use std::collections::BTreeSet;

use crate::history::{EventKind, NewEvent, Run, Workflow, WorkflowStart, WorkflowStatus};
use crate::id::{DispatchKey, Millis, Namespace, RunId, WorkflowId};
use crate::reject::Reject;

/// The number of the run that a history begins with.
pub(crate) const FIRST_RUN: u32 = 1;

/// What a batch of events makes of a workflow.
#[derive(Debug)]
pub(crate) struct Projection {
    /// The workflow after the batch.
    pub workflow: Workflow,
    /// Runs that the batch opened, closed or reopened, as they are after it.
    pub runs: Vec<Run>,
    /// Outcomes of activities in the batch.
    pub outcomes: Vec<Outcome>,
    /// True if a run was closed somewhere in the batch.
    pub closed: bool,
}

/// One activity's outcome in a batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub run: u32,
    pub ordinal: u64,
    pub kind: EventKind,
    pub seq: u64,
}

fn first_run(event: &NewEvent, at: Millis) -> Result<Workflow, Reject> {
    if event.kind == EventKind::WorkflowReopened {
        return Err(Reject::invalid("events: a new workflow cannot begin with WorkflowReopened"));
    }
    let (namespace, run) = if event.kind == EventKind::WorkflowStarted {
        let start = start_of(event)?;
        (start.namespace.clone(), open_run(start, FIRST_RUN, None, at, 1))
    } else {
        (Namespace::default(), unannounced_run(at))
    };
    Ok(Workflow { namespace, status: WorkflowStatus::Running, head: 0, run, attribute_count: 0 })
}

/// The run of a history that does not begin with WorkflowStarted.
pub(crate) fn unannounced_run(at: Millis) -> Run {
    Run {
        number: FIRST_RUN,
        run_id: RunId::numbered(FIRST_RUN),
        parent: None,
        workflow_type: None,
        status: WorkflowStatus::Running,
        started_at: at,
        started_seq: 1,
        closed_at: None,
    }
}

fn start_of(event: &NewEvent) -> Result<&WorkflowStart, Reject> {
    event.start.as_ref().ok_or_else(|| Reject::invalid("events: WorkflowStarted needs `start`"))
}

fn open_run(start: &WorkflowStart, number: u32, parent: Option<RunId>, at: Millis, seq: u64) -> Run {
    Run {
        number,
        run_id: start.run_id.clone().unwrap_or_else(|| RunId::numbered(number)),
        parent,
        workflow_type: Some(start.workflow_type.clone()),
        status: WorkflowStatus::Running,
        started_at: at,
        started_seq: seq,
        closed_at: None,
    }
}

/// The refusal for a commit that creates a workflow and says nothing of it.
pub(crate) fn no_event() -> Reject {
    Reject::invalid("a new workflow needs at least one event")
}

/// What `events` make of the workflow `id`, or why they do not fit. Writes nothing.
pub(crate) fn project(
    id: &WorkflowId,
    current: Option<Workflow>,
    events: &[NewEvent],
    at: Millis,
) -> Result<Projection, Reject> {
    let Some(first) = events.first() else {
        let workflow = current.ok_or_else(no_event)?;
        return Ok(Projection { workflow, runs: Vec::new(), outcomes: Vec::new(), closed: false });
    };
    let is_new = current.is_none();
    let run_before = current.as_ref().map(|workflow| workflow.run.clone());
    let workflow = match current {
        Some(workflow) => workflow,
        None => first_run(first, at)?,
    };
    let mut projection = Projection { workflow, runs: Vec::new(), outcomes: Vec::new(), closed: false };
    let mut seen = BTreeSet::new();
    for (position, event) in events.iter().enumerate() {
        let opened_by_first = is_new && position == 0 && event.kind == EventKind::WorkflowStarted;
        projection.workflow.head += 1;
        if !opened_by_first {
            projection.lifecycle(event, at)?;
        }
        projection.outcome(id, event, &mut seen)?;
        if event.search_attributes.is_some()
            && !matches!(event.kind, EventKind::WorkflowStarted | EventKind::SearchAttributesUpdated)
        {
            let kind = &event.kind;
            return Err(Reject::invalid(format!("events: {kind} takes no `search_attributes`")));
        }
    }
    if run_before.as_ref() != Some(&projection.workflow.run) {
        projection.runs.push(projection.workflow.run.clone());
    }
    Ok(projection)
}

impl Projection {
    fn lifecycle(&mut self, event: &NewEvent, at: Millis) -> Result<(), Reject> {
        let Some(status) = event.kind.leads_to() else { return Ok(()) };
        let workflow = &mut self.workflow;
        let terminal = workflow.status.is_terminal();
        let fits = match event.kind {
            EventKind::WorkflowStarted | EventKind::WorkflowReopened => terminal,
            _ => !terminal,
        };
        if !fits {
            return Err(Reject::WorkflowStatus { kind: event.kind.clone(), status: workflow.status });
        }
        if event.kind == EventKind::WorkflowStarted {
            let start = start_of(event)?;
            let number = workflow.run.number.checked_add(1);
            let number = number.ok_or_else(|| Reject::invalid("events: the workflow has no number left for a run"))?;
            let next = open_run(start, number, Some(workflow.run.run_id.clone()), at, workflow.head);
            self.runs.push(std::mem::replace(&mut workflow.run, next));
        }
        workflow.status = status;
        workflow.run.status = status;
        workflow.run.closed_at = status.is_terminal().then_some(at);
        self.closed |= status.is_terminal();
        Ok(())
    }

    fn outcome(&mut self, id: &WorkflowId, event: &NewEvent, seen: &mut BTreeSet<(u32, u64)>) -> Result<(), Reject> {
        if !event.kind.is_outcome() {
            return Ok(());
        }
        let ordinal =
            event.ordinal.ok_or_else(|| Reject::invalid(format!("events: {} needs `ordinal`", event.kind)))?;
        let run = self.workflow.run.number;
        if !seen.insert((run, ordinal)) {
            let key = DispatchKey { workflow: id.clone(), ordinal };
            return Err(Reject::AlreadyTerminal { key, status: None });
        }
        self.outcomes.push(Outcome { run, ordinal, kind: event.kind.clone(), seq: self.workflow.head });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{id, started};

    fn of(kinds: &[EventKind]) -> Result<Projection, Reject> {
        let event = |kind: &EventKind| match kind {
            EventKind::WorkflowStarted => started(),
            kind => NewEvent::of(kind.clone()),
        };
        project(&id("w"), None, &kinds.iter().map(event).collect::<Vec<_>>(), Millis(7))
    }

    #[test]
    fn the_last_lifecycle_event_decides() {
        use EventKind::*;
        let status = |kinds: &[EventKind]| of(kinds).map(|projection| projection.workflow.status).ok();
        assert_eq!(status(&[WorkflowStarted]), Some(WorkflowStatus::Running));
        assert_eq!(status(&[SignalReceived]), Some(WorkflowStatus::Running));
        assert_eq!(status(&[WorkflowStarted, WorkflowPaused]), Some(WorkflowStatus::Paused));
        assert_eq!(status(&[WorkflowStarted, WorkflowPaused, WorkflowResumed]), Some(WorkflowStatus::Running));
        assert_eq!(status(&[WorkflowStarted, WorkflowTimedOut, SignalReceived]), Some(WorkflowStatus::TimedOut));
        assert_eq!(status(&[WorkflowStarted, WorkflowFailed, WorkflowReopened]), Some(WorkflowStatus::Running));
        assert_eq!(status(&[WorkflowStarted, WorkflowStarted]), None);
        assert_eq!(status(&[WorkflowStarted, WorkflowFailed, WorkflowPaused]), None);
        assert_eq!(status(&[WorkflowReopened]), None);
        assert_eq!(status(&[]), None);
    }

    #[test]
    fn runs_form_a_chain() {
        use EventKind::*;
        let projection = of(&[WorkflowStarted, WorkflowContinuedAsNew, WorkflowStarted, WorkflowCompleted]).unwrap();
        let runs: Vec<_> = projection.runs.iter().map(|run| (run.number, run.started_seq, run.status)).collect();
        assert_eq!(runs, [(1, 1, WorkflowStatus::ContinuedAsNew), (2, 3, WorkflowStatus::Completed)]);
        assert_eq!(projection.runs[1].parent, Some(id("run-1")));
        assert!(projection.closed && projection.runs.iter().all(|run| run.closed_at == Some(Millis(7))));
    }

    #[test]
    fn reopening_takes_the_end_back() {
        use EventKind::*;
        let projection = of(&[WorkflowStarted, WorkflowFailed, WorkflowReopened]).unwrap();
        assert_eq!((projection.workflow.run.number, projection.workflow.run.closed_at), (1, None));
    }

    #[test]
    fn an_outcome_names_its_activity() {
        let events = [started(), NewEvent::of(EventKind::ActivityCompleted)];
        assert!(matches!(project(&id("w"), None, &events, Millis(0)), Err(Reject::InvalidArgument { .. })));
        let start = NewEvent::of(EventKind::WorkflowStarted);
        assert!(matches!(project(&id("w"), None, &[start], Millis(0)), Err(Reject::InvalidArgument { .. })));
    }
}
