//! PostgreSQL: one node, or one with two standbys of which any one has to have synced what is acknowledged.

mod client;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Manager, ManagerConfig, Pool};
use holdfast_bench::own_process::free_addresses;
use holdfast_bench::spent::Spent;
use holdfast_bench::work::Work;
use tokio_postgres::{Config, NoTls};

use crate::args::{RunArgs, SystemName};
use crate::peer::Peer;
use crate::server::{self, Server, run, wait_until};
use client::Client;

const SCHEMA: &str = include_str!("postgres/schema.sql");
/// It refuses to be run by root.
const USER: &str = "postgres";
const STANDBYS: [&str; 2] = ["standby_a", "standby_b"];
/// What is not the default, and the defaults that durability rests on.
const SETTINGS: [&str; 19] = [
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "wal_level=replica",
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "dynamic_shared_memory_type=mmap",
    "max_connections=400",
    // Everything that is looked at is in memory, and checkpoints are rare.
    "shared_buffers=1GB",
    "wal_buffers=64MB",
    "min_wal_size=2GB",
    "max_wal_size=16GB",
    "checkpoint_timeout=15min",
    "checkpoint_completion_target=0.9",
    // Whole pages behind a checkpoint are a large part of what is written.
    "wal_compression=lz4",
    "jit=off",
    // A queue's table has many dead rows.
    "autovacuum_naptime=10s",
    "autovacuum_vacuum_cost_delay=0",
    "log_min_messages=fatal",
];
/// What a connection sets for itself: a table that grew from nothing has no statistics yet, so no plan may rest on them.
const SESSION: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off";

/// The primary, and its standbys if it has any.
#[derive(Debug)]
pub struct Postgres {
    servers: Vec<Server>,
    /// Of the primary, then of its standbys.
    addresses: Vec<SocketAddr>,
    connections: usize,
}

impl Peer for Postgres {
    type System = Client;

    async fn start(args: &RunArgs, name: SystemName, folder: &Path) -> Result<Self> {
        let standbys = if name == SystemName::PostgresStandbys { &STANDBYS[..] } else { &[] };
        let addresses = free_addresses(1 + standbys.len())?;
        let program = |name: &str| server::command(&args.postgres_programs.join(name), Some(USER));
        let data = |name: &str| -> Result<PathBuf> {
            let data = folder.join(name);
            server::folder(&data, Some(USER))?;
            Ok(data)
        };

        let primary = data("primary")?;
        let mut init = program("initdb");
        init.arg("-D").arg(&primary).args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]);
        run(init)?;
        let mut command = serve(program("postgres"), &primary, addresses[0]);
        if !standbys.is_empty() {
            command.args(["-c", &format!("synchronous_standby_names=ANY 1 ({})", standbys.join(", "))]);
        }
        let mut servers = vec![Server::start(command, folder.join("primary.log"))?];
        let to_primary = addresses[0];
        wait_until(&mut servers, "PostgreSQL serves", async || Ok(connect(to_primary).await.is_ok())).await?;

        for (name, address) in standbys.iter().zip(&addresses[1..]) {
            let standby = data(name)?;
            let mut copy = program("pg_basebackup");
            copy.args(["-h", "127.0.0.1", "-p", &to_primary.port().to_string(), "-U", USER, "-R", "-X", "stream"]);
            copy.args(["--checkpoint=fast", "--no-sync", "-D"]).arg(&standby);
            run(copy)?;
            let mut command = serve(program("postgres"), &standby, *address);
            let primary = format!(
                "primary_conninfo=host=127.0.0.1 port={} user={USER} application_name={name}",
                to_primary.port()
            );
            command.args(["-c", &primary]);
            servers.push(Server::start(command, folder.join(format!("{name}.log")))?);
        }
        let client = connect(to_primary).await?;
        let following = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'";
        wait_until(&mut servers, "the standbys follow", async || {
            Ok(client.query_one(following, &[]).await?.get::<_, i64>(0) == standbys.len() as i64)
        })
        .await?;
        client.batch_execute(SCHEMA).await?;
        Ok(Self { servers, addresses, connections: args.postgres_connections })
    }

    fn spent(&self) -> Result<Spent> {
        server::spent(&self.servers)
    }

    /// One for all: a call takes any connection of the pool that nobody uses.
    async fn systems(&self, work: &Arc<Work>, clients: usize) -> Result<Vec<Arc<Client>>> {
        let connections = Manager::from_config(config(self.addresses[0]), NoTls, ManagerConfig::default());
        let pool = Pool::builder(connections).max_size(clients.min(self.connections)).build()?;
        Ok(vec![Arc::new(Client::new(pool, Arc::clone(work)))])
    }

    /// Each standby replays what the primary has written, and then has the same rows.
    async fn agree(&mut self) -> Result<()> {
        let primary = connect(self.addresses[0]).await?;
        let end: String = primary.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?.get(0);
        let expected = counts(&primary).await?;
        for address in &self.addresses[1..] {
            let standby = connect(*address).await?;
            let replayed = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
            wait_until(&mut self.servers, "a standby has replayed everything", async || {
                Ok(standby.query_one(replayed, &[&end]).await?.get::<_, Option<bool>>(0) == Some(true))
            })
            .await?;
            let stored = counts(&standby).await?;
            ensure!(stored == expected, "workflows, events and rows: {expected:?}, and {stored:?} on a standby");
        }
        Ok(())
    }
}

/// How many workflows, events and rows there are.
async fn counts(client: &tokio_postgres::Client) -> Result<[i64; 3]> {
    let query = "SELECT (SELECT count(*) FROM workflows), (SELECT count(*) FROM events), (SELECT count(*) FROM outbox)";
    let row = client.query_one(query, &[]).await?;
    Ok([0, 1, 2].map(|column| row.get(column)))
}

fn serve(mut postgres: Command, data: &Path, address: SocketAddr) -> Command {
    postgres.arg("-D").arg(data).args(["-c", &format!("port={}", address.port())]);
    postgres.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
    postgres
}

fn config(address: SocketAddr) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(address.port()).user(USER).dbname("postgres").options(SESSION);
    config
}

async fn connect(address: SocketAddr) -> Result<tokio_postgres::Client> {
    let (client, connection) = config(address).connect(NoTls).await.context("connecting to PostgreSQL")?;
    // It ends with its client; what goes wrong the client's calls say.
    tokio::spawn(connection);
    Ok(client)
}
