//! `holdfast bench-node`: one node of `holdfast bench`, as `serve` runs it, with two differences. It ends when its standard
//! input does, and so with the benchmark. And it can hold rows itself, as an engine inside a node does while it works on
//! them: rows of one queue of the shards that it owns, each named on standard output, which nobody but the benchmark
//! completes.

use std::convert::Infallible;
use std::io::Write as _;

use clap::Args;
use holdfast_bench::own_process::input_ended;
use holdfast_client::{ClaimCall, ClaimHolder, Write};
use holdfast_machine::{Namespace, Scope, TaskQueue};

use super::Settings;
use crate::api::Store;
use crate::{Node, telemetry};

/// How long a claim waits, and how many rows it takes.
const WAIT_MS: u64 = 10_000;
const ROWS: u32 = 64;

/// What a node of a benchmark is told; not for people.
#[derive(Debug, Args)]
pub struct BenchNodeArgs {
    #[command(flatten)]
    settings: Settings,
    /// The queue, in the namespace of the same name, whose rows it takes and holds.
    #[arg(long)]
    hold: Option<String>,
}

pub async fn run(args: BenchNodeArgs) -> anyhow::Result<()> {
    let config = args.settings.load()?;
    telemetry::log_to_stderr(&config.log);
    let node = Node::start(config).await?;
    let ended = tokio::select! {
        () = input_ended() => Ok(()),
        reason = node.failed() => Err(anyhow::Error::msg(reason)),
        error = hold_rows(&node, args.hold) => error.map(|never| match never {}),
    };
    node.shutdown().await;
    ended
}

/// Takes rows for ever, or nothing at all.
async fn hold_rows(node: &Node, queue: Option<String>) -> anyhow::Result<Infallible> {
    let Some(queue) = queue else { return std::future::pending().await };
    let (namespace, task_queue) = (Namespace::new(&queue)?, TaskQueue::new(&queue)?);
    let scope = Scope { namespace, task_queue, activity_types: Vec::new(), node: None };
    node.ready().await;
    loop {
        if let Err(error) = take(&node.store(), scope.clone()).await {
            tracing::warn!(%error, "no rows could be claimed");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

async fn take(store: &Store, scope: Scope) -> anyhow::Result<()> {
    let call = ClaimCall { scope, limit: ROWS, holder: ClaimHolder::Node, hold: Vec::new(), wait_ms: WAIT_MS };
    for row in store.claim(call, Write::default()).await?.value {
        // Without a reader there is nobody to tell.
        let _ = writeln!(std::io::stdout(), "{}", row.key);
    }
    Ok(())
}
