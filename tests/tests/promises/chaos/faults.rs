//! The faults, and how each is done and mended.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, DiskSpace};
use holdfast_raft::{Clock, SystemClock};
use holdfast_tests::cluster::Cluster;
use holdfast_tests::dice::Deck;
use holdfast_tests::links::Flow;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, work};

/// Of each node's disk; the reserve is an eighth of it.
pub const DISK: u64 = 128 << 20;
/// Free bytes below that reserve.
const LOW: u64 = 9 << 20;
/// Entries after which a node takes a snapshot.
pub const SNAPSHOT_AFTER: u64 = 40;
/// Entries that it keeps behind one.
pub const LOGS_KEPT: u64 = 5;
/// More than the time without a leader after which a node stands for election, if nothing else comes meanwhile.
const SLOW: Duration = Duration::from_millis(300);
/// Slow enough to be seen, and for nobody to stand for election.
const SLUGGISH: Duration = Duration::from_millis(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    KillAll,
    Pause,
    Cut(Flow),
    Deaf,
    Mute,
    Blip,
    /// Both ways.
    Slow(Duration),
    /// Only what it sends.
    SlowOut(Duration),
    /// One after the other ends by itself and is started again.
    Roll,
    /// A node dies, and then the one that has just taken over its shards.
    KillAdopter,
    /// A node that needs a snapshot dies in the middle of it.
    KillAmidSnapshot,
    /// Its disk is emptied; it comes back as another member of its name.
    Wipe,
    /// Its disk has so many bytes left.
    Full(u64),
    /// Its wall clock jumps to so many seconds ahead.
    Step(i64),
}

const FAULTS: [Fault; 14] = [
    Fault::Kill,
    Fault::KillAll,
    Fault::Pause,
    Fault::Cut(Flow::Closed),
    Fault::Cut(Flow::Silent),
    Fault::Deaf,
    Fault::Mute,
    Fault::Blip,
    Fault::Slow(SLUGGISH),
    Fault::SlowOut(SLOW),
    Fault::Roll,
    Fault::KillAdopter,
    Fault::KillAmidSnapshot,
    Fault::Wipe,
];
const DISK_FAULTS: [Fault; 2] = [Fault::Full(LOW), Fault::Full(0)];
/// Seconds.
const FAST: i64 = 45;
const CLOCK_FAULTS: [Fault; 2] = [Fault::Step(FAST), Fault::Step(-3_600)];

/// What can be done to this cluster on this machine.
pub fn deck(cluster: &Cluster) -> Deck<Fault> {
    let mut faults = FAULTS.to_vec();
    faults.extend(DISK_FAULTS.iter().filter(|_| !cluster.disks.is_empty()));
    faults.extend(CLOCK_FAULTS.iter().filter(|_| !cluster.clocks.is_empty()));
    Deck::of(&faults)
}

/// Sets all clocks to the furthest that any has been, and waits until the log goes by them: leases end by its time, which
/// stands still while the leader's clock is behind. Gives how far ahead the log is, in seconds.
pub async fn set_right(cluster: &Cluster, client: &Client) -> Result<u64> {
    if cluster.clocks.is_empty() {
        return Ok(0);
    }
    cluster.clocks.iter().try_for_each(|clock| clock.set_ahead(FAST))?;
    wait_until("the log goes by the clocks", LONG, async || {
        let id = work::id(&format!("clock-{}", uuid::Uuid::new_v4()))?;
        work::open(client, &id, 0, "none", "none").await?;
        let at = check::history::read(client, &id).await?.first().context("it is open")?.at;
        let ahead = at.0.saturating_sub(SystemClock.now_ms()) / 1_000;
        ensure!(ahead + 2 >= FAST as u64, "it is {ahead} s ahead");
        Ok(ahead)
    })
    .await
}

/// A cluster that is being broken.
pub struct Breaker<'a> {
    pub cluster: &'a Cluster,
}

impl Breaker<'_> {
    /// Does the damage, lets it last, and mends it. A stepped clock stays as it is.
    pub async fn strike(&self, fault: Fault, node: usize, lasts: Duration) -> Result<()> {
        let (victim, links) = (&self.cluster.nodes[node], self.cluster.links()?);
        match fault {
            Fault::Kill => victim.kill()?,
            Fault::KillAll => self.cluster.nodes.iter().try_for_each(|node| node.kill())?,
            Fault::Pause => victim.pause()?,
            Fault::Cut(flow) => links.set_around(node, flow),
            Fault::Deaf => links.set_into(node, Flow::Silent),
            Fault::Mute => links.set_out_of(node, Flow::Silent),
            Fault::Blip => links.break_around(node),
            Fault::Slow(delay) => links.set_around(node, Flow::Slow(delay)),
            Fault::SlowOut(delay) => links.set_out_of(node, Flow::Slow(delay)),
            Fault::Roll => self.roll().await?,
            Fault::KillAdopter => drop(self.cluster.kill_with_adopter(node).await?),
            Fault::KillAmidSnapshot => self.kill_amid_snapshot(node).await?,
            Fault::Wipe => {
                victim.kill()?;
                victim.wipe()?;
            }
            Fault::Full(free) => self.fill_up(node, free).await?,
            Fault::Step(seconds) => self.cluster.clocks[node].set_ahead(seconds)?,
        }
        tokio::time::sleep(lasts).await;
        links.mend();
        match fault {
            Fault::Pause => victim.go_on(),
            Fault::Full(_) => self.cluster.disks[node].clear(),
            Fault::Wipe => self.cluster.come_back_replaced(node).await,
            _ => self.cluster.start_all(),
        }
    }

    async fn roll(&self) -> Result<()> {
        for node in &self.cluster.nodes {
            // Or the load stands still: two of three are down.
            self.cluster.ready(node).await?;
        }
        for node in &self.cluster.nodes {
            let status = node.stop(LONG).await?;
            ensure!(status.success(), "{} has ended with {status}", node.name);
            node.start()?;
            self.cluster.ready(node).await?;
        }
        Ok(())
    }

    async fn kill_amid_snapshot(&self, node: usize) -> Result<()> {
        let (victim, links) = (&self.cluster.nodes[node], self.cluster.links()?);
        let last =
            wait_until("the victim tells its last index", LONG, async || self.cluster.view(node).await).await?.last;
        victim.kill()?;
        // How many entries the writes of the load become is nobody's promise.
        wait_until("the others keep nothing of what it lacks", LONG, async || {
            for other in self.cluster.running() {
                let purged = self.cluster.log_purged(other).await?;
                ensure!(purged > last, "{} has purged up to {purged} of {last}", self.cluster.nodes[other].name);
            }
            Ok(())
        })
        .await?;
        let comes = || victim.log_text().matches("a snapshot comes").count();
        let before = comes();
        links.set_into(node, Flow::Slow(SLOW));
        victim.start()?;
        wait_until("a snapshot comes", LONG, async || {
            ensure!(comes() > before, "none");
            Ok(())
        })
        .await?;
        victim.kill()
    }

    async fn fill_up(&self, node: usize, free: u64) -> Result<()> {
        self.cluster.disks[node].fill_up_to(free)?;
        let name = &self.cluster.nodes[node].name;
        wait_until("a full disk is noticed", LONG, async || {
            let members = self.cluster.view(node).await?.members;
            let member = members.iter().find(|view| view.member.name == *name).context("no such member")?;
            ensure!(member.disk.is_some_and(|disk| disk != DiskSpace::Plenty), "{:?}", member.disk);
            Ok(())
        })
        .await
    }
}
