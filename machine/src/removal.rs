//! Removal: finished workflows go when their retention has run out, or at an operator's word.
//!
//! It has two steps, so that a log entry stays small however long a history is. First the workflow vanishes: its record
//! and its listings are deleted, and its id goes into table `J`. From then on reads see nothing of it, and writes to
//! it are refused with [`Reject::BeingRemoved`]. Then its events, rows and runs are deleted, so many keys an entry,
//! without reading a payload; when nothing is left the id leaves the table and is free again.
//!
//! Only what is finished is ever removed. Who is due is found by whoever proposes a purge ([`Machine::due_purge`], a
//! read that changes nothing) and checked again when it is applied: a workflow that was reopened or went on in the
//! meantime stays.

use crate::archive::{Archive, ArchiveResult};
use crate::command::Command;
use crate::event::ClusterEvent;
use crate::history::Workflow;
use crate::id::{DispatchKey, Millis, Namespace, WorkflowId, WorkflowType};
use crate::keys;
use crate::limits::WORKFLOWS_PURGED_PER_ENTRY_MAX;
use crate::namespace::RETENTION_MS_DEFAULT;
use crate::outbox::Row;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::{Apply, Machine};
use crate::visibility::WorkflowSort;

/// Lanes of finished workflows that one search for due ones looks into.
const LANES_PER_SEARCH: usize = 64;

/// What a search for something to purge found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuePurge {
    /// The purge to propose; none if nothing that was looked at is due.
    pub command: Option<Command>,
    /// Where the next search goes on.
    pub next: usize,
}

impl Machine {
    /// Looks for finished workflows whose retention has run out at `now`, oldest first in each type, from where the
    /// last search ended (0 for the first one). Looks at a bounded number of types, so it takes several searches to
    /// see all of them.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn due_purge(&self, archive: &dyn Archive, now: Millis, from: usize) -> ArchiveResult<DuePurge> {
        if self.removals.len() >= WORKFLOWS_PURGED_PER_ENTRY_MAX {
            // They are in memory, so no more are added to so many.
            return Ok(DuePurge { command: Some(Command::Purge { workflows: Vec::new() }), next: from });
        }
        let closed = self.lanes.0.keys().filter(|lane| lane.status.is_terminal());
        let lanes: Vec<_> = closed.skip(from).take(LANES_PER_SEARCH).collect();
        let mut next = if lanes.len() < LANES_PER_SEARCH { 0 } else { from + lanes.len() };
        let mut workflows = Vec::new();
        for (position, lane) in lanes.into_iter().enumerate() {
            let retention = self.retention(&lane.namespace, lane.workflow_type.as_ref());
            let Some(until) = retention.and_then(|retention| now.0.checked_sub(retention)) else { continue };
            let start = keys::lane_by(WorkflowSort::Closed, lane);
            let mut end = start.clone();
            end.extend_from_slice(&until.saturating_add(1).to_be_bytes());
            let room = WORKFLOWS_PURGED_PER_ENTRY_MAX - workflows.len();
            for (key, _) in self.scan(archive, &start, &end, room)? {
                workflows.push(keys::parse_timed(&key, start.len())?.1);
            }
            if workflows.len() == WORKFLOWS_PURGED_PER_ENTRY_MAX {
                // There may be more in this one.
                next = from + position;
                break;
            }
        }
        let is_due = !workflows.is_empty() || !self.removals.is_empty();
        Ok(DuePurge { command: is_due.then_some(Command::Purge { workflows }), next })
    }

    /// True from the moment at which a workflow vanished until nothing of it is left.
    pub fn is_being_removed(&self, id: &WorkflowId) -> bool {
        self.removals.contains_key(id)
    }

    fn retention(&self, namespace: &Namespace, workflow_type: Option<&WorkflowType>) -> Option<u64> {
        let known = self.namespaces.get(namespace);
        known.map_or(Some(RETENTION_MS_DEFAULT), |state| state.settings.retention_of(workflow_type))
    }
}

