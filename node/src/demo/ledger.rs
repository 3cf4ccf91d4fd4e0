//! What really happened, as the demo itself saw it: every execution that began, and every write that
//! was acknowledged. At the end the cluster's histories are held against this book.
//!
//! Engines report through their standard output (see [`Line`]), workers live in this process. The book
//! counts executions where they happen, because a store cannot be asked how often it was wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use holdfast_machine::{ClaimToken, DispatchKey, NodeName, WorkflowId};
use serde::{Deserialize, Serialize};

/// One line that an engine writes to its standard output. A pipe keeps what was written before a
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Executor {
    /// The engine inside this node's process.
    Engine(NodeName),
    /// A worker by number; it lives in a process of its own and outlives the node it is attached to.
    Worker(usize),
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
    /// True if it began after `node` was killed. What that node itself had begun does not count, although
    /// its line may have come through the pipe a moment later.
    pub fn began_after_death_of(&self, node: &NodeName, killed_at: Instant) -> bool {
        let is_its_own = self.outcome == Outcome::Killed && self.by == Executor::Engine(node.clone());
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
    /// A workflow's first commit was acknowledged.
    pub fn staged(&self, workflow: WorkflowId) {
        self.books().staged.insert(workflow);
    }

    /// How many workflows were staged.
    pub fn workflows_staged(&self) -> u64 {
        self.books().staged.len() as u64
    }

    /// An execution begins now.
    pub fn began(&self, by: Executor, key: DispatchKey, token: ClaimToken) {
        let execution = Execution { token, by, began: Instant::now(), outcome: Outcome::Running };
        self.books().executions.entry(key).or_default().push(execution);
    }

    /// An execution ended.
    pub fn ended(&self, key: &DispatchKey, token: ClaimToken, outcome: Outcome) {
        let mut books = self.books();
        let executions = books.executions.get_mut(key).into_iter().flatten();
        for execution in executions.filter(|execution| execution.token == token) {
            execution.outcome = outcome;
        }
    }

    /// Enters what an engine wrote.
    pub fn enter(&self, node: &NodeName, line: Line) {
        match line {
            Line::Began { key, token } => self.began(Executor::Engine(node.clone()), key, token),
            Line::Ended { key, token, seq } => {
                let outcome = seq.map_or(Outcome::Absorbed, |seq| Outcome::Acknowledged { seq });
                self.ended(&key, token, outcome);
            }
        }
    }

    /// Rows that this executor is working on.
    pub fn in_hand(&self, by: impl Fn(&Executor) -> bool) -> Vec<DispatchKey> {
        let books = self.books();
        let works = |execution: &Execution| execution.outcome == Outcome::Running && by(&execution.by);
        let rows = books.executions.iter().filter(|(_, executions)| executions.iter().any(works));
        rows.map(|(key, _)| key.clone()).collect()
    }

    /// The engine of `node` is dead: its executions end here. Returns their rows.
    pub fn killed(&self, node: &NodeName) -> Vec<DispatchKey> {
        let engine = Executor::Engine(node.clone());
        let mut rows = Vec::new();
        for (key, executions) in &mut self.books().executions {
            for execution in executions.iter_mut() {
                if execution.by == engine && execution.outcome == Outcome::Running {
                    execution.outcome = Outcome::Killed;
                    rows.push(key.clone());
                }
            }
        }
        rows
    }

    /// The first of these rows that was executed again after the death of `node`.
    pub fn first_again(
        &self,
        rows: &[DispatchKey],
        node: &NodeName,
        killed_at: Instant,
    ) -> Option<(DispatchKey, Execution)> {
        let books = self.books();
        let executions = rows.iter().filter_map(|key| Some((key, books.executions.get(key)?)));
        let executions = executions.flat_map(|(key, all)| all.iter().map(move |execution| (key, execution)));
        let again = executions.filter(|(_, execution)| execution.began_after_death_of(node, killed_at));
        let first = again.min_by_key(|(_, execution)| execution.began);
        first.map(|(key, execution)| (key.clone(), execution.clone()))
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
        let (a, b) = (NodeName::new("node-a").unwrap(), NodeName::new("node-b").unwrap());
        let token = |number| ClaimToken { index: 1, number };
        // The kill came before the lines were read.
        let killed_at = Instant::now();
        ledger.enter(&a, Line::Began { key: row(1), token: token(1) });
        ledger.enter(&a, Line::Began { key: row(2), token: token(2) });
        ledger.enter(&b, Line::Began { key: row(3), token: token(3) });
        ledger.enter(&a, Line::Ended { key: row(1), token: token(1), seq: Some(4) });
        ledger.began(Executor::Worker(0), row(4), token(4));

        assert_eq!(ledger.killed(&a), [row(2)]);
        assert_eq!(ledger.killed(&a), []);
        assert!(ledger.first_again(&[row(2)], &a, killed_at).is_none());
        ledger.enter(&b, Line::Began { key: row(2), token: token(5) });
        let (again, execution) = ledger.first_again(&[row(2)], &a, killed_at).unwrap();
        assert_eq!((again, execution.by), (row(2), Executor::Engine(b.clone())));
        assert_eq!(ledger.in_hand(|by| *by == Executor::Engine(b.clone())), [row(2), row(3)]);
    }
}
