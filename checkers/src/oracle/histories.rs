//! The oracle's view of histories: each question is answered by walking the events from the first one on.

use holdfast_machine::{
    AttributeValue, Commit, Committed, DispatchKey, EventKind, HistoryEvent, Millis, Namespace, NewEvent, NewRow,
    Reject, Reply, Row, RowStatus, Staged, TimerChange, Transition, WorkflowId, WorkflowStatus,
};

use crate::oracle::moves::{is_hand_back, with_outcomes};
use crate::oracle::{Answer, Oracle, invalid};

/// Status and run after a list of events.
pub fn fold<'a>(events: impl Iterator<Item = (&'a EventKind, Option<u64>)>) -> (WorkflowStatus, u32) {
    let (mut status, mut run) = (WorkflowStatus::Running, 1);
    for (position, (kind, _)) in events.enumerate() {
        if *kind == EventKind::WorkflowStarted && position > 0 {
            run += 1;
        }
        status = match kind {
            EventKind::WorkflowStarted | EventKind::WorkflowReopened | EventKind::WorkflowResumed => {
                WorkflowStatus::Running
            }
            EventKind::WorkflowPaused => WorkflowStatus::Paused,
            EventKind::WorkflowCompleted => WorkflowStatus::Completed,
            EventKind::WorkflowFailed => WorkflowStatus::Failed,
            EventKind::WorkflowCancelled => WorkflowStatus::Cancelled,
            EventKind::WorkflowTimedOut => WorkflowStatus::TimedOut,
            EventKind::WorkflowContinuedAsNew => WorkflowStatus::ContinuedAsNew,
            _ => status,
        };
    }
    (status, run)
}

pub fn ends_a_run(kind: &EventKind) -> bool {
    fold([(kind, None)].into_iter()).0.is_terminal()
}

fn is_outcome(kind: &EventKind) -> bool {
    matches!(kind, EventKind::ActivityCompleted | EventKind::ActivityFailed | EventKind::ActivityCancelled)
}

pub fn status_after(outcome: &EventKind) -> RowStatus {
    match outcome {
        EventKind::ActivityCompleted => RowStatus::Done,
        EventKind::ActivityFailed => RowStatus::Failed,
        _ => RowStatus::Cancelled,
    }
}

impl Oracle {
    pub fn history(&self, workflow: &WorkflowId) -> Vec<&HistoryEvent> {
        self.events.iter().filter(|(id, _)| id == workflow).map(|(_, event)| event).collect()
    }

    pub fn head(&self, workflow: &WorkflowId) -> u64 {
        self.history(workflow).len() as u64
    }

    /// Status and run; running and 1 for a workflow without events.
    pub fn status(&self, workflow: &WorkflowId) -> (WorkflowStatus, u32) {
        fold(self.history(workflow).into_iter().map(|event| (&event.kind, event.ordinal)))
    }

    /// The outcome of an activity in a run: its event.
    pub fn outcome(&self, workflow: &WorkflowId, run: u32, ordinal: u64) -> Option<&HistoryEvent> {
        let history = self.history(workflow);
        let of_run = |end: usize| fold(history[..=end].iter().map(|event| (&event.kind, event.ordinal))).1;
        let found = (0..history.len()).find(|position| {
            let event = history[*position];
            is_outcome(&event.kind) && event.ordinal == Some(ordinal) && of_run(*position) == run
        });
        found.map(|position| history[position])
    }

    pub fn append(&mut self, workflow: &WorkflowId, event: NewEvent) -> u64 {
        let seq = self.head(workflow) + 1;
        let NewEvent { kind, ordinal, start, search_attributes, payload } = event;
        let event = HistoryEvent { seq, at: self.now, kind, ordinal, start, search_attributes, payload };
        self.events.push((workflow.clone(), event));
        seq
    }

