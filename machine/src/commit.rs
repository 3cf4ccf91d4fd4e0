//! Commit: events, staged rows, settlements, transitions of rows and timers of one workflow in one step.
//! Everything is checked before the first write, so a refused commit leaves no trace, but for the row that
//! [`Reject::AlreadyTerminal`] speaks of. `staging.rs` has what is special to new rows, `transition.rs` and `timer.rs` what the two share with commands of their own.

use xxhash_rust::xxh3::xxh3_64;

use crate::archive::ArchiveResult;
use crate::attributes::Attributes;
use crate::command::Commit;
use crate::event::Effect;
use crate::history::{HistoryEvent, NewEvent, StoredEvent, Workflow};
use crate::id::{DispatchKey, Millis, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::planted::is_planted;
use crate::projection::{Outcome, Projection, no_event, project};
use crate::reject::Reject;
use crate::reply::{Committed, Reply, Staged};
use crate::staging::{Places, row_places};
use crate::state::Apply;
use crate::timer::{TimerChange, check_schedules};
use crate::transition::check_transitions;
use crate::visibility::Facts;

impl Apply<'_> {
    pub fn commit(&mut self, mut commit: Commit) -> ArchiveResult<Result<Reply, Reject>> {
        let id = commit.workflow.clone();
        let current = self.workflow(&id)?;
        let head = current.as_ref().map_or(0, |workflow| workflow.head);
        let besides = hash_besides_events(&commit);
        let says_something = !commit.events.is_empty();
        self.judge_all(&mut commit, head)?;
        commit.record_outcomes();
        if commit.expected_seq != head {
            if self.has_landed(&commit, besides, head)? {
                return Ok(Ok(Reply::Committed(self.as_before(&commit)?)));
            }
            let expected = commit.expected_seq;
            return Ok(Err(Reject::SequenceConflict { workflow: id, expected, found: head }));
        }
        let moved = match self.movable_rows(&id, &commit.transitions)? {
            Ok(moved) => moved,
            Err(reject) => return Ok(Err(reject)),
        };
        // The outcome of a row that was staged by itself says too little about its workflow to begin a history here.
        if current.is_none() && !says_something {
            return Ok(Err(no_event()));
        }
        let was = current.as_ref().map(Facts::from);
        let (projection, places) = match check_shape(&commit, current, &moved, self.now()) {
            Ok(shape) => shape,
            Err(reject) => return Ok(Err(reject)),
        };
        if was.is_none()
            && let Err(reject) = self.check_namespace(&projection.workflow.namespace)
        {
            return Ok(Err(reject));
        }
        // A workflow without a history has no outcomes, but may have rows that were staged by themselves.
        let has_past = was.is_some() || (!commit.rows.is_empty() && self.has_rows(&id)?);
        if has_past && let Some(reject) = self.conflict(&id, &projection.outcomes, &commit.rows, &places)? {
            return Ok(Err(reject));
        }
        let attributes = match self.attributes_after(&id, was.as_ref(), &commit.events)? {
            Ok(attributes) => attributes,
            Err(reject) => return Ok(Err(reject)),
        };
        // From here on nothing is refused.
        let checked = Checked { besides, was, has_past, projection, attributes, places, moved };
        Ok(Ok(Reply::Committed(self.write_commit(commit, checked)?)))
    }

    fn write_commit(&mut self, commit: Commit, checked: Checked) -> ArchiveResult<Committed> {
        let Commit { workflow: id, expected_seq, events, rows, settle, transitions, timers } = commit;
        let Checked { besides, was, has_past, projection, attributes, places, moved } = checked;
        let Projection { mut workflow, runs, outcomes, closed } = projection;
        if let Some(attributes) = &attributes {
            workflow.attribute_count = attributes.len() as u32;
        }
        let (head, namespace, grew) = (workflow.head, workflow.namespace.clone(), !events.is_empty());
        if was.is_none() {
            self.mint_namespace(&namespace);
        }
        for (event, seq) in events.into_iter().zip(expected_seq + 1..) {
            self.append(&id, seq, event, (seq == head).then_some(besides));
        }
        for run in runs {
            self.state.put(keys::run(&id, run.number), &run);
        }
        // Rows that were there before are handed back first, then they hear of outcomes, then of the end of their
        // run; then come new rows.
        self.move_rows(&id, &transitions, moved);
        let mut outcomes_left = Vec::new();
        for outcome in outcomes {
            if !self.settle_outcome(&id, &outcome, false)? {
                outcomes_left.push(outcome);
            }
        }
        let mut settled = Vec::new();
        if closed && !is_planted("leave-rows-of-the-ended") {
            settled = self.cancel_all(&id);
            self.drop_timers(&id);
        }
        if grew {
            self.relist(&id, was.as_ref(), Some(&Facts::from(&workflow)), attributes)?;
            self.put_workflow(&id, was.as_ref().map(Facts::status), workflow);
        }
        #[cfg(feature = "planted-bugs")]
        let rows = crate::planted::in_the_order_of_a_hash_map(rows, |row| row.ordinal);
        let mut staged = Vec::with_capacity(rows.len());
        for row in rows {
            staged.push(self.stage(&id, &namespace, row, has_past, &places)?);
        }
        for outcome in outcomes_left {
            if !self.settle_outcome(&id, &outcome, true)? {
                self.state.put(keys::outcome(&id, outcome.run, outcome.ordinal), &outcome.seq);
            }
        }
        settled.extend(self.stillborn(&staged, &places)?);
        settled.extend(self.cancel_ordinals(&id, &settle));
        settled.sort();
        self.tell_settled(&id, settled.len());
        let retirements = timers.into_iter().filter_map(|change| self.change_timer(&id, change)).collect();
        if grew {
            self.announce(&id, &namespace, head);
        }
        let transitions = self.statuses(&id, &transitions)?;
        Ok(Committed { head, duplicate: false, staged, settled, transitions, retirements })
    }

    /// Tells this node's engine that a history grew.
    pub fn announce(&mut self, id: &WorkflowId, namespace: &Namespace, head: u64) {
        let (workflow, shard, namespace) = (id.clone(), self.state.shard_of(id), namespace.clone());
        self.effects.push(Effect::HistoryGrew { workflow, shard, head, namespace });
    }

    /// Writes an event; the caller keeps the head.
    fn append(&mut self, id: &WorkflowId, seq: u64, event: NewEvent, ends_commit: Option<u64>) {
        let event = HistoryEvent::new(seq, self.now(), event);
        self.state.put(keys::event(id, seq), &StoredEvent { event, ends_commit });
    }

    /// Appends one event to an open workflow whose head nobody stated, and returns its number.
    pub fn append_next(&mut self, id: &WorkflowId, mut workflow: Workflow, event: NewEvent) -> u64 {
        let was = (workflow.head > 0).then_some(workflow.status);
        workflow.head += 1;
        let (head, namespace) = (workflow.head, workflow.namespace.clone());
        self.append(id, head, event, Some(NOTHING_BESIDES));
        self.put_workflow(id, was, workflow);
        self.announce(id, &namespace, head);
        head
    }

    /// True if the very same commit stands where this one would: it is a retry.
    fn has_landed(&self, commit: &Commit, besides: u64, head: u64) -> ArchiveResult<bool> {
        if commit.events.is_empty() || commit.expected_seq >= head {
            return Ok(false);
        }
        let last = commit.events.len() - 1;
        for (position, event) in commit.events.iter().enumerate() {
            let seq = commit.expected_seq + 1 + position as u64;
            let Some(stored) = self.get::<StoredEvent>(&keys::event(&commit.workflow, seq))? else {
                return Ok(false);
            };
            if !stored.event.is_same_as(event) || stored.ends_commit != (position == last).then_some(besides) {
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

    /// The answer to a commit that has landed before; rows and timers as they are now.
    fn as_before(&self, commit: &Commit) -> ArchiveResult<Committed> {
        let id = &commit.workflow;
        let key = |row: &NewRow| DispatchKey { workflow: id.clone(), ordinal: row.ordinal };
        let retirement = |change: &TimerChange| match change {
            TimerChange::Schedule(_) => None,
            TimerChange::Retire(arming) => Some(self.retirement(id, arming)),
        };
        Ok(Committed {
            head: commit.expected_seq + commit.events.len() as u64,
            duplicate: true,
            staged: commit.rows.iter().map(|row| Staged { key: key(row), written: false }).collect(),
            settled: Vec::new(),
            transitions: self.statuses(id, &commit.transitions)?,
            retirements: commit.timers.iter().filter_map(retirement).collect(),
        })
    }
}

/// A commit of which nothing is refused any more, and what was found on the way.
struct Checked {
    /// The hash of what the caller wants besides events.
    besides: u64,
    was: Option<Facts>,
    /// True if the workflow may have rows or outcomes already.
    has_past: bool,
    projection: Projection,
    /// The search attributes after it, if it changes them.
    attributes: Option<Attributes>,
    places: Places,
    /// The rows of the transitions, in order.
    moved: Vec<Row>,
}

/// What the commit's parts make of the workflow, or why they do not go together.
fn check_shape(
    commit: &Commit,
    current: Option<Workflow>,
    moved: &[Row],
    at: Millis,
) -> Result<(Projection, Places), Reject> {
    let projection = project(&commit.workflow, current, &commit.events, at)?;
    let places = row_places(commit, &projection)?;
    check_transitions(&commit.transitions, moved, &projection)?;
    check_schedules(&commit.workflow, &commit.timers, projection.workflow.status)?;
    Ok((projection, places))
}

/// The hash of a commit of events alone.
const NOTHING_BESIDES: u64 = 0;

/// A hash of what a commit does besides appending events.
fn hash_besides_events(commit: &Commit) -> u64 {
    let Commit { rows, settle, transitions, timers, .. } = commit;
    if rows.is_empty() && settle.is_empty() && transitions.is_empty() && timers.is_empty() {
        return NOTHING_BESIDES;
    }
    xxh3_64(&keys::encode(&(rows, settle, transitions, timers)))
}

#[cfg(test)]
mod tests {
    use crate::command::{Command, Commit};
    use crate::event::Effect;
    use crate::history::{EventKind, NewEvent};
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
