//! What a node takes from the operating system, as seams: the time, the network and the disk. A simulation puts its own
//! underneath, and then nothing that a node does depends on anything but the simulation's seed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_machine::{Entry, Member};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::{Clock, SystemClock};
use crate::options::PeerListen;

/// What a node takes from the operating system.
#[derive(Clone)]
pub struct Environment {
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The way to the peers.
    pub network: Arc<dyn PeerNetwork>,
    /// Where and how data is kept.
    pub storage: holdfast_storage::Options,
    /// How long each write of the log waits for its disk, where that is not for a real disk to say. The log has no
    /// thread then.
    pub write_pause: Option<WritePause>,
    /// Who sees what the node applies, for tests of a whole cluster.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Says how long the next write takes.
pub type WritePause = Arc<dyn Fn() -> Duration + Send + Sync>;

impl Default for Environment {
    /// The operating system's own.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            network: Arc::new(Tcp),
            storage: holdfast_storage::Options::default(),
            write_pause: None,
            observer: None,
        }
    }
}

/// Sees what a node applies.
pub trait Observer: Send + Sync {
    /// The node is about to apply this entry.
    fn applied(&self, index: u64, term: u64, entry: &AppliedEntry<'_>);
}

/// What is in a log entry.
#[derive(Debug, Clone, Copy)]
pub enum AppliedEntry<'a> {
    /// Nothing: a new leader begins with it.
    Blank,
    /// Requests.
    Requests(&'a Entry),
    /// The members from here on.
    Members(&'a [Member]),
}

/// Connections between nodes.
pub trait PeerNetwork: Send + Sync {
    /// Listens for peers.
    fn listen<'a>(&'a self, on: &'a PeerListen) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>>;
    /// Connects to a peer at `host:port`.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>>;
}

/// Takes peers' connections.
pub trait PeerListener: Send {
    /// The next connection; waits for it.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn PeerStream>>>;
}

/// One connection between two nodes: bytes in order, both ways.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for S {}

/// TCP by the operating system.
struct Tcp;

impl PeerNetwork for Tcp {
    fn listen<'a>(&'a self, on: &'a PeerListen) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>> {
        async move {
            let listener = match on {
                PeerListen::Address(address) => TcpListener::bind(address).await?,
                PeerListen::Bound(socket) => {
                    let socket = socket.try_clone()?;
                    socket.set_nonblocking(true)?;
                    TcpListener::from_std(socket)?
                }
            };
            Ok(Box::new(listener) as Box<dyn PeerListener>)
        }
        .boxed()
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>> {
        async move { without_delay(TcpStream::connect(address).await?) }.boxed()
    }
}

impl PeerListener for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn PeerStream>>> {
        async move { without_delay(TcpListener::accept(self).await?.0) }.boxed()
    }
}

/// Frames are small and wait for nothing.
fn without_delay(stream: TcpStream) -> io::Result<Box<dyn PeerStream>> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
