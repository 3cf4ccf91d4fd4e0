//! Long histories: what a node has to live with that has run for a while.

use std::sync::Arc;

use anyhow::Result;
use holdfast_client::{Client, Write};
use holdfast_machine::{EventKind, NewEvent};

use crate::args::BenchArgs;
use crate::load;
use crate::nodes::Nodes;
use crate::work::Work;

/// The body of one event.
const EVENT_BYTES: usize = 16 << 10;
/// Events of one workflow, besides those that open and end it.
const EVENTS: usize = 16;
/// Workflows that are written at a time.
const AT_A_TIME: usize = 8;

/// Writes finished workflows of so many bytes together, or a little more. Returns how many bytes.
///
/// # Errors
/// When a write is refused, or what is stored is not what was acknowledged.
pub async fn write(args: &BenchArgs, nodes: &Nodes) -> Result<u64> {
    let work = Arc::new(Work::new(args.load.payload_bytes)?);
    let pool = nodes.clients(args.connections)?;
    let each = (EVENTS * EVENT_BYTES) as u64;
    let workflows = args.history_bytes.div_ceil(each);
    load::fill("history", workflows, AT_A_TIME, |number| {
        let client = pool[number as usize % pool.len()].clone();
        write_one(Arc::clone(&work), client, number)
    })
    .await?;
    work.stored(&nodes.client()?, workflows).await?;
    Ok(workflows * each)
}

async fn write_one(work: Arc<Work>, client: Client, number: u64) -> Result<()> {
    let note = || NewEvent::of(EventKind::Other("Note".to_owned())).with(work.payload_of(EVENT_BYTES));
    let mut events = vec![work.started()?];
    events.extend(std::iter::repeat_with(note).take(EVENTS));
    events.push(NewEvent::of(EventKind::WorkflowCompleted));
    client.append(&work.id(0, number)?, 0, events, Write::default()).await?;
    Ok(())
}
