//! Section 10: kill -9 of anything at any time loses nothing that was acknowledged; damage is noticed and never
//! served. Cases 19 and 24.

use anyhow::{Context, Result, ensure};
use holdfast_client::Write;
use holdfast_tests::cluster::Setup;
use holdfast_tests::load::{self, Load};
use holdfast_tests::wait::LONG;
use holdfast_tests::{check, disk, work};

/// Acknowledged writes between two kills.
const WRITES_BETWEEN_KILLS: u64 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_all_nodes_are_killed_ten_times() -> Result<()> {
    let cluster = Setup::plain().alone().set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 300).start().await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 4)?;
    let mut caught = 0;
    for round in 0..10 {
        load.goes_on(WRITES_BETWEEN_KILLS).await?;
        // In another order each time, so that each node is sometimes the first and sometimes the last.
        let order = [round, round + 1, round + 2].map(|node| node % 3);
        caught += load.under_way();
        order.iter().try_for_each(|node| cluster.nodes[*node].kill())?;
        order.iter().rev().try_for_each(|node| cluster.nodes[*node].start())?;
    }
    cluster.whole().await?;
    let client = cluster.any()?;
    let written = load.written();
    let judged = load.stop(&client).await?;
    println!("ten kills of all three, {caught} writes caught under way: {:?}, {:?}", judged.report, judged.ordered);
    ensure!(caught > 0, "no write was under way at any kill, so nothing was tried");
    ensure!(written >= 10 * WRITES_BETWEEN_KILLS && judged.report.events as u64 >= written, "{:?}", judged.report);

    // The rest of the rows is done, and then each has one outcome.
    load::drain(&client, &judged.workflows).await?;
    let looked = cluster.finish_on_disk().await?;
    println!("on the disks: {looked:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_the_log_stops_the_node_with_a_sentence_and_the_others_go_on() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&any, &id, 0, "work", "default").await?;
    for head in 1..=50 {
        any.append(&id, head, vec![work::note(&format!("note {head}"))], Write::default()).await?;
    }
    let damaged = cluster.follower().await?;
    let node = &cluster.nodes[damaged];
    ensure!(node.stop(LONG).await?.success(), "a stop in good order");

    let (file, place) = disk::middle_of_the_log(&node.data())?;
    disk::flip(&file, place)?;
    let before = disk::picture(&node.data())?;

    // It refuses to start, and says which file, what is wrong, and what to do.
    let words_before = node.log_text().len();
    node.start()?;
    let status = node.ended(LONG).await?;
    let words = node.log_text().split_off(words_before);
    ensure!(status.code().is_some_and(|code| code != 0), "{status}");
    let name = file.file_name().and_then(|name| name.to_str()).context("a name")?;
    for wanted in [name, "damage", "peers"] {
        ensure!(words.contains(wanted), "no word of {wanted:?} in:\n{words}");
    }
    ensure!(disk::picture(&node.data())? == before, "the damaged disk was written to");

    // The others go on; the node is still in the quorum's count, and the rest is whole.
    any.append(&id, 51, vec![work::note("without it")], Write::default()).await?;
    let history = check::workflow(&any, &id).await?;
    ensure!(history.len() == 52, "{} events", history.len());

    // With the byte back, it is the node that it was.
    disk::flip(&file, place)?;
    cluster.finish().await
}
