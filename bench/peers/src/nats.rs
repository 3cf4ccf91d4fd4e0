//! NATS JetStream, three servers, each stream on all three.

mod client;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context as JetStream};
use holdfast_bench::own_process::free_addresses;
use holdfast_bench::spent::Spent;
use holdfast_bench::work::Work;
use parking_lot::Mutex;

use crate::args::{RunArgs, SystemName};
use crate::peer::Peer;
use crate::server::{self, Server, run, wait_until};
use client::Connection;

const SERVERS: [&str; 3] = ["a", "b", "c"];
/// Connections that the clients share; each takes any number of calls at a time.
const CONNECTIONS: usize = 8;
/// A sync before each acknowledgement: versions from 2.10 on know it. Without, files are synced every two minutes.
const SYNC_ALWAYS: &str = "sync_interval: always";
/// Longer than anything here takes.
const LEASE: Duration = Duration::from_secs(600);

/// The servers.
#[derive(Debug)]
pub struct Nats {
    servers: Vec<Server>,
    addresses: Vec<SocketAddr>,
    /// The streams of the last work: of histories, and of rows.
    streams: Mutex<Vec<String>>,
}

/// True if this version knows how to sync before it acknowledges.
fn syncs(program: &Path, folder: &Path) -> Result<bool> {
    let file = folder.join("asked.conf");
    fs::write(&file, format!("jetstream {{ store_dir: {:?}, {SYNC_ALWAYS} }}\n", folder.join("asked")))?;
    let mut command = server::command(program, None);
    command.arg("-t").arg("-c").arg(&file);
    Ok(run(command).is_ok())
}

/// What it says of itself, and whether it syncs.
pub fn version(args: &RunArgs) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let synced = if syncs(&args.nats, folder.path())? { SYNC_ALWAYS } else { "files synced every two minutes" };
    Ok(format!("{}, {synced}", server::version(&args.nats)?))
}

impl Peer for Nats {
    type System = Connection;

    async fn start(args: &RunArgs, _: SystemName, folder: &Path) -> Result<Self> {
        let mut addresses = free_addresses(2 * SERVERS.len())?;
        let routes = addresses.split_off(SERVERS.len());
        let all = routes.iter().map(|route| format!("nats-route://{route}")).collect::<Vec<_>>().join(", ");
        let sync = if syncs(&args.nats, folder)? { SYNC_ALWAYS } else { "" };
        let mut servers = Vec::new();
        for ((name, address), route) in SERVERS.iter().zip(&addresses).zip(&routes) {
            let data: PathBuf = folder.join(name);
            let config = format!(
                "server_name: {name}\n\
                 listen: \"{address}\"\n\
                 jetstream {{ store_dir: {data:?}, max_memory_store: 1GB, max_file_store: 50GB, {sync} }}\n\
                 cluster {{ name: bench, listen: \"{route}\", routes: [{all}] }}\n"
            );
            let file = folder.join(format!("{name}.conf"));
            fs::write(&file, config)?;
            let mut command = server::command(&args.nats, None);
            command.arg("-c").arg(&file);
            servers.push(Server::start(command, folder.join(format!("{name}.log")))?);
        }
        let first = addresses[0];
        wait_until(&mut servers, "JetStream serves", async || {
            let jetstream = connect(first).await?;
            // Any stream: what it asks for is a leader, and room on all three.
            jetstream.create_stream(config("ready", "ready.>", RetentionPolicy::Limits)).await?;
            jetstream.delete_stream("ready").await?;
            Ok(true)
        })
        .await?;
        Ok(Self { servers, addresses, streams: Mutex::default() })
    }

    fn spent(&self) -> Result<Spent> {
        server::spent(&self.servers)
    }

    async fn systems(&self, work: &Arc<Work>, clients: usize) -> Result<Vec<Arc<Connection>>> {
        let (histories, rows) = (format!("H-{}", work.tag), format!("R-{}", work.tag));
        let jetstream = connect(self.addresses[0]).await?;
        let subjects = |kind| format!("{kind}.{}.>", work.tag);
        jetstream.create_stream(config(&histories, &subjects("h"), RetentionPolicy::Limits)).await?;
        let queue = jetstream.create_stream(config(&rows, &subjects("r"), RetentionPolicy::WorkQueue)).await?;
        let workers = pull::Config {
            durable_name: Some("workers".to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: LEASE,
            max_ack_pending: 100_000,
            ..pull::Config::default()
        };
        queue.create_consumer(workers).await?;
        *self.streams.lock() = vec![histories.clone(), rows.clone()];
        let mut systems = Vec::new();
        for number in 0..clients.min(CONNECTIONS) {
            let jetstream = connect(self.addresses[number % self.addresses.len()]).await?;
            systems.push(Arc::new(Connection::new(jetstream, Arc::clone(work), &histories, &rows).await?));
        }
        Ok(systems)
    }

    /// Both followers of each stream have everything that its leader has, as it says.
    async fn agree(&mut self) -> Result<()> {
        let (first, streams) = (self.addresses[0], self.streams.lock().clone());
        for name in streams {
            wait_until(&mut self.servers, "the followers have everything", async || {
                let info = connect(first).await?.get_stream(&name).await?.cached_info().clone();
                let replicas = info.cluster.context("a stream without a cluster")?.replicas;
                Ok(replicas.len() == SERVERS.len() - 1
                    && replicas.iter().all(|replica| replica.current && replica.lag.unwrap_or_default() == 0))
            })
            .await?;
        }
        Ok(())
    }
}

fn config(name: &str, subject: &str, retention: RetentionPolicy) -> Config {
    Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        retention,
        storage: StorageType::File,
        num_replicas: SERVERS.len(),
        ..Config::default()
    }
}

async fn connect(address: SocketAddr) -> Result<JetStream> {
    let client = async_nats::connect(format!("nats://{address}")).await.map_err(|error| anyhow!("{error}"))?;
    Ok(jetstream::new(client))
}
