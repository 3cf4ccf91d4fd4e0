//! Transitions of rows: complete, fail, hand back. By themselves, or as part of a commit, where they stand
//! or fall with the rest of it.
//!
//! The outcomes that a commit's transitions record are added to its events. So whatever holds for outcomes that
//! a caller appends (one for each activity and run, what becomes of the row) holds for them too.

use std::collections::BTreeSet;

use crate::archive::ArchiveResult;
use crate::command::{Commit, RowAction, Transition};
use crate::history::{EventKind, NewEvent, StoredEvent};
use crate::id::{ClaimToken, DispatchKey, WorkflowId};
use crate::keys;
use crate::outbox::{Row, RowStatus};
use crate::payload::Payload;
use crate::projection::Projection;
use crate::reject::Reject;
use crate::reply::{Reply, Returned};
use crate::state::Apply;

impl Commit {
    /// Puts the outcomes that the transitions record behind the events.
    pub(crate) fn record_outcomes(&mut self) {
        for Transition { ordinal, action, .. } in &mut self.transitions {
            if let Some((kind, payload)) = action.outcome() {
                let payload = std::mem::take(payload);
                self.events.push(NewEvent::activity(kind, *ordinal).with(payload));
            }
        }
    }
}

impl RowAction {
    /// The outcome that the action records, if it is one that does.
    fn outcome(&mut self) -> Option<(EventKind, &mut Payload)> {
        match self {
            Self::Complete { result } => Some((EventKind::ActivityCompleted, result)),
            Self::Fail { error, retryable: false, .. } => Some((EventKind::ActivityFailed, error)),
            Self::Fail { retryable: true, .. } | Self::Retry { .. } => None,
        }
    }

    /// True if the action records an outcome, or does so under some retry policies.
    pub(crate) fn may_record(&self) -> bool {
        !self.hands_back() || matches!(self, Self::Fail { error_type: Some(_), .. })
    }

    /// True if the action takes a row from whoever holds it, and is no use for one that nobody holds.
    fn hands_back(&self) -> bool {
        matches!(self, Self::Fail { retryable: true, .. } | Self::Retry { .. })
    }
}

/// A row that an action may be done to, `None` if a caller by key named one that does not exist.
type Movable = Result<Option<Row>, Reject>;

