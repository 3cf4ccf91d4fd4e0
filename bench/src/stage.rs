//! `stage`: durable atomic writes, each a workflow start with nine events and four rows.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use futures::FutureExt;
use holdfast_client::Client;
use holdfast_machine::TaskQueue;

use crate::args::BenchArgs;
use crate::load::{self, Calls, Window};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::work::Work;

/// The name of the operation.
pub const STAGE: &str = "stage";

/// Measures writes of so many clients.
///
/// # Errors
/// When a write is refused, or what is stored is not what was acknowledged.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, clients: usize, run: u32) -> Result<Case> {
    let mut case = Case { clients: Some(clients), ..Case::new(STAGE, run) };
    let (window, meter) = load(args, nodes, clients, &mut case).await?;
    window.measured(&mut case, &meter, STAGE)?;
    Ok(case)
}

/// Runs such a load, and counts afterwards what it has left.
///
/// # Errors
/// As [`measure`].
pub async fn load(args: &BenchArgs, nodes: &Nodes, clients: usize, case: &mut Case) -> Result<(Window, Arc<Meter>)> {
    let (work, meter) = (Arc::new(Work::new(args)?), Arc::new(Meter::new()));
    let pool = nodes.clients(args.connections)?;
    let calls = (0..clients).map(|number| {
        let client = pool[number % pool.len()].clone();
        stage_on(Arc::clone(&work), Arc::clone(&meter), client, number).boxed()
    });
    let title = format!("{}, {clients} clients", case.name);
    let calls: Vec<Calls> = calls.collect();
    let window = load::run(args, nodes, &meter, &title, calls).await?;
    let acknowledged = meter.acknowledged(STAGE);
    case.count("acknowledged", acknowledged);
    case.count("stored", work.stored(&nodes.client()?, acknowledged).await?);
    Ok((window, meter))
}

async fn stage_on(work: Arc<Work>, meter: Arc<Meter>, client: Client, number: usize) -> Result<()> {
    let queue = TaskQueue::default();
    for workflow in 0.. {
        if meter.is_over() {
            break;
        }
        let id = work.id(number, workflow)?;
        let begun = Instant::now();
        work.stage(&client, id, &queue).await?;
        meter.record(STAGE, begun);
    }
    Ok(())
}
