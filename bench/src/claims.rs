//! `claims`: claims in a full store with many waiting, against the same in an empty one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, TaskQueue, WorkflowId};
use tokio::task::JoinSet;

use crate::args::BenchArgs;
use crate::load::{self, Calls};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::work::{ROWS, STAGED_EVENTS, Work};

/// The name of the operation.
const CLAIM: &str = "claim";
/// Rows of one workflow that is there to be finished. A commit takes a thousand events.
const ROWS_OF_ONE: u64 = 250;
/// Workflows that are finished at a time.
const AT_A_TIME: usize = 16;
/// Claims at a time, unless fewer clients were asked for.
const CLIENTS: usize = 16;
/// How long a claim waits that is given nothing.
const LONG_POLL: Duration = Duration::from_secs(20);

/// Measures claims in an empty store, fills it, and measures again.
///
/// # Errors
/// When a call is refused, or the store does not hold what was put into it.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, run: u32) -> Result<Vec<Case>> {
    let clients = args.most_clients().min(CLIENTS);
    let empty = claims(args, nodes, clients, "claims, empty store", run).await?;
    let finished = finish(args, nodes).await?;
    let waiting = Waiting::start(args, nodes).await?;
    let mut full = claims(args, nodes, clients, "claims, full store", run).await?;
    waiting.stop().await?;
    full.count("finished_rows", finished);
    full.count("waiting", args.waiting as u64);
    let both = empty.times(CLAIM).zip(full.times(CLAIM)).context("both were measured")?;
    full.ratio("p50_full_to_empty", both.1.p50, both.0.p50);
    full.ratio("p99_full_to_empty", both.1.p99, both.0.p99);
    Ok(vec![empty, full])
}

/// Claims of rows that are there: each client stages four, takes them, and completes them.
async fn claims(args: &BenchArgs, nodes: &Nodes, clients: usize, name: &str, run: u32) -> Result<Case> {
    let mut case = Case { clients: Some(clients), ..Case::new(name, run) };
    let (work, meter) = (Arc::new(Work::new(args.load.payload_bytes)?), Arc::new(Meter::new()));
    let pool = nodes.clients(args.connections)?;
    let calls = (0..clients).map(|number| {
        let client = pool[number % pool.len()].clone();
        turns(Arc::clone(&work), Arc::clone(&meter), client, number).boxed()
    });
    let calls: Vec<Calls> = calls.collect();
    let window = load::run(&args.load, async || nodes.spent().await, &meter, name, calls).await?;
    window.measured(&mut case, &meter, CLAIM)?;
    let acknowledged = meter.acknowledged(CLAIM);
    case.count("acknowledged", acknowledged);
    case.count("stored", work.stored(&nodes.client()?, acknowledged).await?);
    Ok(case)
}

async fn turns(work: Arc<Work>, meter: Arc<Meter>, client: Client, number: usize) -> Result<()> {
    // A queue for each client: what it staged is there for it.
    let queue = TaskQueue::new(format!("queue-{number}"))?;
    for workflow in 0.. {
        if meter.is_over() {
            break;
        }
        let id = work.id(number, workflow)?;
        work.stage(&client, id.clone(), &queue).await?;
        let begun = Instant::now();
        let rows = work.claim(&client, &queue, ROWS as u32, Duration::ZERO).await?;
        meter.record(CLAIM, begun);
        ensure!(rows.len() as u64 == ROWS, "{} of {ROWS} rows were there to be claimed", rows.len());
        work.complete_together(&client, &rows).await?;
        let end = Commit::new(id, STAGED_EVENTS + ROWS).event(NewEvent::of(EventKind::WorkflowCompleted));
        client.commit(end, Write::default()).await?;
    }
    Ok(())
}

/// Fills the store with finished rows. Returns how many there are.
async fn finish(args: &BenchArgs, nodes: &Nodes) -> Result<u64> {
    let work = Arc::new(Work::new(args.load.payload_bytes)?);
    let pool = nodes.clients(args.connections)?;
    let workflows = args.finished.div_ceil(ROWS_OF_ONE);
    load::fill("finished rows", workflows, AT_A_TIME, |number| {
        let client = pool[number as usize % pool.len()].clone();
        finish_one(Arc::clone(&work), client, number)
    })
    .await?;
    let client = nodes.client()?;
    work.stored(&client, workflows).await?;
    let rows = client.namespace(&work.namespace, ReadMode::Linearizable).await?.value;
    ensure!(rows.pending + rows.claimed == 0, "{} rows are not finished", rows.pending + rows.claimed);
    Ok(workflows * ROWS_OF_ONE)
}

/// A workflow whose rows all have an outcome, as an engine records it that has run them itself.
async fn finish_one(work: Arc<Work>, client: Client, number: u64) -> Result<()> {
    let id: WorkflowId = work.id(0, number)?;
    let opening = work.opening(id.clone(), ROWS_OF_ONE, &TaskQueue::default())?;
    let head = client.commit(opening, Write::default()).await?.value.head;
    let mut closing = Commit::new(id, head);
    for ordinal in 1..=ROWS_OF_ONE {
        closing = closing.event(NewEvent::activity(EventKind::ActivityCompleted, ordinal).with(work.payload()));
    }
    closing = closing.event(NewEvent::of(EventKind::WorkflowCompleted));
    client.commit(closing, Write::default()).await?;
    Ok(())
}

/// Claims that wait for work which does not come.
#[derive(Debug)]
struct Waiting(JoinSet<Result<()>>);

impl Waiting {
    /// Starts them, and waits until the nodes have them.
    async fn start(args: &BenchArgs, nodes: &Nodes) -> Result<Self> {
        let work = Arc::new(Work::new(args.load.payload_bytes)?);
        let pool = nodes.clients(args.connections)?;
        let mut waiting = JoinSet::new();
        for number in 0..args.waiting {
            let (work, client) = (Arc::clone(&work), pool[number % pool.len()].clone());
            waiting.spawn(async move {
                let queue = TaskQueue::new(format!("nothing-{number}"))?;
                loop {
                    let rows = work.claim(&client, &queue, 1, LONG_POLL).await?;
                    ensure!(rows.is_empty(), "rows that nobody staged: {rows:?}");
                }
            });
        }
        nodes.wait_for_waiting(args.waiting as f64).await?;
        Ok(Self(waiting))
    }

    /// Ends them; fails if one had ended before.
    async fn stop(mut self) -> Result<()> {
        while let Some(ended) = self.0.try_join_next() {
            ended??;
        }
        self.0.shutdown().await;
        Ok(())
    }
}
