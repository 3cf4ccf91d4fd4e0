//! `stage`: durable atomic writes, each a workflow start with nine events and four rows.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use futures::FutureExt;

use crate::args::{BenchArgs, LoadArgs};
use crate::load::{self, Calls, Window};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::spent::Spent;
use crate::system::{Stages, same};
use crate::work::Work;

/// The name of the operation.
pub const STAGE: &str = "stage";

/// Measures writes of so many clients.
///
/// # Errors
/// When a write is refused, or what is stored is not what was acknowledged.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, clients: usize, run: u32) -> Result<Case> {
    let work = Arc::new(Work::new(args.load.payload_bytes)?);
    let systems = nodes.systems(args.connections, &work)?;
    let case = Case { clients: Some(clients), ..Case::new(STAGE, run) };
    measure_on(&args.load, async || nodes.spent().await, &work, &systems, clients, case).await
}

/// Runs such a load, and counts afterwards what it has left.
///
/// # Errors
/// As [`measure`].
pub async fn load(args: &BenchArgs, nodes: &Nodes, clients: usize, case: &mut Case) -> Result<(Window, Arc<Meter>)> {
    let work = Arc::new(Work::new(args.load.payload_bytes)?);
    let systems = nodes.systems(args.connections, &work)?;
    load_on(&args.load, async || nodes.spent().await, &work, &systems, clients, case).await
}

/// Measures writes of so many clients on any system: each client does its calls over one of these.
///
/// # Errors
/// As [`measure`].
pub async fn measure_on<S: Stages>(
    args: &LoadArgs,
    spent: impl AsyncFn() -> Result<Spent>,
    work: &Arc<Work>,
    systems: &[Arc<S>],
    clients: usize,
    mut case: Case,
) -> Result<Case> {
    let (window, meter) = load_on(args, spent, work, systems, clients, &mut case).await?;
    window.measured(&mut case, &meter, STAGE)?;
    Ok(case)
}

async fn load_on<S: Stages>(
    args: &LoadArgs,
    spent: impl AsyncFn() -> Result<Spent>,
    work: &Arc<Work>,
    systems: &[Arc<S>],
    clients: usize,
    case: &mut Case,
) -> Result<(Window, Arc<Meter>)> {
    let meter = Arc::new(Meter::new());
    let calls = (0..clients).map(|number| {
        let system = Arc::clone(&systems[number % systems.len()]);
        stage_on(Arc::clone(work), Arc::clone(&meter), system, number).boxed()
    });
    let title = format!("{}, {clients} clients", case.name);
    let calls: Vec<Calls> = calls.collect();
    let window = load::run(args, spent, &meter, &title, calls).await?;
    let acknowledged = meter.acknowledged(STAGE);
    case.count("acknowledged", acknowledged);
    let stored = systems.first().context("no system")?.workflows().await?;
    case.count("stored", same(acknowledged, stored)?);
    Ok((window, meter))
}

async fn stage_on<S: Stages>(work: Arc<Work>, meter: Arc<Meter>, system: Arc<S>, number: usize) -> Result<()> {
    for workflow in 0.. {
        if meter.is_over() {
            break;
        }
        let id = work.id(number, workflow)?;
        let begun = Instant::now();
        system.stage(id).await?;
        meter.record(STAGE, begun);
    }
    Ok(())
}
