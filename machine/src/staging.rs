//! Staging: where the rows of a commit belong, and how they come to be.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::ArchiveResult;
use crate::command::Commit;
use crate::history::{EventKind, WorkflowStatus};
use crate::id::{DispatchKey, Millis, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::projection::Projection;
use crate::reject::Reject;
use crate::reply::Staged;
use crate::state::Apply;

/// Where the rows of a commit belong, by ordinal.
pub(crate) type Places = BTreeMap<u64, Place>;

/// Where a row of a commit belongs, by the events that announce it.
pub(crate) struct Place {
    pub run: u32,
    /// True if the commit leaves that run ended.
    pub is_over: bool,
    scheduled: u32,
    started: u32,
}

/// Each staged row is announced by its two events in the same commit and the same run, once.
pub(crate) fn row_places(commit: &Commit, projection: &Projection) -> Result<Places, Reject> {
    let mut places = Places::new();
    if commit.rows.is_empty() {
        return Ok(places);
    }
    // Backwards, because the run that the commit ends in is known.
    let (mut run, mut is_over) = (projection.workflow.run.number, projection.workflow.status.is_terminal());
    for event in commit.events.iter().rev() {
        if let (Some(ordinal), EventKind::ActivityScheduled | EventKind::ActivityStarted) = (event.ordinal, &event.kind)
        {
            let place = places.entry(ordinal).or_insert(Place { run, is_over, scheduled: 0, started: 0 });
            let is_same_run = u32::from(place.run == run);
            match event.kind {
                EventKind::ActivityScheduled => place.scheduled += is_same_run,
                _ => place.started += is_same_run,
            }
        }
        is_over |= event.kind.leads_to().is_some_and(WorkflowStatus::is_terminal);
        if event.kind == EventKind::WorkflowStarted {
            // What stands before it belongs to a run that has ended.
            (run, is_over) = (run.saturating_sub(1), true);
        }
    }
    let mut ordinals = BTreeSet::new();
    for NewRow { ordinal, .. } in &commit.rows {
        if !ordinals.insert(*ordinal) {
            return Err(Reject::invalid(format!("rows: ordinal {ordinal} appears twice")));
        }
        if !places.get(ordinal).is_some_and(|place| place.scheduled == 1 && place.started == 1) {
            return Err(Reject::invalid(format!(
                "rows: ordinal {ordinal} needs one ActivityScheduled and one ActivityStarted in the same commit"
            )));
        }
    }
    Ok(places)
}

impl Apply<'_> {
    pub fn stage(
        &mut self,
        id: &WorkflowId,
        namespace: &Namespace,
        new: NewRow,
        has_past: bool,
        places: &Places,
    ) -> ArchiveResult<Staged> {
        let key = DispatchKey { workflow: id.clone(), ordinal: new.ordinal };
        // `row_places` refuses a commit with a row that has none.
        let Some(place) = places.get(&new.ordinal) else { return Ok(Staged { key, written: false }) };
        let standing = if has_past { self.row(&key)? } else { None };
        let status = if place.is_over { RowStatus::Cancelled } else { RowStatus::Pending };
        let written = self.stage_row(&key, standing, namespace, place.run, status, new);
        Ok(Staged { key, written })
    }

    /// Writes a row unless one with its key stands there; only a finished one of an earlier run makes way.
    pub fn stage_row(
        &mut self,
        key: &DispatchKey,
        standing: Option<Row>,
        namespace: &Namespace,
        run: u32,
        status: RowStatus,
        new: NewRow,
    ) -> bool {
        if standing.as_ref().is_some_and(|row| row.status.is_live() || row.run >= run) {
            return false;
        }
        let row = Row { status, ..self.new_row(key, namespace, run, new) };
        match standing {
            Some(finished) => {
                self.state.delete(keys::details(key));
                self.replace_row(key, &finished, row);
            }
            None => self.put_row(key, row),
        }
        true
    }

    /// Rows that were staged for a run that the same commit ended, and that are cancelled with it.
    pub fn stillborn(&self, staged: &[Staged], places: &Places) -> ArchiveResult<Vec<DispatchKey>> {
        let mut keys = Vec::new();
        for Staged { key, written } in staged {
            let is_over = places.get(&key.ordinal).is_some_and(|place| place.is_over);
            if *written && is_over && self.row(key)?.is_some_and(|row| row.status == RowStatus::Cancelled) {
                keys.push(key.clone());
            }
        }
        Ok(keys)
    }

    /// Writes the input of a fresh row and makes the row, pending.
    pub fn new_row(&mut self, key: &DispatchKey, namespace: &Namespace, run: u32, new: NewRow) -> Row {
        let NewRow { ordinal: _, task_queue, node, activity_type, input, visible_after, retry, timeouts } = new;
        self.state.put(keys::input(key), &input);
        Row {
            run,
            namespace: namespace.clone(),
            task_queue,
            node,
            activity_type,
            status: RowStatus::Pending,
            deliveries: 0,
            attempt: 1,
            visible_after: if visible_after == Millis(0) { self.now() } else { visible_after },
            claim: None,
            outcome_seq: None,
            failure_delivered: false,
            retry,
            scheduled_at: self.now(),
            start_by: None,
            timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::{Command, Commit};
    use crate::history::{EventKind, NewEvent};
    use crate::outbox::RowStatus;
    use crate::trial::{Trial, activities, id, started};

    #[test]
    fn rows_of_every_run_in_a_commit_find_their_place() {
        let mut trial = Trial::new();
        let ended = |kind| NewEvent::of(kind);
        let mut events = vec![started()];
        let mut rows = Vec::new();
        let mut add = |ordinal: u64, then: Vec<NewEvent>| {
            let (new_events, new_rows) = activities([ordinal]);
            events.extend(new_events.into_iter().chain(then));
            rows.extend(new_rows);
        };
        // 1: in a run that ends later; 2: between two runs; 3: in the run that stays open.
        add(1, vec![ended(EventKind::WorkflowContinuedAsNew)]);
        add(2, vec![started()]);
        add(3, Vec::new());
        trial.ask(Command::Commit(Commit { events, rows, ..Commit::new(id("order-1"), 0) })).unwrap();
        let row = |ordinal: u64| trial.row(&format!("order-1:{ordinal}")).map(|row| (row.run, row.status)).unwrap();
        assert_eq!(row(1), (1, RowStatus::Cancelled));
        assert_eq!(row(2), (1, RowStatus::Cancelled));
        assert_eq!(row(3), (2, RowStatus::Pending));
        assert_eq!(trial.lease(9, 9).len(), 1);
    }
}
