//! etcd, three members.

mod client;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, Error};
use holdfast_bench::own_process::free_addresses;
use holdfast_bench::spent::Spent;
use holdfast_bench::work::Work;

use crate::args::{RunArgs, SystemName};
use crate::peer::Peer;
use crate::server::{self, Server, wait_until};
use client::Connection;

const MEMBERS: [&str; 3] = ["a", "b", "c"];
/// Connections that the clients share; each takes any number of calls at a time.
const CONNECTIONS: usize = 8;
/// The most that its makers recommend: the default is reached within minutes, and then it takes no more writes.
const QUOTA_BYTES: &str = "8589934592";

/// The members.
#[derive(Debug)]
pub struct Etcd {
    servers: Vec<Server>,
    /// Where their clients connect to.
    addresses: Vec<SocketAddr>,
}

impl Peer for Etcd {
    type System = Connection;

    async fn start(args: &RunArgs, _: SystemName, folder: &Path) -> Result<Self> {
        let mut addresses = free_addresses(2 * MEMBERS.len())?;
        let peers = addresses.split_off(MEMBERS.len());
        let members = MEMBERS.iter().zip(&peers).map(|(name, peer)| format!("{name}=http://{peer}"));
        let cluster = members.collect::<Vec<_>>().join(",");
        let mut servers = Vec::new();
        for ((name, address), peer) in MEMBERS.iter().zip(&addresses).zip(&peers) {
            let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
            let mut command = server::command(&args.etcd, None);
            command.arg("--data-dir").arg(folder.join(name));
            for (flag, value) in [
                ("--name", *name),
                ("--listen-client-urls", &client),
                ("--advertise-client-urls", &client),
                ("--listen-peer-urls", &peer),
                ("--initial-advertise-peer-urls", &peer),
                ("--initial-cluster", &cluster),
                ("--initial-cluster-state", "new"),
                ("--quota-backend-bytes", QUOTA_BYTES),
                ("--logger", "zap"),
                ("--log-level", "error"),
            ] {
                command.args([flag, value]);
            }
            servers.push(Server::start(command, folder.join(format!("{name}.log")))?);
        }
        let all = addresses.clone();
        wait_until(&mut servers, "etcd has a leader", async || Ok(leader(&all).await.is_ok())).await?;
        Ok(Self { servers, addresses })
    }

    fn spent(&self) -> Result<Spent> {
        server::spent(&self.servers)
    }

    async fn systems(&self, work: &Arc<Work>, clients: usize) -> Result<Vec<Arc<Connection>>> {
        let mut systems = Vec::new();
        for number in 0..clients.min(CONNECTIONS) {
            let client = connect(self.addresses[number % self.addresses.len()]).await?;
            systems.push(Arc::new(Connection::new(client, Arc::clone(work), number)));
        }
        Ok(systems)
    }

    /// All members have the same hash of all keys and values up to the last revision.
    async fn agree(&mut self) -> Result<()> {
        let status = leader(&self.addresses).await?.status().await?;
        let revision = status.header().context("a status without its header")?.revision();
        let mut hashes = Vec::new();
        for address in &self.addresses {
            let mut client = connect(*address).await?;
            let mut hash = None;
            wait_until(&mut self.servers, "a member has everything", async || {
                match client.hash_kv(revision).await {
                    Ok(answer) => hash = Some(answer.hash()),
                    // It has not got so far yet.
                    Err(Error::GRpcStatus(status)) => return Err(status.into()),
                    Err(error) => return Err(error.into()),
                }
                Ok(true)
            })
            .await?;
            hashes.extend(hash);
        }
        ensure!(hashes.len() == MEMBERS.len() && hashes.iter().all(|hash| *hash == hashes[0]), "hashes: {hashes:?}");
        Ok(())
    }
}

async fn connect(address: SocketAddr) -> Result<Client> {
    Ok(Client::connect([format!("http://{address}")], None).await?)
}

/// A client of the member that leads.
async fn leader(addresses: &[SocketAddr]) -> Result<Client> {
    for address in addresses {
        let mut client = connect(*address).await?;
        let status = client.status().await?;
        if status.header().is_some_and(|header| header.member_id() == status.leader()) {
            return Ok(client);
        }
    }
    anyhow::bail!("no member leads")
}
