//! The whole of it: three nodes with the reference engine in each, workers in processes of their own, and what becomes
//! of a fan-out when an owner, an adopter or a worker dies in the middle of it. Section 8; cases 5, 5b, 7 and 8.
//!
//! Every story is told on the same stage. The first wave of the fan-out is held in the hands of the owner's engine and
//! of the workers until the story lets go of it.

mod chaos;
mod owners;
mod workers;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_machine::{DispatchKey, WorkflowId};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::engine::{Execution, HOLD, QUEUE, WORK, WORKERS};
use holdfast_tests::programs::{FanOut, Part};

/// Activities of each part of a fan-out.
const PART: u64 = 4;
/// Room of each worker.
const ROOM: u32 = 8;

/// Three nodes with engines, and a worker at each.
async fn stage(lease: Duration) -> Result<Cluster> {
    let mut cluster = Setup::with_engines().start().await?;
    for node in 0..3 {
        let worker = cluster.add_worker(node, ROOM, lease)?;
        cluster.attached(worker).await?;
    }
    Ok(cluster)
}

/// A wave that is held and one that is not, each with rows for the engine (the first ordinals of the wave) and for
/// workers.
fn plan() -> FanOut {
    let wave = |activity| vec![Part::of(PART, activity, QUEUE), Part::of(PART, activity, WORKERS)];
    FanOut { waves: vec![wave(HOLD), wave(WORK)], pause_ms: 100 }
}

/// Executions of the rows of the first wave that are the engine's.
fn held_by_engines(executions: &[Execution]) -> Vec<&Execution> {
    executions.iter().filter(|execution| execution.key.ordinal <= PART).collect()
}

/// Executions of the rows, of both waves, that are the workers'.
fn held_by_workers(executions: &[Execution]) -> Vec<&Execution> {
    executions.iter().filter(|execution| (execution.key.ordinal - 1) % (2 * PART) >= PART).collect()
}

/// Waits until the first wave is in the hands of a node's engine and of the workers.
async fn in_hand(cluster: &Cluster, id: &WorkflowId, node: usize) -> Result<()> {
    let begun = cluster.begun(id, 2 * PART as usize).await?;
    let engines = held_by_engines(&begun);
    let label = &cluster.nodes[node].label;
    ensure!(engines.len() == PART as usize && engines.iter().all(|held| held.by == *label), "{begun:?}");
    Ok(())
}

/// How often each row was executed.
fn times(executions: &[Execution]) -> BTreeMap<&DispatchKey, usize> {
    let mut times = BTreeMap::new();
    for execution in executions {
        *times.entry(&execution.key).or_default() += 1;
    }
    times
}

/// Every row was executed, those of workers once, and those that the dead node's engine held again.
fn ran_again(id: &WorkflowId, plan: &FanOut, all: &[Execution]) -> Result<()> {
    let times = times(all);
    ensure!(times.len() as u64 == plan.ordinals(), "{id}: {} rows were executed", times.len());
    ensure!(all.len() as u64 > plan.ordinals(), "{id}: nothing ran again");
    let again = held_by_engines(all).iter().all(|execution| times[&execution.key] > 1);
    ensure!(again, "{id}: rows of the dead engine did not run again: {times:?}");
    let once = held_by_workers(all).iter().all(|execution| times[&execution.key] == 1);
    ensure!(once, "{id}: a worker's row ran twice, though the worker was there: {times:?}");
    Ok(())
}

/// Starts a node that is down, and waits until it takes part again.
async fn brought_back(cluster: &Cluster, node: usize) -> Result<()> {
    cluster.nodes[node].start().context("bringing a node back")?;
    cluster.whole().await
}
