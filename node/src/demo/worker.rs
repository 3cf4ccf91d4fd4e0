//! `holdfast demo-worker`: one worker of the demo, a process of its own.
//!
//! Its session is the cluster's, not a node's: when the node that it is attached to dies, it attaches to another one
//! with the rows that it has in hand, and none of them is executed again. When the worker itself dies, its rows are
//! given to others once the session's lease has ended.

use std::time::Duration;

use holdfast_bench::own_process::input_ended;
use holdfast_client::Client;
use holdfast_worker::Worker;

use super::activity::{ended, simulate};
use super::plan::{NAMESPACE, SIMULATE, WORKER_QUEUE};
use crate::Config;
use crate::telemetry::log_to_stderr;

/// How many rows a worker executes at a time.
const CAPACITY: u32 = 4;
/// How long its session lasts without a heartbeat: far longer than a failover, and short enough to be waited for.
const LEASE: Duration = Duration::from_secs(8);
/// How long it may go on with what it has when the demo has ended.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

/// What a worker of the demo is told; not for people.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// The worker's name.
    #[arg(long)]
    name: String,
    /// Where nodes are, the one to be attached to first.
    #[arg(long = "url", required = true)]
    urls: Vec<String>,
}

/// Runs a worker until standard input ends, which it does with the demo.
///
/// # Errors
/// When it is refused.
pub async fn run_worker(args: WorkerArgs) -> anyhow::Result<()> {
    log_to_stderr(&Config::default().log);
    let WorkerArgs { name, urls } = args;
    Worker::new(Client::new(&urls)?)
        .identity(&name)
        .namespaces([NAMESPACE])
        .task_queue(WORKER_QUEUE)
        .max_concurrency(CAPACITY)
        .lease(LEASE)
        .drain_deadline(DRAINED_WITHIN)
        .activity(SIMULATE, move |activity, task| {
            let by = name.clone();
            async move { Ok(simulate(by, activity.key().clone(), activity.token(), task).await) }
        })
        .on_result(|activity, seq| ended(activity.key(), activity.token(), seq))
        .run_until(input_ended())
        .await?;
    Ok(())
}
