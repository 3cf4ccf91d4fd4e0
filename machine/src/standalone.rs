//! Staging by itself: rows without events of their own, for engines that keep their histories elsewhere or write
//! them later. A row whose workflow has no history is delivered like any other; its outcome begins the history.

use crate::archive::ArchiveResult;
use crate::history::{Workflow, WorkflowStatus};
use crate::id::{DispatchKey, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::projection::{FIRST_RUN, unannounced_run};
use crate::reject::Reject;
use crate::reply::{Reply, Staged};
use crate::state::Apply;
use crate::visibility::Facts;

impl Apply<'_> {
    /// Stages rows into the workflow's open run, or into its first one if it has no history. A key that has a
    /// row, or an activity that has its outcome, is passed over.
    pub fn stage_alone(
        &mut self,
        workflow: WorkflowId,
        namespace: Namespace,
        rows: Vec<NewRow>,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        let (namespace, run) = match self.workflow(&workflow)? {
            Some(Workflow { status, .. }) if status.is_terminal() => {
                return Ok(Err(Reject::WorkflowEnded { workflow, status }));
            }
            Some(known) => (known.namespace, known.run.number),
            None => {
                if let Err(reject) = self.check_namespace(&namespace) {
                    return Ok(Err(reject));
                }
                self.mint_namespace(&namespace);
                (namespace, FIRST_RUN)
            }
        };
        let mut staged = Vec::with_capacity(rows.len());
        for new in rows {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: new.ordinal };
            let standing = self.row(&key)?;
            let is_over = self.get::<u64>(&keys::outcome(&workflow, run, key.ordinal))?.is_some();
            let written = !is_over && self.stage_row(&key, standing, &namespace, run, RowStatus::Pending, new);
            staged.push(Staged { key, written });
        }
        Ok(Ok(Reply::Staged { rows: staged }))
    }

    /// The history that the outcome of `row` begins.
    pub fn begin_history(&mut self, id: &WorkflowId, row: &Row) -> ArchiveResult<Workflow> {
        let run = unannounced_run(self.now());
        self.state.put(keys::run(id, run.number), &run);
        let (namespace, status) = (row.namespace.clone(), WorkflowStatus::Running);
        let workflow = Workflow { namespace, status, head: 0, run, attribute_count: 0 };
        self.relist(id, None, Some(&Facts::from(&workflow)), None)?;
        Ok(workflow)
    }

    /// True if a workflow has a row, live or finished.
    pub fn has_rows(&self, workflow: &WorkflowId) -> ArchiveResult<bool> {
        let shard = self.state.shard_of(workflow);
        if self.state.rows.of_workflow(shard, workflow).next().is_some() {
            return Ok(true);
        }
        let [from, to] = [0, u64::MAX].map(|ordinal| DispatchKey { workflow: workflow.clone(), ordinal });
        let to = keys::after(keys::finished_row(&to));
        Ok(!self.state.scan(self.archive, &keys::finished_row(&from), &to, 1)?.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use crate::command::{Command, Commit};
    use crate::history::{EventKind, NewEvent, WorkflowStatus};
    use crate::outbox::RowStatus;
    use crate::reject::Reject;
    use crate::reply::Reply;
    use crate::trial::{Trial, activities, id, new_row, started};

    #[test]
    fn an_outcome_begins_the_history_of_a_row_that_had_none() {
        let mut trial = Trial::new();
        assert_eq!(trial.stage("order-1", [1, 2, 1]), [true, true, false]);
        assert_eq!(trial.stage("order-1", [2, 3]), [false, true]);
        assert_eq!(trial.workflow("order-1"), None, "staging writes no history");
        let claims = trial.lease(1, 100);
        assert_eq!(trial.complete(&claims[0].key, claims[0].token), Ok(Reply::Completed { seq: 1 }));
        let workflow = trial.workflow("order-1").unwrap();
        assert_eq!((workflow.head, workflow.status, workflow.run.number), (1, WorkflowStatus::Running, 1));
        let runs = trial.machine.runs(&trial.archive, &id("order-1"), 0, 9).unwrap();
        assert_eq!(runs, [workflow.run]);
        assert_eq!(trial.complete(&claims[0].key, claims[0].token).unwrap_err().code(), "already_terminal");
    }

    #[test]
    fn rows_belong_to_the_open_run_and_to_none_that_has_ended() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        assert_eq!(trial.stage("order-1", [1, 2]), [false, true]);
        // Activity 3 has had its outcome without a row.
        trial.append("order-1", NewEvent::activity(EventKind::ActivityCompleted, 3)).unwrap();
        assert_eq!(trial.stage("order-1", [3]), [false]);
        trial.append("order-1", NewEvent::of(EventKind::WorkflowCompleted)).unwrap();
        let command = Command::Stage { workflow: id("order-1"), namespace: Default::default(), rows: vec![new_row(4)] };
        let status = WorkflowStatus::Completed;
        assert_eq!(trial.ask(command), Err(Reject::WorkflowEnded { workflow: id("order-1"), status }));
        trial.append("order-1", started()).unwrap();
        assert_eq!(trial.stage("order-1", [1, 3]), [true, true], "the next run has its own ordinals");
        assert_eq!(trial.row("order-1:1").map(|row| (row.run, row.status)), Some((2, RowStatus::Pending)));
    }

    #[test]
    fn a_history_that_comes_later_finds_the_rows_that_are_there() {
        let mut trial = Trial::new();
        trial.stage("order-1", [1, 2]);
        trial.ask(Command::Settle { workflow: id("order-1") }).unwrap();
        trial.stage("order-1", [3]);
        let (mut events, rows) = activities([1, 2, 4]);
        events.insert(0, started());
        let commit = Commit { events, rows, ..Commit::new(id("order-1"), 0) };
        let Ok(Reply::Committed(committed)) = trial.ask(Command::Commit(commit)) else { panic!("not committed") };
        let written: Vec<bool> = committed.staged.iter().map(|staged| staged.written).collect();
        assert_eq!(written, [false, false, true]);
        assert_eq!(trial.row("order-1:1").unwrap().status, RowStatus::Cancelled);
        trial.append("order-1", NewEvent::of(EventKind::WorkflowFailed)).unwrap();
        assert_eq!(trial.row("order-1:3").unwrap().status, RowStatus::Cancelled, "it ends with the run");
    }
}
