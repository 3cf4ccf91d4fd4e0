//! What a system has to be able to do to be measured, and the measurements.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use holdfast_bench::report::Case;
use holdfast_bench::spent::{Spent, disk_of};
use holdfast_bench::system::{Completes, Stages};
use holdfast_bench::work::Work;
use holdfast_bench::{lifecycle, stage};

use crate::args::{Kind, RunArgs, SystemName};

/// A system whose servers are started here. Dropping it ends them.
pub trait Peer: Sized {
    /// One of its clients.
    type System: Stages;

    /// Starts it, with its data in this folder, and waits until it serves.
    async fn start(args: &RunArgs, name: SystemName, folder: &Path) -> Result<Self>;

    /// What all servers have spent so far.
    fn spent(&self) -> Result<Spent>;

    /// Clients for this work, no more than so many.
    async fn systems(&self, work: &Arc<Work>, clients: usize) -> Result<Vec<Arc<Self::System>>>;

    /// Fails unless all servers hold the same in the end.
    async fn agree(&mut self) -> Result<()>;
}

/// One measurement: a kind of load on a system, in a round, with the data in a folder.
#[derive(Debug, Clone, Copy)]
pub struct Measurement<'a> {
    pub args: &'a RunArgs,
    pub name: SystemName,
    pub kind: Kind,
    pub round: u32,
    pub folder: &'a Path,
}

impl Measurement<'_> {
    /// Measures workflow starts.
    pub async fn stages<P: Peer>(&self) -> Result<Vec<Case>> {
        self.each(async |peer: &P, clients, case| {
            let (load, work) = self.load()?;
            let systems = peer.systems(&work, clients).await?;
            stage::measure_on(&load, async || self.spent(peer).await, &work, &systems, clients, case).await
        })
        .await
    }

    /// Measures any kind of load.
    pub async fn any<P: Peer>(&self) -> Result<Vec<Case>>
    where
        P::System: Completes,
    {
        if self.kind == Kind::Stage {
            return self.stages::<P>().await;
        }
        self.each(async |peer: &P, clients, case| {
            let (load, work) = self.load()?;
            let systems = peer.systems(&work, clients + load.workers).await?;
            lifecycle::measure_on(&load, async || self.spent(peer).await, &work, &systems, clients, case).await
        })
        .await
    }

    async fn spent(&self, peer: &impl Peer) -> Result<Spent> {
        let disk = disk_of(self.folder).await;
        Ok(Spent { disk, ..peer.spent()? })
    }

    fn load(&self) -> Result<(holdfast_bench::LoadArgs, Arc<Work>)> {
        Ok((self.args.load_of(self.kind), Arc::new(Work::new(self.args.load.payload_bytes)?)))
    }

    /// One start of the servers, and a case for each number of clients.
    async fn each<P: Peer>(&self, one: impl AsyncFn(&P, usize, Case) -> Result<Case>) -> Result<Vec<Case>> {
        let mut peer = P::start(self.args, self.name, self.folder).await?;
        let mut cases = Vec::new();
        for clients in self.args.clients_of(self.kind) {
            let case = Case { clients: Some(*clients), ..Case::new(self.kind.title(), self.round) };
            cases.push(one(&peer, *clients, case).await?);
            peer.agree().await?;
        }
        Ok(cases)
    }
}
