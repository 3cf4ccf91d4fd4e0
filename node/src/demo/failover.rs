//! One failover, from the kill to the dead node's return, with the time of each step. The kill comes in the middle of a
//! gated fan-out ([`super::gate`]) and of other work: all survivors have to do is done by their engines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use holdfast_client::ReadMode;
use holdfast_machine::{ClusterEvent, DispatchKey, NodeName, ShardId};
use tokio::time::sleep;

use super::audit::Kill;
use super::gate::Gated;
use super::ledger::{Execution, Executor};
use super::report::AfterKill;
use super::story::Demo;
use super::watch::is_up;

/// How long any step may take before the demo fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks while a step is awaited. The times themselves are those of the sightings.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What one failover took, and what it found in flight.
#[derive(Debug)]
pub(crate) struct Failover {
    pub kill: Kill,
    pub adoptions: u64,
    pub to_down: AfterKill,
    pub to_adopted: AfterKill,
    pub to_redelivered: AfterKill,
    pub to_caught_up: AfterKill,
}

/// The victim, as it is before the kill.
#[derive(Debug)]
struct Victim {
    position: usize,
    name: NodeName,
    leads: bool,
    shards: BTreeSet<ShardId>,
    shard_count: u32,
}

/// The steps after the kill, each with the time of its first sighting.
#[derive(Debug, Default)]
struct Steps {
    down: Option<Instant>,
    elected: Option<(Instant, NodeName)>,
    /// By shard: when, and by whom.
    adopted: BTreeMap<ShardId, (Instant, NodeName)>,
    redelivered: Option<(DispatchKey, Execution)>,
}

impl Demo {
    /// Kills an owner in the middle of its work, follows the failover, starts the node again and waits
    /// until it has caught up.
    ///
    /// # Errors
    /// When a step does not come in time, or the node gets shards back by itself.
    pub async fn fail_over(&mut self, leads: bool) -> anyhow::Result<Failover> {
        let (victim, gated) = self.choose_victim_at_work(leads).await?;
        let held_by_workers = self.ledger.in_hand(Executor::is_worker);
        let killed_at = self.nodes.kill(victim.position).await?;
        let dead = Executor::Engine(victim.name.clone());
        let held = self.ledger.killed(&dead);
        self.screen.step(format!(
            "       0 ms  SIGKILL to {}: {} rows in its engine's hands, {} in workers' hands, {} of them on its shards",
            victim.name,
            held.len(),
            held_by_workers.len(),
            held_by_workers.iter().filter(|key| victim.owns(key)).count(),
        ));
        let mut kill = Kill { dead, at: killed_at, back: killed_at, held, held_by_workers };
        let steps = self.follow(&victim, &kill).await?;
        self.go_on(&victim, &kill, &gated).await?;
        let to_caught_up = self.bring_back(&victim).await?;
        kill.back = Instant::now();
        let after = |at: Option<Instant>| {
            let at = at.context("a step of the failover was not seen")?;
            anyhow::Ok(AfterKill { leader: leads, ms: ms(at.duration_since(killed_at)) })
        };
        Ok(Failover {
            adoptions: steps.adopted.len() as u64,
            to_down: after(steps.down)?,
            to_adopted: after(steps.last_adopted())?,
            to_redelivered: after(steps.redelivered.map(|(_, execution)| execution.began))?,
            to_caught_up,
            kill,
        })
    }

    /// Chooses an owner, and waits until the first wave of a fan-out is in its engine's and in workers' hands.
    async fn choose_victim_at_work(&mut self, leads: bool) -> anyhow::Result<(Victim, Gated)> {
        loop {
            let victim = self.choose_victim(leads).await?;
            let shard = *victim.shards.first().context("the node to be killed owns no shard")?;
            let gated = self.stage_gated(shard).await?;
            let engine = Executor::Engine(victim.name.clone());
            self.wait_until_in_hand(&gated, |by| *by == engine).await?;
            if (self.leader().await? == victim.name) == leads {
                return Ok((victim, gated));
            }
            // Leadership has moved meanwhile.
            self.open(&gated).await?;
        }
    }

    async fn leader(&self) -> anyhow::Result<NodeName> {
        self.client.cluster().await?.value.leader.context("there is no leader")
    }

    /// The fan-out that was cut short goes on at the survivor: its first wave is in hand again, and only when that has
    /// ended, the second is decided.
    async fn go_on(&mut self, victim: &Victim, kill: &Kill, gated: &Gated) -> anyhow::Result<()> {
        self.wait_until_in_hand(gated, |by| *by != kill.dead).await?;
        let elsewhere = self.ledger.began_since(kill.at, |key| !victim.owns(key));
        self.open(gated).await?;
        self.screen.step(format!(
            "             {}, cut short in its first wave, has ended; {elsewhere} rows of other owners began meanwhile",
            gated.workflow
        ));
        Ok(())
    }

    /// The leader, or the follower with the most shards.
    async fn choose_victim(&self, leads: bool) -> anyhow::Result<Victim> {
        let leader = self.leader().await?;
        let directory = self.client.shards(ReadMode::Linearizable).await?.value;
        let mut owned = BTreeMap::<NodeName, BTreeSet<ShardId>>::new();
        for entry in directory.shards {
            owned.entry(entry.owner).or_default().insert(entry.shard);
        }
        let fits = owned.into_iter().filter(|(name, _)| (*name == leader) == leads);
        let (name, shards) =
            fits.max_by_key(|(_, shards)| shards.len()).context("no node of the kind to be killed owns a shard")?;
        let position = self.names_of_nodes.iter().position(|node| *node == name).context("an unknown owner")?;
        Ok(Victim { position, name, leads, shards, shard_count: directory.shard_count })
    }

