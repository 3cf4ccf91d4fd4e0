//! Commit: events, staged rows and settlements of one workflow in one step. Everything is checked
//! before the first write, so a refused commit leaves no trace.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::ArchiveResult;
use crate::command::Commit;
use crate::event::Effect;
use crate::history::{EventKind, HistoryEvent, NewEvent, Outcome, Projection, Workflow, project};
use crate::id::{DispatchKey, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
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
                return Ok(Ok(Reply::Committed(self.as_before(&commit)?)));
            }
            let expected = commit.expected_seq;
            return Ok(Err(Reject::SequenceConflict { workflow: id, expected, found: head }));
        }
        let was = current.as_ref().map(|workflow| workflow.status);
        let projection = match project(&id, current, &commit.events, self.now()) {
            Ok(projection) => projection,
            Err(reject) => return Ok(Err(reject)),
        };
        if let Err(reject) = check_rows(&commit) {
            return Ok(Err(reject));
        }
        if let Some(reject) = self.outcome_conflict(&id, &projection.outcomes)? {
            return Ok(Err(reject));
        }

        // From here on nothing is refused.
        let Projection { workflow, runs, outcomes, closed } = projection;
        let head = workflow.head;
        for (event, seq) in commit.events.into_iter().zip(commit.expected_seq + 1..) {
            self.append(&id, seq, event);
        }
        for run in runs {
            self.state.put(keys::run(&id, run.number), &run);
        }
        for outcome in outcomes {
            self.settle_outcome(&id, outcome)?;
        }
        let mut settled = if closed { self.settle_rows(&id) } else { Vec::new() };
        let run = workflow.run.number;
        let namespace = workflow.namespace.clone();
        let ended = workflow.status.is_terminal();
        self.put_workflow(&id, was, workflow);
        let mut staged = Vec::with_capacity(commit.rows.len());
        for row in commit.rows {
            staged.push(self.stage(&id, &namespace, run, row)?);
        }
        settled.extend(self.settle_ordinals(&id, &commit.settle));
        if ended {
            settled.extend(self.settle_rows(&id));
        }
        settled.sort();
        self.announce(&id, head);
        Ok(Ok(Reply::Committed(Committed { head, duplicate: false, staged, settled })))
    }

    /// Tells this node's engine that a history grew.
    pub fn announce(&mut self, id: &WorkflowId, head: u64) {
        let shard = self.state.shard_of(id);
        self.effects.push(Effect::HistoryGrew { workflow: id.clone(), shard, head });
    }

    /// Writes an event; the caller keeps the head.
    pub fn append(&mut self, id: &WorkflowId, seq: u64, event: NewEvent) {
        let event = HistoryEvent::new(seq, self.now(), event);
        self.state.put(keys::event(id, seq), &event);
    }

    /// Appends one event to an open workflow whose head nobody stated, and returns its number.
    pub fn append_next(&mut self, id: &WorkflowId, mut workflow: Workflow, event: NewEvent) -> u64 {
        workflow.head += 1;
        let head = workflow.head;
        self.append(id, head, event);
        self.put_workflow(id, Some(workflow.status), workflow);
        self.announce(id, head);
        head
    }

    /// True if the very same events stand where this commit would put them: it is a retry.
    fn has_landed(&self, commit: &Commit, head: u64) -> ArchiveResult<bool> {
        if commit.events.is_empty() || commit.expected_seq >= head {
            return Ok(false);
        }
        for (event, seq) in commit.events.iter().zip(commit.expected_seq + 1..) {
            let stored: Option<HistoryEvent> = self.get(&keys::event(&commit.workflow, seq))?;
            if !stored.is_some_and(|stored| stored.is_same_as(event)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn as_before(&self, commit: &Commit) -> ArchiveResult<Committed> {
        let head = commit.expected_seq + commit.events.len() as u64;
        let key = |row: &NewRow| DispatchKey { workflow: commit.workflow.clone(), ordinal: row.ordinal };
        let staged = commit.rows.iter().map(|row| Staged { key: key(row), written: false }).collect();
        Ok(Committed { head, duplicate: true, staged, settled: Vec::new() })
    }

    /// The refusal for an outcome that its activity has already.
    fn outcome_conflict(&self, id: &WorkflowId, outcomes: &[Outcome]) -> ArchiveResult<Option<Reject>> {
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
        Ok(None)
    }

    /// Moves the row of an activity whose outcome the caller appended, or remembers the outcome.
    fn settle_outcome(&mut self, id: &WorkflowId, outcome: Outcome) -> ArchiveResult<()> {
        let key = DispatchKey { workflow: id.clone(), ordinal: outcome.ordinal };
        let Some(mut row) = self.row(&key)?.filter(|row| row.run == outcome.run) else {
            self.state.put(keys::outcome(id, outcome.run, outcome.ordinal), &outcome.seq);
            return Ok(());
        };
        row.outcome_seq = Some(outcome.seq);
        row.claim = None;
        if row.status.is_live() {
            row.status = match outcome.kind {
                EventKind::ActivityCompleted => RowStatus::Done,
                EventKind::ActivityFailed => RowStatus::Failed,
                _ => RowStatus::Cancelled,
            };
        }
        row.failure_delivered |= row.status == RowStatus::Failed;
        self.put_row(&key, row);
        Ok(())
    }

    fn stage(&mut self, id: &WorkflowId, namespace: &Namespace, run: u32, new: NewRow) -> ArchiveResult<Staged> {
        let key = DispatchKey { workflow: id.clone(), ordinal: new.ordinal };
        let standing = self.row(&key)?;
        let makes_way = |row: &Row| !row.status.is_live() && row.run < run;
        let written = standing.as_ref().is_none_or(makes_way);
        if written {
            self.insert_row(&key, namespace, run, new, standing.is_some());
        }
        Ok(Staged { key, written })
    }

    /// Writes a fresh pending row; `replaces` says that a finished one stands there.
    pub fn insert_row(&mut self, key: &DispatchKey, namespace: &Namespace, run: u32, new: NewRow, replaces: bool) {
        let NewRow { ordinal: _, task_queue, node, activity_type, input, visible_after, retry } = new;
        self.state.put(keys::input(key), &input);
        let row = Row {
            run,
            namespace: namespace.clone(),
            task_queue,
            node,
            activity_type,
            status: RowStatus::Pending,
            deliveries: 0,
            attempt: 1,
            visible_after: visible_after.max(self.now()),
            claim: None,
            outcome_seq: None,
            failure_delivered: false,
            retry,
        };
        if replaces { self.revive_row(key, row) } else { self.put_row(key, row) }
    }
}

/// Each staged row is announced by its two events in the same commit, once.
fn check_rows(commit: &Commit) -> Result<(), Reject> {
    let mut announced: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    for event in &commit.events {
        let Some(ordinal) = event.ordinal else { continue };
        let counts = announced.entry(ordinal).or_default();
        match event.kind {
            EventKind::ActivityScheduled => counts.0 += 1,
            EventKind::ActivityStarted => counts.1 += 1,
            _ => {}
        }
    }
    let mut ordinals = BTreeSet::new();
    for NewRow { ordinal, .. } in &commit.rows {
        if !ordinals.insert(*ordinal) {
            return Err(Reject::invalid(format!("rows: ordinal {ordinal} appears twice")));
        }
        if announced.get(ordinal) != Some(&(1, 1)) {
            return Err(Reject::invalid(format!(
                "rows: ordinal {ordinal} needs one ActivityScheduled and one ActivityStarted in the same commit"
            )));
        }
    }
    Ok(())
}
