//! `snapshot`: writes while snapshots are taken, against writes without. Two clusters, one after the other, that differ in
//! nothing but how often they take one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use futures::StreamExt;
use holdfast_client::{Client, EventMessage};
use holdfast_machine::ClusterEvent;
use tokio::task::JoinSet;

use crate::args::BenchArgs;
use crate::history;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::stage::{self, STAGE};

/// More than any run writes.
const NEVER: u64 = 1 << 50;
/// Clients of the load, unless fewer were asked for.
const CLIENTS: usize = 64;

/// Measures both.
///
/// # Errors
/// When a write is refused, or no snapshot was taken under the load that is there for them.
pub async fn measure(args: &BenchArgs, run: u32) -> Result<Vec<Case>> {
    let without = writes(args, NEVER, "snapshot, without", run).await?;
    let mut during = writes(args, args.snapshot_after, "snapshot, with", run).await?;
    let taken = during.counts.get("snapshots").copied().unwrap_or_default();
    ensure!(taken > 0, "no snapshot was taken under the load: a smaller --snapshot-after or more --seconds are needed");
    for name in ["per_second", "longest_gap_ms"] {
        if let Some((with, without)) = during.figures.get(name).copied().zip(without.figures.get(name).copied()) {
            during.ratio(&format!("{name}_with_to_without"), with, without);
        }
    }
    Ok(vec![without, during])
}

async fn writes(args: &BenchArgs, after: u64, name: &str, run: u32) -> Result<Case> {
    let settings = [("raft.snapshot_after", after.to_string()), ("raft.snapshot_after_bytes", NEVER.to_string())];
    let nodes = Nodes::ready(args, &settings).await?;
    let clients = args.most_clients().min(CLIENTS);
    let mut case = Case { clients: Some(clients), ..Case::new(name, run) };
    case.count("history_bytes", history::write(args, &nodes).await?);
    let taken = Arc::new(AtomicU64::new(0));
    let mut watch = JoinSet::new();
    for number in 0..nodes.len() {
        watch.spawn(count_snapshots(nodes.client_of(number)?, Arc::clone(&taken)));
    }
    let (window, meter) = stage::load(args, &nodes, clients, &mut case).await?;
    case.count("snapshots", taken.load(Ordering::Relaxed));
    window.measured(&mut case, &meter, STAGE)?;
    drop(watch);
    nodes.finish().await?;
    Ok(case)
}

/// Counts the snapshots of one node, from now on.
async fn count_snapshots(client: Client, taken: Arc<AtomicU64>) {
    let mut events = client.events(None);
    while let Some(message) = events.next().await {
        if let Ok(EventMessage::Event { event: ClusterEvent::SnapshotTaken { .. }, .. }) = message {
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}
