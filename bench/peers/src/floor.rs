//! The floor: what the machine gives to whoever makes 1 KiB durable on a majority of three files, and does nothing else.
//! Three processes of this program (`floor_node`), and a client that puts many calls into one write where it can.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use holdfast_bench::own_process::free_addresses;
use holdfast_bench::spent::Spent;
use holdfast_bench::system::Stages;
use holdfast_bench::work::Work;
use holdfast_machine::WorkflowId;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::task::yield_now;

use crate::args::{RunArgs, SystemName};
use crate::floor_node::{NUMBER_BYTES, RECORD_BYTES};
use crate::peer::Peer;
use crate::server::{self, Server, wait_until};

/// Connections that the clients share. More of them make more writes for the same calls.
const CONNECTIONS: usize = 4;
/// A record begins with the workflow's id, filled up with zeros.
const ID_BYTES: usize = 64;

/// The three processes.
#[derive(Debug)]
pub struct Floor {
    servers: Vec<Server>,
    files: Vec<PathBuf>,
    leader: SocketAddr,
}

impl Peer for Floor {
    type System = Client;

    async fn start(_: &RunArgs, _: SystemName, folder: &Path) -> Result<Self> {
        let program = std::env::current_exe()?;
        let addresses = free_addresses(3)?;
        let files: Vec<PathBuf> = (0..3).map(|number| folder.join(format!("floor-{number}"))).collect();
        let mut servers = Vec::new();
        // Followers first: the leader connects to them as it starts.
        for number in [2, 1, 0] {
            let mut command = server::command(&program, None);
            command.args(["floor-node", "--listen", &addresses[number].to_string(), "--file"]).arg(&files[number]);
            if number == 0 {
                command.arg("--followers").arg(format!("{},{}", addresses[1], addresses[2]));
            }
            servers.push(Server::start_held(command, folder.join(format!("floor-{number}.log")))?);
            if number > 0 {
                let file = &files[number];
                wait_until(&mut servers, "a follower listens", async || Ok(file.exists())).await?;
            }
        }
        let leader = addresses[0];
        wait_until(&mut servers, "the leader listens", async || Ok(TcpStream::connect(leader).await.is_ok())).await?;
        Ok(Self { servers, files, leader })
    }

    fn spent(&self) -> Result<Spent> {
        server::spent(&self.servers)
    }

    async fn systems(&self, work: &Arc<Work>, clients: usize) -> Result<Vec<Arc<Client>>> {
        let mut systems = Vec::new();
        for _ in 0..clients.min(CONNECTIONS) {
            let client = Client::connect(self.leader, Arc::clone(work), self.files[0].clone()).await?;
            systems.push(Arc::new(client));
        }
        Ok(systems)
    }

    async fn agree(&mut self) -> Result<()> {
        let files = &self.files;
        wait_until(&mut self.servers, "all three files are the same", async || {
            let lengths = files.iter().map(|file| Ok(fs::metadata(file)?.len())).collect::<Result<HashSet<_>>>()?;
            if lengths.len() > 1 {
                return Ok(false);
            }
            let leaders = fs::read(&files[0])?;
            Ok(files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?.iter().all(|file| *file == leaders))
        })
        .await
    }
}

/// One connection to the leader.
#[derive(Debug)]
pub struct Client {
    work: Arc<Work>,
    leaders_file: PathBuf,
    next: AtomicU64,
    calls: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
    out: Mutex<Out>,
    socket: AsyncMutex<OwnedWriteHalf>,
}

/// What is to be sent.
#[derive(Debug, Default)]
struct Out {
    bytes: Vec<u8>,
    /// Somebody sends it already.
    is_sending: bool,
}

impl Client {
    async fn connect(leader: SocketAddr, work: Arc<Work>, leaders_file: PathBuf) -> Result<Self> {
        let socket = TcpStream::connect(leader).await?;
        socket.set_nodelay(true)?;
        let (answers, socket) = socket.into_split();
        let calls = Arc::default();
        tokio::spawn(hear(answers, Arc::clone(&calls)));
        let socket = AsyncMutex::new(socket);
        Ok(Self { work, leaders_file, next: AtomicU64::new(0), calls, out: Mutex::default(), socket })
    }

    async fn append(&self, record: &[u8]) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.calls.lock().insert(number, answer);
        let is_sending = {
            let mut out = self.out.lock();
            out.bytes.extend_from_slice(&number.to_le_bytes());
            out.bytes.extend_from_slice(record);
            std::mem::replace(&mut out.is_sending, true)
        };
        if !is_sending {
            self.send().await?;
        }
        answered.await.context("the leader is gone")
    }

    /// Sends until nothing is left to be sent.
    async fn send(&self) -> Result<()> {
        let mut socket = self.socket.lock().await;
        loop {
            // Whoever else is ready puts its call into the same write.
            yield_now().await;
            let bytes = {
                let mut out = self.out.lock();
                if out.bytes.is_empty() {
                    out.is_sending = false;
                    return Ok(());
                }
                std::mem::take(&mut out.bytes)
            };
            socket.write_all(&bytes).await?;
        }
    }
}

async fn hear(mut answers: OwnedReadHalf, calls: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>) {
    let (mut buffer, mut filled) = (vec![0; 64 << 10], 0);
    while let Ok(read @ 1..) = answers.read(&mut buffer[filled..]).await {
        filled += read;
        let whole = filled - filled % NUMBER_BYTES;
        {
            let mut calls = calls.lock();
            for number in buffer[..whole].as_chunks().0 {
                if let Some(call) = calls.remove(&u64::from_le_bytes(*number)) {
                    let _ = call.send(());
                }
            }
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
    // Whoever waits for an answer gets none.
    calls.lock().clear();
}

impl Stages for Client {
    async fn stage(&self, id: WorkflowId) -> Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[..id.as_str().len()].copy_from_slice(id.as_str().as_bytes());
        record[ID_BYTES..].copy_from_slice(&self.work.payload_of(RECORD_BYTES - ID_BYTES).data);
        self.append(&record).await
    }

    async fn workflows(&self) -> Result<u64> {
        let file = fs::read(&self.leaders_file)?;
        let (records, rest) = file.as_chunks::<RECORD_BYTES>();
        ensure!(rest.is_empty(), "a record is cut off");
        let of_this_work = records.iter().filter(|record| record.starts_with(self.work.tag.as_bytes()));
        let ids: Vec<&[u8]> = of_this_work.map(|record| &record[..ID_BYTES]).collect();
        ensure!(ids.iter().collect::<HashSet<_>>().len() == ids.len(), "a record is there twice");
        Ok(ids.len() as u64)
    }
}
