//! Three containers, as `docker-compose.yml` describes them, lose the owner of claimed work, then their leader, then
//! all three at once. Nothing that was acknowledged may be missing afterwards, and nothing may have happened twice. In
//! another story a seed says what happens to them.
//!
//! Needs a Docker engine and the image `holdfast:dev` (`scripts/image-offline.sh`), so it runs only when asked for:
//! `HOLDFAST_COMPOSE_TEST=1 cargo test -p holdfast-tests --test compose -- --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod audit;
mod chaos;
mod containers;
mod work;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use containers::{Containers, NODES, engine_runs};
use holdfast_client::{Client, Directory, ReadMode};
use holdfast_machine::{Liveness, NodeName, ShardEntry};
use holdfast_tests::turn;
use holdfast_tests::wait::{LONG, wait_until};
use work::Book;

/// Longer than the test: this worker is slow, not gone.
const STEADY_LEASE_MS: u64 = 600_000;
/// This worker takes rows and is never heard of in time.
const LOST_LEASE_MS: u64 = 2_000;

/// True if the stories are told here; one after the other, as each has three containers.
fn told() -> bool {
    if std::env::var("HOLDFAST_COMPOSE_TEST").as_deref() != Ok("1") {
        println!("SKIPPED: HOLDFAST_COMPOSE_TEST=1 is not set");
        return false;
    }
    if !engine_runs() {
        println!("SKIPPED: no Docker engine answers");
        return false;
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_work_survives_the_loss_of_containers() {
    if !told() {
        return;
    }
    let _turn = turn::alone().await.unwrap();
    // Its Drop takes everything down, also when the story panics.
    let containers = Containers::up().unwrap();
    let mut story = Story::new(&containers).unwrap();
    if let Err(error) = story.tell().await {
        panic!("{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_whatever_happens_to_containers() {
    if !told() {
        return;
    }
    let _turn = turn::alone().await.unwrap();
    let containers = Containers::up().unwrap();
    if let Err(error) = chaos::tell(&containers).await {
        panic!("{error:?}");
    }
}

struct Story<'a> {
    containers: &'a Containers,
    /// One client for each node, which asks nobody else.
    nodes: Vec<Client>,
    book: Book,
    begin: Instant,
}

impl<'a> Story<'a> {
    fn new(containers: &'a Containers) -> Result<Self> {
        let nodes = NODES.iter().map(|node| Client::new([containers.url(node)])).collect::<Result<_, _>>()?;
        Ok(Self { containers, nodes, book: Book::default(), begin: Instant::now() })
    }

    async fn tell(&mut self) -> Result<()> {
        self.say("three containers start and give themselves shards");
        for node in NODES {
            self.containers.await_healthy(node)?;
        }
        let directory = self.all_shards_owned_by_three().await?;

        let leader = self.leader().await?;
        let follower = owners(&directory).into_iter().find(|owner| *owner != leader).context("no follower owns")?;
        self.lose_an_owner("follower", &follower).await?;
        let leader = self.leader().await?;
        self.lose_an_owner("leader", &leader).await?;
        self.lose_all_at_once().await
    }

    async fn lose_an_owner(&mut self, round: &str, victim: &NodeName) -> Result<()> {
        self.say(&format!("{round}: work for every shard; two workers take rows through {victim}"));
        let before = self.client_beside(None)?.shards(ReadMode::Linearizable).await?.value;
        // A client asks the node that answered last, so the victim's is asked first until it is dead.
        let attached = self.client_beginning_with(victim)?;
        let shards: Vec<_> = before.shards.iter().map(|entry| entry.shard).collect();
        self.book.stage(&attached, round, &shards, before.shard_count).await?;
        let steady = work::claim(&attached, "steady", "steady", STEADY_LEASE_MS, 0).await?;
        let lost = work::claim(&attached, "lost", "lost", LOST_LEASE_MS, 0).await?;
        ensure!(steady.len() == shards.len() && lost.len() == shards.len(), "{} and {}", steady.len(), lost.len());

        self.say(&format!("{round}: {victim} is killed while {} rows are claimed", steady.len() + lost.len()));
        // From before the order on, so that the time is rather too long than too short.
        let ordered = Instant::now();
        self.containers.kill(&[victim.as_str()])?;
        let survivors = self.client_beside(Some(victim))?;
        self.adopted(&survivors, &before, victim).await?;
        let within = ordered.elapsed().as_millis();
        self.say(&format!("{round}: all its shards have live owners {within} ms after the order to kill it"));

        for delivery in &steady {
            self.book.complete(&attached, delivery, "steady").await?;
        }
        for delivery in &steady {
            work::complete_too_late(&survivors, delivery, "steady").await?;
        }
        self.say(&format!("{round}: the attached worker has gone on through a survivor; the lost one's rows follow"));
        self.book.finish(&survivors, &["lost", "later"], "second").await?;
        for delivery in &lost {
            work::complete_too_late(&survivors, delivery, "lost").await?;
        }

        self.say(&format!("{round}: {victim} comes back"));
        self.containers.start(&[victim.as_str()])?;
        self.containers.await_healthy(victim.as_str())?;
        self.all_members_up().await?;
        self.at_rest().await
    }

    async fn lose_all_at_once(&mut self) -> Result<()> {
        self.say("all three are killed, and started again");
        self.containers.kill(&NODES)?;
        self.containers.start(&NODES)?;
        for node in NODES {
            self.containers.await_healthy(node)?;
        }
        self.say("all three are healthy; more work, and an audit of everything");
        let everyone = self.client_beside(None)?;
        let directory = everyone.shards(ReadMode::Linearizable).await?.value;
        let shards: Vec<_> = directory.shards.iter().take(4).map(|entry| entry.shard).collect();
        self.book.stage(&everyone, "after", &shards, directory.shard_count).await?;
        self.book.finish(&everyone, &work::QUEUES, "second").await?;
        self.at_rest().await?;
        let (workflows, outcomes) = (self.book.staged.len(), self.book.completed.len());
        self.say(&format!("{workflows} workflows, {outcomes} activities, each with exactly one outcome on all nodes"));
        Ok(())
    }

    /// Waits until `victim` is committed as down and owns nothing; checks that its shards moved once and no other did.
    async fn adopted(&self, survivors: &Client, before: &Directory, victim: &NodeName) -> Result<()> {
        let after = wait_until("the survivors own all shards", LONG, async || {
            let directory = survivors.shards(ReadMode::Linearizable).await?.value;
            let left = directory.shards.iter().filter(|entry| entry.owner == *victim).count();
            ensure!(left == 0, "{victim} still owns {left}");
            Ok(directory)
        })
        .await?;
        let view = survivors.cluster().await?.value;
        let record = view.members.iter().find(|view| view.member.name == *victim).context("no record of it")?;
        ensure!(matches!(record.member.liveness, Liveness::Down { .. }), "{record:?}");
        ensure!(before.shards.len() == after.shards.len(), "shards were lost");
        for (was, is) in before.shards.iter().zip(&after.shards) {
            check_move(was, is, victim)?;
        }
        Ok(())
    }

    async fn all_shards_owned_by_three(&self) -> Result<Directory> {
        let everyone = self.client_beside(None)?;
        wait_until("three nodes own all shards", LONG, async || {
            let directory = everyone.shards(ReadMode::Linearizable).await?.value;
            let (owned, owners) = (directory.shards.len(), owners(&directory).len());
            ensure!(owned == directory.shard_count as usize && owners == NODES.len(), "{owned} by {owners}");
            Ok(directory)
        })
        .await
    }

    async fn all_members_up(&self) -> Result<()> {
        let everyone = self.client_beside(None)?;
        wait_until("all members are committed as up", LONG, async || {
            let members = everyone.cluster().await?.value.members;
            let up = members.iter().filter(|view| view.member.liveness == Liveness::Up).count();
            ensure!(up == NODES.len(), "{up} are up");
            Ok(())
        })
        .await
    }

    async fn leader(&self) -> Result<NodeName> {
        let everyone = self.client_beside(None)?;
        wait_until("there is a leader", LONG, async || everyone.cluster().await?.value.leader.context("none")).await
    }

    async fn at_rest(&self) -> Result<()> {
        audit::histories(&self.nodes, &self.book).await?;
        audit::states_are_equal(&self.nodes).await
    }

    fn client_beginning_with(&self, first: &NodeName) -> Result<Client> {
        let others = NODES.iter().filter(|node| **node != first.as_str());
        let urls = std::iter::once(first.as_str()).chain(others.copied()).map(|node| self.containers.url(node));
        Ok(Client::new(urls)?)
    }

    fn client_beside(&self, dead: Option<&NodeName>) -> Result<Client> {
        let alive = NODES.iter().filter(|node| dead.is_none_or(|dead| dead.as_str() != **node));
        Ok(Client::new(alive.map(|node| self.containers.url(node)))?)
    }

    fn say(&self, what: &str) {
        println!("[{:>5.1} s] {what}", self.begin.elapsed().as_secs_f32());
    }
}

/// A shard of the dead node has one new owner under the next epoch; any other is as it was.
fn check_move(was: &ShardEntry, is: &ShardEntry, victim: &NodeName) -> Result<()> {
    if was.owner != *victim {
        ensure!(was == is, "a shard of a live node changed: {was:?}, {is:?}");
        return Ok(());
    }
    let once = is.shard == was.shard && is.epoch.0 == was.epoch.0 + 1 && is.previous.as_ref() == Some(victim);
    ensure!(once, "not moved exactly once: {was:?}, {is:?}");
    Ok(())
}

fn owners(directory: &Directory) -> Vec<NodeName> {
    let mut owners: Vec<NodeName> = directory.shards.iter().map(|entry| entry.owner.clone()).collect();
    owners.sort();
    owners.dedup();
    owners
}
