//! `holdfast demo-node`: one node of the demo, with the reference engine inside its process.
//!
//! The engine drives the workflows of the shards that the node owns. Activities of the engines' queue are run in the
//! same process, claimed as the node itself: if the process dies, they are pending again the moment a survivor adopts
//! their shard.

use std::path::PathBuf;

use anyhow::Context as _;
use holdfast_bench::own_process::input_ended;
use holdfast_engine::{Engine, EngineOptions, LocalActivities, Programs};

use super::activity::{ended, simulate};
use super::fan_out::fan_out;
use super::plan::{ENGINE_QUEUE, FAN_OUT, NAMESPACE, SIMULATE};
use crate::config::load;
use crate::telemetry::log_to_stderr;
use crate::{Node, ShardChange};

/// What a node of the demo is told; not for people.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineNodeArgs {
    /// The node's configuration file.
    #[arg(long)]
    config: PathBuf,
}

/// Runs a node with an engine until standard input ends, which it does with the demo.
///
/// # Errors
/// When the node does not start, or the engine cannot go on.
pub async fn run_engine_node(args: EngineNodeArgs) -> anyhow::Result<()> {
    let config = load(Some(&args.config), toml::Table::new())?;
    log_to_stderr(&config.log);
    let node = Node::start(config).await?;
    let result = tokio::select! {
        result = run_engine(&node) => result,
        reason = node.failed() => Err(anyhow::Error::msg(reason)),
        () = input_ended() => Ok(()),
    };
    node.shutdown().await;
    result
}

async fn run_engine(node: &Node) -> anyhow::Result<()> {
    let options = EngineOptions { namespace: NAMESPACE.parse()?, ..EngineOptions::default() };
    let engine = Engine::with_options(node.store(), Programs::new().with(FAN_OUT, fan_out)?, options);
    let by = node.store().node().to_string();
    let activities = LocalActivities::new(node.store(), ENGINE_QUEUE.parse()?)
        .in_namespace(NAMESPACE.parse()?)
        .with(SIMULATE, move |attempt, task| {
            let by = by.clone();
            async move { Ok(simulate(by, attempt.key, attempt.token, task).await) }
        })?
        .on_result(|attempt, seq| ended(&attempt.key, attempt.token, seq));
    let mut shards = node.shards();
    let follow_shards = async {
        while let Some(change) = shards.next().await {
            match change {
                ShardChange::Acquired { shard, epoch, .. } => engine.acquire(shard, epoch),
                ShardChange::Lost { shard, .. } => engine.lose(shard),
            }
        }
    };
    node.ready().await;
    tokio::select! {
        () = follow_shards => Ok(()),
        result = activities.run() => result.context("the engine's activities cannot be run any more"),
    }
}
