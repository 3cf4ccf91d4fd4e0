//! What the demo found, as a table for people and as one JSON object for programs.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use holdfast_machine::NodeName;
use serde::Serialize;

/// The time of one step after one kill.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AfterKill {
    /// True if the killed node led the cluster.
    pub leader: bool,
    /// Milliseconds since the SIGKILL.
    pub ms: f64,
}

/// The findings. The demo is a success if `problems` is empty.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// Workflows staged.
    pub workflows: u64,
    /// Workflows that completed.
    pub workflows_completed: u64,
    /// Activities over all workflows.
    pub ordinals: u64,
    /// Executions that began; each beyond one an ordinal was a redelivery.
    pub executions: u64,
    /// Rows that the killed nodes themselves held and that were executed again.
    pub redelivered: u64,
    /// Rows that the killed worker held and that others executed.
    pub given_on: u64,
    /// Rows that living workers held at a kill.
    pub held_by_workers: u64,
    /// Those of them that were executed again; must be 0.
    pub held_by_workers_repeated: u64,
    /// Workflows on shards that never lost their owner.
    pub untouched_workflows: u64,
    /// Their ordinals that were executed more than once; must be 0.
    pub untouched_repeated: u64,
    /// Terminal events beyond one an ordinal; must be 0.
    pub duplicate_terminals: u64,
    /// Ordinals without a terminal event; must be 0.
    pub missing_terminals: u64,
    /// Ordinals without exactly one ActivityScheduled; must be 0.
    pub wrongly_scheduled: u64,
    /// Workflows without exactly one WorkflowStarted; must be 0.
    pub wrongly_started: u64,
    /// Rows that some node does not have as done; must be 0.
    pub rows_not_done: u64,
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Acknowledged writes that some node does not have; must be 0.
    pub acked_lost: u64,
    /// Shards that survivors took over.
    pub adoptions: u64,
    /// Kill to peer down committed.
    pub kill_to_down_ms: Vec<AfterKill>,
    /// Kill to all of the dead node's shards adopted.
    pub kill_to_adopted_ms: Vec<AfterKill>,
    /// Kill to the first row of the dead node executed again.
    pub kill_to_redelivered_ms: Vec<AfterKill>,
    /// Restart to caught up and committed as up again.
    pub restart_to_caught_up_ms: Vec<AfterKill>,
    /// Nodes that the others took for dead although they lived, on a machine that is too busy.
    pub taken_for_dead: Vec<NodeName>,
    /// Kill of a worker to the first of its rows executed by another one.
    pub worker_kill_to_given_on_ms: f64,
    /// True if all nodes had the same state hash at the same applied index.
    pub state_hashes_equal: bool,
    /// The whole demo.
    pub seconds: f64,
    /// True if everything was as promised.
    pub ok: bool,
    /// What was not as promised, in sentences.
    pub problems: Vec<String>,
}

impl Report {
    /// The JSON object of `--json`.
    ///
    /// # Errors
    /// None in practice: all fields are numbers, texts and lists.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The table that ends the demo.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED).set_header(["promise", "expected", "found", ""]);
        let equal = if self.state_hashes_equal { "equal" } else { "different" };
        let checks: [(&str, String, String, bool); 12] = [
            exactly("workflows completed", self.workflows, self.workflows_completed),
            exactly("workflows not started exactly once", 0, self.wrongly_started),
            exactly("ordinals with more than one outcome", 0, self.duplicate_terminals),
            exactly("ordinals without an outcome", 0, self.missing_terminals),
            exactly("ordinals not scheduled exactly once", 0, self.wrongly_scheduled),
            exactly("rows not done", 0, self.rows_not_done),
            exactly("acknowledged writes lost", 0, self.acked_lost),
            some("rows of killed nodes executed again", self.redelivered),
            some("rows of a killed worker executed by others", self.given_on),
            exactly("rows of living workers executed again", 0, self.held_by_workers_repeated),
            exactly("rows of untouched workflows executed again", 0, self.untouched_repeated),
            ("state hashes of all nodes", "equal".to_owned(), equal.to_owned(), self.state_hashes_equal),
        ];
        for (promise, expected, found, kept) in checks {
            table.add_row([promise, &expected, &found, if kept { "ok" } else { "BROKEN" }]);
        }
        right_align(&mut table, &[1, 2]);
        table
    }

    /// The table of times: one column a kill.
    pub fn times(&self) -> Table {
        let mut table = Table::new();
        let kill = |at: &AfterKill| format!("killed {}", if at.leader { "leader" } else { "follower" });
        let mut header = vec!["milliseconds".to_owned()];
        header.extend(self.kill_to_down_ms.iter().map(kill));
        table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
        let steps = [
            ("kill to peer down committed", &self.kill_to_down_ms),
            ("kill to all its shards adopted", &self.kill_to_adopted_ms),
            ("kill to first redelivery", &self.kill_to_redelivered_ms),
            ("restart to caught up and up again", &self.restart_to_caught_up_ms),
        ];
        for (step, times) in steps {
            let times = times.iter().map(|at| Cell::new(format!("{:.0}", at.ms)));
            table.add_row(std::iter::once(Cell::new(step)).chain(times));
        }
        right_align(&mut table, &[1, 2]);
        table
    }
}

fn exactly(promise: &'static str, expected: u64, found: u64) -> (&'static str, String, String, bool) {
    (promise, expected.to_string(), found.to_string(), expected == found)
}

fn some(promise: &'static str, found: u64) -> (&'static str, String, String, bool) {
    (promise, "some".to_owned(), found.to_string(), found > 0)
}

fn right_align(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
