//! `lifecycle`: workflows are staged, and workers claim their rows in batches and complete each of them.
//!
//! It is a closed loop: a client stages its next workflow only when few of its own are unfinished. A lifecycle ends
//! with the completion of the last row of its workflow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use holdfast_client::{Client, Delivery, ReadMode};
use holdfast_machine::{DispatchKey, EventKind, TaskQueue, WorkflowId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::args::BenchArgs;
use crate::load::{self, Calls};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::stage::STAGE;
use crate::work::{ROWS, STAGED_EVENTS, Work};

/// The name of the operation.
const LIFECYCLE: &str = "lifecycle";
/// How long a worker waits for rows before it looks whether all is over.
const CLAIM_WAIT: Duration = Duration::from_millis(250);
/// How many rows are completed once more, and how many histories read, at the end.
const LOOKED_AT: usize = 50;

/// Workflows that are not finished, and a few rows that are.
#[derive(Debug, Default)]
struct Board {
    open: Mutex<HashMap<WorkflowId, Open>>,
    finished: Mutex<Vec<Delivery>>,
}

#[derive(Debug)]
struct Open {
    begun: Instant,
    rows_left: u64,
    /// What its client waits for.
    _permit: OwnedSemaphorePermit,
}

/// Everything that a client or a worker has.
#[derive(Debug, Clone)]
struct Hand {
    work: Arc<Work>,
    meter: Arc<Meter>,
    board: Arc<Board>,
    client: Client,
    batch: u32,
    one_by_one: bool,
}

/// Measures lifecycles of so many clients.
///
/// # Errors
/// When a call is refused that should not be, or taken that should be refused; when what is stored is not what was
/// acknowledged.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, clients: usize, run: u32) -> Result<Case> {
    let mut case = Case { clients: Some(clients), ..Case::new(LIFECYCLE, run) };
    let (work, meter, board) = (Arc::new(Work::new(args)?), Arc::new(Meter::new()), Arc::new(Board::default()));
    let pool = nodes.clients(args.connections)?;
    let hand = |number: usize| Hand {
        work: Arc::clone(&work),
        meter: Arc::clone(&meter),
        board: Arc::clone(&board),
        client: pool[number % pool.len()].clone(),
        batch: args.batch,
        one_by_one: args.one_by_one,
    };
    // Workers end when nobody can stage any more and nothing is open.
    let staging = Arc::new(());
    let mut calls: Vec<Calls> = Vec::new();
    for number in 0..clients {
        calls.push(hand(number).stage(number, args.backlog, Arc::clone(&staging)).boxed());
    }
    let stagers = Arc::downgrade(&staging);
    drop(staging);
    for number in 0..args.workers {
        let staging = stagers.clone();
        calls.push(hand(number).complete(move || staging.strong_count() > 0).boxed());
    }
    let window = load::run(args, nodes, &meter, &format!("{LIFECYCLE}, {clients} clients"), calls).await?;
    window.measured(&mut case, &meter, LIFECYCLE)?;
    check(&mut case, &nodes.client()?, &work, &meter, &board).await?;
    Ok(case)
}

/// Holds what was acknowledged against what is stored.
async fn check(case: &mut Case, client: &Client, work: &Work, meter: &Meter, board: &Board) -> Result<()> {
    let (staged, completed) = (meter.acknowledged(STAGE), meter.acknowledged("complete"));
    case.count("acknowledged", staged);
    case.count("stored", work.stored(client, staged).await?);
    case.count("rows_completed", completed);
    ensure!(completed == staged * ROWS, "{completed} completions of {staged} workflows were acknowledged");
    let rows = client.namespace(&work.namespace, ReadMode::Linearizable).await?.value;
    ensure!(rows.pending + rows.claimed == 0, "{} rows pending and {} claimed are left", rows.pending, rows.claimed);
    let finished = std::mem::take(&mut *board.finished.lock());
    for row in &finished {
        work.refuses_second_completion(client, row).await?;
        let workflow = &row.key.workflow;
        let history = client.history(workflow, 1, 100, ReadMode::Linearizable).await?.value;
        let outcomes = history.iter().filter(|event| event.kind == EventKind::ActivityCompleted).count() as u64;
        let expected = (STAGED_EVENTS + ROWS, ROWS);
        ensure!((history.len() as u64, outcomes) == expected, "{workflow} has {outcomes} outcomes: {history:?}");
    }
    case.count("second_completions_refused", finished.len() as u64);
    Ok(())
}

impl Hand {
    /// Stages workflows as long as the load goes on. `staging` tells that somebody still may.
    async fn stage(self, number: usize, backlog: usize, staging: Arc<()>) -> Result<()> {
        let room = Arc::new(Semaphore::new(backlog));
        let queue = TaskQueue::default();
        for workflow in 0.. {
            let permit = Arc::clone(&room).acquire_owned().await?;
            if self.meter.is_over() {
                break;
            }
            let id = self.work.id(number, workflow)?;
            let begun = Instant::now();
            // Before it is staged: its rows may be completed before the answer is here.
            self.board.open.lock().insert(id.clone(), Open { begun, rows_left: ROWS, _permit: permit });
            self.work.stage(&self.client, id, &queue).await?;
            self.meter.record(STAGE, begun);
        }
        drop(staging);
        Ok(())
    }

    /// Claims rows and completes them, until there can be none any more.
    async fn complete(self, somebody_stages: impl Fn() -> bool + Send) -> Result<()> {
        let queue = TaskQueue::default();
        while somebody_stages() || !self.board.open.lock().is_empty() {
            let begun = Instant::now();
            let rows = self.work.claim(&self.client, &queue, self.batch, CLAIM_WAIT).await?;
            if rows.is_empty() {
                continue;
            }
            self.meter.record("claim", begun);
            let done = |row: &Delivery, begun| {
                self.meter.record("complete", begun);
                self.row_is_done(&row.key)
            };
            if self.one_by_one {
                self.work.complete_each(&self.client, &rows, done).await?;
            } else {
                self.work.complete_together(&self.client, &rows, done).await?;
            }
            let mut finished = self.board.finished.lock();
            if finished.len() < LOOKED_AT {
                finished.extend(rows.into_iter().next());
            }
        }
        Ok(())
    }

    fn row_is_done(&self, key: &DispatchKey) -> Result<()> {
        let mut all = self.board.open.lock();
        let open = all.get_mut(&key.workflow).with_context(|| format!("{key} is of no open workflow"))?;
        open.rows_left -= 1;
        if open.rows_left == 0 {
            self.meter.record(LIFECYCLE, open.begun);
            all.remove(&key.workflow);
        }
        Ok(())
    }
}