    pub fn commit(&mut self, commit: &Commit) -> Answer {
        let id = &commit.workflow;
        let head = self.head(id);
        if commit.expected_seq != head {
            let landed = self.landed.iter().find(|(landed, end)| landed == commit && *end > commit.expected_seq);
            if let Some((_, head)) = landed {
                let staged = commit.rows.iter().map(|row| staged(id, row, false)).collect();
                return Ok(Reply::Committed(Committed {
                    head: *head,
                    duplicate: true,
                    staged,
                    settled: Vec::new(),
                    transitions: self.statuses(commit),
                    retirements: self.retirements(id, &commit.timers),
                }));
            }
            return Err(Reject::SequenceConflict { workflow: id.clone(), expected: commit.expected_seq, found: head });
        }
        let (told, commit) = (commit, &self.judged(commit));
        let whole = with_outcomes(commit);
        self.check_moves(commit)?;
        if head == 0 && commit.events.is_empty() {
            return invalid();
        }
        self.check(&whole)?;
        self.landed.push((told.clone(), head + whole.events.len() as u64));
        if head == 0 {
            let start = commit.events[0].start.clone();
            let namespace = start.map(|start| start.namespace).unwrap_or_default();
            self.mint_namespace(&namespace);
        }
        self.move_rows(commit);

        let commit = &whole;
        let first_new = head as usize;
        for event in &commit.events {
            self.append(id, event.clone());
        }
        let outcomes = self.outcomes_from(id, first_new);
        self.hear_outcomes(id, &outcomes, &[]);
        let closes = commit.events.iter().any(|event| ends_a_run(&event.kind));
        let mut settled = if closes { self.cancel_all(id) } else { Vec::new() };
        let (staged, stillborn) = self.stage_all(commit, first_new);
        let written: Vec<DispatchKey> = staged.iter().filter(|s| s.written).map(|s| s.key.clone()).collect();
        self.hear_outcomes(id, &outcomes, &written);
        settled.extend(stillborn.into_iter().filter(|key| self.row(key).unwrap().status == RowStatus::Cancelled));
        for ordinal in &commit.settle {
            let key = DispatchKey { workflow: id.clone(), ordinal: *ordinal };
            if let Some(row) = self.row_mut(&key).filter(|row| row.status.is_live()) {
                row.status = RowStatus::Cancelled;
                row.claim = None;
                settled.push(key);
            }
        }
        settled.sort();
        if closes {
            self.timers.retain(|(workflow, _)| workflow != id);
        }
        let retirements = commit.timers.iter().filter_map(|change| self.change_timer(id, change)).collect();
        let (head, transitions) = (self.head(id), self.statuses(commit));
        Ok(Reply::Committed(Committed { head, duplicate: false, staged, settled, transitions, retirements }))
    }

