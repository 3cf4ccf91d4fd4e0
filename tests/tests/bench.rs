//! `holdfast bench`, each measurement once and as short as can be. What is looked at is whether its figures are there
//! and agree with each other, not how good they are.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use holdfast_tests::program::Program;
use holdfast_tests::turn;
use serde_json::Value;
use tokio::process::Command;

/// Runs a benchmark and returns its cases.
async fn bench(arguments: &[&str]) -> Result<Vec<Value>> {
    bench_for("2", arguments).await
}

/// The same, measured for so many seconds: on a busy machine something has to end in them.
async fn bench_for(seconds: &str, arguments: &[&str]) -> Result<Vec<Value>> {
    let _turn = turn::one().await?;
    let mut command = Command::new(Program::Holdfast.path()?);
    command.arg("bench").args(arguments).args(["--seconds", seconds, "--warm-up", "0.2", "--json", "-"]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(said.contains("holdfast 0."), "no table for people: {said}");
    let known = |pointer: &str| report.pointer(pointer).is_some_and(|value| !value.is_null());
    for pointer in ["/git_revision", "/place/cores", "/place/kernel", "/settings/batch"] {
        ensure!(known(pointer), "{pointer} is missing: {report}");
    }
    let cases = report["cases"].as_array().context("cases")?.clone();
    ensure!(!cases.is_empty(), "no cases");
    Ok(cases)
}

/// The number at this place of a case.
fn number(case: &Value, kind: &str, name: &str) -> Result<f64> {
    case[kind][name].as_f64().with_context(|| format!("{kind} without {name}: {case}"))
}

/// Times that stand in order, of at least so many.
fn times(case: &Value, name: &str, least: u64) -> Result<()> {
    let times = &case["times_ms"][name];
    let steps = ["p50", "p90", "p99", "p99_9", "max"];
    let steps = steps.iter().map(|step| times[*step].as_f64()).collect::<Option<Vec<f64>>>();
    let steps = steps.with_context(|| format!("no times of {name}: {case}"))?;
    ensure!(steps.is_sorted() && steps[0] > 0.0, "{name}: {times}");
    ensure!(times["count"].as_u64() >= Some(least), "{name}: {times}");
    Ok(())
}

/// What holds of every load: all that was acknowledged is stored, and what it cost is known.
fn load(case: &Value, operation: &str) -> Result<()> {
    times(case, operation, 1)?;
    let operations = number(case, "counts", "operations")?;
    let (acknowledged, stored) = (number(case, "counts", "acknowledged")?, number(case, "counts", "stored")?);
    ensure!(acknowledged == stored && stored > 0.0, "{case}");
    ensure!(case["times_ms"][operation]["count"].as_f64() == Some(operations), "{case}");
    for name in ["per_second", "server_cpu_ms_per_operation", "server_memory_mib", "flushes_per_second"] {
        ensure!(number(case, "figures", name)? > 0.0, "{name}: {case}");
    }
    ensure!(number(case, "figures", "written_bytes_per_operation")? >= 0.0, "{case}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stage_measures_each_number_of_clients_and_the_median_of_runs() -> Result<()> {
    let cases = bench(&["stage", "--clients", "1,4", "--runs", "2"]).await?;
    let (runs, medians): (Vec<&Value>, Vec<&Value>) = cases.iter().partition(|case| !case["run"].is_null());
    ensure!(runs.len() == 4 && medians.len() == 2, "{cases:?}");
    runs.into_iter().try_for_each(|case| load(case, "stage"))?;
    medians.into_iter().try_for_each(|case| times(case, "stage", 2))
}

#[tokio::test(flavor = "multi_thread")]
async fn lifecycle_completes_every_row_once() -> Result<()> {
    for more in [&[][..], &["--one-by-one"][..]] {
        let cases = bench(&[&["lifecycle", "--clients", "4", "--workers", "2"], more].concat()).await?;
        let case = cases.first().context("a case")?;
        load(case, "lifecycle")?;
        ["claim", "complete"].iter().try_for_each(|call| times(case, call, 1))?;
        ensure!(number(case, "counts", "rows_completed")? == 4.0 * number(case, "counts", "stored")?, "{case}");
        ensure!(number(case, "counts", "second_completions_refused")? > 0.0, "{case}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_has_each_kind_of_call() -> Result<()> {
    let cases = bench_for("8", &["latency"]).await?;
    let case = cases.first().context("a case")?;
    load(case, "turn")?;
    ["stage", "claim", "complete", "read_linearizable", "read_stale"].iter().try_for_each(|call| times(case, call, 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_times_each_step_and_loses_no_call() -> Result<()> {
    let cases = bench(&["failover", "--rounds", "1", "--clients", "4"]).await?;
    ensure!(cases.len() == 2, "one that follows, one that leads: {cases:?}");
    for case in &cases {
        let steps = ["down", "first_adopted", "all_adopted", "first_redelivery", "all_redelivered"];
        steps.iter().try_for_each(|step| times(case, &format!("kill_to_{step}"), 1))?;
        times(case, "longest_time_without_a_write", 1)?;
        let at = |step: &str| case["times_ms"][format!("kill_to_{step}")]["max"].as_f64();
        ensure!(at("down") <= at("all_adopted") && at("first_adopted") <= at("all_redelivered"), "{case}");
        let count = |name: &str| number(case, "counts", name);
        let answered = count("under_way_done")? + count("under_way_refused")? + count("under_way_unknown")?;
        ensure!(answered == count("under_way_at_the_kill")?, "{case}");
        ensure!(count("acknowledged")? == count("stored")? && count("rounds")? == 1.0, "{case}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_compares_an_empty_store_with_a_full_one() -> Result<()> {
    let cases = bench(&["claims", "--clients", "2", "--finished", "1000", "--waiting", "20"]).await?;
    ensure!(cases.len() == 2, "{cases:?}");
    cases.iter().try_for_each(|case| load(case, "claim"))?;
    ensure!(number(&cases[1], "counts", "finished_rows")? == 1_000.0, "{cases:?}");
    ensure!(number(&cases[1], "figures", "p99_full_to_empty")? > 0.0, "{cases:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_knows_each_node() -> Result<()> {
    let cases = bench(&["idle"]).await?;
    for node in 1..=3 {
        ensure!(number(&cases[0], "figures", &format!("node_{node}_memory_mib"))? > 1.0, "{cases:?}");
        ensure!(number(&cases[0], "figures", &format!("node_{node}_cpu_percent_of_a_core"))? >= 0.0, "{cases:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_waits_until_the_node_serves() -> Result<()> {
    let cases = bench(&["restart", "--rounds", "1", "--history-bytes", "1000000"]).await?;
    ["serving_after_stop", "serving_after_kill"].iter().try_for_each(|kind| times(&cases[0], kind, 1))?;
    ensure!(number(&cases[0], "counts", "history_bytes")? >= 1e6, "{cases:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_has_some_in_its_window() -> Result<()> {
    let cases = bench(&["snapshot", "--clients", "4", "--snapshot-after", "20", "--history-bytes", "1000000"]).await?;
    ensure!(cases.len() == 2, "{cases:?}");
    cases.iter().try_for_each(|case| load(case, "stage"))?;
    ensure!(number(&cases[0], "counts", "snapshots")? == 0.0, "{cases:?}");
    ensure!(number(&cases[1], "counts", "snapshots")? > 0.0, "{cases:?}");
    ensure!(number(&cases[1], "figures", "per_second_with_to_without")? > 0.0, "{cases:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_measure_nothing_is_refused() -> Result<()> {
    for arguments in [
        ["stage", "--clients", "0"],
        ["stage", "--seconds", "0"],
        ["restart", "--urls", "http://127.0.0.1:1"],
        ["failover", "--nodes", "2"],
    ] {
        let mut command = Command::new(Program::Holdfast.path()?);
        let output = command.arg("bench").args(arguments).output().await?;
        ensure!(!output.status.success(), "{arguments:?} was taken");
    }
    Ok(())
}
