//! `holdfast healthcheck`: whether a node is ready, for container engines and scripts. Needs no other program.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::{DEFAULT_URL, block_on};

/// Which node is asked.
#[derive(Debug, Args)]
pub struct HealthcheckArgs {
    /// The node's base URL, or the URL to ask; without a path, `/readyz` is asked
    #[arg(long, default_value = DEFAULT_URL)]
    url: String,
    /// How long the node may take to answer, in milliseconds
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    timeout_ms: u64,
}

pub fn run(args: &HealthcheckArgs) -> anyhow::Result<()> {
    block_on(ask(args))
}

async fn ask(args: &HealthcheckArgs) -> anyhow::Result<()> {
    let mut url = reqwest::Url::parse(&args.url).with_context(|| format!("{:?} is no URL", args.url))?;
    if url.path() == "/" {
        url.set_path("/readyz");
    }
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(args.timeout_ms)).build()?;
    let answer = client.get(url.clone()).send().await.with_context(|| format!("{url} does not answer"))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let said = answer.text().await.unwrap_or_default();
    bail!("{url} answers {status}: {}", said.trim());
}
