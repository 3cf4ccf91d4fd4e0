//! Nodes and workers are killed, paused, cut off and emptied, as a seed deals it out, while engines run fan-outs with
//! timers: whatever happens, every fan-out completes, and did each thing once.
//!
//! `HOLDFAST_CHAOS_SEED` repeats a run, `HOLDFAST_CHAOS_STEPS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use holdfast_checkers::coverage::Coverage;
use holdfast_machine::WorkflowId;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::dice::{Deck, Dice, seed_and_steps};
use holdfast_tests::engine::{HOLD, NAP, Order, QUEUE, WORKERS};
use holdfast_tests::links::Flow;
use holdfast_tests::process::Process;
use holdfast_tests::programs::{FanOut, Part};
use holdfast_tests::troupe::LEASE_SHORT;
use holdfast_tests::wait::{LONG, wait_until};

/// The run that everybody makes; other seeds are drawn by hand.
const SEED: u64 = 229;
/// Faults in a run of the suite: one of each kind.
const STEPS: u64 = 10;
/// Activities of each part of a wave.
const PART: u64 = 2;
/// Workers; each has room for all that a run of the suite can leave in its hands.
const WORKERS_COUNT: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill(Whom),
    Pause(Whom),
    KillAllNodes,
    /// A node dies, and then the one that has just taken over its shards.
    KillAdopter,
    /// The links of a node to the others.
    Cut(Flow),
    Blip,
    /// The disk of a node is emptied; it comes back as another member of its name.
    Wipe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    Node,
    Worker,
}

const FAULTS: [Fault; 10] = [
    Fault::Kill(Whom::Node),
    Fault::Kill(Whom::Worker),
    Fault::Pause(Whom::Node),
    Fault::Pause(Whom::Worker),
    Fault::KillAllNodes,
    Fault::KillAdopter,
    Fault::Cut(Flow::Closed),
    Fault::Cut(Flow::Silent),
    Fault::Blip,
    Fault::Wipe,
];

impl Fault {
    fn of(self) -> Whom {
        match self {
            Self::Kill(whom) | Self::Pause(whom) => whom,
            _ => Whom::Node,
        }
    }
}

/// Waves of which the first is held until its step is over, and waves that run meanwhile.
fn plan(first: &str) -> FanOut {
    let wave = |activity| vec![Part::of(PART, activity, QUEUE), Part::of(PART, activity, WORKERS)];
    FanOut { waves: vec![wave(first), wave(NAP), wave(NAP)], pause_ms: 150 }
}

struct Run {
    cluster: Cluster,
    dice: Dice,
    started: Vec<(WorkflowId, FanOut)>,
    /// Executions that a kill has ended.
    cut_short: usize,
}

impl Run {
    /// Starts a fan-out, however often that has to be said.
    async fn fan_out(&mut self, name: String, first: &str) -> Result<WorkflowId> {
        let (id, plan) = (WorkflowId::new(name)?, plan(first));
        wait_until("a fan-out is started", LONG, async || self.cluster.fan_out(&id, &plan).await).await?;
        self.started.push((id.clone(), plan));
        Ok(id)
    }

    fn nodes_and_workers(&self) -> Vec<&Process> {
        self.cluster.puppets().collect()
    }

    /// The place among nodes and workers of the one that it hits: every other time somebody who has rows of this workflow
    /// in hand.
    fn victim(&mut self, id: &WorkflowId, whom: Whom) -> Result<usize> {
        let (holder, other) = (self.dice.roll(2) == 0, self.dice.roll(3));
        let first = if whom == Whom::Node { 0 } else { self.cluster.nodes.len() };
        if !holder {
            return Ok(first + other);
        }
        let executions = self.cluster.executions(id)?;
        let puppets = self.nodes_and_workers();
        let holds = |place: &usize| executions.iter().any(|execution| execution.by == puppets[*place].label);
        (first..first + 3).find(holds).context("nobody holds a row")
    }

