//! `lifecycle`: workflows are staged, and workers claim their rows in batches and complete each of them.
//!
//! It is a closed loop: a client stages its next workflow only when few of its own are unfinished. A lifecycle ends
//! with the completion of the last row of its workflow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_machine::WorkflowId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::args::{BenchArgs, LoadArgs};
use crate::load::{self, Calls};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::spent::Spent;
use crate::stage::STAGE;
use crate::system::{Completes, History, same};
use crate::work::{ROWS, STAGED_EVENTS, Work};

/// The name of the operation.
pub const LIFECYCLE: &str = "lifecycle";
/// How long a worker waits for rows before it looks whether all is over.
const CLAIM_WAIT: Duration = Duration::from_millis(250);
/// Calls of one worker that are under way at a time, when it completes one by one.
const AT_A_TIME: usize = 64;
/// How many rows are completed once more, and how many histories read, at the end.
const LOOKED_AT: usize = 50;

/// Workflows that are not finished, and a few rows that are.
#[derive(Debug)]
struct Board<Row> {
    open: Mutex<HashMap<WorkflowId, Open>>,
    finished: Mutex<Vec<Row>>,
}

#[derive(Debug)]
struct Open {
    begun: Instant,
    rows_left: u64,
    /// What its client waits for.
    _permit: OwnedSemaphorePermit,
}

/// Everything that a client or a worker has.
#[derive(Debug)]
struct Hand<S: Completes> {
    work: Arc<Work>,
    meter: Arc<Meter>,
    board: Arc<Board<S::Row>>,
    system: Arc<S>,
    batch: u32,
    one_by_one: bool,
}

/// Measures lifecycles of so many clients.
///
/// # Errors
/// When a call is refused that should not be, or taken that should be refused; when what is stored is not what was
/// acknowledged.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, clients: usize, run: u32) -> Result<Case> {
    let work = Arc::new(Work::new(args.load.payload_bytes)?);
    let systems = nodes.systems(args.connections, &work)?;
    let case = Case { clients: Some(clients), ..Case::new(LIFECYCLE, run) };
    measure_on(&args.load, async || nodes.spent().await, &work, &systems, clients, case).await
}

/// Measures them on any system: each client and each worker does its calls over one of these.
///
/// # Errors
/// As [`measure`].
pub async fn measure_on<S: Completes>(
    args: &LoadArgs,
    spent: impl AsyncFn() -> Result<Spent>,
    work: &Arc<Work>,
    systems: &[Arc<S>],
    clients: usize,
    mut case: Case,
) -> Result<Case> {
    let meter = Arc::new(Meter::new());
    let board = Arc::new(Board { open: Mutex::default(), finished: Mutex::default() });
    let hand = |number: usize| Hand {
        work: Arc::clone(work),
        meter: Arc::clone(&meter),
        board: Arc::clone(&board),
        system: Arc::clone(&systems[number % systems.len()]),
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
    for number in clients..clients + args.workers {
        let staging = stagers.clone();
        calls.push(hand(number).complete_all(move || staging.strong_count() > 0).boxed());
    }
    let window = load::run(args, spent, &meter, &format!("{}, {clients} clients", case.name), calls).await?;
    window.measured(&mut case, &meter, LIFECYCLE)?;
    check(&mut case, &**systems.first().context("no system")?, &meter, &board).await?;
    Ok(case)
}

/// Holds what was acknowledged against what is stored.
async fn check<S: Completes>(case: &mut Case, system: &S, meter: &Meter, board: &Board<S::Row>) -> Result<()> {
    let (staged, completed) = (meter.acknowledged(STAGE), meter.acknowledged("complete"));
    case.count("acknowledged", staged);
    case.count("stored", same(staged, system.workflows().await?)?);
    case.count("rows_completed", completed);
    ensure!(completed == staged * ROWS, "{completed} completions of {staged} workflows were acknowledged");
    let left = system.rows_left().await?;
    ensure!(left == 0, "{left} rows are left that are pending or claimed");
    let finished = std::mem::take(&mut *board.finished.lock());
    for row in &finished {
        system.refuses_second_completion(row).await?;
        let (workflow, expected) = (S::workflow(row), History { events: STAGED_EVENTS + ROWS, outcomes: ROWS });
        let stored = system.history(workflow).await?;
        ensure!(stored == expected, "{workflow} has {stored:?}");
    }
    case.count("second_completions_refused", finished.len() as u64);
    Ok(())
}

impl<S: Completes> Hand<S> {
    /// Stages workflows as long as the load goes on. `staging` tells that somebody still may.
    async fn stage(self, number: usize, backlog: usize, staging: Arc<()>) -> Result<()> {
        let room = Arc::new(Semaphore::new(backlog));
        for workflow in 0.. {
            let permit = Arc::clone(&room).acquire_owned().await?;
            if self.meter.is_over() {
                break;
            }
            let id = self.work.id(number, workflow)?;
            let begun = Instant::now();
            // Before it is staged: its rows may be completed before the answer is here.
            self.board.open.lock().insert(id.clone(), Open { begun, rows_left: ROWS, _permit: permit });
            self.system.stage(id).await?;
            self.meter.record(STAGE, begun);
        }
        drop(staging);
        Ok(())
    }

    /// Claims rows and completes them, until there can be none any more.
    async fn complete_all(self, somebody_stages: impl Fn() -> bool + Send) -> Result<()> {
        while somebody_stages() || !self.board.open.lock().is_empty() {
            let begun = Instant::now();
            let rows = self.system.claim(self.batch, CLAIM_WAIT).await?;
            if rows.is_empty() {
                continue;
            }
            self.meter.record("claim", begun);
            if self.one_by_one {
                let calls = stream::iter(0..rows.len()).map(|number| self.complete(&rows[number]));
                calls.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
            } else {
                let begun = Instant::now();
                self.system.complete_together(&rows).await?;
                rows.iter().try_for_each(|row| self.row_is_done(row, begun))?;
            }
            let mut finished = self.board.finished.lock();
            if finished.len() < LOOKED_AT {
                finished.extend(rows.into_iter().next());
            }
        }
        Ok(())
    }

    async fn complete(&self, row: &S::Row) -> Result<()> {
        let begun = Instant::now();
        self.system.complete(row).await?;
        self.row_is_done(row, begun)
    }

    fn row_is_done(&self, row: &S::Row, begun: Instant) -> Result<()> {
        self.meter.record("complete", begun);
        let (workflow, mut all) = (S::workflow(row), self.board.open.lock());
        let open = all.get_mut(workflow).with_context(|| format!("a row of {workflow}, which is not open"))?;
        open.rows_left -= 1;
        if open.rows_left == 0 {
            self.meter.record(LIFECYCLE, open.begun);
            all.remove(workflow);
        }
        Ok(())
    }
}