    /// Why a commit at the right place is refused.
    fn check(&self, commit: &Commit) -> Result<(), Reject> {
        let id = &commit.workflow;
        let history = self.history(id);
        let mut kinds: Vec<(&EventKind, Option<u64>)> = history.iter().map(|e| (&e.kind, e.ordinal)).collect();
        let is_new = kinds.is_empty();
        if is_new && commit.events.first().is_none_or(|event| event.kind == EventKind::WorkflowReopened) {
            return invalid();
        }
        let mut outcomes: Vec<(u32, u64)> = Vec::new();
        let mut announced: Vec<(u64, EventKind, u32)> = Vec::new();
        for (position, event) in commit.events.iter().enumerate() {
            let (status, _) = fold(kinds.iter().copied());
            let opens = is_new && position == 0 && event.kind == EventKind::WorkflowStarted;
            let fits = match event.kind {
                EventKind::WorkflowStarted | EventKind::WorkflowReopened => status.is_terminal() || opens,
                EventKind::WorkflowPaused | EventKind::WorkflowResumed => !status.is_terminal(),
                _ if ends_a_run(&event.kind) => !status.is_terminal(),
                _ => true,
            };
            if !fits {
                return Err(Reject::WorkflowStatus { kind: event.kind.clone(), status });
            }
            if event.kind == EventKind::WorkflowStarted && event.start.is_none() {
                return invalid();
            }
            kinds.push((&event.kind, event.ordinal));
            let (_, run) = fold(kinds.iter().copied());
            if is_outcome(&event.kind) {
                let Some(ordinal) = event.ordinal else { return invalid() };
                if outcomes.contains(&(run, ordinal)) {
                    let key = DispatchKey { workflow: id.clone(), ordinal };
                    return Err(Reject::AlreadyTerminal { key, status: None });
                }
                outcomes.push((run, ordinal));
            }
            if let Some(ordinal) = event.ordinal {
                announced.push((ordinal, event.kind.clone(), run));
            }
            let may_be_searched =
                [EventKind::WorkflowStarted, EventKind::SearchAttributesUpdated].contains(&event.kind);
            if event.search_attributes.is_some() && !may_be_searched {
                return invalid();
            }
        }
        let runs = self.announced_runs(commit, &announced)?;
        let (status, run) = fold(kinds.iter().copied());
        for Transition { ordinal, action, .. } in &commit.transitions {
            let row = self.row(&DispatchKey { workflow: id.clone(), ordinal: *ordinal }).unwrap();
            if row.run != run || (is_hand_back(action) && outcomes.contains(&(run, *ordinal))) {
                return invalid();
            }
        }
        if status.is_terminal() && commit.timers.iter().any(|change| matches!(change, TimerChange::Schedule(_))) {
            return Err(Reject::WorkflowEnded { workflow: id.clone(), status });
        }
        if is_new {
            let start = commit.events[0].start.clone();
            self.takes_new_workflows(&start.map(|start| start.namespace).unwrap_or_default())?;
        }
        for (run, ordinal) in outcomes {
            if self.outcome(id, run, ordinal).is_some() {
                let key = DispatchKey { workflow: id.clone(), ordinal };
                let status = self.row(&key).filter(|row| row.run == run).map(|row| row.status);
                return Err(Reject::AlreadyTerminal { key, status });
            }
        }
        for (row, run) in commit.rows.iter().zip(runs) {
            let key = DispatchKey { workflow: id.clone(), ordinal: row.ordinal };
            let stands = self.row(&key).is_some_and(|row| row.run == run);
            if self.outcome(id, run, row.ordinal).is_some() && !stands {
                return Err(Reject::AlreadyTerminal { key, status: None });
            }
        }
        let values = commit
            .events
            .iter()
            .filter_map(|event| event.search_attributes.as_ref())
            .flat_map(|update| update.values());
        for value in values {
            if let Some(AttributeValue::Text(text)) = value
                && text.len() > 1_024
            {
                return Err(Reject::LimitExceeded { what: String::new(), limit: 1_024, actual: text.len() as u64 });
            }
        }
        Ok(())
    }

    /// The run of each row of a commit, by its two events.
    fn announced_runs(&self, commit: &Commit, announced: &[(u64, EventKind, u32)]) -> Result<Vec<u32>, Reject> {
        let mut runs = Vec::new();
        let mut seen = Vec::new();
        for row in &commit.rows {
            let of = |kind: EventKind| -> Vec<u32> {
                let events = announced.iter().filter(|(ordinal, k, _)| *ordinal == row.ordinal && *k == kind);
                events.map(|(_, _, run)| *run).collect()
            };
            let (scheduled, started) = (of(EventKind::ActivityScheduled), of(EventKind::ActivityStarted));
            // The last run in which the activity is spoken of counts; there it must be announced once.
            let last = scheduled.iter().chain(&started).max().copied().unwrap_or(0);
            let once = |runs: &[u32]| runs.iter().filter(|run| **run == last).count() == 1;
            if seen.contains(&row.ordinal) || !once(&scheduled) || !once(&started) {
                return invalid();
            }
            seen.push(row.ordinal);
            runs.push(last);
        }
        Ok(runs)
    }

