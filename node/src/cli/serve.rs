//! `holdfast serve`: runs a node until it is told to stop, or cannot go on.

use anyhow::bail;

use super::{Settings, block_on};
use crate::config::Config;
use crate::shutdown::signalled;
use crate::{Node, telemetry};

pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let config = settings.load()?;
    telemetry::log_to_stderr(&config.log);
    block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let stop = signalled();
    tokio::pin!(stop);
    let node = tokio::select! {
        node = Node::start(config) => node?,
        signal = &mut stop => {
            tracing::info!(signal = signal?, "stopped before the node was up");
            return Ok(());
        }
    };
    let failure = tokio::select! {
        signal = &mut stop => {
            tracing::info!(signal = signal?, "asked to stop");
            None
        }
        reason = node.failed() => Some(reason),
    };
    node.shutdown().await;
    match failure {
        None => Ok(()),
        Some(reason) => bail!("the node cannot go on: {reason}"),
    }
}
