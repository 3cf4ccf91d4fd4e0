//! What `bench-peers` may be told.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use holdfast_bench::LoadArgs;
use serde::{Deserialize, Serialize};

/// Measures Holdfast and what a user would pick instead, with the same load.
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures, in turn, prints what it found, and writes it as JSON
    Run(Box<RunArgs>),
    /// Writes the tables of such a JSON into the marked section of a document
    Document(DocumentArgs),
    /// One of the floor's three processes
    #[command(hide = true)]
    FloorNode(FloorNodeArgs),
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemName {
    /// 1 KiB appended and synced on three files, a majority acknowledged, nothing else
    Floor,
    /// One PostgreSQL
    Postgres,
    /// PostgreSQL with two standbys, any one of them synchronous
    PostgresStandbys,
    /// etcd, three members
    Etcd,
    /// NATS JetStream, three servers
    Nats,
    /// Holdfast, three nodes
    Holdfast,
}

/// The load that is put on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Workflow starts
    Stage,
    /// The same, each row claimed and completed, all rows of a claim in one call
    Lifecycle,
    /// The same, each row completed by a call of its own
    OneByOne,
}

#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct RunArgs {
    /// What is measured; without --holdfast, Holdfast is left out
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "floor,postgres,postgres-standbys,etcd,nats,holdfast"
    )]
    pub systems: Vec<SystemName>,
    /// The loads
    #[arg(long, value_enum, value_delimiter = ',', default_value = "stage,lifecycle")]
    pub loads: Vec<Kind>,
    /// How many calls are under way at a time in `stage`; each number is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    pub clients: Vec<usize>,
    /// The same in `lifecycle` and `one-by-one`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub lifecycle_clients: Vec<usize>,
    /// How often each is measured, one system after the other in each round; the tables show medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How the load is made; all completions one by one is a load of its own here
    #[command(flatten)]
    pub load: LoadArgs,
    /// The program `holdfast`, from a release build
    #[arg(long, value_name = "PATH")]
    pub holdfast: Option<PathBuf>,
    /// The folder with PostgreSQL's programs
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/postgresql/15/bin")]
    pub postgres_programs: PathBuf,
    /// Connections that PostgreSQL's clients share at most
    #[arg(long, default_value_t = 32)]
    pub postgres_connections: usize,
    /// The program `etcd`
    #[arg(long, value_name = "PATH", default_value = "etcd")]
    pub etcd: PathBuf,
    /// The program `nats-server`
    #[arg(long, value_name = "PATH", default_value = "nats-server")]
    pub nats: PathBuf,
    /// Where the servers keep their data; a temporary folder unless given
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Writes the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct DocumentArgs {
    /// What `run --json` wrote
    pub figures: PathBuf,
    /// The document with the two marks
    pub document: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct FloorNodeArgs {
    /// Where it listens
    #[arg(long)]
    pub listen: SocketAddr,
    /// The file that it appends to
    #[arg(long)]
    pub file: PathBuf,
    /// Where its followers listen, if it leads
    #[arg(long, value_delimiter = ',')]
    pub followers: Vec<SocketAddr>,
}

impl RunArgs {
    /// Refuses what would measure nothing.
    pub fn check(&self) -> Result<()> {
        self.load.check()?;
        let clients = [&self.clients, &self.lifecycle_clients];
        ensure!(clients.iter().all(|all| !all.contains(&0)), "a load needs clients");
        ensure!(self.postgres_connections >= 1, "--postgres-connections needs at least 1");
        ensure!(!self.load.one_by_one, "one by one is a load of its own: --loads one-by-one");
        Ok(())
    }

    /// The load's settings for this kind of it.
    pub fn load_of(&self, kind: Kind) -> LoadArgs {
        LoadArgs { one_by_one: kind == Kind::OneByOne, ..self.load.clone() }
    }

    /// The numbers of clients for this kind of load.
    pub fn clients_of(&self, kind: Kind) -> &[usize] {
        if kind == Kind::Stage { &self.clients } else { &self.lifecycle_clients }
    }
}

impl SystemName {
    /// How it is called in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Postgres => "PostgreSQL, one node",
            Self::PostgresStandbys => "PostgreSQL + 2 standbys",
            Self::Etcd => "etcd",
            Self::Nats => "NATS JetStream",
            Self::Holdfast => "Holdfast",
        }
    }
}

impl Kind {
    /// How its cases are called.
    pub fn title(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Lifecycle => "lifecycle",
            Self::OneByOne => "lifecycle, one by one",
        }
    }
}
