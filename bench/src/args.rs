//! What a benchmark may be told.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Durable atomic writes: a workflow start with 9 events and 4 rows in the outbox
    Stage,
    /// The same, and each of the rows claimed in batches and completed, with a durable event each
    Lifecycle,
    /// Each kind of call by itself, one at a time
    Latency,
    /// A node killed under load: until it is known to be dead, its shards adopted, its rows given out again
    Failover,
    /// Claims in a full store with many waiting, against claims in an empty one
    Claims,
    /// What nodes cost that have nothing to do
    Idle,
    /// The time that a node with a long history takes to serve again
    Restart,
    /// Writes while snapshots are taken, against writes without
    Snapshot,
    /// All of these, one after the other
    All,
}

/// Who is killed by a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// An owner of shards that does not lead
    Follower,
    /// The owner that leads
    Leader,
    /// One after the other
    Both,
}

/// How a load is made, whatever it is made on.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct LoadArgs {
    /// How long is measured
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// How long the load runs before that
    #[arg(long, default_value_t = 2.0)]
    pub warm_up: f64,
    /// The bytes of a row's input, and of what a workflow starts with
    #[arg(long, default_value_t = 128)]
    pub payload_bytes: usize,
    /// Most rows in one claim
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub batch: u32,
    /// `lifecycle`: completes each row by a call of its own, not all rows of a claim in one
    #[arg(long)]
    pub one_by_one: bool,
    /// `lifecycle`: how many workers claim and complete
    #[arg(long, default_value_t = 8)]
    pub workers: usize,
    /// `lifecycle`: how many workflows each client may have staged that are not finished yet
    #[arg(long, default_value_t = 4)]
    pub backlog: usize,
}

/// What a benchmark may be told.
#[derive(Debug, Clone, Args, Serialize)]
pub struct BenchArgs {
    /// What is measured
    #[arg(value_enum)]
    pub what: What,
    /// How many calls are under way at a time; each number is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    pub clients: Vec<usize>,
    /// How the load is made
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
    /// How often each measurement is made; the table shows each, and the median
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// How many nodes are started for it, as processes of this program on loopback
    #[arg(long, default_value_t = 3, conflicts_with = "urls")]
    pub nodes: usize,
    /// Running nodes to be measured instead, by their base URLs
    #[arg(long, value_delimiter = ',', value_name = "URL,…")]
    pub urls: Vec<String>,
    /// The processes of those nodes, if they run on this machine: their CPU time, memory and writes are read then
    #[arg(long, value_delimiter = ',', requires = "urls", value_name = "PID,…")]
    pub pids: Vec<u32>,
    /// Where the nodes that are started keep their data; a temporary folder unless given
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A setting of the nodes that are started, such as `raft.snapshot_after=5000`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Writes the figures as JSON to this file; `-` for standard output, and the table goes to standard error then
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// How many HTTP clients share the load; each begins at another node and has as many sockets as calls under way
    #[arg(long, default_value_t = 3)]
    pub connections: usize,
    /// `claims`: finished rows on disk
    #[arg(long, default_value_t = 100_000)]
    pub finished: u64,
    /// `claims`: claims that wait for work which does not come
    #[arg(long, default_value_t = 1_000)]
    pub waiting: usize,
    /// `restart` and `snapshot`: bytes of history that are written before
    #[arg(long, default_value_t = 64 << 20)]
    pub history_bytes: u64,
    /// `failover` and `restart`: how often a node is killed or restarted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// `failover`: who is killed
    #[arg(long, value_enum, default_value = "both")]
    pub victim: Victim,
    /// `snapshot`: log entries after which a snapshot is taken; calls that come together share one
    #[arg(long, default_value_t = 200)]
    pub snapshot_after: u64,
}

impl LoadArgs {
    /// Refuses what would measure nothing.
    ///
    /// # Errors
    /// Says what has to be given otherwise.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.seconds.is_finite() && self.seconds >= 0.1, "--seconds needs at least 0.1");
        ensure!(self.warm_up.is_finite() && self.warm_up >= 0.0, "--warm-up cannot be negative");
        ensure!(self.workers >= 1 && self.backlog >= 1, "--workers and --backlog need at least 1");
        Ok(())
    }

    /// How long is measured.
    pub fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How long the load runs before.
    pub fn before(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }
}

impl BenchArgs {
    /// Refuses what would measure nothing.
    ///
    /// # Errors
    /// Says what has to be given otherwise.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.clients.is_empty() && !self.clients.contains(&0), "--clients needs numbers from 1 on");
        self.load.check()?;
        ensure!(self.nodes >= 1 && self.nodes <= 9, "--nodes needs 1 to 9");
        ensure!(self.connections >= 1, "--connections needs at least 1");
        ensure!(
            self.pids.is_empty() || self.pids.len() == self.urls.len(),
            "--pids needs a process for each of --urls, or none"
        );
        let needs_its_own = matches!(self.what, What::Failover | What::Restart | What::Snapshot | What::All);
        ensure!(
            self.urls.is_empty() || !needs_its_own,
            "it kills, restarts or sets up nodes, so it needs nodes of its own: leave --urls away"
        );
        ensure!(
            self.what != What::Failover || self.nodes >= 3,
            "a cluster of fewer than 3 nodes does not outlive any of them"
        );
        Ok(())
    }

    /// The most calls at a time that were asked for, for what is measured with one number of clients only.
    pub fn most_clients(&self) -> usize {
        self.clients.iter().copied().max().unwrap_or(1)
    }
}
