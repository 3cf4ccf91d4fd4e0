//! Was every promise kept? The histories as each node tells them, held against the ledger.
//!
//! Nothing here talks to the cluster: the evidence is gathered first and judged afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use holdfast_machine::{DispatchKey, EventKind, HistoryEvent, NodeName, ShardId, WorkflowId};

use super::activity::ActivityResult;
use super::ledger::{Execution, Executor, Outcome};
use super::report::Report;

/// The histories of all workflows, as one node tells them.
pub(crate) type Histories = BTreeMap<WorkflowId, Vec<HistoryEvent>>;

/// What a kill found in flight.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    /// Whose process was killed.
    pub dead: Executor,
    /// When it was.
    pub at: Instant,
    /// When it was back; a worker stays away.
    pub back: Instant,
    /// Rows that the dead itself was executing.
    pub held: Vec<DispatchKey>,
    /// Rows that workers were executing that lived on, whatever node they were attached to.
    pub held_by_workers: Vec<DispatchKey>,
}

/// All that is judged.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// Activities of each workflow.
    pub activities: u64,
    /// Shards of the cluster.
    pub shard_count: u32,
    /// Workflows whose staging was acknowledged.
    pub staged: BTreeSet<WorkflowId>,
    /// Every execution that began.
    pub executions: BTreeMap<DispatchKey, Vec<Execution>>,
    /// The histories by node; each node is asked on its own.
    pub histories: BTreeMap<NodeName, Histories>,
    /// Rows that are not done, by node.
    pub rows_not_done: BTreeMap<NodeName, u64>,
    /// All kills.
    pub kills: Vec<Kill>,
    /// Shards that changed hands.
    pub adopted: BTreeSet<ShardId>,
    /// Nodes that the others took for dead although they lived: on a machine that is too busy, silence says little.
    /// Their engines' rows are executed again as those of the dead are.
    pub taken_for_dead: BTreeSet<NodeName>,
}

impl Evidence {
    /// Judges the evidence: all counts of the report that come from it, and the problems in sentences.
    pub fn judge(&self) -> Report {
        let mut report = Report {
            workflows: self.staged.len() as u64,
            ordinals: self.staged.len() as u64 * self.activities,
            executions: self.executions.values().map(|executions| executions.len() as u64).sum(),
            taken_for_dead: self.taken_for_dead.iter().cloned().collect(),
            ..Report::default()
        };
        self.judge_histories(&mut report);
        self.judge_acknowledged(&mut report);
        self.judge_kills(&mut report);
        self.judge_executions(&mut report);
        report
    }

    /// One outcome and one ActivityScheduled an ordinal, one beginning and one end a workflow, every row done, on
    /// every node.
    fn judge_histories(&self, report: &mut Report) {
        for (node, histories) in &self.histories {
            let mut found = Report::default();
            for workflow in &self.staged {
                let history = histories.get(workflow).map_or(&[][..], Vec::as_slice);
                self.judge_history(history, &mut found);
            }
            if found.workflows_completed != report.workflows {
                let (completed, workflows) = (found.workflows_completed, report.workflows);
                report.problems.push(format!("{node} has {completed} of {workflows} workflows completed"));
            }
            for (count, what) in [
                (found.duplicate_terminals, "outcomes too many"),
                (found.missing_terminals, "ordinals without an outcome"),
                (found.wrongly_scheduled, "ordinals that are not scheduled exactly once"),
                (found.wrongly_started, "workflows that are not started exactly once"),
                (self.rows_not_done.get(node).copied().unwrap_or(report.ordinals), "rows that are not done"),
            ] {
                if count > 0 {
                    report.problems.push(format!("{node} has {count} {what}"));
                }
            }
            // The worst that any node says.
            report.duplicate_terminals = report.duplicate_terminals.max(found.duplicate_terminals);
            report.missing_terminals = report.missing_terminals.max(found.missing_terminals);
            report.wrongly_scheduled = report.wrongly_scheduled.max(found.wrongly_scheduled);
            report.wrongly_started = report.wrongly_started.max(found.wrongly_started);
        }
        report.rows_not_done = self.rows_not_done.values().copied().max().unwrap_or(report.ordinals);
        let completed = self.histories.values().map(|histories| {
            let ended = |workflow: &&WorkflowId| histories.get(*workflow).is_some_and(|history| is_completed(history));
            self.staged.iter().filter(ended).count() as u64
        });
        report.workflows_completed = completed.min().unwrap_or(0);
    }

