//! Containers are killed, paused, cut off from their network, restarted and taken away with their volumes, as a seed deals
//! it out, under load whose calls are taken down: no answer contradicts another or what is there at the end, and everything
//! ends.
//!
//! `HOLDFAST_CHAOS_SEED` repeats a run, `HOLDFAST_CHAOS_STEPS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use holdfast_checkers::coverage::Coverage;
use holdfast_client::Client;
use holdfast_tests::dice::{Deck, Dice, seed_and_steps};
use holdfast_tests::load::{self, Load};
use holdfast_tests::wait::{LONG, wait_until};

use super::audit;
use super::containers::{Containers, NODES};

/// The run that everybody makes; other seeds are drawn by hand.
const SEED: u64 = 5;
/// Faults in a run of the suite: each kind, and one twice.
const STEPS: u64 = 7;
/// Acknowledged writes that each step waits for, so that the faults meet work.
const WRITES_A_STEP: u64 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    KillAll,
    Pause,
    /// Out of the network of the peers, which is also the way to its published port.
    Disconnect,
    /// It gets the time to end by itself.
    Restart,
    /// The container and its volume are gone. Another comes under its name, and is let in by an operator.
    Wipe,
}

const FAULTS: [Fault; 6] = [Fault::Kill, Fault::KillAll, Fault::Pause, Fault::Disconnect, Fault::Restart, Fault::Wipe];

/// Does the damage, lets it last, and mends it.
async fn strike(containers: &Containers, fault: Fault, node: &str, lasts: Duration) -> Result<()> {
    match fault {
        Fault::Kill => containers.kill(&[node])?,
        Fault::KillAll => containers.kill(&NODES)?,
        Fault::Pause => containers.pause(node)?,
        Fault::Disconnect => containers.disconnect(node)?,
        Fault::Restart => containers.restart(node)?,
        Fault::Wipe => containers.wipe(node)?,
    }
    tokio::time::sleep(lasts).await;
    match fault {
        Fault::Kill => containers.start(&[node]),
        Fault::KillAll => containers.start(&NODES),
        Fault::Pause => containers.go_on(node),
        Fault::Disconnect => containers.connect(node),
        Fault::Restart => Ok(()),
        Fault::Wipe => come_back_replaced(containers, node).await,
    }
}

/// A node without data is started and replaced by the command, given in the container of another; then it takes traffic.
async fn come_back_replaced(containers: &Containers, node: &str) -> Result<()> {
    containers.make_again(node)?;
    let asked = NODES.into_iter().find(|other| *other != node).context("there are three")?;
    let command = ["member", "replace", node, "--url", "http://127.0.0.1:7600"];
    let said = wait_until("a node that lost its volume is replaced", LONG, async || {
        tokio::task::block_in_place(|| containers.holdfast(asked, &command))
    })
    .await?;
    ensure!(said.contains("is a member with all data again"), "{said}");
    containers.await_healthy(node)
}

/// Breaks these containers, and judges what their clients were told.
pub async fn tell(containers: &Containers) -> Result<()> {
    let (seed, steps) = seed_and_steps(SEED, STEPS)?;
    let (mut dice, mut deck) = (Dice::of(seed), Deck::of(&FAULTS));
    let urls: Vec<String> = NODES.iter().map(|node| containers.url(node)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let client = Client::new(&urls)?;
    let nodes: Vec<Client> = urls.iter().map(|url| Client::new([url])).collect::<Result<_, _>>()?;
    for node in NODES {
        containers.await_healthy(node)?;
    }
    let load = Load::start(&urls, 3)?;
    let mut coverage = Coverage::default();
    for step in 0..steps {
        load.goes_on(WRITES_A_STEP).await.with_context(|| format!("seed {seed}, step {step}"))?;
        let fault = deck.deal(&mut dice);
        let leader = wait_until("there is a leader", LONG, async || {
            client.cluster().await?.value.leader.context("nobody leads")
        })
        .await?;
        let node = if dice.roll(2) == 0 { leader.as_str() } else { NODES[dice.roll(3)] };
        let lasts = Duration::from_millis([0, 300, 1_000, 3_000][dice.roll(4)]);
        println!("step {step}: {fault:?} of {node} for {lasts:?}, {leader} leads");
        let under_way = load.under_way();
        coverage.add(format!("{fault:?}"), 1);
        coverage.add("writes under way at a fault", under_way);
        let hits_leader = node == leader.as_str() || fault == Fault::KillAll;
        coverage.add("faults of a leader in the middle of a write", u64::from(hits_leader && under_way > 0));
        let struck = strike(containers, fault, node, lasts).await;
        struck.with_context(|| format!("seed {seed}, step {step}"))?;
    }
    for node in NODES {
        containers.await_healthy(node)?;
    }
    let repeat = || format!("seed {seed}, {steps} steps; so far: {coverage}");
    let judged = load.stop(&client).await.with_context(repeat)?;
    load::drain(&client, &judged.workflows).await.with_context(repeat)?;
    // Each by its own published port, also the one that was out of the network.
    audit::states_are_equal(&nodes).await.with_context(repeat)?;
    coverage.add_calls(&judged.calls);
    coverage.add("events traced to a call", judged.report.events as u64);
    coverage.add("histories and rows with an order", judged.ordered.0 as u64);
    println!("seed {seed}, {steps} steps: {coverage}");
    let kinds = FAULTS.map(|fault| format!("{fault:?}"));
    let mut wanted = vec!["writes under way at a fault", "calls ok"];
    if steps >= FAULTS.len() as u64 {
        wanted.push("faults of a leader in the middle of a write");
        wanted.extend(kinds.iter().map(String::as_str));
    }
    coverage.met(&wanted).map_err(|nothing| anyhow!("seed {seed}: {nothing}"))
}
