//! What a node says while it runs: log lines and metrics.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use holdfast_machine::NodeName;
use holdfast_raft::Handle;
use metrics::gauge;
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// How often gauges that nobody else keeps are brought up to date.
const GAUGE_INTERVAL: Duration = Duration::from_secs(5);

/// Sends this process's log lines to standard error. For programs; an embedding engine has its own subscriber.
/// A second call changes nothing.
pub fn log_to_stderr(config: &LogConfig) {
    let filter = std::env::var(EnvFilter::DEFAULT_ENV)
        .ok()
        .and_then(|level| filter(&level))
        .or_else(|| filter(&config.level))
        .unwrap_or_else(|| EnvFilter::new("info"));
    // Colours are for a terminal; a container's log or a file gets the bare text.
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // Fails only if there is a subscriber already, which then goes on.
    let _ = match config.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// The filter for a level or list of directives; none if it cannot be read. openraft tells its inner life at `info`,
/// so it is heard from `warn` on unless the directives name it.
fn filter(directives: &str) -> Option<EnvFilter> {
    EnvFilter::try_new(format!("openraft=warn,{directives}")).ok()
}

/// The process's recorder of metrics, installed at the first call. All nodes of a process share it.
///
/// # Errors
/// When the embedding program has installed another recorder.
pub(crate) fn recorder() -> Result<PrometheusHandle, BuildError> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new().install_recorder()?;
    Ok(RECORDER.get_or_init(|| handle).clone())
}

/// Keeps the gauges of this node's shards, until the node stops.
pub(crate) async fn keep_gauges(handle: Handle, node: NodeName, recorder: Option<PrometheusHandle>) {
    loop {
        let owned = handle.view(|machine, _| machine.shards().filter(|entry| entry.owner == node).count());
        // Exact up to 2^53.
        gauge!("holdfast_shards_owned", "node" => node.to_string()).set(owned as f64);
        if let Some(recorder) = &recorder {
            recorder.run_upkeep();
        }
        tokio::time::sleep(GAUGE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn openraft_is_quiet_unless_it_is_named() {
        assert_eq!(filter("info").unwrap().to_string(), "openraft=warn,info");
        assert_eq!(filter("info,openraft=debug").unwrap().to_string(), "openraft=debug,info");
        assert!(filter("holdfast=loud").is_none());
    }
}
