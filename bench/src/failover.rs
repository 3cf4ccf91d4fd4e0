//! `failover`: an owner is killed, with rows in its own hands and writes under way. Each step is timed by the
//! benchmark's own clock, from the kill to the first sighting.

mod traffic;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{ClusterEvent, DispatchKey, NodeName, ShardEntry, ShardId, TaskQueue};
use tokio::time::sleep;

use crate::args::{BenchArgs, Victim};
use crate::meter::Times;
use crate::nodes::Nodes;
use crate::report::Case;
use crate::work::{ROWS, Work};
use traffic::{Call, Outcome, Traffic};
use watch::Watch;

/// Workflows whose rows the victim holds.
const HELD_WORKFLOWS: u64 = 4;
/// Writers, unless fewer clients were asked for.
const WRITERS: usize = 16;
/// How long any step may take.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// No call that was under way at the kill may wait longer.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A cluster whose nodes hold rows, under load.
struct Stage {
    nodes: Nodes,
    client: Client,
    watch: Watch,
    traffic: Traffic,
    held: Work,
    queue: TaskQueue,
    next_workflow: u64,
}

/// Who is killed, and what it owns.
struct Chosen {
    number: usize,
    name: NodeName,
    shards: BTreeSet<ShardId>,
    shard_count: u32,
}

/// What one kill has cost.
#[derive(Debug, Default)]
struct Round {
    steps: BTreeMap<&'static str, Duration>,
    calls: Vec<Call>,
}

/// Kills owners, one after the other; a case for those that led and one for those that did not.
///
/// # Errors
/// When a step does not come in time, or what is stored is not what was acknowledged.
pub async fn measure(args: &BenchArgs, run: u32) -> Result<Vec<Case>> {
    let mut stage = Stage::set(args).await?;
    let kinds: &[bool] = match args.victim {
        Victim::Follower => &[false],
        Victim::Leader => &[true],
        Victim::Both => &[false, true],
    };
    let mut rounds: BTreeMap<bool, Vec<Round>> = BTreeMap::new();
    for round in 0..args.rounds {
        for leads in kinds {
            let kind = if *leads { "leader" } else { "follower" };
            let measured = stage.kill_one(*leads).await.with_context(|| format!("round {}, {kind}", round + 1))?;
            rounds.entry(*leads).or_default().push(measured);
        }
    }
    let Stage { nodes, client, traffic, .. } = stage;
    let work = Arc::clone(&traffic.work);
    let written = traffic.stop().await?;
    let stored = work.stored(&client, written).await?;
    nodes.finish().await?;
    let cases = rounds.into_iter().map(|(leads, rounds)| {
        let mut case = case(leads, run, &rounds);
        case.clients = Some(args.most_clients().min(WRITERS));
        case.count("acknowledged", written);
        case.count("stored", stored);
        case
    });
    Ok(cases.collect())
}

fn case(leads: bool, run: u32, rounds: &[Round]) -> Case {
    let mut case = Case::new(format!("failover, {} killed", if leads { "leader" } else { "follower" }), run);
    case.count("rounds", rounds.len() as u64);
    for step in rounds.iter().flat_map(|round| round.steps.keys()).collect::<BTreeSet<_>>() {
        let times = rounds.iter().filter_map(|round| round.steps.get(step)).copied();
        case.times_ms.insert((*step).to_owned(), Times::of_each(times));
    }
    let calls: Vec<&Call> = rounds.iter().flat_map(|round| &round.calls).collect();
    let time = |call: &&Call| call.ended.saturating_duration_since(call.begun);
    case.times_ms.insert("call_under_way_at_the_kill".to_owned(), Times::of_each(calls.iter().map(time)));
    let with = |outcome| calls.iter().filter(|call| call.outcome == outcome).count() as u64;
    case.count("under_way_at_the_kill", calls.len() as u64);
    case.count("under_way_done", with(Outcome::Done));
    case.count("under_way_refused", with(Outcome::Refused));
    case.count("under_way_unknown", with(Outcome::Unknown));
    case.count("under_way_over_2_s", calls.iter().filter(|call| time(call) > WAIT_MAX).count() as u64);
    case
}

