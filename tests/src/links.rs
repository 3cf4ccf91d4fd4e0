//! The links between nodes, through a small TCP proxy in front of each node's peer port. A test cuts them,
//! slows them down, lets them fall silent, one way or both ways, and mends them.
//!
//! A node's peers all connect to one proxy. Who connects is read from the first frame, which carries the
//! ids of both ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ports::free_port;

/// How bytes flow from one node to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// As they come.
    #[default]
    Open,
    /// A piece at a time, of 64 KiB at most, and each takes this long.
    Slow(Duration),
    /// Not at all, and nobody is told: what was sent arrives after the link is mended.
    Silent,
    /// The connections are closed, and so is every new one.
    Closed,
}

impl Flow {
    fn passes(self) -> bool {
        matches!(self, Self::Open | Self::Slow(_))
    }
}

#[derive(Debug, Default)]
struct Plan {
    flows: BTreeMap<(u64, u64), Flow>,
    /// How often the connections between two nodes (lower id first) were broken.
    breaks: BTreeMap<(u64, u64), u64>,
}

impl Plan {
    fn flow(&self, from: u64, to: u64) -> Flow {
        self.flows.get(&(from, to)).copied().unwrap_or_default()
    }

    fn broken(&self, one: u64, other: u64) -> u64 {
        self.breaks.get(&(one.min(other), one.max(other))).copied().unwrap_or_default()
    }
}

/// The proxies of one cluster. Everything flows until a test says otherwise.
#[derive(Debug)]
pub struct Links {
    plan: Arc<watch::Sender<Plan>>,
    fronts: BTreeMap<u64, u16>,
    tasks: Vec<JoinHandle<()>>,
}

impl Links {
    /// One proxy for each node, given its id and the port that it really listens on.
    ///
    /// # Errors
    /// When a proxy cannot listen.
    pub async fn in_front_of(ports: &BTreeMap<u64, u16>) -> Result<Self> {
        let plan = Arc::new(watch::Sender::new(Plan::default()));
        let (mut fronts, mut tasks) = (BTreeMap::new(), Vec::new());
        for (node, port) in ports {
            let front = free_port()?;
            let listener = TcpListener::bind(("127.0.0.1", front)).await.context("the proxy's port")?;
            fronts.insert(*node, front);
            tasks.push(tokio::spawn(serve(listener, *node, *port, Arc::clone(&plan))));
        }
        Ok(Self { plan, fronts, tasks })
    }

    /// The port of the proxy in front of `node`.
    pub fn front(&self, node: u64) -> Option<u16> {
        self.fronts.get(&node).copied()
    }

    /// Sets the flow from one node to another, this way only.
    pub fn set(&self, from: u64, to: u64, flow: Flow) {
        self.plan.send_modify(|plan| {
            plan.flows.insert((from, to), flow);
        });
    }

    /// Sets the flow from all others to a node.
    pub fn set_into(&self, node: u64, flow: Flow) {
        self.fronts.keys().filter(|other| **other != node).for_each(|other| self.set(*other, node, flow));
    }

    /// Sets the flow from a node to all others.
    pub fn set_out_of(&self, node: u64, flow: Flow) {
        self.fronts.keys().filter(|other| **other != node).for_each(|other| self.set(node, *other, flow));
    }

    /// Sets the flow between a node and all others, both ways.
    pub fn set_around(&self, node: u64, flow: Flow) {
        self.set_into(node, flow);
        self.set_out_of(node, flow);
    }

    /// Breaks the connections between two nodes once; they may connect again at once.
    pub fn break_once(&self, one: u64, other: u64) {
        self.plan.send_modify(|plan| *plan.breaks.entry((one.min(other), one.max(other))).or_default() += 1);
    }

    /// Lets everything flow again.
    pub fn mend(&self) {
        self.plan.send_modify(|plan| plan.flows.clear());
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(listener: TcpListener, node: u64, port: u16, plan: Arc<watch::Sender<Plan>>) {
    while let Ok((incoming, _)) = listener.accept().await {
        let plan = plan.subscribe();
        tokio::spawn(async move {
            // A connection that breaks is what this proxy is for; both ends see it and try again.
            if let Err(error) = carry(incoming, node, port, plan).await {
                tracing::debug!(node, %error, "a connection has ended");
            }
        });
    }
}

async fn carry(mut incoming: TcpStream, node: u64, port: u16, plan: watch::Receiver<Plan>) -> Result<()> {
    let (from, first) = introduction(&mut incoming).await?;
    let broken = plan.borrow().broken(from, node);
    let mut changes = plan.clone();
    let mut outgoing = tokio::select! {
        outgoing = reach(from, node, port, plan.clone()) => outgoing?,
        _ = is_cut(&mut changes, from, node, broken) => return Ok(()),
    };
    outgoing.write_all(&first).await?;
    let (mut from_client, mut to_client) = incoming.split();
    let (mut from_server, mut to_server) = outgoing.split();
    tokio::select! {
        ended = pump(&mut from_client, &mut to_server, (from, node), plan.clone()) => ended,
        ended = pump(&mut from_server, &mut to_client, (node, from), plan.clone()) => ended,
        _ = is_cut(&mut changes, from, node, broken) => Ok(()),
    }
}

/// Connects to the node itself, once something may flow to it.
async fn reach(from: u64, node: u64, port: u16, mut plan: watch::Receiver<Plan>) -> Result<TcpStream> {
    plan.wait_for(|plan| plan.flow(from, node).passes()).await?;
    let outgoing = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    outgoing.set_nodelay(true)?;
    Ok(outgoing)
}

/// Comes back when the connection has to end.
async fn is_cut(plan: &mut watch::Receiver<Plan>, one: u64, other: u64, broken: u64) {
    let cut = |plan: &Plan| {
        let closed = plan.flow(one, other) == Flow::Closed || plan.flow(other, one) == Flow::Closed;
        closed || plan.broken(one, other) != broken
    };
    // An error means that the test is over.
    let _ = plan.wait_for(cut).await;
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    (source, target): (u64, u64),
    mut plan: watch::Receiver<Plan>,
) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let flow = plan.wait_for(|plan| plan.flow(source, target).passes()).await?.flow(source, target);
        if let Flow::Slow(delay) = flow {
            tokio::time::sleep(delay).await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// Reads the first frame: a length, then 13 bytes of frame header, then what the peer says of itself:
/// magic, protocol, cluster, its id. Gives the id and the bytes, to be passed on as they are.
async fn introduction(incoming: &mut TcpStream) -> Result<(u64, Vec<u8>)> {
    incoming.set_nodelay(true)?;
    let length = incoming.read_u32().await?;
    ensure!((14..65_536).contains(&length), "the first frame has {length} bytes");
    let mut frame = vec![0; length as usize];
    incoming.read_exact(&mut frame).await?;
    let ((_magic, _protocol, _cluster, from), _): ((u64, u32, String, u64), _) =
        postcard::take_from_bytes(&frame[13..]).context("the first frame is no introduction")?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.append(&mut frame);
    Ok((from, bytes))
}
