//! Section 10: histories that grow beyond any log. Snapshots are taken and the log is purged under load, and nodes that the
//! log no longer reaches get a snapshot, though its sender is killed in the middle.
//!
//! `HOLDFAST_HISTORY_BYTES` says how large; figures are printed and pass no verdict.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_tests::bulk::{self, Bulk, Pace};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::footprint::{self, Watched, on_disk};
use holdfast_tests::links::Flow;
use holdfast_tests::wait::wait_until;

const MIB: u64 = 1 << 20;
/// History that everybody makes.
const FEW_BYTES: u64 = 48 * MIB;
/// A segment of the log, which is the unit in which it is purged.
const SEGMENT_BYTES: u64 = 16 * MIB;
/// Far above what a node needs, and far below a history of gigabytes.
const MEMORY_MAX: u64 = 2 << 30;
/// For each piece of up to 64 KiB of what a node is sent: a snapshot takes long enough to be caught on its way.
const SLOW: Duration = Duration::from_millis(5);
/// Patience for what takes time in proportion to the history.
const PATIENCE: Duration = Duration::from_secs(900);

/// A cluster, what is written to it, and how large that is to become.
struct Story<'a> {
    cluster: &'a Cluster,
    bulk: &'a Bulk,
    limits: Limits,
    begun: Instant,
}

#[derive(Clone, Copy)]
struct Limits {
    history: u64,
    snapshot_after: u64,
    kept: u64,
}

impl Limits {
    /// The defaults of a node, and the same part of a smaller history.
    fn of(history: u64) -> Self {
        Self { history, snapshot_after: (history / 10).min(512 * MIB), kept: (history / 20).min(256 * MIB) }
    }

    /// What a log may take at rest beside a snapshot of this length: as much as makes the next one due, what is kept behind
    /// it, and what is left of a segment at either end.
    fn log_max(&self, snapshot: u64) -> u64 {
        self.snapshot_after.max(snapshot) + self.kept + 2 * SEGMENT_BYTES
    }
}

