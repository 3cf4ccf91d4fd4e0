//! Dead letters: rows whose delivery budget is spent, or whose activity failed for good. They wait for an operator,
//! who puts them back (redrive), and for their workflow to hear of them (the mark).
//!
//! A redriven row starts with a fresh budget and without the mark. Its attempt goes on from where it was, because
//! workers may use it to tell what they did before. If the failure is in the history already (the row failed for
//! good, and only `forced` gets here), the activity runs once more and its outcome is answered with
//! `already_terminal`: at most one outcome is ever recorded.

use crate::archive::ArchiveResult;
use crate::history::{Run, WorkflowStatus};
use crate::id::DispatchKey;
use crate::keys;
use crate::outbox::{Row, RowStatus};
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::Apply;

impl Apply<'_> {
    pub fn mark_failure_delivered(&mut self, key: DispatchKey) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(mut row) = self.row(&key)? else { return Ok(Ok(Reply::NoSuchRow)) };
        if row.status != RowStatus::Failed {
            return Ok(Err(Reject::NotDeadLetter { key, status: row.status }));
        }
        if !row.failure_delivered {
            row.failure_delivered = true;
            self.put_row(&key, row);
        }
        Ok(Ok(Reply::FailureDelivered))
    }

    pub fn redrive(&mut self, key: DispatchKey, forced: bool) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(failed) = self.row(&key)? else { return Ok(Err(Reject::RowNotFound { key })) };
        if failed.status != RowStatus::Failed {
            return Ok(Err(Reject::NotDeadLetter { key, status: failed.status }));
        }
        // Before the mark is looked at: a finished run owns no deliverable row, forced or not.
        let status = self.status_of_run(&key, failed.run)?;
        if status.is_terminal() {
            return Ok(Err(Reject::WorkflowEnded { workflow: key.workflow, status }));
        }
        if failed.failure_delivered && !forced {
            return Ok(Err(Reject::AlreadyJudged { key }));
        }
        let row = Row {
            status: RowStatus::Pending,
            deliveries: 0,
            failure_delivered: false,
            visible_after: self.now(),
            scheduled_at: self.now(),
            ..failed.clone()
        };
        self.replace_row(&key, &failed, row);
        Ok(Ok(Reply::Redriven))
    }

    /// The status of the run that a row belongs to; running if its workflow has no history.
    fn status_of_run(&self, key: &DispatchKey, number: u32) -> ArchiveResult<WorkflowStatus> {
        let Some(workflow) = self.workflow(&key.workflow)? else { return Ok(WorkflowStatus::Running) };
        if workflow.run.number == number {
            return Ok(workflow.status);
        }
        let run: Option<Run> = self.get(&keys::run(&key.workflow, number))?;
        Ok(run.map_or(workflow.status, |run| run.status))
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Command;
    use crate::history::{EventKind, NewEvent, WorkflowStatus};
    use crate::id::DispatchKey;
    use crate::outbox::RowStatus;
    use crate::reject::Reject;
    use crate::reply::Reply;
    use crate::trial::{Trial, id, started};

    fn redrive(forced: bool) -> Command {
        Command::Redrive { key: id("order-1:1"), forced }
    }

    fn letters(trial: &Trial, of: &str) -> Vec<DispatchKey> {
        let (machine, archive) = (&trial.machine, &trial.archive);
        let of_workflow = machine.dead_letters_of(archive, &id(of), None, 9).unwrap().rows;
        let in_namespace = machine.dead_letters_in(archive, &Default::default(), None, 9).unwrap().rows;
        let keys = |rows: Vec<(DispatchKey, crate::Row)>| rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        let of_workflow = keys(of_workflow);
        assert!(of_workflow.iter().all(|key| in_namespace.iter().any(|(known, _)| known == key)));
        of_workflow
    }

    #[test]
    fn a_dead_letter_is_redriven_until_it_is_judged() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        assert_eq!(
            trial.ask(redrive(true)),
            Err(Reject::NotDeadLetter { key: id("order-1:1"), status: RowStatus::Pending })
        );
        trial.bury("order-1:1");
        assert_eq!(letters(&trial, "order-1"), [id("order-1:1")]);
        assert_eq!(trial.ask(redrive(false)), Ok(Reply::Redriven));
        assert_eq!(letters(&trial, "order-1"), []);
        trial.bury("order-1:1");
        let mark = Command::MarkFailureDelivered { key: id("order-1:1") };
        assert_eq!(trial.ask(mark.clone()), Ok(Reply::FailureDelivered));
        assert_eq!(trial.ask(mark.clone()), Ok(Reply::FailureDelivered));
        assert_eq!(trial.ask(redrive(false)), Err(Reject::AlreadyJudged { key: id("order-1:1") }));
        assert_eq!(trial.ask(redrive(true)), Ok(Reply::Redriven));
        let row = trial.row("order-1:1").unwrap();
        assert_eq!((row.status, row.deliveries, row.failure_delivered), (RowStatus::Pending, 0, false));
        assert_eq!(trial.ask(mark), Err(Reject::NotDeadLetter { key: id("order-1:1"), status: RowStatus::Pending }));
        let unknown = Command::MarkFailureDelivered { key: id("order-1:9") };
        assert_eq!(trial.ask(unknown), Ok(Reply::NoSuchRow));
        let unknown = Command::Redrive { key: id("order-1:9"), forced: true };
        assert_eq!(trial.ask(unknown), Err(Reject::RowNotFound { key: id("order-1:9") }));
    }

    #[test]
    fn a_failure_that_is_recorded_stands_whatever_a_forced_redrive_brings() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let key: DispatchKey = id("order-1:1");
        let fail = Command::Fail {
            key: key.clone(),
            token: None,
            error: Default::default(),
            error_type: None,
            retryable: false,
        };
        trial.ask(fail).unwrap();
        assert_eq!(trial.ask(redrive(false)), Err(Reject::AlreadyJudged { key: key.clone() }));
        assert_eq!(trial.ask(redrive(true)), Ok(Reply::Redriven));
        let claim = trial.lease(1, 100).remove(0);
        let stands = Reject::AlreadyTerminal { key: key.clone(), status: Some(RowStatus::Failed) };
        assert_eq!(trial.complete(&key, claim.token), Err(stands));
        let row = trial.row("order-1:1").unwrap();
        assert_eq!((row.status, row.failure_delivered, row.outcome_seq), (RowStatus::Failed, true, Some(4)));
        assert_eq!(letters(&trial, "order-1"), [key]);
    }

    #[test]
    fn nothing_of_a_run_that_has_ended_is_redriven() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.bury("order-1:1");
        trial.append("order-1", NewEvent::of(EventKind::WorkflowContinuedAsNew)).unwrap();
        let status = WorkflowStatus::ContinuedAsNew;
        let ended = Err(Reject::WorkflowEnded { workflow: id("order-1"), status });
        assert_eq!(trial.ask(redrive(true)), ended);
        trial.append("order-1", started()).unwrap();
        assert_eq!(trial.ask(redrive(true)), ended, "the next run does not take it up");
        assert_eq!(letters(&trial, "order-1"), [id("order-1:1")]);
        trial.stage("order-1", [1]);
        assert_eq!(letters(&trial, "order-1"), [], "it made way");
    }
}
