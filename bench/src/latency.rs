//! `latency`: one client, one call at a time, each kind by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::FutureExt;
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, TaskQueue};

use crate::args::BenchArgs;
use crate::load;
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::stage::STAGE;
use crate::work::{ROWS, STAGED_EVENTS, Work};

/// All calls about one workflow: what the nodes have spent is shown for each of these.
const TURN: &str = "turn";

/// Measures calls without any other load.
///
/// # Errors
/// When a call is refused, or what is stored is not what was acknowledged.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, run: u32) -> Result<Case> {
    let mut case = Case { clients: Some(1), ..Case::new("latency", run) };
    let (work, meter) = (Arc::new(Work::new(args.load.payload_bytes)?), Arc::new(Meter::new()));
    let calls = calls(Arc::clone(&work), Arc::clone(&meter), nodes.client()?).boxed();
    let window = load::run(&args.load, async || nodes.spent().await, &meter, "latency", vec![calls]).await?;
    window.measured(&mut case, &meter, TURN)?;
    let acknowledged = meter.acknowledged(STAGE);
    case.count("acknowledged", acknowledged);
    case.count("stored", work.stored(&nodes.client()?, acknowledged).await?);
    Ok(case)
}

async fn calls(work: Arc<Work>, meter: Arc<Meter>, client: Client) -> Result<()> {
    let queue = TaskQueue::default();
    for number in 0.. {
        if meter.is_over() {
            break;
        }
        let (id, turn) = (work.id(0, number)?, Instant::now());
        let begun = Instant::now();
        work.stage(&client, id.clone(), &queue).await?;
        meter.record(STAGE, begun);

        let begun = Instant::now();
        let rows = work.claim(&client, &queue, ROWS as u32, Duration::ZERO).await?;
        meter.record("claim", begun);
        ensure!(rows.len() as u64 == ROWS, "{} of {ROWS} rows were there to be claimed", rows.len());
        for row in &rows {
            let begun = Instant::now();
            work.complete(&client, row).await?;
            meter.record("complete", begun);
        }
        work.refuses_second_completion(&client, &rows[0]).await?;

        let begun = Instant::now();
        let view = client.workflow(&id, ReadMode::Linearizable).await?.value;
        meter.record("read_linearizable", begun);
        ensure!(view.workflow.is_some(), "{id} was acknowledged and is not there");
        let begun = Instant::now();
        client.workflow(&id, ReadMode::Stale).await?;
        meter.record("read_stale", begun);

        // It ends, so that what lives does not grow.
        let end = Commit::new(id, STAGED_EVENTS + ROWS).event(NewEvent::of(EventKind::WorkflowCompleted));
        client.commit(end, Write::default()).await?;
        meter.record(TURN, turn);
    }
    Ok(())
}