    /// Does the damage; gives the places of those that it killed.
    async fn strike(&self, fault: Fault, victim: usize) -> Result<Vec<usize>> {
        let (cluster, process) = (&self.cluster, self.nodes_and_workers()[victim]);
        let mut killed = Vec::new();
        match fault {
            Fault::Pause(_) => process.pause()?,
            Fault::Kill(_) => killed.push(victim),
            Fault::KillAllNodes => killed.extend(0..cluster.nodes.len()),
            Fault::Wipe => killed.push(victim),
            Fault::KillAdopter => return Ok(cluster.kill_with_adopter(victim).await?.to_vec()),
            Fault::Cut(flow) => cluster.links()?.set_around(victim, flow),
            Fault::Blip => cluster.links()?.break_around(victim),
        }
        killed.iter().try_for_each(|place| self.nodes_and_workers()[*place].kill())?;
        if fault == Fault::Wipe {
            cluster.nodes[victim].wipe()?;
        }
        Ok(killed)
    }

    async fn mend(&self, fault: Fault, victim: usize) -> Result<()> {
        let (cluster, process) = (&self.cluster, self.nodes_and_workers()[victim]);
        cluster.links()?.mend();
        match fault {
            Fault::Pause(_) => process.go_on(),
            Fault::Kill(_) => process.start(),
            Fault::Wipe => cluster.come_back_replaced(victim).await,
            _ => cluster.start_all(),
        }
    }

    async fn step(&mut self, step: u64, fault: Fault) -> Result<()> {
        self.cluster.hold_all().await?;
        let held = self.fan_out(format!("held-{step}"), HOLD).await?;
        self.fan_out(format!("free-{step}"), NAP).await?;
        self.cluster.begun(&held, 2 * PART as usize).await?;
        let lasts = Duration::from_millis([0, 300, 1_000, 2_500][self.dice.roll(4)]);
        let victim = self.victim(&held, fault.of())?;
        println!("step {step}: {fault:?} of {} for {lasts:?}", self.nodes_and_workers()[victim].label);
        for killed in self.strike(fault, victim).await? {
            let executions = self.nodes_and_workers()[killed].executions()?;
            self.cut_short += executions.iter().filter(|execution| execution.key.workflow == held).count();
        }
        tokio::time::sleep(lasts).await;
        self.mend(fault, victim).await?;
        self.cluster.tell_all(&Order::Release)?;
        // Whoever holds a row must see that the gate is open, before the next step shuts it.
        wait_until("the wave that was held is over", LONG, async || {
            let executions = self.cluster.executions(&held)?;
            let further = executions.iter().any(|execution| execution.key.ordinal > 2 * PART);
            ensure!(further, "nothing of the next one has begun: {executions:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fan_out_completes_once_whatever_happens_to_nodes_and_workers() -> Result<()> {
    let (seed, steps) = seed_and_steps(SEED, STEPS)?;
    let mut cluster = Setup::with_engines().with_links().alone().start().await?;
    for worker in 0..WORKERS_COUNT {
        cluster.add_worker(worker, 16, LEASE_SHORT)?;
    }
    let mut run = Run { cluster, dice: Dice::of(seed), started: Vec::new(), cut_short: 0 };
    let (mut deck, mut coverage) = (Deck::of(&FAULTS), Coverage::default());
    for step in 0..steps {
        let fault = deck.deal(&mut run.dice);
        coverage.add(format!("{fault:?}"), 1);
        run.step(step, fault).await.with_context(|| format!("seed {seed}, step {step}: {fault:?}"))?;
    }
    let Run { cluster, started, cut_short, .. } = run;
    cluster.whole().await?;
    cluster.tell_all(&Order::Release)?;
    let (mut executions, mut ordinals) = (0, 0);
    for (id, plan) in &started {
        cluster.completed(id, plan).await.with_context(|| format!("seed {seed}"))?;
        executions += cluster.executions(id)?.len();
        ordinals += plan.ordinals() as usize;
    }
    let again = executions - ordinals;
    coverage.add("fan-outs", started.len() as u64);
    coverage.add("rows", ordinals as u64);
    coverage.add("executions cut short by a kill", cut_short as u64);
    coverage.add("executions more than rows", again as u64);
    println!("seed {seed}, {steps} steps: {coverage}");
    ensure!(again >= cut_short, "what a kill has ended was not run again; seed {seed}");
    cluster.finish().await.with_context(|| format!("seed {seed}"))?;
    let kinds = FAULTS.map(|fault| format!("{fault:?}"));
    let mut wanted = vec!["executions cut short by a kill"];
    // A short run may miss a kind by chance.
    if steps >= FAULTS.len() as u64 {
        wanted.extend(kinds.iter().map(String::as_str));
    }
    coverage.met(&wanted).map_err(|nothing| anyhow!("seed {seed}: {nothing}"))
}