impl Stage {
    async fn set(args: &BenchArgs) -> Result<Self> {
        let held = Work::new(args.load.payload_bytes)?;
        let queue = TaskQueue::new(held.namespace.as_str())?;
        let nodes = Nodes::holding(args, held.namespace.as_str()).await?;
        let traffic = Traffic::start(
            Arc::new(Work::new(args.load.payload_bytes)?),
            &nodes.clients(args.connections)?,
            args.most_clients().min(WRITERS),
        );
        Ok(Self {
            client: nodes.client()?,
            watch: Watch::start(&nodes)?,
            traffic,
            nodes,
            held,
            queue,
            next_workflow: 0,
        })
    }

    /// Kills an owner that leads, or one that does not, follows the failover, and brings the node back with its shards.
    async fn kill_one(&mut self, leads: bool) -> Result<Round> {
        let (chosen, rows) = loop {
            let chosen = self.choose(leads).await?;
            let rows = self.have_rows_held(&chosen).await?;
            if (self.leader().await? == chosen.name) == leads {
                break (chosen, rows);
            }
            // Leadership has moved meanwhile.
            self.complete_by_key(&rows).await?;
        };
        let told = self.nodes.held.lock().len();
        let under_way = self.traffic.under_way();
        let killed_at = self.nodes.kill(chosen.number).await?;
        let steps = self.follow(&chosen, &rows, told, killed_at).await?;
        let (calls, gap) = self.settled(&under_way, killed_at).await?;
        let mut round = Round { steps, calls };
        round.steps.insert("longest_time_without_a_write", gap);
        self.complete_by_key(&rows).await?;
        self.bring_back(&chosen).await?;
        self.traffic.forget();
        Ok(round)
    }

    async fn leader(&self) -> Result<NodeName> {
        self.client.cluster().await?.value.leader.context("there is no leader")
    }

    async fn choose(&self, leads: bool) -> Result<Chosen> {
        let leader = self.leader().await?;
        let directory = self.client.shards(ReadMode::Linearizable).await?.value;
        let mut owned: BTreeMap<NodeName, BTreeSet<ShardId>> = BTreeMap::new();
        for ShardEntry { shard, owner, .. } in directory.shards {
            owned.entry(owner).or_default().insert(shard);
        }
        let fits = owned.into_iter().filter(|(name, _)| (*name == leader) == leads);
        let most = fits.max_by_key(|(_, shards)| shards.len());
        let (name, shards) = most.context("no node of the kind to be killed owns a shard")?;
        Ok(Chosen { number: self.nodes.number_of(&name)?, name, shards, shard_count: directory.shard_count })
    }

    /// Stages rows on the victim's shards, and waits until it holds them.
    async fn have_rows_held(&mut self, chosen: &Chosen) -> Result<BTreeSet<DispatchKey>> {
        let mut rows = BTreeSet::new();
        for _ in 0..HELD_WORKFLOWS {
            let id = loop {
                self.next_workflow += 1;
                let id = self.held.id(0, self.next_workflow)?;
                if chosen.shards.contains(&ShardId::of(&id, chosen.shard_count)) {
                    break id;
                }
            };
            self.held.stage(&self.client, id.clone(), &self.queue).await?;
            rows.extend((1..=ROWS).map(|ordinal| DispatchKey { workflow: id.clone(), ordinal }));
        }
        let begun = Instant::now();
        loop {
            let held: BTreeSet<DispatchKey> = {
                let told = self.nodes.held.lock();
                let of_it = told.iter().filter(|(_, number, key)| *number == chosen.number && rows.contains(key));
                of_it.map(|(_, _, key)| key.clone()).collect()
            };
            if held == rows {
                return Ok(rows);
            }
            self.look_again(begun, || format!("{} holds its rows", chosen.name)).await?;
        }
    }