    /// Run, ordinal and kind of the outcomes among the events from this position on.
    fn outcomes_from(&self, id: &WorkflowId, first: usize) -> Vec<(u32, u64, EventKind)> {
        let history = self.history(id);
        let mut outcomes = Vec::new();
        for position in first..history.len() {
            let (_, run) = fold(history[..=position].iter().map(|event| (&event.kind, event.ordinal)));
            if let (true, Some(ordinal)) = (is_outcome(&history[position].kind), history[position].ordinal) {
                outcomes.push((run, ordinal, history[position].kind.clone()));
            }
        }
        outcomes
    }

    /// Rows move with the outcomes of their activities: live ones, and those that the commit itself staged.
    fn hear_outcomes(&mut self, id: &WorkflowId, outcomes: &[(u32, u64, EventKind)], staged: &[DispatchKey]) {
        for (run, ordinal, kind) in outcomes {
            let key = DispatchKey { workflow: id.clone(), ordinal: *ordinal };
            let Some(row) = self.row_mut(&key).filter(|row| row.run == *run) else { continue };
            if row.status.is_live() || staged.contains(&key) {
                row.status = status_after(kind);
            }
            row.claim = None;
            row.failure_delivered |= row.status == RowStatus::Failed;
        }
    }

    fn stage_all(&mut self, commit: &Commit, first_new: usize) -> (Vec<Staged>, Vec<DispatchKey>) {
        let id = &commit.workflow;
        let (mut all, mut stillborn) = (Vec::new(), Vec::new());
        for new in &commit.rows {
            let key = DispatchKey { workflow: id.clone(), ordinal: new.ordinal };
            let history = self.history(id);
            let mine = |event: &HistoryEvent| event.ordinal == Some(new.ordinal);
            let announced = (first_new..history.len()).rev();
            let at = announced
                .filter(|p| mine(history[*p]))
                .find(|p| matches!(history[*p].kind, EventKind::ActivityScheduled | EventKind::ActivityStarted))
                .unwrap();
            let (_, run) = fold(history[..=at].iter().map(|event| (&event.kind, event.ordinal)));
            let ended_later = history[at..].iter().any(|event| ends_a_run(&event.kind));
            let (last_status, last_run) = self.status(id);
            let is_over = ended_later || last_status.is_terminal() || run < last_run;
            let written = self.row(&key).is_none_or(|row| !row.status.is_live() && row.run < run);
            if written {
                let namespace = self.namespace(id);
                let mut row = fresh(new, run, namespace, self.now);
                if is_over {
                    row.status = RowStatus::Cancelled;
                    stillborn.push(key.clone());
                }
                self.put_row(&key, row);
            }
            all.push(staged(id, new, written));
        }
        (all, stillborn)
    }

    /// The namespace of the first run.
    pub fn namespace(&self, id: &WorkflowId) -> Namespace {
        if let Some((_, namespace)) = self.begun.iter().find(|(begun, _)| begun == id) {
            return namespace.clone();
        }
        let start = self.history(id).first().and_then(|event| event.start.clone());
        start.map(|start| start.namespace).unwrap_or_default()
    }
}

fn staged(id: &WorkflowId, row: &NewRow, written: bool) -> Staged {
    Staged { key: DispatchKey { workflow: id.clone(), ordinal: row.ordinal }, written }
}

/// A row as it is staged.
pub fn fresh(new: &NewRow, run: u32, namespace: Namespace, now: Millis) -> Row {
    Row {
        run,
        namespace,
        task_queue: new.task_queue.clone(),
        node: new.node.clone(),
        activity_type: new.activity_type.clone(),
        status: RowStatus::Pending,
        deliveries: 0,
        attempt: 1,
        visible_after: if new.visible_after.0 == 0 { now } else { new.visible_after },
        claim: None,
        outcome_seq: None,
        failure_delivered: false,
        retry: new.retry.clone(),
        scheduled_at: now,
        start_by: None,
        timeouts: new.timeouts.clone(),
    }
}
