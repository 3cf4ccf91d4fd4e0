//! Stands between nodes: passes bytes on, cuts connections, or holds everything back without a word.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

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
}

impl Proxy {
    /// Passes connections to `from` on to `to`.
    pub async fn start(from: &str, to: &str) -> Self {
        let listener = TcpListener::bind(from).await.unwrap();
        let (mode, cuts) = (watch::Sender::new(Mode::Pass), Arc::new(watch::Sender::new(0)));
        let (to, modes, all_cuts) = (to.to_owned(), mode.subscribe(), cuts.clone());
        tokio::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                if *modes.borrow() == Mode::Refuse {
                    continue;
                }
                let Ok(outbound) = TcpStream::connect(&to).await else { continue };
                let (modes, mut cut) = (modes.clone(), all_cuts.subscribe());
                tokio::spawn(async move {
                    let (in_read, in_write) = inbound.into_split();
                    let (out_read, out_write) = outbound.into_split();
                    tokio::select! {
                        () = pump(in_read, out_write, modes.clone()) => {}
                        () = pump(out_read, in_write, modes) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { mode, cuts }
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
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        if mode.wait_for(|mode| *mode == Mode::Pass).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Long enough for a cut link to be made again, far shorter than the debounce.
pub const BLIP: Duration = Duration::from_millis(30);