    fn judge_history(&self, history: &[HistoryEvent], found: &mut Report) {
        let (mut scheduled, mut outcomes) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
        for event in history {
            let Some(ordinal) = event.ordinal else { continue };
            if event.kind == EventKind::ActivityScheduled {
                *scheduled.entry(ordinal).or_default() += 1;
            } else if event.kind.is_outcome() {
                *outcomes.entry(ordinal).or_default() += 1;
            }
        }
        for ordinal in 1..=self.activities {
            let outcomes = outcomes.get(&ordinal).copied().unwrap_or(0);
            found.missing_terminals += u64::from(outcomes == 0);
            found.duplicate_terminals += outcomes.saturating_sub(1);
            found.wrongly_scheduled += u64::from(scheduled.get(&ordinal) != Some(&1));
        }
        found.workflows_completed += u64::from(is_completed(history));
        found.wrongly_started += u64::from(count(history, &EventKind::WorkflowStarted) != 1);
    }

    /// Every acknowledged write is on every node, with the very content that was acknowledged.
    fn judge_acknowledged(&self, report: &mut Report) {
        let completions = self.executions.iter().flat_map(|(key, executions)| {
            executions.iter().filter_map(move |execution| match execution.outcome {
                Outcome::Acknowledged { seq } => Some((key, execution, seq)),
                _ => None,
            })
        });
        let completions: Vec<_> = completions.collect();
        report.acked = (self.staged.len() + completions.len()) as u64;
        for (node, histories) in &self.histories {
            let started = |workflow: &&WorkflowId| histories.get(*workflow).is_some_and(|history| !history.is_empty());
            let has_all = self.staged.iter().filter(started).count();
            let has_completion = |(key, execution, seq): &&(&DispatchKey, &Execution, u64)| {
                let history = histories.get(&key.workflow).map_or(&[][..], Vec::as_slice);
                history.iter().any(|event| event.seq == *seq && records(event, key, execution))
            };
            let lost =
                self.staged.len() - has_all + completions.len() - completions.iter().filter(has_completion).count();
            if lost > 0 {
                report.problems.push(format!("{node} misses {lost} acknowledged writes"));
            }
            report.acked_lost = report.acked_lost.max(lost as u64);
        }
    }

    /// What the dead held ran again; what living workers held did not.
    fn judge_kills(&self, report: &mut Report) {
        for kill in &self.kills {
            let ran_again = |key: &&DispatchKey| {
                self.executions_of(key).iter().any(|execution| execution.began_after_death_of(&kill.dead, kill.at))
            };
            let again = kill.held.iter().filter(ran_again).count() as u64;
            if again == 0 {
                report.problems.push(format!("no row of {} was executed again", kill.dead));
            }
            if kill.dead.is_worker() {
                report.given_on += again;
            } else {
                report.redelivered += again;
            }
            report.held_by_workers += kill.held_by_workers.len() as u64;
            let is_repeated = |key: &&DispatchKey| self.unharmed(self.executions_of(key)) > 1;
            let repeated = kill.held_by_workers.iter().filter(is_repeated).count() as u64;
            if repeated > 0 {
                report.problems.push(format!("{repeated} rows that living workers held were executed again"));
            }
            report.held_by_workers_repeated += repeated;
            if kill.held_by_workers.is_empty() && !kill.dead.is_worker() {
                report.problems.push(format!("no worker held a row when {} was killed", kill.dead));
            }
        }
    }

    /// A row is executed again only because whoever executed it was killed, and the outcome on record comes from an
    /// execution that began.
    fn judge_executions(&self, report: &mut Report) {
        let untouched = |workflow: &WorkflowId| !self.adopted.contains(&ShardId::of(workflow, self.shard_count));
        report.untouched_workflows = self.staged.iter().filter(|workflow| untouched(workflow)).count() as u64;
        let mut unexplained = 0;
        for (key, executions) in &self.executions {
            unexplained += u64::from(self.unharmed(executions) > 1);
            // The death of a worker is no shard's.
            let died_with_worker =
                |execution: &&Execution| execution.by.is_worker() && execution.outcome == Outcome::Killed;
            let others = executions.len() - executions.iter().filter(died_with_worker).count();
            report.untouched_repeated += u64::from(others > 1 && untouched(&key.workflow));
        }
        if report.executions <= report.ordinals {
            report.problems.push(format!("{} executions of {} activities", report.executions, report.ordinals));
        }
        if unexplained > 0 {
            report.problems.push(format!("{unexplained} rows were executed again without their executor being killed"));
        }
        if report.untouched_repeated > 0 {
            report.problems.push(format!("{} rows of untouched workflows ran again", report.untouched_repeated));
        }
        let strange = self.strange_outcomes();
        if strange > 0 {
            report.problems.push(format!("{strange} outcomes come from executions that nobody began"));
        }
    }

