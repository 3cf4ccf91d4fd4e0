//! Faults drawn from a seed, under load, in safety and then in liveness: whatever happens, no answer contradicts another
//! or what is there at the end; and when the faults are gone, everything is finished. A run says what it covered, and is
//! rejected if that is nothing.
//!
//! `HOLDFAST_CHAOS_SEED` repeats a run, `HOLDFAST_CHAOS_STEPS` makes it longer.

mod faults;

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use holdfast_checkers::coverage::Coverage;
use holdfast_tests::check;
use holdfast_tests::check::events::Subscriber;
use holdfast_tests::check::lookout::Lookout;
use holdfast_tests::cluster::Setup;
use holdfast_tests::dice::{Dice, seed_and_steps};
use holdfast_tests::load::{self, Load};
use holdfast_tests::small_disk::can_mount;
use holdfast_tests::wall_clock::WallClock;

use faults::{Breaker, DISK, Fault, LOGS_KEPT, SNAPSHOT_AFTER};

/// The run that everybody makes; other seeds are drawn by hand.
const SEED: u64 = 2;
/// Faults in a run of the suite: one of each kind.
const STEPS: u64 = 18;
/// Acknowledged writes that each step waits for, so that the faults meet work.
const WRITES_A_STEP: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_everything_ends_whatever_happens() -> Result<()> {
    let (seed, steps) = seed_and_steps(SEED, STEPS)?;
    let mut dice = Dice::of(seed);
    let mut setup = Setup::plain()
        .with_links()
        .alone()
        .set("HOLDFAST_RAFT_SNAPSHOT_AFTER", SNAPSHOT_AFTER)
        .set("HOLDFAST_RAFT_LOGS_KEPT", LOGS_KEPT);
    if can_mount()? {
        setup = setup.on_small_disks(DISK);
    } else {
        println!("no file system can be mounted here: no disk fills up");
    }
    if WallClock::can_step() {
        setup = setup.with_clocks();
    } else {
        println!("libfaketime is not installed: no clock is stepped");
    }
    let cluster = setup.start().await?;
    let mut deck = faults::deck(&cluster);
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let subscribers = (0..2).map(|first| {
        let mut urls = urls.clone();
        urls.rotate_left(first);
        Subscriber::start(&urls)
    });
    let subscribers: Vec<Subscriber> = subscribers.collect::<Result<_>>()?;
    let lookout = Lookout::start(&cluster)?;
    let load = Load::start(&urls, 4)?;
    let mut coverage = Coverage::default();
    for step in 0..steps {
        load.goes_on(WRITES_A_STEP).await.with_context(|| format!("seed {seed}, step {step}"))?;
        let fault = deck.deal(&mut dice);
        let leader = cluster.leader_as_known_by(dice.roll(3)).await?;
        // Leaders are where it hurts: every other time it is one.
        let node = if dice.roll(2) == 0 { leader } else { dice.roll(3) };
        let lasts = Duration::from_millis([0, 100, 400, 1_000, 2_500][dice.roll(5)]);
        println!(
            "step {step}: {fault:?} of {} for {lasts:?}, {} leads",
            cluster.nodes[node].name, cluster.nodes[leader].name
        );
        let under_way = load.under_way();
        coverage.add(format!("{fault:?}"), 1);
        coverage.add("writes under way at a fault", under_way);
        let hits_leader = node == leader || fault == Fault::KillAll;
        coverage.add("faults of a leader in the middle of a write", u64::from(hits_leader && under_way > 0));
        let struck = Breaker { cluster: &cluster }.strike(fault, node, lasts).await;
        struck.with_context(|| format!("seed {seed}, step {step}: {fault:?}"))?;
    }
    cluster.whole().await?;
    let client = cluster.any()?;
    coverage.add("seconds that the log is ahead", faults::set_right(&cluster, &client).await?);
    let repeat = || format!("seed {seed}, {steps} steps; so far: {coverage}");
    let judged = load.stop(&client).await.with_context(repeat)?;
    load::drain(&client, &judged.workflows).await.with_context(repeat)?;
    let seen = lookout.stop().await.with_context(repeat)?;
    coverage.add("elections", seen.watch.leaders.elections() as u64);
    coverage.add("changes of an owner", seen.owners.changes() as u64);
    coverage.add("states compared while running", seen.watch.states.compared());
    coverage.add("adoptions", subscribers.iter().map(Subscriber::adoptions).max().unwrap_or_default());
    let (events, lagged) = check::events::all_had_the_same(&client, subscribers).await?;
    coverage.add("events had by subscribers", events as u64);
    coverage.add("times that one fell behind", lagged);
    coverage.add_calls(&judged.calls);
    coverage.add("events traced to a call", judged.report.events as u64);
    coverage.add("histories and rows with an order", judged.ordered.0 as u64);
    let said = |what| cluster.nodes.iter().map(|node| node.log_text().matches(what).count() as u64).sum::<u64>();
    let (begun, installed) = (said("a snapshot comes"), said("a snapshot was installed"));
    coverage.add("snapshots installed", installed);
    coverage.add("snapshots broken off", begun.saturating_sub(installed));
    let looked = cluster.finish_on_disk().await?;
    coverage.add("states compared on disk", looked.states_compared);
    coverage.add("entries compared on disk", looked.entries);
    println!("seed {seed}, {steps} steps: {coverage}");
    let kinds: Vec<String> = deck.kinds().iter().map(|fault| format!("{fault:?}")).collect();
    let mut wanted = vec!["writes under way at a fault", "calls ok"];
    // A short run may miss a leader by chance.
    if steps >= kinds.len() as u64 {
        wanted.extend(["faults of a leader in the middle of a write", "adoptions", "elections", "snapshots installed"]);
        wanted.extend(kinds.iter().map(String::as_str));
    }
    coverage.met(&wanted).map_err(|nothing| anyhow!("seed {seed}: {nothing}"))
}
