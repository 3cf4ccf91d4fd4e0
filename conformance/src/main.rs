//! The command: checks a running server.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use holdfast_client::{Client, ClientOptions};
use holdfast_conformance::{Options, all, run};

/// How long a server may take to answer at all before nothing is checked.
const PROBE: Duration = Duration::from_secs(5);

/// Checks whether a running server keeps the promises of Holdfast's interface. One line for each check; ends with 1
/// if a promise is broken or the server cannot be asked. What it makes has names of its own, and is ended afterwards.
#[derive(Debug, Parser)]
#[command(name = "holdfast-conformance")]
struct Arguments {
    /// Base URLs of the nodes of one cluster, such as http://127.0.0.1:7600. Any one node will do.
    #[arg(required_unless_present = "list")]
    urls: Vec<String>,

    /// Only checks with this text in their topic or promise.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Also checks that disturb others who use the server: they move shards and take back old claims.
    #[arg(long)]
    disturbing: bool,

    /// How many checks run side by side.
    #[arg(long, default_value_t = 8)]
    jobs: usize,

    /// How long a single condition may take to come true, in seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    patience: u64,

    /// Writes the report as JSON once all checks have ended.
    #[arg(long)]
    json: bool,

    /// Lists the checks and runs none.
    #[arg(long)]
    list: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let Arguments { urls, filter, disturbing, jobs, patience, json, list } = Arguments::parse();
    if list {
        for check in all() {
            let note = if check.disturbs { " (disturbing)" } else { "" };
            println!("{}: {}{note}", check.topic, check.promise);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let patience = Duration::from_secs(patience);
    let url = urls.first().cloned();
    let options = Options { filter, disturbing, jobs, patience, url, ..Options::default() };
    anyhow::ensure!(!options.selected().is_empty(), "no check has that text in its topic or promise; see --list");
    let probe = Client::with_options(&urls, ClientOptions { deadline: PROBE, ..ClientOptions::default() })?;
    probe.cluster().await.context("the server does not answer")?;
    let client = Client::new(&urls)?;
    let report = run(Arc::new(client), &options, |finding| {
        if !json {
            println!("{finding}");
        }
    })
    .await;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("\n{}", report.summary());
    }
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
