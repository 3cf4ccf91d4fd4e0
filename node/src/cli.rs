//! The `holdfast` program: one file for each command. A command prints what it found on standard output; what went
//! wrong is one line on standard error, and the exit code is not 0.

mod backup;
mod bench_node;
mod config;
mod explain;
mod healthcheck;
mod member;
mod nodes;
mod restore;
mod serve;
mod status;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use toml::Table;

use crate::config::{Config, ConfigError, LogFormat, load, parse_setting};
use crate::demo;

/// Where a node's API is if nothing else is said.
const DEFAULT_URL: &str = "http://127.0.0.1:7600";

/// A replicated storage node for workflow engines: shards, histories and outstanding work outlive their owner.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, disable_help_subcommand = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a node until SIGTERM or SIGINT. The default if a configuration is given.
    Serve(Settings),
    /// Shows or checks configuration.
    Config(config::ConfigArgs),
    /// Asks a node whether it is ready; exit code 0 if so.
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Shows the members, the leader, who owns the shards, and the outstanding work.
    Status(status::StatusArgs),
    /// Says why a row, a workflow or a shard does not move, and what to do.
    ///
    /// The exit code is 0 if it moves, waits for a time that will come or has ended in good order, 1 if it is held up,
    /// and 2 if there is no such thing or the node does not answer.
    Explain(explain::ExplainArgs),
    /// Checks every record, row and snapshot of a data directory while no node runs on it; nothing is mended.
    ///
    /// The exit code is 0 if all is sound, 1 if something is damaged or missing, and 2 if the directory cannot be checked or is
    /// no data directory.
    Verify(verify::VerifyArgs),
    /// Makes a backup of a running cluster, or checks one; the exit code is 0 if it is sound.
    Backup(backup::BackupArgs),
    /// Makes the data directory of a node of a new cluster from a backup; once for each of its nodes.
    Restore(restore::RestoreArgs),
    /// Replaces a member that has lost its data.
    ///
    /// The exit code is 0 if it is done (or, as asked, begun or found possible), 1 if it is refused, 2 if no node answers,
    /// and 3 if it is still under way when the wait is over.
    Member(member::MemberArgs),
    /// Starts three nodes and six workers on this machine, kills two owners and a worker in the middle of their work, and
    /// checks every outcome.
    Demo(demo::DemoArgs),
    /// Measures this program on this machine: throughput, latency, failover, memory and CPU time of the nodes.
    ///
    /// It starts its own nodes, or measures running ones. docs/benchmarks.md says what the figures mean.
    Bench(holdfast_bench::BenchArgs),
    /// One node of a benchmark.
    #[command(hide = true)]
    BenchNode(bench_node::BenchNodeArgs),
    /// One node of the demo, with an engine inside.
    #[command(hide = true)]
    DemoNode(demo::EngineNodeArgs),
    /// One worker of the demo.
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

/// Where a node's configuration comes from. Flags stand above the environment, that above the file.
#[derive(Debug, Clone, Default, Args)]
pub struct Settings {
    /// The configuration file (TOML); `holdfast config example` prints one with every key
    #[arg(long, short, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// This node's name
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    cluster_id: Option<String>,
    /// All members with their peer addresses
    #[arg(long, value_name = "NAME=HOST:PORT,…")]
    members: Option<String>,
    /// Where the HTTP API listens
    #[arg(long, value_name = "IP:PORT")]
    http_listen: Option<String>,
    /// Where the other nodes are listened to
    #[arg(long, value_name = "IP:PORT")]
    peer_listen: Option<String>,
    /// The directory of this node's data
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Allows addresses beyond loopback, although there is no authentication yet
    #[arg(long)]
    insecure_allow_remote: bool,
    /// How log lines look
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What is logged: a level or a filter
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Any other key, such as `detector.confirmations=5`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// True if anything at all was said.
    fn given(&self) -> bool {
        self.config.is_some() || self.flags().map_or(true, |flags| !flags.is_empty())
    }

    /// The configuration that these settings lead to, checked.
    ///
    /// # Errors
    /// [`ConfigError`], a sentence that says what to do.
    pub fn load(&self) -> Result<Config, ConfigError> {
        load(self.config.as_deref(), self.flags()?)
    }

    fn flags(&self) -> Result<Table, ConfigError> {
        let mut table = Table::new();
        for setting in &self.set {
            parse_setting(setting, &mut table)?;
        }
        let texts = [
            ("node_name", &self.node_name),
            ("cluster_id", &self.cluster_id),
            ("members", &self.members),
            ("http_listen", &self.http_listen),
            ("peer_listen", &self.peer_listen),
            ("data_dir", &self.data_dir),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                table.insert(key.to_owned(), text.clone().into());
            }
        }
        if self.insecure_allow_remote {
            table.insert("insecure_allow_remote".to_owned(), true.into());
        }
        if let Some(format) = self.log_format {
            let name = if format == LogFormat::Json { "json" } else { "text" };
            parse_setting(&format!("log.format={name}"), &mut table)?;
        }
        if let Some(level) = &self.log_level {
            parse_setting(&format!("log.level={level}"), &mut table)?;
        }
        Ok(table)
    }
}

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    let Cli { command, settings } = Cli::parse();
    let ended = match command {
        Some(Command::Serve(settings)) => serve::run(&settings),
        Some(Command::Config(args)) => config::run(&args),
        Some(Command::Healthcheck(args)) => healthcheck::run(&args),
        Some(Command::Status(args)) => status::run(&args),
        Some(Command::Explain(args)) => return explain::run(&args),
        Some(Command::Verify(args)) => return verify::run(&args),
        Some(Command::Backup(args)) => backup::run(&args),
        Some(Command::Restore(args)) => restore::run(&args),
        Some(Command::Member(args)) => return member::run(&args),
        Some(Command::Bench(args)) => block_on(holdfast_bench::run(args)),
        Some(Command::BenchNode(args)) => block_on(bench_node::run(args)),
        Some(Command::Demo(args)) => block_on(demo::run(args)),
        Some(Command::DemoNode(args)) => block_on(demo::run_engine_node(args)),
        Some(Command::DemoWorker(args)) => block_on(demo::run_worker(args)),
        None if settings.given() => serve::run(&settings),
        None => Cli::command().print_help().map_err(anyhow::Error::from),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with what led to it, each said once: many a sentence has its cause in it already.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| match cause.to_string() {
        first if said.is_empty() => first,
        cause if said.contains(&cause) => said,
        cause => format!("{said}: {cause}"),
    })
}

/// Runs a command's work to its end.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let lost = std::io::Error::other("the disk is gone");
        let reading = holdfast_storage::StorageError::io("reading", std::path::Path::new("/data"), lost);
        let error = anyhow::Error::from(reading).context("no backup");
        assert_eq!(super::told(&error), "no backup: reading /data: the disk is gone");
        assert_eq!(super::told(&anyhow!("one thing")), "one thing");
    }
}
