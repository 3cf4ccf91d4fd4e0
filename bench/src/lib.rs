//! `holdfast bench`: how fast Holdfast is, measured the same way each time.
//!
//! A load generator over the public client, and the nodes that it measures: processes of the program that it is part
//! of, or running ones; `bench/peers` puts the same load on other systems (`system`). Each measurement is a file: `stage`, `lifecycle`, `latency`, `failover`, `claims`,
//! `idle`, `restart`, `snapshot`. They share the work (`work`), a load with a window in it (`load`), what is
//! recorded of it (`meter`), what the nodes' processes have cost meanwhile (`spent`), and the report (`report`).
//!
//! A measurement checks itself: everything acknowledged is stored, a second completion is refused, and one that measured
//! nothing is an error. `docs/benchmarks.md` says what the figures mean, and which are the goals.

#![warn(missing_docs)]

mod args;
mod claims;
mod failover;
mod history;
mod idle;
mod latency;
pub mod lifecycle;
mod load;
mod meter;
mod nodes;
pub mod own_process;
pub mod place;
mod process;
pub mod report;
mod restart;
mod snapshot;
pub mod spent;
pub mod stage;
pub mod system;
pub mod work;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};

pub use args::{BenchArgs, LoadArgs, Victim, What};
pub use meter::Times;
use nodes::Nodes;
use place::Place;
use report::{Case, Report};

/// Runs a benchmark and prints what it found.
///
/// # Errors
/// When it could not be run, when it measured nothing, or when what it found contradicts what was acknowledged.
pub async fn run(args: BenchArgs) -> Result<()> {
    args.check()?;
    let place = Place::here(args.data_dir.as_deref().unwrap_or(&std::env::temp_dir()));
    let mut terminated = signal(SignalKind::terminate())?;
    // Whatever ends it drops the nodes, and with them their processes.
    let cases = tokio::select! {
        cases = measure_all(&args) => cases?,
        _ = terminated.recv() => bail!("terminated; all nodes are ended"),
        _ = tokio::signal::ctrl_c() => bail!("interrupted; all nodes are ended"),
    };
    ensure!(!cases.is_empty(), "nothing was measured");
    let git_revision = place::git_revision();
    let mut report = Report { version: env!("CARGO_PKG_VERSION"), git_revision, place, settings: args, cases };
    report.add_medians();
    print(&report)
}

async fn measure_all(args: &BenchArgs) -> Result<Vec<Case>> {
    let all = [
        What::Stage,
        What::Lifecycle,
        What::Latency,
        What::Failover,
        What::Claims,
        What::Idle,
        What::Restart,
        What::Snapshot,
    ];
    let asked: Vec<What> = all.into_iter().filter(|what| args.what == What::All || args.what == *what).collect();
    let mut cases = Vec::new();
    for run in 1..=args.runs {
        for what in &asked {
            let measured = measure(args, *what, run).await;
            cases.extend(measured.with_context(|| format!("run {run} of {what:?}"))?);
        }
    }
    Ok(cases)
}

/// Makes one measurement, on nodes of its own.
async fn measure(args: &BenchArgs, what: What, run: u32) -> Result<Vec<Case>> {
    match what {
        What::Snapshot => return snapshot::measure(args, run).await,
        What::Failover => return failover::measure(args, run).await,
        _ => {}
    }
    let mut nodes = Nodes::ready(args, &[]).await?;
    let mut cases = Vec::new();
    match what {
        What::Stage => {
            for clients in &args.clients {
                cases.push(stage::measure(args, &nodes, *clients, run).await?);
            }
        }
        What::Lifecycle => {
            for clients in &args.clients {
                cases.push(lifecycle::measure(args, &nodes, *clients, run).await?);
            }
        }
        What::Latency => cases.push(latency::measure(args, &nodes, run).await?),
        What::Claims => cases = claims::measure(args, &nodes, run).await?,
        What::Idle => cases.push(idle::measure(args, &nodes, run).await?),
        What::Restart => cases.push(restart::measure(args, &mut nodes, run).await?),
        What::Failover | What::Snapshot | What::All => bail!("{what:?} has no nodes in common with others"),
    }
    nodes.finish().await?;
    Ok(cases)
}

fn print(report: &Report) -> Result<()> {
    let tables = report.tables();
    let Some(file) = &report.settings.json else { return Ok(write!(std::io::stdout(), "{tables}")?) };
    let json = serde_json::to_string_pretty(report)?;
    if file == Path::new("-") {
        writeln!(std::io::stdout(), "{json}")?;
        return Ok(write!(std::io::stderr(), "{tables}")?);
    }
    std::fs::write(file, json).with_context(|| format!("writing {}", file.display()))?;
    Ok(write!(std::io::stdout(), "{tables}")?)
}