impl Story<'_> {
    /// Says what has happened, and how long no write was acknowledged at most since this was last called.
    fn told(&self, what: &str) {
        println!(
            "{:>7.1} s  {what}; longest pause {:.1?}",
            self.begun.elapsed().as_secs_f64(),
            self.bulk.longest_pause()
        );
    }

    async fn until<T>(&self, what: &str, condition: impl AsyncFn() -> Result<T>) -> Result<T> {
        let found = wait_until(what, PATIENCE, async || {
            self.bulk.goes_on()?;
            condition().await
        });
        found.await
    }

    async fn grows_to(&self, bytes: u64) -> Result<()> {
        self.until("the history has grown", async || {
            let written = self.bulk.bytes();
            ensure!(written >= bytes, "{} of {} MiB", written / MIB, bytes / MIB);
            Ok(())
        })
        .await
    }

    /// With nothing being written, the running nodes have of the log what they should, and nothing of what one that left at
    /// `left_at` would need.
    async fn logs_are_short(&self, left_at: u64) -> Result<()> {
        for node in self.cluster.running() {
            self.until("the log is as short as it should be", async || {
                let data = self.cluster.nodes[node].data();
                let (log, (_, snapshot)) = (on_disk(&data.join("log"))?, footprint::snapshots(&data)?);
                let most = self.limits.log_max(snapshot);
                ensure!(snapshot > 0 && log <= most, "{} MiB of log, at most {}", log / MIB, most / MIB);
                ensure!(log < self.bulk.bytes(), "a log of {} MiB has all that was written", log / MIB);
                let purged = self.cluster.log_purged(node).await?;
                ensure!(purged > left_at, "purged up to {purged}, one left at {left_at}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Lets a node that needs a snapshot begin, and kills whoever sends it one in the middle; gives that one.
    async fn sender_is_killed(&self, receiver: usize) -> Result<usize> {
        let node = &self.cluster.nodes[receiver];
        self.cluster.links()?.set_into(receiver, Flow::Slow(SLOW));
        node.start()?;
        let (leader, come, length) = self
            .until("a part of a snapshot has come", async || {
                let leader = self.cluster.leader_as_known_by(self.other_than(receiver)?).await?;
                let (come, _) = footprint::snapshots(&node.data())?;
                let (_, length) = footprint::snapshots(&self.cluster.nodes[leader].data())?;
                ensure!(come > length / 8, "{come} of {length} bytes");
                Ok((leader, come, length))
            })
            .await?;
        self.told(&format!("{} of {} MiB of a snapshot have come, and its sender is killed", come / MIB, length / MIB));
        self.cluster.nodes[leader].kill()?;
        ensure!(installed(self.cluster, receiver) == 0, "it came too fast: {come} of {length} bytes were seen");
        self.cluster.links()?.mend();
        Ok(leader)
    }

    fn other_than(&self, node: usize) -> Result<usize> {
        self.cluster.running().into_iter().find(|other| *other != node).context("another one runs")
    }

    /// Waits until a node has taken in a snapshot and all that was committed by then.
    async fn catches_up(&self, node: usize) -> Result<()> {
        self.until("a whole snapshot has come", async || {
            let (come, whole) = footprint::snapshots(&self.cluster.nodes[node].data())?;
            ensure!(come == 0 && whole > 0, "{come} bytes so far");
            Ok(())
        })
        .await?;
        self.told("the snapshot has come");
        self.until("a snapshot is installed", async || {
            ensure!(installed(self.cluster, node) > 0, "not yet");
            Ok(())
        })
        .await?;
        self.told("the snapshot is installed");
        let leader = self.cluster.leader_as_known_by(self.other_than(node)?).await?;
        let committed = self.cluster.view(leader).await?.committed;
        self.until("it has what came behind the snapshot", async || {
            let applied = self.cluster.view(node).await?.applied;
            ensure!(applied >= committed, "it is at {applied}, {committed} is committed");
            Ok(())
        })
        .await?;
        self.told("it has what came behind it");
        Ok(())
    }

    /// A node is killed, and is away until no log reaches it.
    async fn one_was_away(&self) -> Result<usize> {
        self.grows_to(self.limits.history / 2).await?;
        self.told("half is written");
        let away = self.cluster.follower().await?;
        self.cluster.nodes[away].kill()?;
        let left_at = self.cluster.view(self.cluster.leader().await?).await?.applied;
        self.grows_to(self.limits.history).await?;
        self.told("all is written, one being away");
        self.bulk.go(Pace::Rest);
        self.logs_are_short(left_at).await?;
        self.bulk.go(Pace::Walk);
        self.told("the logs are short, and the node that was away is back");

        let killed = self.sender_is_killed(away).await?;
        self.catches_up(away).await?;
        self.cluster.nodes[killed].start()?;
        self.cluster.whole().await?;
        self.told("all three run");
        Ok(away)
    }

    /// A node loses its disk.
    async fn one_was_emptied(&self, other_than: usize) -> Result<usize> {
        let leader = self.cluster.leader().await?;
        let spared = if leader == other_than { (leader + 1) % 3 } else { other_than };
        let emptied = 3 - leader - spared;
        self.cluster.nodes[emptied].kill()?;
        self.cluster.nodes[emptied].wipe()?;
        self.told("a node has lost its disk");
        let killed = self.sender_is_killed(emptied).await?;
        // Two of three voters are needed, and the one without its disk is none yet.
        self.cluster.nodes[killed].start()?;
        self.catches_up(emptied).await?;
        self.cluster.whole().await?;
        self.told("all three run");
        Ok(emptied)
    }
}

/// How many snapshots a node has taken in since its last start.
fn installed(cluster: &Cluster, node: usize) -> usize {
    let log = cluster.nodes[node].log_text();
    let since_start = log.rfind("a snapshot comes").map_or("", |place| &log[place..]);
    since_start.matches("a snapshot was installed").count()
}

fn figures(cluster: &Cluster, seen: &Watched, written: u64) -> Result<()> {
    println!("{} MiB of history were written", written / MIB);
    let pace = |pace: Option<u64>| pace.map_or("none".to_owned(), |bytes| format!("{} MiB/s", bytes / MIB));
    println!(
        "while a snapshot was written: {}; otherwise: {}",
        pace(seen.during_snapshots.per_second()),
        pace(seen.otherwise.per_second())
    );
    for (node, most) in cluster.nodes.iter().zip(&seen.nodes) {
        let data = node.data();
        println!(
            "{}: MiB on disk: log {} (at most {}), state {}, snapshot {}; {} snapshots, the longest took {:.1?}; memory at most {} MiB",
            node.name,
            on_disk(&data.join("log"))? / MIB,
            most.log / MIB,
            on_disk(&data.join("state"))? / MIB,
            footprint::snapshots(&data)?.1 / MIB,
            most.snapshots,
            most.snapshot,
            most.memory / MIB,
        );
        ensure!(most.memory < MEMORY_MAX, "{} had {} MiB of memory", node.name, most.memory / MIB);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_stays_short_and_whoever_needs_a_snapshot_gets_one_however_long_the_history() -> Result<()> {
    let history = std::env::var("HOLDFAST_HISTORY_BYTES").map_or(Ok(FEW_BYTES), |bytes| bytes.parse())?;
    let limits = Limits::of(history);
    let cluster = Setup::plain()
        .with_links()
        .alone()
        .set("HOLDFAST_AUTO_REPLACE", true)
        .set("HOLDFAST_RAFT_SNAPSHOT_AFTER_BYTES", limits.snapshot_after)
        .set("HOLDFAST_RAFT_LOGS_KEPT_BYTES", limits.kept)
        .start()
        .await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let (bulk, seen) = (Bulk::start(&urls)?, RefCell::new(Watched::default()));
    let story = Story { cluster: &cluster, bulk: &bulk, limits, begun: Instant::now() };
    let told = async {
        let away = story.one_was_away().await?;
        let emptied = story.one_was_emptied(away).await?;
        anyhow::Ok([away, emptied])
    };
    let received = tokio::select! {
        told = told => told?,
        // It only ends with an error.
        failed = footprint::watch(&cluster, &seen, || bulk.running()) => return failed,
    };
    let (written, begun) = (bulk.bytes(), story.begun);
    let heads = bulk.stop().await?;

    // Those that live on a snapshot have every byte of it.
    let index = cluster.view(cluster.leader().await?).await?.committed;
    for node in received {
        let found = bulk::all_there(cluster.client(node), &heads, index).await?;
        ensure!(found >= written, "{found} of {written} bytes");
    }
    println!("{:>7.1} s  all of it was read from the two that got a snapshot", begun.elapsed().as_secs_f64());
    figures(&cluster, &seen.borrow(), written)?;
    cluster.finish().await
}