    /// The steps behind the kill, until all of them are there.
    async fn follow(
        &mut self,
        chosen: &Chosen,
        rows: &BTreeSet<DispatchKey>,
        told: usize,
        killed_at: Instant,
    ) -> Result<BTreeMap<&'static str, Duration>> {
        loop {
            let mut steps = BTreeMap::new();
            let mut step = |name, at: Option<Instant>| {
                steps.extend(at.map(|at| (name, at.saturating_duration_since(killed_at))));
            };
            let down = self.watch.sighted(killed_at, |event| {
                matches!(event, ClusterEvent::PeerDown { node, .. } if *node == chosen.name).then_some(())
            });
            step("kill_to_down", down.first().map(|(at, ())| *at));
            let adopted = self.watch.sighted(killed_at, |event| match event {
                ClusterEvent::ShardAdopted { shard, from, .. } if *from == chosen.name => Some(*shard),
                _ => None,
            });
            let mut first: BTreeMap<ShardId, Instant> = BTreeMap::new();
            for (at, shard) in adopted {
                first.entry(shard).or_insert(at);
            }
            let all = first.len() == chosen.shards.len();
            step("kill_to_first_adopted", first.values().min().copied());
            step("kill_to_all_adopted", first.values().max().copied().filter(|_| all));
            let mut again: BTreeMap<DispatchKey, Instant> = BTreeMap::new();
            for (at, number, key) in self.nodes.held.lock()[told..].iter() {
                if *number != chosen.number && rows.contains(key) {
                    again.entry(key.clone()).or_insert(*at);
                }
            }
            let all = again.len() == rows.len();
            step("kill_to_first_redelivery", again.values().min().copied());
            step("kill_to_all_redelivered", again.values().max().copied().filter(|_| all));
            if steps.len() == 5 {
                return Ok(steps);
            }
            let found = format!("{steps:?}");
            self.look_again(killed_at, || format!("{} is survived; so far: {found}", chosen.name)).await?;
        }
    }

    /// Waits until the calls that were under way have their answers, and writes go on.
    async fn settled(&mut self, under_way: &BTreeSet<u64>, killed_at: Instant) -> Result<(Vec<Call>, Duration)> {
        let now = Instant::now();
        loop {
            let found = self.traffic.answers(under_way).zip(self.traffic.longest_gap(killed_at, now));
            if let Some((mut calls, gap)) = found {
                // Those that were answered between the look and the kill were not under way at it.
                calls.retain(|call| call.ended > killed_at);
                return Ok((calls, gap));
            }
            self.look_again(now, || "all calls are answered and writes go on".to_owned()).await?;
        }
    }

    /// Ends the rows that were held, whoever holds them now: each of them has one outcome, so this is taken once.
    async fn complete_by_key(&self, rows: &BTreeSet<DispatchKey>) -> Result<()> {
        for key in rows {
            let done = self.client.complete(key, None, self.held.payload(), Write::default()).await?;
            ensure!(done.value.is_some(), "{key} is gone");
        }
        Ok(())
    }

    /// Starts the node again, waits until it is there, and gives it back what it owned.
    async fn bring_back(&mut self, chosen: &Chosen) -> Result<()> {
        self.nodes.start(chosen.number)?;
        self.nodes.wait_until_formed().await?;
        let directory = self.client.shards(ReadMode::Linearizable).await?.value;
        for ShardEntry { shard, owner, epoch, .. } in directory.shards {
            if chosen.shards.contains(&shard) && owner != chosen.name {
                self.client.transfer(shard, &chosen.name, epoch, Write::default()).await?;
            }
        }
        Ok(())
    }

    async fn look_again(&mut self, begun: Instant, what: impl FnOnce() -> String) -> Result<()> {
        self.traffic.check()?;
        if begun.elapsed() > PATIENCE {
            bail!("waited {PATIENCE:?} in vain until {}", what());
        }
        sleep(LOOK_EVERY).await;
        Ok(())
    }
}
