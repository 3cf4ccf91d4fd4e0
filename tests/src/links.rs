//! The links between nodes, through a small TCP proxy in front of each node's peer port. A test cuts them,
//! slows them down, lets them fall silent, one way or both ways, and mends them.
//!
//! A node's peers all connect to one proxy. Who connects is read from the first frame, which carries the name of who
//! sends it: a node keeps that for ever, while it gets another Raft id when it is replaced. Nodes are numbered from 0, as
//! everywhere in a [`Cluster`](crate::cluster::Cluster).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_machine::NodeName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ports::free_port;

/// The kind of a first frame from a member.
const HELLO: u8 = 0;
/// The same from a node without data, which asks for its place.
const KNOCK: u8 = 12;

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
    flows: BTreeMap<(usize, usize), Flow>,
    /// How often the connections between two nodes (the lower number first) were broken.
    breaks: BTreeMap<(usize, usize), u64>,
}

impl Plan {
    fn flow(&self, from: usize, to: usize) -> Flow {
        self.flows.get(&(from, to)).copied().unwrap_or_default()
    }

    fn broken(&self, one: usize, other: usize) -> u64 {
        self.breaks.get(&(one.min(other), one.max(other))).copied().unwrap_or_default()
    }
}

/// The proxies of one cluster. Everything flows until a test says otherwise.
#[derive(Debug)]
pub struct Links {
    plan: Arc<watch::Sender<Plan>>,
    fronts: Vec<u16>,
    tasks: Vec<JoinHandle<()>>,
}

impl Links {
    /// One proxy for each node, given its name and the port that it really listens on.
    ///
    /// # Errors
    /// When a proxy cannot listen.
    pub async fn in_front_of(nodes: &[(NodeName, u16)]) -> Result<Self> {
        let plan = Arc::new(watch::Sender::new(Plan::default()));
        let names: Arc<[NodeName]> = nodes.iter().map(|(name, _)| name.clone()).collect();
        let (mut fronts, mut tasks) = (Vec::new(), Vec::new());
        for (node, (_, port)) in nodes.iter().enumerate() {
            let front = free_port()?;
            let listener = TcpListener::bind(("127.0.0.1", front)).await.context("the proxy's port")?;
            fronts.push(front);
            let door = Door { node, port: *port, names: Arc::clone(&names) };
            tasks.push(tokio::spawn(door.serve(listener, Arc::clone(&plan))));
        }
        Ok(Self { plan, fronts, tasks })
    }

    /// The port of the proxy in front of `node`.
    pub fn front(&self, node: usize) -> u16 {
        self.fronts[node]
    }

    fn others(&self, node: usize) -> impl Iterator<Item = usize> {
        (0..self.fronts.len()).filter(move |other| *other != node)
    }

    /// Sets the flow from one node to another, this way only.
    pub fn set(&self, from: usize, to: usize, flow: Flow) {
        self.plan.send_modify(|plan| {
            plan.flows.insert((from, to), flow);
        });
    }

    /// Sets the flow from all others to a node.
    pub fn set_into(&self, node: usize, flow: Flow) {
        self.others(node).for_each(|other| self.set(other, node, flow));
    }

    /// Sets the flow from a node to all others.
    pub fn set_out_of(&self, node: usize, flow: Flow) {
        self.others(node).for_each(|other| self.set(node, other, flow));
    }

    /// Sets the flow between a node and all others, both ways.
    pub fn set_around(&self, node: usize, flow: Flow) {
        self.set_into(node, flow);
        self.set_out_of(node, flow);
    }

    /// Breaks the connections between two nodes once; they may connect again at once.
    pub fn break_once(&self, one: usize, other: usize) {
        self.plan.send_modify(|plan| *plan.breaks.entry((one.min(other), one.max(other))).or_default() += 1);
    }

    /// Breaks the connections between a node and all others once.
    pub fn break_around(&self, node: usize) {
        self.others(node).for_each(|other| self.break_once(node, other));
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

/// What stands in front of one node.
#[derive(Debug, Clone)]
struct Door {
    node: usize,
    /// Where the node really listens.
    port: u16,
    /// Of all nodes.
    names: Arc<[NodeName]>,
}

impl Door {
    async fn serve(self, listener: TcpListener, plan: Arc<watch::Sender<Plan>>) {
        while let Ok((incoming, _)) = listener.accept().await {
            let (door, plan) = (self.clone(), plan.subscribe());
            tokio::spawn(async move {
                // A connection that breaks is what this proxy is for; both ends see it and try again.
                if let Err(error) = door.carry(incoming, plan).await {
                    tracing::debug!(door.node, %error, "a connection has ended");
                }
            });
        }
    }

    async fn carry(&self, mut incoming: TcpStream, plan: watch::Receiver<Plan>) -> Result<()> {
        let (name, first) = introduction(&mut incoming).await?;
        let from = self.names.iter().position(|known| *known == name);
        let (from, node) = (from.with_context(|| format!("no node is called {name}"))?, self.node);
        let broken = plan.borrow().broken(from, node);
        let mut changes = plan.clone();
        let mut outgoing = tokio::select! {
            outgoing = reach(from, node, self.port, plan.clone()) => outgoing?,
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
}

/// Connects to the node itself, once something may flow to it.
async fn reach(from: usize, node: usize, port: u16, mut plan: watch::Receiver<Plan>) -> Result<TcpStream> {
    plan.wait_for(|plan| plan.flow(from, node).passes()).await?;
    let outgoing = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    outgoing.set_nodelay(true)?;
    Ok(outgoing)
}

/// Comes back when the connection has to end.
async fn is_cut(plan: &mut watch::Receiver<Plan>, one: usize, other: usize, broken: u64) {
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
    (source, target): (usize, usize),
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

/// Reads the first frame: a length, then 13 bytes of frame header, of which the last is the kind, then what the peer says
/// of itself: magic, protocol, cluster, its Raft id if it has one, its name. Gives the name and the bytes, to be passed
/// on as they are.
async fn introduction(incoming: &mut TcpStream) -> Result<(NodeName, Vec<u8>)> {
    incoming.set_nodelay(true)?;
    let length = incoming.read_u32().await?;
    ensure!((14..65_536).contains(&length), "the first frame has {length} bytes");
    let mut frame = vec![0; length as usize];
    incoming.read_exact(&mut frame).await?;
    type Head = (u64, u32, String);
    let (kind, body) = (frame[12], &frame[13..]);
    let name = match kind {
        HELLO => postcard::take_from_bytes::<(Head, u64, NodeName)>(body).map(|((_, _, name), _)| name),
        KNOCK => postcard::take_from_bytes::<(Head, NodeName)>(body).map(|((_, name), _)| name),
        other => bail!("the first frame is of kind {other}"),
    };
    let name = name.context("the first frame is no introduction")?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.append(&mut frame);
    Ok((name, bytes))
}
