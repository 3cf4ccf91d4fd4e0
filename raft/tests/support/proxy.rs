//! Stands between nodes: passes bytes on, slowly if it must, cuts connections, or holds everything back without a word.
#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{Adjust, TestCluster, own_address};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Stall,
    Refuse,
}

pub struct Proxy {
    mode: watch::Sender<Mode>,
    /// Grows by one at each cut; a connection ends when it does.
    cuts: Arc<watch::Sender<u64>>,
    inward: Arc<Inward>,
}

/// A cluster whose node 3 is reached through a proxy and does not lead, so that its links are those of a follower.
pub async fn cluster_with_proxy(adjust: Adjust) -> (TestCluster, Proxy) {
    let mut cluster = TestCluster::prepare(3, adjust);
    let behind = own_address(3);
    let proxy = Proxy::start(&cluster.listen[&3], &behind).await;
    cluster.listen.insert(3, behind);
    for id in 1..=3 {
        cluster.start_node(id).await;
    }
    cluster.all_up().await;
    while cluster.leader().await == 3 {
        let _ = cluster.node(3).transfer_leader(1).await;
    }
    (cluster, proxy)
}

/// What goes to the node that the proxy stands before.
#[derive(Default)]
struct Inward {
    passed: AtomicU64,
    /// Bytes a second on each connection; 0 for as many as there are.
    limit: AtomicU64,
}

impl Proxy {
    /// Passes connections to `from` on to `to`.
    pub async fn start(from: &str, to: &str) -> Self {
        let listener = TcpListener::bind(from).await.unwrap();
        let (mode, cuts) = (watch::Sender::new(Mode::Pass), Arc::new(watch::Sender::new(0)));
        let inward = Arc::new(Inward::default());
        let (to, modes, all_cuts, counted) = (to.to_owned(), mode.subscribe(), cuts.clone(), inward.clone());
        tokio::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                if *modes.borrow() == Mode::Refuse {
                    continue;
                }
                let Ok(outbound) = TcpStream::connect(&to).await else { continue };
                let (modes, mut cut, counted) = (modes.clone(), all_cuts.subscribe(), counted.clone());
                tokio::spawn(async move {
                    let (in_read, in_write) = inbound.into_split();
                    let (out_read, out_write) = outbound.into_split();
                    tokio::select! {
                        () = pump(in_read, out_write, modes.clone(), Some(&counted)) => {}
                        () = pump(out_read, in_write, modes, None) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { mode, cuts, inward }
    }

    /// Lets no more bytes a second through to the node, on each connection.
    pub fn limit(&self, bytes_per_second: u64) {
        self.inward.limit.store(bytes_per_second, Ordering::Relaxed);
        self.inward.passed.store(0, Ordering::Relaxed);
    }

    /// Bytes that have gone to the node since the limit was set.
    pub fn passed(&self) -> u64 {
        self.inward.passed.load(Ordering::Relaxed)
    }

    /// Closes all connections; new ones are passed on.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Closes all connections and takes no new ones.
    pub fn refuse(&self) {
        self.mode.send_replace(Mode::Refuse);
        self.cut();
    }

    /// Holds all bytes back, without closing anything.
    pub fn stall(&self) {
        self.mode.send_replace(Mode::Stall);
    }

    /// Passes everything on again.
    pub fn resume(&self) {
        self.mode.send_replace(Mode::Pass);
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut mode: watch::Receiver<Mode>,
    inward: Option<&Inward>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        if mode.wait_for(|mode| *mode == Mode::Pass).await.is_err() {
            return;
        }
        if let Some(Inward { passed, limit }) = inward {
            let micros = (count as u64 * 1_000_000).checked_div(limit.load(Ordering::Relaxed));
            tokio::time::sleep(Duration::from_micros(micros.unwrap_or(0))).await;
            passed.fetch_add(count as u64, Ordering::Relaxed);
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Long enough for a cut link to be made again, far shorter than the debounce.
pub const BLIP: Duration = Duration::from_millis(30);