impl Apply<'_> {
    /// One transition by itself.
    pub fn transition(
        &mut self,
        key: DispatchKey,
        token: Option<ClaimToken>,
        mut action: RowAction,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        self.judge(&key, &mut action)?;
        let row = match self.movable_row(&key, token, &action)? {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Ok(Reply::NoSuchRow)),
            Err(reject) => return Ok(Err(reject)),
        };
        match action {
            RowAction::Complete { result } => self.complete(&key, row, result),
            RowAction::Fail { error, retryable: false, .. } => self.fail_for_good(&key, row, error),
            RowAction::Fail { retryable: true, .. } | RowAction::Retry { .. } => {
                let row = self.handed_back(&key, row, &action);
                Ok(Ok(self.returned(&key, row)))
            }
        }
    }

    /// A failure of a type that the row's retry policy calls non-retryable is one for good, whatever its sender says.
    fn judge(&self, key: &DispatchKey, action: &mut RowAction) -> ArchiveResult<()> {
        if let RowAction::Fail { error_type: Some(error_type), retryable, .. } = action
            && *retryable
            && let Some(row) = self.row(key)?
        {
            *retryable = !row.retry.non_retryable.contains(error_type);
        }
        Ok(())
    }

    /// The same for all transitions of a commit to a history that ends at `head`, before its outcomes are recorded. One
    /// that comes again records what it recorded then, whatever rows stand there now.
    pub fn judge_all(&self, commit: &mut Commit, head: u64) -> ArchiveResult<()> {
        let Commit { workflow, expected_seq, events, transitions, .. } = commit;
        let mut last = expected_seq.saturating_add(events.len() as u64);
        for Transition { ordinal, action, .. } in transitions {
            if *expected_seq == head {
                self.judge(&DispatchKey { workflow: workflow.clone(), ordinal: *ordinal }, action)?;
            } else if let RowAction::Fail { error_type: Some(_), retryable, .. } = action
                && *retryable
            {
                let event = |seq| self.get::<StoredEvent>(&keys::event(workflow, seq));
                let is_over = last > *expected_seq && event(last)?.is_none_or(|last| last.ends_commit.is_some());
                let next = event(last.saturating_add(1))?.filter(|_| !is_over).map(|next| next.event);
                *retryable =
                    !next.is_some_and(|next| next.kind == EventKind::ActivityFailed && next.ordinal == Some(*ordinal));
            }
            last = last.saturating_add(u64::from(!action.hands_back()));
        }
        Ok(())
    }

    fn complete(&mut self, key: &DispatchKey, mut row: Row, result: Payload) -> ArchiveResult<Result<Reply, Reject>> {
        let seq = self.record(key, &row, EventKind::ActivityCompleted, result)?;
        row.claim = None;
        row.status = RowStatus::Done;
        row.outcome_seq = Some(seq);
        self.put_row(key, row);
        Ok(Ok(Reply::Completed { seq }))
    }

    fn fail_for_good(
        &mut self,
        key: &DispatchKey,
        mut row: Row,
        error: Payload,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        let seq = self.record(key, &row, EventKind::ActivityFailed, error)?;
        row.deliveries = row.deliveries.saturating_add(1);
        row.claim = None;
        row.status = RowStatus::Failed;
        row.failure_delivered = true;
        row.outcome_seq = Some(seq);
        Ok(Ok(self.returned(key, row)))
    }

    /// The row after an attempt that recorded no outcome: pending again after a wait, or a dead letter if its
    /// budget is spent.
    fn handed_back(&mut self, key: &DispatchKey, mut row: Row, action: &RowAction) -> Row {
        // No event tells of this attempt, so the row does: whoever looks at it, or at a dead letter, sees what went wrong.
        if let RowAction::Fail { error, .. } = action
            && !error.is_empty()
        {
            self.state.put(keys::details(key), error);
        }
        row.deliveries = row.deliveries.saturating_add(1);
        row.claim = None;
        if row.deliveries >= row.retry.deliveries_max {
            row.status = RowStatus::Failed;
            return row;
        }
        let wait = match action {
            RowAction::Retry { delay_ms } => *delay_ms,
            RowAction::Complete { .. } | RowAction::Fail { .. } => {
                row.attempt = row.attempt.saturating_add(1);
                row.retry.backoff_ms(key, row.deliveries)
            }
        };
        row.status = RowStatus::Pending;
        row.visible_after = self.now().plus(wait);
        row
    }

    fn returned(&mut self, key: &DispatchKey, row: Row) -> Reply {
        let Row { status, deliveries, visible_after, outcome_seq, .. } = row;
        self.put_row(key, row);
        let failed_seq = outcome_seq.filter(|_| status == RowStatus::Failed);
        Reply::Returned(Returned { status, deliveries, visible_after, failed_seq })
    }

    /// Appends an activity's outcome and returns its number. A row that was staged by itself may be of a workflow
    /// without a history; the history begins with its outcome then.
    fn record(&mut self, key: &DispatchKey, row: &Row, kind: EventKind, payload: Payload) -> ArchiveResult<u64> {
        let workflow = match self.workflow(&key.workflow)? {
            Some(workflow) => workflow,
            None => self.begin_history(&key.workflow, row)?,
        };
        let event = NewEvent::activity(kind, key.ordinal).with(payload);
        Ok(self.append_next(&key.workflow, workflow, event))
    }

    /// The live row `key` if the caller may do this to it.
    fn movable_row(
        &mut self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        action: &RowAction,
    ) -> ArchiveResult<Movable> {
        let row = match self.held_row(key, token)? {
            Ok(Some(row)) => row,
            nothing => return Ok(nothing),
        };
        self.stirred.presented.extend(token);
        let is_attempt = !matches!(action, RowAction::Retry { .. });
        if is_attempt && let Some(reject) = self.outcome_stands(key, &row)? {
            return Ok(Err(reject));
        }
        if action.hands_back() && row.claim.is_none() {
            return Ok(Err(Reject::RowNotClaimed { key: key.clone(), status: row.status }));
        }
        Ok(Ok(Some(row)))
    }

    /// The refusal for a row that was re-armed although its activity had its outcome. The outcome stands and
    /// the row is finished in its sense; left live it would be delivered for ever.
    fn outcome_stands(&mut self, key: &DispatchKey, row: &Row) -> ArchiveResult<Option<Reject>> {
        let Some(seq) = row.outcome_seq else { return Ok(None) };
        let recorded: Option<StoredEvent> = self.get(&keys::event(&key.workflow, seq))?;
        let status = recorded.map_or(RowStatus::Done, |stored| RowStatus::after(&stored.event.kind));
        let failure_delivered = row.failure_delivered || status == RowStatus::Failed;
        self.put_row(key, Row { status, claim: None, failure_delivered, ..row.clone() });
        Ok(Some(Reject::AlreadyTerminal { key: key.clone(), status: Some(status) }))
    }

    /// The rows that a commit's transitions are about, in order, or why one of them cannot be made.
    pub fn movable_rows(
        &mut self,
        id: &WorkflowId,
        transitions: &[Transition],
    ) -> ArchiveResult<Result<Vec<Row>, Reject>> {
        let mut rows = Vec::with_capacity(transitions.len());
        let mut ordinals = BTreeSet::new();
        for Transition { ordinal, token, action } in transitions {
            if !ordinals.insert(*ordinal) {
                return Ok(Err(Reject::invalid(format!("transitions: ordinal {ordinal} appears twice"))));
            }
            let key = DispatchKey { workflow: id.clone(), ordinal: *ordinal };
            match self.movable_row(&key, *token, action)? {
                Ok(Some(row)) => rows.push(row),
                Ok(None) => return Ok(Err(Reject::RowNotFound { key })),
                Err(reject) => return Ok(Err(reject)),
            }
        }
        Ok(Ok(rows))
    }

    /// What a commit's transitions do to their rows besides recording outcomes. Those move their rows as any
    /// outcome does that is appended.
    pub fn move_rows(&mut self, id: &WorkflowId, transitions: &[Transition], rows: Vec<Row>) {
        for (Transition { ordinal, action, .. }, mut row) in transitions.iter().zip(rows) {
            let key = DispatchKey { workflow: id.clone(), ordinal: *ordinal };
            match action {
                RowAction::Complete { .. } => continue,
                RowAction::Fail { retryable: false, .. } => row.deliveries = row.deliveries.saturating_add(1),
                RowAction::Fail { retryable: true, .. } | RowAction::Retry { .. } => {
                    row = self.handed_back(&key, row, action);
                }
            }
            self.put_row(&key, row);
        }
    }

    /// Where the rows of a commit's transitions stand.
    pub fn statuses(&self, id: &WorkflowId, transitions: &[Transition]) -> ArchiveResult<Vec<RowStatus>> {
        let status = |ordinal| {
            let row = self.row(&DispatchKey { workflow: id.clone(), ordinal })?;
            // No commit takes a row away.
            Ok(row.map_or(RowStatus::Cancelled, |row| row.status))
        };
        transitions.iter().map(|transition| status(transition.ordinal)).collect()
    }
}

