//! Holdfast, by its own `holdfast bench`: the same load, in the same program as what it measures.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_bench::report::Case;
use serde::Deserialize;
use tokio::process::Command as AsyncCommand;

use crate::args::Kind;
use crate::peer::Measurement;

/// What is read of its report.
#[derive(Debug, Deserialize)]
struct Said {
    place: SaidPlace,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct SaidPlace {
    debug_build: bool,
}

/// Measures one kind of load.
pub async fn measure(measurement: &Measurement<'_>) -> Result<Vec<Case>> {
    let Measurement { args, kind, folder, round, .. } = measurement;
    let (program, json) = (args.holdfast.as_ref().context("--holdfast")?, folder.join("figures.json"));
    let clients: Vec<String> = args.clients_of(*kind).iter().map(ToString::to_string).collect();
    let load = args.load_of(*kind);
    let mut command = Command::new(program);
    command.arg("bench").arg(if *kind == Kind::Stage { "stage" } else { "lifecycle" });
    command.args(["--clients", &clients.join(","), "--data-dir"]).arg(folder);
    for (name, value) in [
        ("--seconds", load.seconds.to_string()),
        ("--warm-up", load.warm_up.to_string()),
        ("--payload-bytes", load.payload_bytes.to_string()),
        ("--batch", load.batch.to_string()),
        ("--workers", load.workers.to_string()),
        ("--backlog", load.backlog.to_string()),
    ] {
        command.args([name, &value]);
    }
    if load.one_by_one {
        command.arg("--one-by-one");
    }
    command.arg("--json").arg(&json);
    let output = AsyncCommand::from(command).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "holdfast bench: {}", String::from_utf8_lossy(&output.stderr));
    let said: Said = serde_json::from_slice(&fs::read(&json)?)?;
    ensure!(!said.place.debug_build, "{} is a debug build", program.display());
    let named = |case| Case { name: kind.title().to_owned(), run: Some(*round), ..case };
    Ok(said.cases.into_iter().map(named).collect())
}
