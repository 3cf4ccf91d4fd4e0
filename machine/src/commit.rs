//! Commit: events, staged rows and settlements of one workflow in one step. Everything is checked
//! before the first write, so a refused commit leaves no trace.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::archive::ArchiveResult;
use crate::command::Commit;
use crate::event::Effect;
use crate::history::{EventKind, HistoryEvent, NewEvent, StoredEvent, Workflow, WorkflowStatus};
use crate::id::{DispatchKey, Millis, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::projection::{Outcome, Projection, project};
use crate::reject::Reject;
use crate::reply::{Committed, Reply, Staged};
use crate::state::Apply;

impl Apply<'_> {
    pub fn commit(&mut self, commit: Commit) -> ArchiveResult<Result<Reply, Reject>> {
        let id = commit.workflow.clone();
        let current = self.workflow(&id)?;
        let head = current.as_ref().map_or(0, |workflow| workflow.head);
        if commit.expected_seq != head {
            if self.has_landed(&commit, head)? {
                return Ok(Ok(Reply::Committed(as_before(&commit))));
            }
            let expected = commit.expected_seq;
            return Ok(Err(Reject::SequenceConflict { workflow: id, expected, found: head }));
        }
        let was = current.as_ref().map(|workflow| workflow.status);
        let projection = match project(&id, current, &commit.events, self.now()) {
            Ok(projection) => projection,
            Err(reject) => return Ok(Err(reject)),
        };
        let places = match row_places(&commit, &projection) {
            Ok(places) => places,
            Err(reject) => return Ok(Err(reject)),
        };
        // A new workflow has neither outcomes nor rows to conflict with.
        if was.is_some()
            && let Some(reject) = self.conflict(&id, &projection.outcomes, &commit.rows, &places)?
        {
            return Ok(Err(reject));
        }
        // From here on nothing is refused.
        Ok(Ok(Reply::Committed(self.write_commit(commit, was, projection, &places)?)))
    }

    fn write_commit(
        &mut self,
        commit: Commit,
        was: Option<WorkflowStatus>,
        projection: Projection,
        places: &Places,
    ) -> ArchiveResult<Committed> {
        let rows_hash = hash_of_rows(&commit);
        let Commit { workflow: id, expected_seq, events, rows, settle, transitions: _, timers: _ } = commit;
        let Projection { workflow, runs, outcomes, closed } = projection;
        let (head, namespace, grew) = (workflow.head, workflow.namespace.clone(), !events.is_empty());
        for (event, seq) in events.into_iter().zip(expected_seq + 1..) {
            self.append(&id, seq, event, (seq == head).then_some(rows_hash));
        }
        for run in runs {
            self.state.put(keys::run(&id, run.number), &run);
        }
        // Rows that were there before hear of outcomes first, then of the end of their run; then come new rows.
        let mut outcomes_left = Vec::new();
        for outcome in outcomes {
            if !self.settle_outcome(&id, &outcome, false)? {
                outcomes_left.push(outcome);
            }
        }
        let mut settled = if closed { self.cancel_all(&id) } else { Vec::new() };
        if grew {
            self.put_workflow(&id, was, workflow);
        }
        let mut staged = Vec::with_capacity(rows.len());
        for row in rows {
            staged.push(self.stage(&id, &namespace, row, was.is_none(), places)?);
        }
        for outcome in outcomes_left {
            if !self.settle_outcome(&id, &outcome, true)? {
                self.state.put(keys::outcome(&id, outcome.run, outcome.ordinal), &outcome.seq);
            }
        }
        settled.extend(self.stillborn(&staged, places)?);
        settled.extend(self.cancel_ordinals(&id, &settle));
        settled.sort();
        self.tell_settled(&id, settled.len());
        if grew {
            self.announce(&id, head);
        }
        Ok(Committed { head, duplicate: false, staged, settled, transitions: Vec::new(), retirements: Vec::new() })
    }

    /// Tells this node's engine that a history grew.
    pub fn announce(&mut self, id: &WorkflowId, head: u64) {
        let shard = self.state.shard_of(id);
        self.effects.push(Effect::HistoryGrew { workflow: id.clone(), shard, head });
    }

    /// Writes an event; the caller keeps the head.
    fn append(&mut self, id: &WorkflowId, seq: u64, event: NewEvent, ends_commit: Option<u64>) {
        let event = HistoryEvent::new(seq, self.now(), event);
        self.state.put(keys::event(id, seq), &StoredEvent { event, ends_commit });
    }

    /// Appends one event to an open workflow whose head nobody stated, and returns its number.
    pub fn append_next(&mut self, id: &WorkflowId, mut workflow: Workflow, event: NewEvent) -> u64 {
        workflow.head += 1;
        let head = workflow.head;
        self.append(id, head, event, Some(NO_ROWS));
        self.put_workflow(id, Some(workflow.status), workflow);
        self.announce(id, head);
        head
    }

    /// True if a commit of the very same events and rows stands where this one would: it is a retry.
    fn has_landed(&self, commit: &Commit, head: u64) -> ArchiveResult<bool> {
        if commit.events.is_empty() || commit.expected_seq >= head {
            return Ok(false);
        }
        let (last, rows_hash) = (commit.events.len() - 1, hash_of_rows(commit));
        for (position, event) in commit.events.iter().enumerate() {
            let seq = commit.expected_seq + 1 + position as u64;
            let Some(stored) = self.get::<StoredEvent>(&keys::event(&commit.workflow, seq))? else {
                return Ok(false);
            };
            if !stored.event.is_same_as(event) || stored.ends_commit != (position == last).then_some(rows_hash) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The refusal for an outcome that its activity has already, and for a row whose activity has had its
    /// outcome in this run without a row.
    fn conflict(
        &self,
        id: &WorkflowId,
        outcomes: &[Outcome],
        rows: &[NewRow],
        places: &Places,
    ) -> ArchiveResult<Option<Reject>> {
        for outcome in outcomes {
            let key = DispatchKey { workflow: id.clone(), ordinal: outcome.ordinal };
            let row = self.row(&key)?.filter(|row| row.run == outcome.run);
            let recorded = match &row {
                Some(row) => row.outcome_seq.is_some(),
                None => self.get::<u64>(&keys::outcome(id, outcome.run, outcome.ordinal))?.is_some(),
            };
            if recorded {
                return Ok(Some(Reject::AlreadyTerminal { key, status: row.map(|row| row.status) }));
            }
        }
        for ordinal in rows.iter().map(|row| row.ordinal) {
            let Some(place) = places.get(&ordinal) else { continue };
            let key = DispatchKey { workflow: id.clone(), ordinal };
            if self.get::<u64>(&keys::outcome(id, place.run, ordinal))?.is_some()
                && self.row(&key)?.is_none_or(|row| row.run != place.run)
            {
                return Ok(Some(Reject::AlreadyTerminal { key, status: None }));
            }
        }
        Ok(None)
    }

    /// Moves the row of an activity whose outcome the caller appended; false if it has none in that run.
    /// `with_staging` says that the same commit staged the row.
    fn settle_outcome(&mut self, id: &WorkflowId, outcome: &Outcome, with_staging: bool) -> ArchiveResult<bool> {
        let key = DispatchKey { workflow: id.clone(), ordinal: outcome.ordinal };
        let Some(mut row) = self.row(&key)?.filter(|row| row.run == outcome.run) else { return Ok(false) };
        if row.status.is_live() || with_staging {
            row.status = RowStatus::after(&outcome.kind);
        }
        row.outcome_seq = Some(outcome.seq);
        row.claim = None;
        row.failure_delivered |= row.status == RowStatus::Failed;
        self.put_row(&key, row);
        Ok(true)
    }

    fn stage(
        &mut self,
        id: &WorkflowId,
        namespace: &Namespace,
        new: NewRow,
        is_new_workflow: bool,
        places: &Places,
    ) -> ArchiveResult<Staged> {
        let key = DispatchKey { workflow: id.clone(), ordinal: new.ordinal };
        // `row_places` refuses a commit with a row that has none.
        let Some(place) = places.get(&new.ordinal) else { return Ok(Staged { key, written: false }) };
        let standing = if is_new_workflow { None } else { self.row(&key)? };
        let makes_way = |row: &Row| !row.status.is_live() && row.run < place.run;
        let written = standing.as_ref().is_none_or(makes_way);
        if written {
            let mut row = self.new_row(&key, namespace, place.run, new);
            if place.is_over {
                row.status = RowStatus::Cancelled;
            }
            if standing.is_some() {
                self.state.delete(keys::details(&key));
                self.replace_row(&key, row);
            } else {
                self.put_row(&key, row);
            }
        }
        Ok(Staged { key, written })
    }

    /// Rows that were staged for a run that the same commit ended, and that are cancelled with it.
    fn stillborn(&self, staged: &[Staged], places: &Places) -> ArchiveResult<Vec<DispatchKey>> {
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
        let NewRow { ordinal: _, task_queue, node, activity_type, input, visible_after, retry } = new;
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
        }
    }
}

fn as_before(commit: &Commit) -> Committed {
    let head = commit.expected_seq + commit.events.len() as u64;
    let key = |row: &NewRow| DispatchKey { workflow: commit.workflow.clone(), ordinal: row.ordinal };
    let staged = commit.rows.iter().map(|row| Staged { key: key(row), written: false }).collect();
    Committed { head, duplicate: true, staged, settled: Vec::new(), transitions: Vec::new(), retirements: Vec::new() }
}

/// The hash of a commit that does nothing to rows.
const NO_ROWS: u64 = 0;

/// A hash of what a commit does to rows.
fn hash_of_rows(commit: &Commit) -> u64 {
    let Commit { rows, settle, .. } = commit;
    if rows.is_empty() && settle.is_empty() { NO_ROWS } else { xxh3_64(&keys::encode(&(rows, settle))) }
}

/// Where the rows of a commit belong, by ordinal.
type Places = BTreeMap<u64, Place>;

/// Where a row of a commit belongs, by the events that announce it.
struct Place {
    run: u32,
    /// True if the commit leaves that run ended.
    is_over: bool,
    scheduled: u32,
    started: u32,
}

/// Each staged row is announced by its two events in the same commit and the same run, once.
fn row_places(commit: &Commit, projection: &Projection) -> Result<Places, Reject> {
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

#[cfg(test)]
mod tests {
    use crate::command::{Command, Commit};
    use crate::event::Effect;
    use crate::history::{EventKind, NewEvent};
    use crate::outbox::RowStatus;
    use crate::trial::{Trial, activities, id, started};

    fn commit(expected_seq: u64, events: Vec<NewEvent>, rows: Vec<crate::NewRow>) -> Commit {
        Commit { events, rows, ..Commit::new(id("order-1"), expected_seq) }
    }

    #[test]
    fn what_a_commit_causes_is_told_once() {
        let mut trial = Trial::new();
        let (mut events, rows) = activities(1..=4);
        events.insert(0, started());
        let effects = trial.apply(vec![Command::Commit(commit(0, events, rows)).into()]).effects;
        let due = effects.iter().filter(|effect| matches!(effect, Effect::RowsDue { .. })).count();
        let grew = effects.iter().filter(|effect| matches!(effect, Effect::HistoryGrew { head: 9, .. })).count();
        assert_eq!((due, grew, effects.len()), (1, 1, 2), "{effects:?}");
        let nothing = trial.apply(vec![Command::Commit(commit(9, Vec::new(), Vec::new())).into()]);
        assert_eq!((nothing.replies[0].is_ok(), nothing.effects), (true, Vec::new()));
    }

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
        trial.ask(Command::Commit(commit(0, events, rows))).unwrap();
        let row = |ordinal: u64| trial.row(&format!("order-1:{ordinal}")).map(|row| (row.run, row.status)).unwrap();
        assert_eq!(row(1), (1, RowStatus::Cancelled));
        assert_eq!(row(2), (1, RowStatus::Cancelled));
        assert_eq!(row(3), (2, RowStatus::Pending));
        assert_eq!(trial.lease(9, 9).len(), 1);
    }

    #[test]
    fn a_commit_that_changes_no_run_writes_none() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.append("order-1", NewEvent::of(EventKind::SignalReceived)).unwrap();
        let applied = trial.machine.applied();
        let events = vec![NewEvent::of(EventKind::SignalReceived)];
        let entry =
            crate::Entry { at: Default::default(), requests: vec![Command::Commit(commit(4, events, vec![])).into()] };
        trial.machine.apply(applied + 1, entry, &trial.archive).unwrap();
        let tables: Vec<u8> = trial.machine.take_writes().keys().map(|key| key[0]).collect();
        assert_eq!(tables, *b"AEM", "the workflow, the event and the machine itself");
    }
}
