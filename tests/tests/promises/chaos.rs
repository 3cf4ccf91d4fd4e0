//! Faults drawn from a seed, under load, in safety and then in liveness: whatever happens, nothing acknowledged is
//! lost; and when the faults are gone, everything is finished.
//!
//! `HOLDFAST_CHAOS_SEED` repeats a run, `HOLDFAST_CHAOS_STEPS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::dice::{Dice, seed_and_steps};
use holdfast_tests::links::Flow;
use holdfast_tests::load::{self, Load};
use holdfast_tests::wait::{LONG, wait_until};

/// The run that everybody makes; other seeds are drawn by hand.
const SEED: u64 = 2;
/// Faults in a run of the suite.
const STEPS: u64 = 12;
/// Acknowledged writes that each step waits for, so that the faults meet work.
const WRITES_A_STEP: u64 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    KillAll,
    Pause,
    Cut(Flow),
    Deaf,
    Mute,
    Blip,
}

const FAULTS: [Fault; 8] = [
    Fault::Kill,
    Fault::KillAll,
    Fault::Pause,
    Fault::Cut(Flow::Closed),
    Fault::Cut(Flow::Silent),
    Fault::Deaf,
    Fault::Mute,
    Fault::Blip,
];

/// Does the damage, lets it last, and mends it.
async fn strike(cluster: &Cluster, fault: Fault, node: usize, lasts: Duration) -> Result<()> {
    let (victim, links) = (&cluster.nodes[node], cluster.links()?);
    let others = || (1..=3).filter(|id| *id != victim.id);
    match fault {
        Fault::Kill => victim.kill()?,
        Fault::KillAll => cluster.nodes.iter().try_for_each(|node| node.kill())?,
        Fault::Pause => victim.pause()?,
        Fault::Cut(flow) => links.set_around(victim.id, flow),
        Fault::Deaf => others().for_each(|other| links.set(other, victim.id, Flow::Silent)),
        Fault::Mute => others().for_each(|other| links.set(victim.id, other, Flow::Silent)),
        Fault::Blip => others().for_each(|other| links.break_once(victim.id, other)),
    }
    tokio::time::sleep(lasts).await;
    match fault {
        Fault::Kill => victim.start(),
        Fault::KillAll => cluster.nodes.iter().try_for_each(|node| node.start()),
        Fault::Pause => victim.go_on(),
        Fault::Cut(_) | Fault::Deaf | Fault::Mute | Fault::Blip => {
            links.mend();
            Ok(())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_everything_ends_whatever_happens() -> Result<()> {
    let (seed, steps) = seed_and_steps(SEED, STEPS)?;
    let mut dice = Dice::of(seed);
    let cluster = Setup::plain()
        .with_links()
        .alone()
        .set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 200)
        .set("HOLDFAST_RAFT_LOGS_KEPT", 50)
        .start()
        .await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 4)?;
    let (mut caught, mut on_leader) = (0, 0);
    for step in 0..steps {
        let before = load.written();
        wait_until("the load goes on", LONG, async || {
            let written = load.written() - before;
            ensure!(written >= WRITES_A_STEP, "seed {seed}, step {step}: {written} writes since the last fault");
            Ok(())
        })
        .await?;
        let fault = FAULTS[dice.roll(FAULTS.len())];
        let leader = cluster.leader_as_known_by(dice.roll(3)).await?;
        // Leaders are where it hurts: every other time it is one.
        let node = if dice.roll(2) == 0 { leader } else { dice.roll(3) };
        let lasts = Duration::from_millis([0, 100, 400, 1_000, 2_500][dice.roll(5)]);
        println!(
            "step {step}: {fault:?} of {} for {lasts:?}, {} leads",
            cluster.nodes[node].name, cluster.nodes[leader].name
        );
        caught += load.under_way();
        on_leader += u32::from(node == leader || fault == Fault::KillAll);
        strike(&cluster, fault, node, lasts).await?;
    }
    ensure!(caught > 0 && (on_leader > 0 || steps < 8), "this run covered nothing; seed {seed}");
    cluster.whole().await?;
    let ledger = load.stop().await?;
    let client = cluster.any()?;
    let tally = ledger.check(&client).await.with_context(|| format!("seed {seed}"))?;
    println!("{steps} faults, {on_leader} on a leader, {caught} writes caught under way: {tally:?}");
    load::drain(&client, &ledger).await.with_context(|| format!("seed {seed}"))?;
    cluster.finish().await.with_context(|| format!("seed {seed}"))
}