/// Transitions are about activities of the run that the commit's events lead to and that have no outcome
/// among them. An outcome recorded behind the end of its run would be one of the next run's activity of that ordinal.
pub(crate) fn check_transitions(
    transitions: &[Transition],
    rows: &[Row],
    projection: &Projection,
) -> Result<(), Reject> {
    if transitions.is_empty() {
        return Ok(());
    }
    let run = projection.workflow.run.number;
    let of_run = projection.outcomes.iter().filter(|outcome| outcome.run == run);
    let outcomes: BTreeSet<u64> = of_run.map(|outcome| outcome.ordinal).collect();
    for (Transition { ordinal, action, .. }, row) in transitions.iter().zip(rows) {
        let problem = if row.run != run {
            format!("belongs to run {}, which `events` leave behind", row.run)
        } else if action.hands_back() && outcomes.contains(ordinal) {
            "has its outcome among `events`".to_owned()
        } else {
            continue;
        };
        return Err(Reject::invalid(format!("transitions: ordinal {ordinal} {problem}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::trial::{Trial, id};

    #[test]
    fn only_a_claimed_row_is_handed_back() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let key: DispatchKey = id("order-1:1");
        let retry = Command::Retry { key: key.clone(), token: None, delay_ms: 5 };
        let refused = Err(Reject::RowNotClaimed { key: key.clone(), status: RowStatus::Pending });
        assert_eq!(trial.ask(retry.clone()), refused);
        let fail = Command::Fail { key, token: None, error: Default::default(), error_type: None, retryable: true };
        assert_eq!(trial.ask(fail.clone()), refused);
        trial.lease(1, 100);
        assert!(matches!(trial.ask(retry), Ok(Reply::Returned(_))));
        trial.at += 5;
        trial.lease(1, 100);
        assert!(matches!(trial.ask(fail), Ok(Reply::Returned(_))));
        let row = trial.row("order-1:1").unwrap();
        assert_eq!((row.deliveries, row.attempt), (2, 2), "only a failed attempt is another attempt");
    }

    #[test]
    fn a_row_says_what_its_last_failed_attempt_said() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let key: DispatchKey = id("order-1:1");
        let details = |trial: &Trial| trial.machine.details(&trial.archive, &key).unwrap();
        for (said, seen) in [("card declined", "card declined"), ("", "card declined"), ("no route", "no route")] {
            trial.lease(1, 100);
            let error = if said.is_empty() { Payload::default() } else { Payload::text(said) };
            trial
                .ask(Command::Fail { key: key.clone(), token: None, error, error_type: None, retryable: true })
                .unwrap();
            assert_eq!(details(&trial), Some(Payload::text(seen)));
            trial.at += 10_000;
        }
    }
}
