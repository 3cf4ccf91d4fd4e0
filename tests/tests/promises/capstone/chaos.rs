//! Nodes and workers are killed and paused, as a seed draws it, while engines run fan-outs with timers: whatever
//! happens, every fan-out completes, and did each thing once.
//!
//! `HOLDFAST_CHAOS_SEED` repeats a run, `HOLDFAST_CHAOS_STEPS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_machine::WorkflowId;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::dice::{Dice, seed_and_steps};
use holdfast_tests::engine::{HOLD, NAP, Order, QUEUE, WORKERS};
use holdfast_tests::process::Process;
use holdfast_tests::programs::{FanOut, Part};
use holdfast_tests::troupe::LEASE_SHORT;
use holdfast_tests::wait::{LONG, wait_until};

/// The run that everybody makes; other seeds are drawn by hand.
const SEED: u64 = 229;
/// Faults in a run of the suite.
const STEPS: u64 = 5;
/// Activities of each part of a wave.
const PART: u64 = 2;
/// Workers; each has room for all that a run of the suite can leave in its hands.
const WORKERS_COUNT: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
}

/// Waves of which the first is held until its step is over, and waves that run meanwhile.
fn plan(first: &str) -> FanOut {
    let wave = |activity| vec![Part::of(PART, activity, QUEUE), Part::of(PART, activity, WORKERS)];
    FanOut { waves: vec![wave(first), wave(NAP), wave(NAP)], pause_ms: 150 }
}

/// What a run has met.
#[derive(Debug, Default)]
struct Covered {
    nodes: u64,
    workers: u64,
    kills: u64,
    /// Executions that a kill has ended.
    cut_short: usize,
}

struct Run {
    cluster: Cluster,
    dice: Dice,
    started: Vec<(WorkflowId, FanOut)>,
    covered: Covered,
}

impl Run {
    /// Starts a fan-out, however often that has to be said.
    async fn fan_out(&mut self, name: String, first: &str) -> Result<WorkflowId> {
        let (id, plan) = (WorkflowId::new(name)?, plan(first));
        wait_until("a fan-out is started", LONG, async || self.cluster.fan_out(&id, &plan).await).await?;
        self.started.push((id.clone(), plan));
        Ok(id)
    }

    /// Whom it hits: every other time somebody who has rows of this workflow in hand.
    async fn victim(&mut self, id: &WorkflowId) -> Result<&Process> {
        let nodes = self.dice.roll(2) == 0;
        let (holder, other) = (self.dice.roll(2) == 0, self.dice.roll(3));
        self.covered.nodes += u64::from(nodes);
        self.covered.workers += u64::from(!nodes);
        let all = || self.cluster.puppets().enumerate().filter(|(place, _)| nodes == (*place < 3));
        if holder {
            let executions = self.cluster.executions(id)?;
            let holds = |process: &&Process| executions.iter().any(|execution| execution.by == process.label);
            return all().map(|(_, process)| process).find(holds).context("nobody holds a row");
        }
        all().map(|(_, process)| process).nth(other).context("there are three of each")
    }

    async fn step(&mut self, step: u64) -> Result<()> {
        self.cluster.hold_all().await?;
        let held = self.fan_out(format!("held-{step}"), HOLD).await?;
        self.fan_out(format!("free-{step}"), NAP).await?;
        self.cluster.begun(&held, 2 * PART as usize).await?;
        let fault = [Fault::Kill, Fault::Pause][self.dice.roll(2)];
        let lasts = Duration::from_millis([0, 300, 1_000, 2_500][self.dice.roll(4)]);
        let label = self.victim(&held).await?.label.clone();
        let victim = self.cluster.puppets().find(|puppet| puppet.label == label).context("a victim")?;
        println!("step {step}: {fault:?} of {label} for {lasts:?}");
        match fault {
            Fault::Kill => victim.kill()?,
            Fault::Pause => victim.pause()?,
        }
        if fault == Fault::Kill {
            self.covered.kills += 1;
            let executions = victim.executions()?;
            self.covered.cut_short += executions.iter().filter(|execution| execution.key.workflow == held).count();
        }
        tokio::time::sleep(lasts).await;
        match fault {
            Fault::Kill => victim.start()?,
            Fault::Pause => victim.go_on()?,
        }
        self.cluster.tell_all(&Order::Release)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fan_out_completes_once_whoever_is_killed_or_paused() -> Result<()> {
    let (seed, steps) = seed_and_steps(SEED, STEPS)?;
    let mut cluster = Setup::with_engines().alone().start().await?;
    for worker in 0..WORKERS_COUNT {
        cluster.add_worker(worker, 16, LEASE_SHORT)?;
    }
    let mut run = Run { cluster, dice: Dice::of(seed), started: Vec::new(), covered: Covered::default() };
    for step in 0..steps {
        run.step(step).await.with_context(|| format!("seed {seed}, step {step}"))?;
    }
    let Run { cluster, started, covered, .. } = run;
    cluster.whole().await?;
    cluster.tell_all(&Order::Release)?;
    let (mut executions, mut ordinals) = (0, 0);
    for (id, plan) in &started {
        cluster.completed(id, plan).await.with_context(|| format!("seed {seed}"))?;
        executions += cluster.executions(id)?.len();
        ordinals += plan.ordinals() as usize;
    }
    let again = executions - ordinals;
    println!("{} fan-outs with {ordinals} rows, {again} executions more than that: {covered:?}", started.len());
    ensure!(again >= covered.cut_short, "what a kill has ended was not run again; seed {seed}");
    ensure!(covered.cut_short > 0 && covered.nodes > 0 && covered.workers > 0, "it covered nothing; seed {seed}");
    cluster.finish().await.with_context(|| format!("seed {seed}"))
}