impl Apply<'_> {
    pub fn purge(&mut self, workflows: Vec<WorkflowId>) -> ArchiveResult<Reply> {
        let mut vanished = 0;
        for id in workflows.into_iter().take(WORKFLOWS_PURGED_PER_ENTRY_MAX) {
            if let Some(workflow) = self.workflow(&id)?
                && self.has_outlived_its_retention(&workflow)
            {
                self.vanish(id, &workflow)?;
                vanished += 1;
            }
        }
        self.clear_away()?;
        self.tell_removed(vanished);
        Ok(Reply::Purged { workflows: vanished, more: !self.state.removals.is_empty() })
    }

    pub fn delete_workflow(&mut self, id: WorkflowId) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(workflow) = self.workflow(&id)? else { return Ok(Err(Reject::WorkflowNotFound { workflow: id })) };
        if !workflow.status.is_terminal() {
            return Ok(Err(Reject::WorkflowOpen { workflow: id, status: workflow.status }));
        }
        self.vanish(id, &workflow)?;
        self.clear_away()?;
        self.tell_removed(1);
        Ok(Ok(Reply::Deleted))
    }

    fn has_outlived_its_retention(&self, workflow: &Workflow) -> bool {
        let retention = self.state.retention(&workflow.namespace, workflow.run.workflow_type.as_ref());
        let closed_at = workflow.run.closed_at.filter(|_| workflow.status.is_terminal());
        let age = closed_at.and_then(|closed_at| self.now().0.checked_sub(closed_at.0));
        age.zip(retention).is_some_and(|(age, retention)| age >= retention)
    }

    /// Takes a finished workflow out of sight.
    fn vanish(&mut self, id: WorkflowId, workflow: &Workflow) -> ArchiveResult<()> {
        self.state.delete(keys::closed_workflow(&id));
        self.remove_from_visibility(&id, workflow)?;
        self.state.put(keys::removal(&id), &workflow.head);
        self.state.removals.insert(id, workflow.head);
        Ok(())
    }

    fn tell_removed(&mut self, workflows: u64) {
        if workflows > 0 {
            self.events.push(ClusterEvent::WorkflowsRemoved { workflows });
        }
    }

    /// Deletes what removed workflows left, up to the keys that this entry may still remove.
    fn clear_away(&mut self) -> ArchiveResult<()> {
        let mut left = self.removable;
        while left > 0 {
            let Some((id, events)) = self.state.removals.first_key_value() else { break };
            let (id, events) = (id.clone(), *events);
            let events_left = self.clear_events(&id, events, &mut left);
            self.clear_rows(&id, &mut left)?;
            for table in [keys::RUNS, keys::OUTCOMES] {
                self.clear_table(table, &id, &mut left)?;
            }
            if left > 0 {
                // With something to spare nothing was left behind.
                self.state.delete(keys::removal(&id));
                self.state.removals.remove(&id);
            } else if events_left != events {
                self.state.put(keys::removal(&id), &events_left);
                self.state.removals.insert(id, events_left);
            }
        }
        self.removable = left;
        Ok(())
    }

    /// From the last one down, by number: nothing has to be read. Returns how many are left.
    fn clear_events(&mut self, id: &WorkflowId, mut events: u64, left: &mut usize) -> u64 {
        while events > 0 && *left > 0 {
            self.state.delete(keys::event(id, events));
            events -= 1;
            *left -= 1;
        }
        events
    }

    fn clear_rows(&mut self, id: &WorkflowId, left: &mut usize) -> ArchiveResult<()> {
        let (from, to) = keys::of_workflow(keys::FINISHED_ROWS, id);
        // A row takes its input and its details along.
        for (stored_as, value) in self.state.scan(self.archive, &from, &to, left.div_ceil(3))? {
            let row: Row = keys::decode(&stored_as, &value)?;
            let key: DispatchKey = keys::parse_live_row(&stored_as)?;
            self.drop_finished_row(&key, &row);
            self.state.delete(keys::input(&key));
            self.state.delete(keys::details(&key));
            *left = left.saturating_sub(3);
        }
        Ok(())
    }

    fn clear_table(&mut self, table: u8, id: &WorkflowId, left: &mut usize) -> ArchiveResult<()> {
        let (from, to) = keys::of_workflow(table, id);
        for (stored_as, _) in self.state.scan(self.archive, &from, &to, *left)? {
            self.state.delete(stored_as);
            *left -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Commit;
    use crate::history::{EventKind, NewEvent, WorkflowStatus};
    use crate::limits::KEYS_REMOVED_PER_ENTRY_MAX;
    use crate::namespace::NamespaceSettings;
    use crate::trial::{Trial, id, started};

    /// The tables that hold keys of a workflow.
    fn tables_with(trial: &Trial, workflow: &str) -> String {
        let speaks = |key: &[u8]| key.windows(workflow.len()).any(|part| part == workflow.as_bytes());
        let mut tables: Vec<char> = trial.archive.0.keys().filter(|key| speaks(key)).map(|key| key[0].into()).collect();
        tables.dedup();
        tables.into_iter().collect()
    }

    fn keep(trial: &mut Trial, retention_ms: Option<u64>) {
        let settings = NamespaceSettings { retention_ms, ..Default::default() };
        trial.ask(Command::PutNamespace { namespace: Default::default(), settings }).unwrap();
    }

    fn due(trial: &Trial, now: u64) -> Option<Command> {
        trial.machine.due_purge(&trial.archive, Millis(now), 0).unwrap().command
    }

    fn end(trial: &mut Trial, workflow: &str) {
        trial.append(workflow, NewEvent::of(EventKind::WorkflowCompleted)).unwrap();
    }

    #[test]
    fn a_long_history_goes_in_portions_and_its_id_is_free_when_nothing_is_left() {
        let mut trial = Trial::new();
        trial.start("order-1", 1..=390);
        end(&mut trial, "order-1");
        trial.start("order-2", [1]);
        let delete = Command::Delete { workflow: id("order-1") };
        assert_eq!(trial.ask(delete.clone()), Ok(Reply::Deleted));
        assert!(trial.workflow("order-1").is_none() && trial.row("order-1:390").is_none());
        assert!(trial.machine.history(&trial.archive, &id("order-1"), 1, 9).unwrap().is_empty());
        assert!(trial.machine.runs(&trial.archive, &id("order-1"), 0, 9).unwrap().is_empty());
        assert_eq!(trial.machine.input(&trial.archive, &id("order-1:390")).unwrap(), None);
        let refused = Err(Reject::BeingRemoved { workflow: id("order-1") });
        assert_eq!(trial.append("order-1", started()), refused);
        assert_eq!(trial.ask(delete.clone()), refused);
        assert_eq!(tables_with(&trial, "order-1"), "IJOR", "the events are the first to go");
        trial.machine = Machine::load(&trial.archive).unwrap();
        assert_eq!(trial.append("order-1", started()), refused);
        let command = due(&trial, 0).unwrap();
        assert_eq!(trial.ask(command), Ok(Reply::Purged { workflows: 0, more: false }));
        assert_eq!((tables_with(&trial, "order-1"), due(&trial, 0)), (String::new(), None));
        assert_eq!(trial.ask(delete), Err(Reject::WorkflowNotFound { workflow: id("order-1") }));
        trial.start("order-1", [1]);
        assert_eq!(trial.row("order-1:1").unwrap().run, 1);
    }

    #[test]
    fn removals_in_one_entry_share_its_bound() {
        let mut trial = Trial::new();
        for workflow in ["order-1", "order-2"] {
            trial.start(workflow, []);
            let events = vec![NewEvent::of(EventKind::SignalReceived); KEYS_REMOVED_PER_ENTRY_MAX / 2];
            trial.ask(Command::Commit(Commit { events, ..Commit::new(id(workflow), 1) })).unwrap();
            end(&mut trial, workflow);
        }
        let delete = |workflow: &str| Command::Delete { workflow: id(workflow) }.into();
        let replies = trial.apply(vec![delete("order-1"), delete("order-2")]).replies;
        assert_eq!(replies, [Ok(Reply::Deleted), Ok(Reply::Deleted)]);
        assert!(trial.workflow("order-2").is_none());
        assert_eq!(["order-1", "order-2"].map(|id| tables_with(&trial, id)), ["", "EJR"]);
        trial.ask(due(&trial, 0).unwrap()).unwrap();
        assert_eq!(tables_with(&trial, "order-2"), "");
    }

    #[test]
    fn nothing_unfinished_is_removed() {
        let mut trial = Trial::new();
        keep(&mut trial, Some(0));
        trial.start("order-1", [1]);
        let open = Reject::WorkflowOpen { workflow: id("order-1"), status: WorkflowStatus::Running };
        assert_eq!(trial.ask(Command::Delete { workflow: id("order-1") }), Err(open));
        end(&mut trial, "order-1");
        let command = due(&trial, trial.at).unwrap();
        trial.append("order-1", NewEvent::of(EventKind::WorkflowReopened)).unwrap();
        assert_eq!(trial.ask(command), Ok(Reply::Purged { workflows: 0, more: false }), "it was reopened meanwhile");
        assert!(trial.workflow("order-1").is_some());
    }

    #[test]
    fn retention_runs_from_the_close_and_the_oldest_go_first() {
        let mut trial = Trial::new();
        keep(&mut trial, Some(100));
        for (at, workflow) in [(1_000, "order-2"), (1_010, "order-1"), (1_020, "held")] {
            trial.at = at;
            trial.start(workflow, [1]);
            end(&mut trial, workflow);
        }
        assert_eq!(due(&trial, 1_099), None);
        let workflows = |now| {
            due(&trial, now).map(|command| match command {
                Command::Purge { workflows } => workflows,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(workflows(1_110), Some(vec![id("order-2"), id("order-1")]));
        let command = due(&trial, 1_110).unwrap();
        trial.at = 1_109;
        assert_eq!(trial.ask(command.clone()), Ok(Reply::Purged { workflows: 1, more: false }), "by log time");
        keep(&mut trial, None);
        trial.at = 9_000;
        assert_eq!(trial.ask(command), Ok(Reply::Purged { workflows: 0, more: false }), "it is kept for ever now");
        assert_eq!(due(&trial, u64::MAX), None);
        keep(&mut trial, Some(u64::MAX));
        assert_eq!(due(&trial, u64::MAX), None);
        keep(&mut trial, Some(0));
        assert!(due(&trial, u64::MAX).is_some());
    }

    #[test]
    fn a_search_is_bounded_and_goes_on_where_the_last_one_ended() {
        let mut trial = Trial::new();
        keep(&mut trial, Some(0));
        let types = LANES_PER_SEARCH + 3;
        for number in 0..types {
            let start = NewEvent::started(id(&format!("type-{number:03}")));
            trial.append(&format!("w-{number:03}"), start).unwrap();
            end(&mut trial, &format!("w-{number:03}"));
        }
        let first = trial.machine.due_purge(&trial.archive, Millis(trial.at), 0).unwrap();
        assert_eq!(first.next, LANES_PER_SEARCH);
        let second = trial.machine.due_purge(&trial.archive, Millis(trial.at), first.next).unwrap();
        assert_eq!(second.next, 0);
        let found = [first.command, second.command].map(|command| match command {
            Some(Command::Purge { workflows }) => workflows.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(found, [LANES_PER_SEARCH, 3]);
        for number in 0..WORKFLOWS_PURGED_PER_ENTRY_MAX + 1 {
            trial.append(&format!("v-{number:03}"), NewEvent::started(id("a"))).unwrap();
            end(&mut trial, &format!("v-{number:03}"));
        }
        let full = trial.machine.due_purge(&trial.archive, Millis(trial.at), 0).unwrap();
        assert_eq!(full.next, 0, "there is more in the first one");
    }
}
