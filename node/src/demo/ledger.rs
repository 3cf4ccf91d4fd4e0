//! What really happened, as the demo itself saw it: every execution that began, and every write that
//! was acknowledged. At the end the cluster's histories are held against this book.
//!
//! Engines and workers report through their standard output (see [`Line`]). The book counts executions where
//! they happen, because a store cannot be asked how often it was wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use holdfast_machine::{ClaimToken, DispatchKey, NodeName, WorkflowId};
use serde::{Deserialize, Serialize};

/// One line that a process writes to its standard output. A pipe keeps what was written before a
/// SIGKILL, so an execution that began is always counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Line {
    /// An execution begins.
    Began { key: DispatchKey, token: ClaimToken },
    /// Its completion was acknowledged as event `seq`, or absorbed.
    Ended { key: DispatchKey, token: ClaimToken, seq: Option<u64> },
}

/// Who executes a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Executor {
    /// The engine inside this node's process.
    Engine(NodeName),
    /// A worker by number; it lives in a process of its own and outlives the node it is attached to.
    Worker(usize),
}

impl Executor {
    /// True if it is a worker.
    pub fn is_worker(&self) -> bool {
        matches!(self, Self::Worker(_))
    }
}

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(node) => write!(f, "the engine of {node}"),
            Self::Worker(number) => write!(f, "worker-{number}"),
        }
    }
}

/// How an execution ended, as far as its executor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is under way.
    Running,
    /// Its result is event `seq`: an acknowledged write.
    Acknowledged { seq: u64 },
    /// Its result came too late and was absorbed.
    Absorbed,
    /// Its process was killed first.
    Killed,
}

/// One execution of one row.
#[derive(Debug, Clone)]
pub(crate) struct Execution {
    pub token: ClaimToken,
    pub by: Executor,
    pub began: Instant,
    pub outcome: Outcome,
}

impl Execution {
    /// True if it began after `dead` was killed. What the dead itself had begun does not count, although its
    /// line may have come through the pipe a moment later.
    pub fn began_after_death_of(&self, dead: &Executor, killed_at: Instant) -> bool {
        let is_its_own = self.outcome == Outcome::Killed && self.by == *dead;
        self.began > killed_at && !is_its_own
    }
}

/// The book. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Books>>);

#[derive(Debug, Default)]
struct Books {
    executions: BTreeMap<DispatchKey, Vec<Execution>>,
    staged: BTreeSet<WorkflowId>,
}

impl Ledger {
    /// The start of a workflow was acknowledged.
    pub fn staged(&self, workflow: WorkflowId) {
        self.books().staged.insert(workflow);
    }

    /// How many workflows were staged.
    pub fn workflows_staged(&self) -> u64 {
        self.books().staged.len() as u64
    }

    /// Enters what a process wrote.
    pub fn enter(&self, by: &Executor, line: Line) {
        let mut books = self.books();
        match line {
            Line::Began { key, token } => {
                let (by, began) = (by.clone(), Instant::now());
                let execution = Execution { token, by, began, outcome: Outcome::Running };
                books.executions.entry(key).or_default().push(execution);
            }
            Line::Ended { key, token, seq } => {
                let outcome = seq.map_or(Outcome::Absorbed, |seq| Outcome::Acknowledged { seq });
                let executions = books.executions.get_mut(&key).into_iter().flatten();
                for execution in executions.filter(|execution| execution.token == token) {
                    execution.outcome = outcome;
                }
            }
        }
    }

    /// How many rows have an outcome, as far as their executors know.
    pub fn rows_done(&self) -> u64 {
        let is_done = |execution: &Execution| matches!(execution.outcome, Outcome::Acknowledged { .. });
        self.books().executions.values().filter(|executions| executions.iter().any(is_done)).count() as u64
    }

    /// Who is working on this row.
    pub fn holder(&self, key: &DispatchKey) -> Option<Executor> {
        let books = self.books();
        let running = |execution: &&Execution| execution.outcome == Outcome::Running;
        books.executions.get(key)?.iter().find(running).map(|execution| execution.by.clone())
    }

