//! `idle`: what nodes cost that have nothing to do.

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

use crate::args::BenchArgs;
use crate::load::bar;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::spent::Spent;

/// Measures nodes that are left alone.
///
/// # Errors
/// When their processes are not known: there is nothing to measure then.
pub async fn measure(args: &BenchArgs, nodes: &Nodes, run: u32) -> Result<Case> {
    let mut case = Case::new("idle", run);
    let bar = bar("idle", args.load.before() + args.load.measured());
    bar.tick();
    sleep(args.load.before()).await;
    let before = nodes.spent_each().await?;
    let begun = Instant::now();
    sleep(args.load.measured()).await;
    let seconds = begun.elapsed().as_secs_f64();
    let after = nodes.spent_each().await?;
    bar.finish_and_clear();
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        let cpu = after.cpu_ms_since(before).context("without --pids there is nothing to measure")?;
        case.figure(&format!("node_{}_cpu_percent_of_a_core", number + 1), Some(cpu / 10.0 / seconds));
        case.figure(&format!("node_{}_memory_mib", number + 1), after.memory_mib());
    }
    let all = |each: Vec<Spent>| each.into_iter().reduce(Spent::and).unwrap_or_default();
    let (before, after) = (all(before), all(after));
    case.count("nodes", nodes.len() as u64);
    case.figure("flushes_per_second", after.flushes_since(&before).map(|flushes| flushes as f64 / seconds));
    case.figure("written_bytes_per_second", after.written_since(&before).map(|bytes| bytes as f64 / seconds));
    Ok(case)
}
