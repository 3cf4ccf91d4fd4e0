//! The network between nodes, as turmoil simulates it, and connections that can be cut without a partition: a link that
//! blinks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_raft::{PeerListen, PeerListener, PeerNetwork, PeerStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

/// All connections between nodes that are open; clones share them.
#[derive(Clone, Default)]
pub struct Wires(Arc<Mutex<Vec<Arc<Wire>>>>);

struct Wire {
    from: String,
    to: String,
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    cut: bool,
    reader: Option<Waker>,
}

impl Wires {
    /// Cuts what is open between two nodes, in whichever direction it was opened. Says how many connections.
    pub fn cut(&self, a: &str, b: &str) -> usize {
        let mut wires = self.0.lock();
        wires.retain(|wire| Arc::strong_count(wire) > 1);
        let between = |wire: &&Arc<Wire>| (wire.from == a && wire.to == b) || (wire.from == b && wire.to == a);
        wires.iter().filter(between).map(|wire| wire.cut()).count()
    }

    fn open(&self, from: &str, to: &str) -> Arc<Wire> {
        let wire = Arc::new(Wire { from: from.to_owned(), to: to.to_owned(), state: Mutex::default() });
        self.0.lock().push(wire.clone());
        wire
    }
}

impl Wire {
    fn cut(&self) {
        let mut state = self.state.lock();
        state.cut = true;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn is_cut(&self) -> io::Result<()> {
        if self.state.lock().cut { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

/// What one node sees of the network.
pub struct SimNetwork {
    /// The node's name.
    pub node: String,
    /// Where its connections are kept.
    pub wires: Wires,
}

impl PeerNetwork for SimNetwork {
    fn listen<'a>(&'a self, on: &'a PeerListen) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>> {
        async move {
            let PeerListen::Address(address) = on else {
                return Err(io::Error::other("a socket of the operating system is not on this network"));
            };
            Ok(Box::new(Listener(TcpListener::bind(address.as_str()).await?)) as Box<dyn PeerListener>)
        }
        .boxed()
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerStream>>> {
        async move {
            let stream = TcpStream::connect(address).await?;
            let peer = address.split(':').next().unwrap_or_default();
            let wire = self.wires.open(&self.node, peer);
            Ok(Box::new(Connection { stream, wire }) as Box<dyn PeerStream>)
        }
        .boxed()
    }
}

struct Listener(TcpListener);

impl PeerListener for Listener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn PeerStream>>> {
        async move { Ok(Box::new(self.0.accept().await?.0) as Box<dyn PeerStream>) }.boxed()
    }
}

/// The end of a connection that can be cut; the other end hears of it from the network.
struct Connection {
    stream: TcpStream,
    wire: Arc<Wire>,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.wire.is_cut()?;
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            self.wire.state.lock().reader = Some(cx.waker().clone());
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.wire.is_cut()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.is_cut()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