    fn strange_outcomes(&self) -> u64 {
        let Some(histories) = self.histories.values().next() else { return 0 };
        let mut strange = 0;
        for (workflow, history) in histories {
            for event in history.iter().filter(|event| event.kind.is_outcome()) {
                let key = DispatchKey { workflow: workflow.clone(), ordinal: event.ordinal.unwrap_or(0) };
                let began = self.executions_of(&key).iter().any(|execution| records(event, &key, execution));
                strange += u64::from(!began);
            }
        }
        strange
    }

    /// How many of these executions were of somebody who lived, and was known to.
    fn unharmed(&self, executions: &[Execution]) -> usize {
        let is_unharmed = |execution: &&Execution| match &execution.by {
            Executor::Engine(node) if self.taken_for_dead.contains(node) => false,
            _ => execution.outcome != Outcome::Killed,
        };
        executions.iter().filter(is_unharmed).count()
    }

    fn executions_of(&self, key: &DispatchKey) -> &[Execution] {
        self.executions.get(key).map_or(&[], Vec::as_slice)
    }
}

fn is_completed(history: &[HistoryEvent]) -> bool {
    count(history, &EventKind::WorkflowCompleted) == 1
}

fn count(history: &[HistoryEvent], kind: &EventKind) -> usize {
    history.iter().filter(|event| event.kind == *kind).count()
}

