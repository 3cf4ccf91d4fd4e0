//! Runs simulations: one process for each seed, so that nothing of one run is left over in the next.
//!
//! This program's clock and its source of chance are mad-turmoil's, not the operating system's, in the runs as in the
//! process that starts them. So real time is read from the kernel's own file.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use holdfast_simulation::{Plan, Report, run};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Simulates whole clusters, each from a seed, with faults.
#[derive(Debug, Parser)]
#[command(name = "holdfast-simulation", version, max_term_width = 100)]
struct Arguments {
    /// Seeds to run: `7`, `1..50` (both included), or `7,9,20..30`.
    #[arg(long, default_value = "")]
    seeds: String,

    /// So many seeds more that nobody has chosen.
    #[arg(long, default_value_t = 0)]
    fresh: u64,

    /// Simulated minutes of faults in each run.
    #[arg(long, default_value_t = 0.5)]
    minutes: f64,

    /// Runs at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,

    /// Runs each seed twice, and compares what happened.
    #[arg(long)]
    twice: bool,

    /// Shows each event on standard error, and what the nodes log (`RUST_LOG` says how much).
    #[arg(long)]
    trace: bool,

    /// Real seconds after which a run counts as hung.
    #[arg(long, default_value_t = 900)]
    limit_s: u64,