    /// Rows that such executors are working on.
    pub fn in_hand(&self, by: impl Fn(&Executor) -> bool) -> Vec<DispatchKey> {
        let books = self.books();
        let works = |execution: &Execution| execution.outcome == Outcome::Running && by(&execution.by);
        let rows = books.executions.iter().filter(|(_, executions)| executions.iter().any(works));
        rows.map(|(key, _)| key.clone()).collect()
    }

    /// The process of `dead` was killed: its executions end here. Returns their rows.
    pub fn killed(&self, dead: &Executor) -> Vec<DispatchKey> {
        let mut rows = Vec::new();
        for (key, executions) in &mut self.books().executions {
            for execution in executions.iter_mut() {
                if execution.by == *dead && execution.outcome == Outcome::Running {
                    execution.outcome = Outcome::Killed;
                    rows.push(key.clone());
                }
            }
        }
        rows
    }

    /// How many executions of such rows began after this moment.
    pub fn began_since(&self, since: Instant, rows: impl Fn(&DispatchKey) -> bool) -> usize {
        let books = self.books();
        let executions = books.executions.iter().filter(|(key, _)| rows(key)).flat_map(|(_, executions)| executions);
        executions.filter(|execution| execution.began > since).count()
    }

    /// The first execution of each of these rows after the death of `dead`, in the order in which they began.
    pub fn again(&self, rows: &[DispatchKey], dead: &Executor, killed_at: Instant) -> Vec<(DispatchKey, Execution)> {
        let books = self.books();
        let again = rows.iter().filter_map(|key| {
            let mut executions = books.executions.get(key)?.iter();
            let first = executions.find(|execution| execution.began_after_death_of(dead, killed_at))?;
            Some((key.clone(), first.clone()))
        });
        let mut again: Vec<_> = again.collect();
        again.sort_by_key(|(_, execution)| execution.began);
        again
    }

    /// Everything at once, for the audit.
    pub fn close(&self) -> (BTreeSet<WorkflowId>, BTreeMap<DispatchKey, Vec<Execution>>) {
        let books = self.books();
        (books.staged.clone(), books.executions.clone())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // No code panics between two changes that belong together, so a poisoned book is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn row(ordinal: u64) -> DispatchKey {
        DispatchKey { workflow: WorkflowId::new("w").unwrap(), ordinal }
    }

    #[test]
    fn rows_of_a_killed_engine_are_those_it_had_begun_and_not_ended() {
        let ledger = Ledger::default();
        let engine = |node| Executor::Engine(NodeName::new(node).unwrap());
        let (a, b) = (engine("node-a"), engine("node-b"));
        let token = |number| ClaimToken { index: 1, number };
        // The kill came before the lines were read.
        let killed_at = Instant::now();
        ledger.enter(&a, Line::Began { key: row(1), token: token(1) });
        ledger.enter(&a, Line::Began { key: row(2), token: token(2) });
        ledger.enter(&b, Line::Began { key: row(3), token: token(3) });
        ledger.enter(&a, Line::Ended { key: row(1), token: token(1), seq: Some(4) });
        ledger.enter(&Executor::Worker(1), Line::Began { key: row(4), token: token(4) });

        assert_eq!(ledger.killed(&a), [row(2)]);
        assert_eq!(ledger.killed(&a), []);
        assert!(ledger.again(&[row(2)], &a, killed_at).is_empty());
        ledger.enter(&b, Line::Began { key: row(2), token: token(5) });
        let (again, execution) = ledger.again(&[row(2)], &a, killed_at).remove(0);
        assert_eq!((again, execution.by), (row(2), b.clone()));
        assert_eq!(ledger.in_hand(|by| *by == b), [row(2), row(3)]);
        assert_eq!(ledger.holder(&row(2)), Some(b));
        assert_eq!(ledger.holder(&row(1)), None);
    }
}