    async fn follow(&mut self, victim: &Victim, kill: &Kill) -> anyhow::Result<Steps> {
        let deadline = kill.at + PATIENCE;
        let mut seen = Steps::default();
        loop {
            let now = self.steps(victim, kill);
            self.tell(victim, &seen, &now, kill.at);
            seen = now;
            if seen.is_complete(victim) {
                return Ok(seen);
            }
            let adopted = seen.adopted.len();
            let what = format!("the failover to end ({adopted} of {} shards are adopted)", victim.shards.len());
            self.look_again(deadline, &what).await?;
        }
    }

    fn steps(&self, victim: &Victim, kill: &Kill) -> Steps {
        let down = |event: &ClusterEvent| match event {
            ClusterEvent::PeerDown { node, .. } if *node == victim.name => Some(()),
            _ => None,
        };
        let elected = |event: &ClusterEvent| match event {
            ClusterEvent::LeaderChanged { leader: Some(leader), .. } if *leader != victim.name => Some(leader.clone()),
            _ => None,
        };
        let adoption = |event: &ClusterEvent| match event {
            ClusterEvent::ShardAdopted { shard, from, by, .. } if *from == victim.name => Some((*shard, by.clone())),
            _ => None,
        };
        let mut adopted = BTreeMap::new();
        for (at, (shard, by)) in self.watch.sighted(kill.at, adoption) {
            adopted.entry(shard).or_insert((at, by));
        }
        Steps {
            down: self.watch.sighted(kill.at, down).first().map(|(at, ())| *at),
            elected: self.watch.sighted(kill.at, elected).into_iter().next(),
            adopted,
            redelivered: self.ledger.again(&kill.held, &kill.dead, kill.at).into_iter().next(),
        }
    }

    /// Tells the steps that are new.
    fn tell(&self, victim: &Victim, before: &Steps, now: &Steps, killed_at: Instant) {
        let tell = |at: Instant, what: String| {
            self.screen.step(format!("  {:>6.0} ms  {what}", ms(at.duration_since(killed_at))));
        };
        if let (None, Some((at, leader)), true) = (&before.elected, &now.elected, victim.leads) {
            tell(*at, format!("{leader} is elected leader"));
        }
        if let (None, Some(at)) = (before.down, now.down) {
            tell(at, format!("{} is committed as down", victim.name));
        }
        if let (true, Some(at)) = (now.adopted.len() > before.adopted.len(), now.last_adopted()) {
            let all = victim.shards.len();
            tell(at, format!("{} of {all} shards are adopted: {}", now.adopted.len(), now.adopters()));
        }
        if let (None, Some((key, execution))) = (&before.redelivered, &now.redelivered) {
            tell(execution.began, format!("{key} is executed again, by {}", execution.by));
        }
    }

    /// Starts the dead node again and waits until it is committed as up and has applied what the others
    /// had when it came back.
    async fn bring_back(&mut self, victim: &Victim) -> anyhow::Result<AfterKill> {
        let started_at = Instant::now();
        self.nodes.start(victim.position)?;
        let goal = self.client.cluster().await?.value.committed;
        self.screen.step(format!("             {} is started again, to catch up to log index {goal}", victim.name));
        let deadline = started_at + PATIENCE;
        loop {
            let views = self.watch.views().await;
            let own = views[victim.position].as_ref();
            let applied = own.map_or(0, |view| view.applied);
            let up = views.iter().flatten().all(|view| is_up(view, &victim.name));
            if applied >= goal && up {
                break;
            }
            self.look_again(deadline, &format!("{} to catch up (at {applied} of {goal})", victim.name)).await?;
        }
        let took = ms(started_at.elapsed());
        let directory = self.client.shards(ReadMode::Linearizable).await?.value;
        let owned = directory.shards.iter().filter(|entry| entry.owner == victim.name).count();
        if owned > 0 {
            bail!("{} got {owned} shards back by itself", victim.name);
        }
        self.screen.step(format!(
            "  {took:>6.0} ms  it has caught up and is up again, and owns no shard until it is given one"
        ));
        Ok(AfterKill { leader: victim.leads, ms: took })
    }

    /// A pause between two looks; fails if the deadline has passed or a process has ended by itself.
    ///
    /// # Errors
    /// What was waited for, or what has ended.
    pub async fn look_again(&mut self, deadline: Instant, what: &str) -> anyhow::Result<()> {
        self.nodes.check()?;
        self.workers.check()?;
        if Instant::now() > deadline {
            bail!("waited too long for {what}");
        }
        sleep(LOOK_EVERY).await;
        Ok(())
    }
}

impl Victim {
    fn owns(&self, key: &DispatchKey) -> bool {
        self.shards.contains(&ShardId::of(&key.workflow, self.shard_count))
    }
}

impl Steps {
    fn last_adopted(&self) -> Option<Instant> {
        self.adopted.values().map(|(at, _)| *at).max()
    }

    /// How many each survivor has adopted, in words.
    fn adopters(&self) -> String {
        let mut adopters = BTreeMap::<&NodeName, u32>::new();
        for (_, by) in self.adopted.values() {
            *adopters.entry(by).or_default() += 1;
        }
        let adopters: Vec<String> = adopters.iter().map(|(by, count)| format!("{count} by {by}")).collect();
        adopters.join(", ")
    }

    fn is_complete(&self, victim: &Victim) -> bool {
        let elected = self.elected.is_some() || !victim.leads;
        elected && self.down.is_some() && self.adopted.len() == victim.shards.len() && self.redelivered.is_some()
    }
}

/// Milliseconds, to a tenth: more than that is noise.
pub(crate) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