/// True if the event is the outcome of this very execution.
fn records(event: &HistoryEvent, key: &DispatchKey, execution: &Execution) -> bool {
    event.kind == EventKind::ActivityCompleted
        && event.ordinal == Some(key.ordinal)
        && ActivityResult::read(&event.payload).is_some_and(|result| result.token == execution.token)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::LazyLock;
    use std::time::Duration;

    use holdfast_machine::{ClaimToken, Millis, Payload};

    use super::*;

    const SHARD_COUNT: u32 = 8;

    static KILLED_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn key(ordinal: u64) -> DispatchKey {
        DispatchKey { workflow: WorkflowId::new("w").unwrap(), ordinal }
    }

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    fn execution(number: u32, by: Executor, outcome: Outcome) -> Execution {
        // Number 1 before the kill, all others after it.
        let began = if number == 1 { *KILLED_AT } else { *KILLED_AT + Duration::from_millis(1) };
        Execution { token: ClaimToken { index: 1, number }, by, began, outcome }
    }

    fn event(seq: u64, kind: EventKind, ordinal: Option<u64>, number: u32) -> HistoryEvent {
        let result = ActivityResult { token: ClaimToken { index: 1, number }, by: String::new() };
        HistoryEvent {
            seq,
            at: Millis(0),
            kind,
            ordinal,
            start: None,
            search_attributes: None,
            payload: Payload::json(&result).unwrap(),
        }
    }

    /// One workflow with two activities: the first was in the hands of node-a's engine when it was killed
    /// and ran again in node-b's, the second ran once in a worker.
    fn kept() -> Evidence {
        let (a, b) = (Executor::Engine(node("node-a")), Executor::Engine(node("node-b")));
        let executions = BTreeMap::from([
            (key(1), vec![execution(1, a, Outcome::Killed), execution(2, b, Outcome::Acknowledged { seq: 4 })]),
            (key(2), vec![execution(3, Executor::Worker(0), Outcome::Acknowledged { seq: 5 })]),
        ]);
        let history = vec![
            event(1, EventKind::WorkflowStarted, None, 0),
            event(2, EventKind::ActivityScheduled, Some(1), 0),
            event(3, EventKind::ActivityScheduled, Some(2), 0),
            event(4, EventKind::ActivityCompleted, Some(1), 2),
            event(5, EventKind::ActivityCompleted, Some(2), 3),
            event(6, EventKind::WorkflowCompleted, None, 0),
        ];
        let histories = Histories::from([(key(1).workflow, history)]);
        Evidence {
            activities: 2,
            shard_count: SHARD_COUNT,
            staged: BTreeSet::from([key(1).workflow]),
            executions,
            histories: BTreeMap::from([(node("node-a"), histories.clone()), (node("node-b"), histories)]),
            rows_not_done: BTreeMap::from([(node("node-a"), 0), (node("node-b"), 0)]),
            kills: vec![Kill {
                dead: Executor::Engine(node("node-a")),
                at: *KILLED_AT,
                back: *KILLED_AT,
                held: vec![key(1)],
                held_by_workers: vec![key(2)],
            }],
            adopted: BTreeSet::from([ShardId::of(&key(1).workflow, SHARD_COUNT)]),
            taken_for_dead: BTreeSet::new(),
        }
    }

    fn on_node_b(evidence: &mut Evidence) -> &mut Vec<HistoryEvent> {
        evidence.histories.get_mut(&node("node-b")).unwrap().get_mut(&key(1).workflow).unwrap()
    }

    #[test]
    fn a_failover_in_order_has_no_problems() {
        let report = kept().judge();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!((report.workflows_completed, report.ordinals, report.executions), (1, 2, 3));
        assert_eq!((report.redelivered, report.held_by_workers, report.acked), (1, 1, 3));
    }

    #[test]
    fn what_is_missing_on_one_node_is_found() {
        let mut evidence = kept();
        on_node_b(&mut evidence).remove(4);
        let report = evidence.judge();
        assert_eq!((report.missing_terminals, report.acked_lost), (1, 1));
        assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    }

    #[test]
    fn a_second_outcome_is_found() {
        let mut evidence = kept();
        on_node_b(&mut evidence).push(event(7, EventKind::ActivityCompleted, Some(1), 1));
        assert_eq!(evidence.judge().duplicate_terminals, 1);
    }

    #[test]
    fn a_workers_row_that_ran_again_is_found() {
        let mut evidence = kept();
        let again = execution(4, Executor::Worker(1), Outcome::Absorbed);
        evidence.executions.get_mut(&key(2)).unwrap().push(again);
        let report = evidence.judge();
        assert_eq!(report.held_by_workers_repeated, 1);
        assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    }

    #[test]
    fn a_killed_workers_row_is_given_to_another_one() {
        let mut evidence = kept();
        let executions = evidence.executions.get_mut(&key(2)).unwrap();
        executions.insert(0, execution(1, Executor::Worker(1), Outcome::Killed));
        let (dead, at, back) = (Executor::Worker(1), *KILLED_AT, *KILLED_AT);
        let (held, held_by_workers) = (vec![key(2)], vec![key(1)]);
        evidence.kills.push(Kill { dead, at, back, held, held_by_workers });
        let report = evidence.judge();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!((report.redelivered, report.given_on), (1, 1));
    }

    #[test]
    fn a_second_beginning_and_a_row_that_is_not_done_are_found() {
        let mut evidence = kept();
        on_node_b(&mut evidence).push(event(7, EventKind::WorkflowStarted, None, 0));
        evidence.rows_not_done.insert(node("node-a"), 1);
        let report = evidence.judge();
        assert_eq!((report.wrongly_started, report.rows_not_done), (1, 1));
        assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    }

    #[test]
    fn a_row_of_an_engine_that_lives_runs_again_only_if_its_node_was_taken_for_dead() {
        let mut evidence = kept();
        evidence.executions.get_mut(&key(1)).unwrap()[0].outcome = Outcome::Absorbed;
        assert_eq!(evidence.judge().problems.len(), 1);
        evidence.taken_for_dead.insert(node("node-a"));
        let report = evidence.judge();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.taken_for_dead, [node("node-a")]);
    }

    #[test]
    fn an_untouched_workflow_that_ran_again_is_found() {
        let mut evidence = kept();
        evidence.adopted.clear();
        let report = evidence.judge();
        assert_eq!((report.untouched_workflows, report.untouched_repeated), (1, 1));
    }

    #[test]
    fn an_outcome_of_nobody_is_found() {
        let mut evidence = kept();
        evidence.executions.get_mut(&key(1)).unwrap().pop();
        assert!(evidence.judge().problems.iter().any(|problem| problem.contains("nobody began")));
    }
}