    /// Runs one seed in this process and prints its report as JSON.
    #[arg(long, hide = true)]
    one: Option<u64>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.one {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

/// Runs a seed in a process that has nothing of its own to be random with.
fn one(seed: u64, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let _time = mad_turmoil::time::SimClocksGuard::init();
    if arguments.trace {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
        lines.with_ansi(false).init();
    }
    let faults_ms = (arguments.minutes * 60_000.0) as u64;
    let report = run(Plan { seed, faults_ms, aloud: arguments.trace })?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(ExitCode::SUCCESS)
}

/// What runs have to meet among them, from this many on, to have shown anything.
const RUNS_THAT_SHOW_ALL: usize = 20;
const WANTED: [&str; 14] = [
    "fault: crash",
    "fault: crash in a write",
    "fault: failed sync",
    "fault: full disk",
    "fault: partition",
    "fault: wiped disk",
    "fault: node stalled",
    "member replaced",
    "row worked on in a session",
    "call unknown",
    "reply lost",
    "shard adopted",
    "snapshot taken or installed",
    "run judged by its calls",
];

/// A run that has ended: its seed, and its report or why there is none.
type Ended = (u64, anyhow::Result<Report>);

fn many(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let begun = real_seconds()?;
    let mut seeds = seeds(&arguments.seeds)?;
    seeds.extend((0..arguments.fresh).map(|_| u64::from(rand::random::<u32>())));
    if seeds.is_empty() {
        bail!("no seeds: say --seeds 1..20, or --fresh 20");
    }
    seeds.reverse();
    let (waiting, ended) = (Arc::new(Mutex::new(seeds)), Mutex::new(Vec::<Ended>::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            let (waiting, ended) = (waiting.clone(), &ended);
            scope.spawn(move || {
                loop {
                    let next = waiting.lock().pop();
                    let Some(seed) = next else { return };
                    let report = checked(seed, arguments);
                    tell(seed, &report);
                    ended.lock().push((seed, report));
                }
            });
        }
    });
    let ended = ended.into_inner();
    let red = summary(&ended, arguments, real_seconds()?.saturating_sub(begun));
    Ok(if red { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs a seed, and a second time if that is asked for.
fn checked(seed: u64, arguments: &Arguments) -> anyhow::Result<Report> {
    let report = in_a_process(seed, arguments)?;
    if arguments.twice {
        let again = in_a_process(seed, arguments)?;
        if (&again.digest, again.events) != (&report.digest, report.events) {
            let what = format!("a second run of seed {seed} went another way: {again:?}, before {report:?}");
            return Ok(Report { broken: Some(what), ..report });
        }
    }
    Ok(report)
}

fn in_a_process(seed: u64, arguments: &Arguments) -> anyhow::Result<Report> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--one", &seed.to_string(), "--minutes", &arguments.minutes.to_string()]);
    if arguments.trace {
        command.arg("--trace");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut printed = String::new();
    let mut stdout = child.stdout.take().context("the run has no output")?;
    let status = std::thread::scope(|scope| {
        let reading = scope.spawn(|| stdout.read_to_string(&mut printed));
        let status = wait(&mut child, arguments.limit_s);
        // It ends with the process.
        let _ = reading.join();
        status
    })?;
    let report = printed.lines().last().and_then(|line| serde_json::from_str(line).ok());
    report.with_context(|| format!("the run ended without a report: {status}"))
}

fn wait(child: &mut Child, limit_s: u64) -> anyhow::Result<std::process::ExitStatus> {
    let begun = real_seconds()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if real_seconds()?.saturating_sub(begun) > limit_s {
            child.kill()?;
            return Ok(child.wait()?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn tell(seed: u64, report: &anyhow::Result<Report>) {
    match report {
        Err(error) => println!("seed {seed}: RED  {error:#}"),
        Ok(report) => match &report.broken {
            Some(broken) => {
                println!("seed {seed}: RED  {broken}");
                report.tail.iter().for_each(|line| println!("    {line}"));
            }
            None => println!(
                "seed {seed}: ok   {} events, digest {}, {} s simulated",
                report.events,
                report.digest,
                report.simulated_ms / 1000
            ),
        },
    }
}

/// Prints what was covered by all runs, and the command that repeats each red one. True if there is one.
fn summary(ended: &[Ended], arguments: &Arguments, real_s: u64) -> bool {
    let reports = || ended.iter().filter_map(|(_, report)| report.as_ref().ok());
    let mut counts: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for (what, count) in reports().flat_map(|report| &report.counts) {
        let (sum, runs) = counts.entry(what).or_default();
        (*sum, *runs) = (*sum + count, *runs + usize::from(*count > 0));
    }
    println!("\n{:<32}{:>10}{:>10}", "covered", "times", "in runs");
    for (what, (sum, runs)) in &counts {
        println!("{what:<32}{sum:>10}{runs:>10}");
    }
    let wanted = |what: &&&str| !counts.contains_key(**what);
    let missing: Vec<&&str> = WANTED.iter().filter(wanted).collect();
    let has_shown_little = ended.len() >= RUNS_THAT_SHOW_ALL && !missing.is_empty();
    if has_shown_little {
        println!("\nRED: {} runs, and none of them met {missing:?}", ended.len());
    }
    let simulated_s = reports().map(|report| report.simulated_ms).sum::<u64>() / 1000;
    let green = |report: &&Report| report.broken.is_none();
    let red: Vec<u64> = ended
        .iter()
        .filter(|(_, report)| report.as_ref().map_or(true, |report| !green(&report)))
        .map(|(seed, _)| *seed)
        .collect();
    println!(
        "\n{} runs, {} red, {} h {} min {} s simulated in {real_s} s",
        ended.len(),
        red.len(),
        simulated_s / 3600,
        simulated_s / 60 % 60,
        simulated_s % 60
    );
    for seed in &red {
        println!("repeat: cargo run -p holdfast-simulation -- --seeds {seed} --minutes {} --trace", arguments.minutes);
    }
    has_shown_little || !red.is_empty()
}

/// Reads `7,9,20..30`.
fn seeds(text: &str) -> anyhow::Result<Vec<u64>> {
    let mut seeds = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part.split_once("..") {
            Some((from, to)) => seeds.extend(from.trim().parse::<u64>()?..=to.trim().parse()?),
            None => seeds.push(part.trim().parse()?),
        }
    }
    Ok(seeds)
}

/// Seconds since the machine was started.
fn real_seconds() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split('.').next().and_then(|seconds| seconds.parse().ok());
    seconds.context("the kernel's uptime is no number")
}
