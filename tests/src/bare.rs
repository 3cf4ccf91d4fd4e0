//! Three nodes of the consensus layer in this process, without engines and without anybody who adopts:
//! for stories in which the test itself makes every proposal, or sets every node's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use holdfast_machine::{BootId, Command, Liveness, NodeName, Reject, Reply, ShardId};
use holdfast_raft::{Clock, Handle, MemberConfig, Options, PeerListen, ProposeError, Raft, SystemClock};
use tempfile::TempDir;

use crate::cluster::NAMES;
use crate::ports::free_port;
use crate::wait::{LONG, wait_until};

/// A wall clock that is wrong by as much as a test says.
#[derive(Debug, Default)]
pub struct WrongClock(AtomicI64);

impl WrongClock {
    /// Sets how far the clock is ahead, in milliseconds.
    pub fn set_ahead(&self, ms: i64) {
        self.0.store(ms, Ordering::Relaxed);
    }
}

impl Clock for WrongClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms().saturating_add_signed(self.0.load(Ordering::Relaxed))
    }
}

/// The nodes, by number from 0.
pub struct Bare {
    handles: Vec<Option<Handle>>,
    clocks: Vec<Arc<WrongClock>>,
    _folder: TempDir,
}

impl Bare {
    /// Starts three nodes, each booted and committed as up, in a cluster of `shard_count` shards without owners.
    ///
    /// # Errors
    /// When they do not come together.
    pub async fn start(shard_count: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut members = Vec::new();
        for (name, id) in NAMES.into_iter().zip(1..) {
            let peer_addr = format!("127.0.0.1:{}", free_port()?);
            members.push(MemberConfig { id, name: NodeName::new(name)?, peer_addr, http_addr: String::new() });
        }
        let (mut handles, mut clocks) = (Vec::new(), Vec::new());
        for member in &members {
            let clock = Arc::new(WrongClock::default());
            let listen = PeerListen::Address(member.peer_addr.clone());
            let data = folder.path().join(member.name.as_str());
            let mut options = Options::new("bare", member.id, data, members.clone(), listen);
            options.environment.clock = Arc::clone(&clock) as Arc<dyn Clock>;
            handles.push(Some(Raft::start(options).await?));
            clocks.push(clock);
        }
        let bare = Self { handles, clocks, _folder: folder };
        bare.ask(0, Command::Create { shard_count }).await?;
        for (number, name) in NAMES.into_iter().enumerate() {
            bare.committed_as(number, true).await?;
            let boot = BootId::new(format!("boot of {name}"))?;
            bare.ask(number, Command::Boot { node: NodeName::new(name)?, boot }).await?;
        }
        Ok(bare)
    }

    /// A node's handle.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn handle(&self, node: usize) -> Result<&Handle> {
        self.handles[node].as_ref().context("this node was stopped")
    }

    /// A node's clock.
    pub fn clock(&self, node: usize) -> &WrongClock {
        &self.clocks[node]
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Handle)> {
        self.handles.iter().enumerate().filter_map(|(number, handle)| Some((number, handle.as_ref()?)))
    }

    /// Proposes through one node until there is an answer; gives the reply or the refusal.
    ///
    /// # Errors
    /// When no answer comes, or a call's outcome is unknown.
    pub async fn propose(&self, node: usize, command: Command) -> Result<Result<Reply, Reject>> {
        let handle = self.handle(node)?;
        wait_until("a proposal is answered", LONG, async || match handle.propose(command.clone().into()).await {
            Ok(committed) => Ok(Ok(committed.reply)),
            Err(ProposeError::Unknown) => Ok(Err(ProposeError::Unknown)),
            Err(error) => bail!(error),
        })
        .await?
        .context("the test cannot go on from an unknown outcome")
    }

    /// As [`Bare::propose`], for a command that is not to be refused.
    ///
    /// # Errors
    /// As there, and when it is refused.
    pub async fn ask(&self, node: usize, command: Command) -> Result<Reply> {
        Ok(self.propose(node, command).await??)
    }

    /// Stops a node; to its peers it looks killed.
    ///
    /// # Errors
    /// When it was stopped before.
    pub async fn stop(&mut self, node: usize) -> Result<()> {
        self.handles[node].take().context("it was stopped before")?.shutdown().await;
        Ok(())
    }

    /// Waits until all running nodes see this one committed as up or down.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn committed_as(&self, node: usize, up: bool) -> Result<()> {
        let name = NodeName::new(NAMES[node])?;
        wait_until("the detector's verdict is committed", LONG, async || {
            for (_, handle) in self.running() {
                let liveness = handle.view(|machine, _| machine.member(&name).map(|member| member.member.liveness));
                ensure!((liveness == Some(Liveness::Up)) == up, "{name} is {liveness:?}");
            }
            Ok(())
        })
        .await
    }

    /// The node that leads.
    ///
    /// # Errors
    /// When none does.
    pub async fn leader(&self) -> Result<usize> {
        wait_until("a node leads", LONG, async || {
            self.running().find(|(_, handle)| handle.is_leader()).map(|(number, _)| number).context("none does yet")
        })
        .await
    }

    /// Moves leadership and waits until it has moved.
    ///
    /// # Errors
    /// When it does not move.
    pub async fn lead(&self, node: usize) -> Result<()> {
        wait_until("leadership has moved", LONG, async || {
            let leader = self.leader().await?;
            if leader != node {
                self.handle(leader)?.transfer_leader(node as u64 + 1).await?;
            }
            ensure!(self.handle(node)?.is_leader(), "not yet");
            Ok(())
        })
        .await
    }

    /// Gives all of `shards` to one node.
    ///
    /// # Errors
    /// When the assignment is refused.
    pub async fn assign(&self, shards: impl IntoIterator<Item = u32>, owner: usize) -> Result<()> {
        let owner = NodeName::new(NAMES[owner])?;
        let owners = shards.into_iter().map(|shard| (ShardId(shard), owner.clone())).collect();
        self.ask(0, Command::Assign { owners }).await.map(drop)
    }

    /// Waits until all running nodes have applied the same index, and compares their hashes there.
    ///
    /// # Errors
    /// When they differ, or never meet.
    pub async fn same_state(&self) -> Result<()> {
        let states = wait_until("all nodes have applied the same index", LONG, async || {
            let state = |handle: &Handle| handle.view(|machine, _| (machine.applied(), machine.state_hash()));
            let states: Vec<(u64, u64)> = self.running().map(|(_, handle)| state(handle)).collect();
            ensure!(states.iter().all(|(index, _)| *index == states[0].0), "{states:?}");
            Ok(states)
        })
        .await?;
        ensure!(states.iter().all(|state| *state == states[0]), "the states differ: {states:?}");
        Ok(())
    }

    /// Stops what still runs.
    pub async fn finish(self) {
        for handle in self.handles.into_iter().flatten() {
            handle.shutdown().await;
        }
    }
}
