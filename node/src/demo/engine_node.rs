//! `holdfast demo-node`: one node of the demo, with the engine inside its process.

use std::io::Read as _;
use std::path::PathBuf;

use tokio::sync::oneshot;

use super::engine::run_engine;
use crate::Node;
use crate::config::load;
use crate::telemetry::log_to_stderr;

/// What a node of the demo is told; not for people.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineNodeArgs {
    /// The node's configuration file.
    #[arg(long)]
    config: PathBuf,
}

/// Runs a node with the demo's engine until standard input ends, which it does with the demo.
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
        () = demo_ended() => Ok(()),
    };
    node.shutdown().await;
    result
}

/// Completes when standard input ends.
async fn demo_ended() {
    let (ended, wait) = oneshot::channel();
    // A thread of its own: the runtime would wait for a blocking read when it stops.
    std::thread::spawn(move || {
        let mut nothing = [0; 64];
        while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}
