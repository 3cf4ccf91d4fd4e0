//! Section 10: a node that was away catches up, also when the log it would need is gone; a node that stops in good
//! order hands over first.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{ReadMode, Write};
use holdfast_tests::cluster::Setup;
use holdfast_tests::load::Load;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, disk, work};

/// Patience with a node that should not answer.
const SHORT: Duration = Duration::from_secs(3);
/// More than one purge's worth of entries; see the setup of the story.
const ENTRIES: u64 = 2_600;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_for_long_gets_a_snapshot() -> Result<()> {
    let cluster =
        Setup::plain().set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 400).set("HOLDFAST_RAFT_LOGS_KEPT", 50).start().await?;
    let any = cluster.any()?;
    let id = work::id("long")?;
    work::open(&any, &id, 3, "work", "orders").await?;
    let away = cluster.follower().await?;
    cluster.nodes[away].kill()?;
    cluster.committed_as(false, away, cluster.leader().await?).await?;
    let left_at = cluster.view(cluster.leader().await?).await?.applied;

    // One entry each, until the leader has thrown away what the node would need.
    let leader = cluster.leader().await?;
    let client = cluster.client(leader);
    for head in 7..7 + ENTRIES {
        client.append(&id, head, vec![work::note(&head.to_string())], Write::default()).await?;
    }
    wait_until("the leader has purged what the node misses", LONG, async || {
        let purged = cluster.log_purged(leader).await?;
        ensure!(purged > left_at, "purged up to {purged}, away since {left_at}");
        Ok(())
    })
    .await?;

    // It comes back, gets a snapshot, and then has everything.
    cluster.nodes[away].start()?;
    cluster.whole().await?;
    check::state::same_on_all(&[cluster.client(0).clone(), cluster.client(1).clone(), cluster.client(2).clone()])
        .await?;
    let history = check::workflow(cluster.client(away), &id).await?;
    ensure!(history.len() as u64 == 6 + ENTRIES + 1, "{} events", history.len());
    ensure!(work::claim(cluster.client(away), "orders", 3, "a worker").await?.len() == 3, "rows");

    // It is a full member: with another one gone it makes a quorum, and after a restart it still knows all.
    cluster.nodes[away].kill()?;
    cluster.nodes[away].start()?;
    cluster.whole().await?;
    cluster.nodes[leader].kill()?;
    any.append(&id, 7 + ENTRIES, vec![work::note("with the one that was away")], Write::default()).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_good_order_hands_over_leadership_and_loses_no_call() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 3)?;
    for _ in 0..3 {
        let leader = cluster.leader().await?;
        let term = cluster.view(leader).await?.term;
        load.goes_on(21).await?;
        let status = cluster.nodes[leader].stop(LONG).await?;
        ensure!(status.success(), "{status}");
        let words = cluster.nodes[leader].log_text();
        ensure!(
            words.contains("leadership handed over"),
            "it did not hand over:\n{}",
            cluster.nodes[leader].last_words()
        );

        // One election, the handed-over one, made the new leader.
        let next = cluster.leader().await?;
        let now = cluster.view(next).await?.term;
        ensure!(next != leader && now == term + 1, "term {term} became {now} under {next}");
        cluster.nodes[leader].start()?;
        cluster.whole().await?;
    }
    let report = load.stop(&cluster.any()?).await?.report;
    println!("three stops in good order: {report:?}");
    ensure!(report.unknown_found + report.unknown_absent == 0, "calls were cut off: {report:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_is_refused_under_its_old_name() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&any, &id, 0, "work", "default").await?;
    let wiped = cluster.follower().await?;
    let node = &cluster.nodes[wiped];
    node.kill()?;
    let aside = tempfile::tempdir()?;
    fs::rename(node.data(), aside.path().join("data"))?;

    // It comes back empty: its peers do not talk to it, and its log says why and what to do.
    let said = node.log_text().len();
    node.start()?;
    wait_until("the wiped node says why it is refused", LONG, async || {
        let log = node.log_text().split_off(said);
        ensure!(log.contains("lost its disk") && log.contains("re-join"), "no word of it yet");
        Ok(())
    })
    .await?;
    any.append(&id, 1, vec![work::note("without it")], Write::default()).await?;
    let empty = cluster.impatient(wiped, SHORT)?.history(&id, 1, 10, ReadMode::Stale).await;
    ensure!(empty.map_or(true, |answer| answer.value.is_empty()), "it was given data");

    // It does not count for a quorum: what it forgot it may have voted for.
    let leader = cluster.leader_as_known_by((wiped + 1) % 3).await?;
    let other = 3 - wiped - leader;
    cluster.nodes[other].kill()?;
    let alone = cluster.impatient(leader, SHORT)?;
    let refused = alone.append(&id, 2, vec![work::note("with it")], Write::default()).await;
    ensure!(work::refusal(refused)?.is_retryable(), "the wiped node was counted");

    // With its disk back it is the node that it was.
    node.kill()?;
    node.wipe()?;
    fs::rename(aside.path().join("data"), node.data())?;
    cluster.finish().await
}

/// So small a log that a new member needs a snapshot.
fn with_a_short_log() -> Setup {
    Setup::plain().set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 400).set("HOLDFAST_RAFT_LOGS_KEPT", 50)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_is_replaced_by_one_command_under_load() -> Result<()> {
    let cluster = with_a_short_log().start().await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 3)?;
    load.goes_on(51).await?;
    let wiped = cluster.follower().await?;
    let leader = cluster.leader().await?;
    let other = 3 - wiped - leader;
    let name = &cluster.nodes[wiped].name;
    let (code, said) = cluster.member_replace(wiped, other, &[]).await?;
    ensure!(code == Some(1) && said["outcome"] == "refused", "it is alive: {code:?} {said}");

    cluster.nodes[wiped].kill()?;
    cluster.nodes[wiped].wipe()?;
    let (code, said) = cluster.member_replace(wiped, other, &[]).await?;
    ensure!(code == Some(1), "nothing waits under its name: {said}");
    cluster.nodes[wiped].start()?;
    wait_until("the leader knows that it waits", LONG, async || {
        let (code, said) = cluster.member_replace(wiped, other, &["--dry-run"]).await?;
        ensure!(code == Some(0) && said["outcome"] == "possible", "{code:?} {said}");
        ensure!(said["replacement"]["old_id"] == wiped as u64 + 1 && said["replacement"]["new_id"] == 4, "{said}");
        Ok(())
    })
    .await?;
    let ready = cluster.http().get(format!("{}/readyz", cluster.nodes[wiped].url)).send().await?;
    ensure!(ready.status() == 503, "a node that is no member takes traffic");
    let outside = cluster.view(wiped).await?.outside.context("it says that it takes no part")?;
    ensure!(outside.contains("holdfast member replace"), "{outside}");
    let waiting = cluster.view(other).await?.replacements;
    ensure!(waiting.len() == 1 && waiting[0].name == *name, "{waiting:?}");

    let (code, said) = cluster.member_replace(wiped, other, &[]).await?;
    ensure!(code == Some(0) && said["outcome"] == "replaced", "{code:?} {said}");
    load.goes_on(51).await?;
    cluster.whole().await?;
    let members = cluster.view(other).await?.members;
    let member = members.iter().find(|member| member.member.name == *name).context("it is a member")?;
    ensure!(member.member.id == 4, "{member:?}");

    // It is a full member: after a restart, and with the old leader gone, it makes the majority.
    cluster.nodes[wiped].kill()?;
    cluster.nodes[wiped].start()?;
    cluster.whole().await?;
    cluster.nodes[leader].kill()?;
    load.goes_on(51).await?;
    cluster.nodes[leader].start()?;
    cluster.whole().await?;
    println!("replaced under load: {:?}", load.stop(&cluster.any()?).await?.report);
    println!("on the disks: {:?}", cluster.finish_on_disk().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_auto_replace_a_leader_that_lost_its_disk_comes_back_by_itself() -> Result<()> {
    let cluster = with_a_short_log().set("HOLDFAST_AUTO_REPLACE", true).start().await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 3)?;
    for id in [4, 5] {
        load.goes_on(51).await?;
        let wiped = cluster.leader().await?;
        cluster.nodes[wiped].kill()?;
        cluster.nodes[wiped].wipe()?;
        cluster.nodes[wiped].start()?;
        let asked = (wiped + 1) % 3;
        wait_until("it is a member under another id", LONG, async || {
            let view = cluster.view(asked).await?;
            ensure!(view.replacements.is_empty(), "{:?}", view.replacements);
            ensure!(view.members.iter().any(|member| member.member.id == id), "{:?}", view.members);
            Ok(())
        })
        .await?;
        cluster.whole().await?;
    }
    load.goes_on(51).await?;
    println!("two leaders replaced under load: {:?}", load.stop(&cluster.any()?).await?.report);
    println!("on the disks: {:?}", cluster.finish_on_disk().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_damaged_data_is_rebuilt_from_its_peers_under_load() -> Result<()> {
    let cluster = with_a_short_log().start().await?;
    let urls: Vec<&str> = cluster.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 3)?;
    load.goes_on(51).await?;
    let damaged = cluster.follower().await?;
    let node = &cluster.nodes[damaged];
    ensure!(node.stop(LONG).await?.success(), "a stop in good order");
    let (file, place) = disk::middle_of_the_log(&node.data())?;
    disk::flip(&file, place)?;

    // It refuses to start, and says what to do.
    let said = node.log_text().len();
    node.start()?;
    let status = node.ended(LONG).await?;
    ensure!(!status.success(), "it serves damaged data");
    let words = node.log_text().split_off(said);
    for wanted in ["damaged at byte", "directory aside", "`holdfast member replace"] {
        ensure!(words.contains(wanted), "no word of {wanted:?} in:\n{words}");
    }

    // Just that is done.
    let aside = tempfile::tempdir()?;
    fs::rename(node.data(), aside.path().join("data"))?;
    node.start()?;
    wait_until("it can be replaced", LONG, async || {
        let (code, said) = cluster.member_replace(damaged, (damaged + 1) % 3, &["--dry-run"]).await?;
        ensure!(code == Some(0), "{said}");
        Ok(())
    })
    .await?;
    let (code, said) = cluster.member_replace(damaged, (damaged + 1) % 3, &[]).await?;
    ensure!(code == Some(0) && said["outcome"] == "replaced", "{code:?} {said}");
    load.goes_on(51).await?;
    cluster.whole().await?;
    println!("rebuilt under load: {:?}", load.stop(&cluster.any()?).await?.report);

    // The damaged directory is of no use any more, and cannot do harm.
    node.kill()?;
    fs::rename(node.data(), aside.path().join("new"))?;
    fs::rename(aside.path().join("data"), node.data())?;
    disk::flip(&file, place)?;
    let said = node.log_text().len();
    node.start()?;
    wait_until("it hears that it was replaced", LONG, async || {
        let ready = cluster.http().get(format!("{}/readyz", node.url)).send().await?;
        ensure!(ready.status() == 503, "a node that was replaced takes traffic");
        let ready = ready.text().await?;
        let outside = cluster.view(damaged).await?.outside.context("it takes itself for a member")?;
        for said in [&ready, &outside] {
            ensure!(said.contains("was replaced") && said.contains("move it aside"), "no word of it yet: {said}");
        }
        Ok(())
    })
    .await?;
    let errors =
        node.log_text().split_off(said).lines().filter(|line| line.contains("has an old data directory")).count();
    ensure!(errors == 1, "it says so {errors} times");
    wait_until("the others say what is there", LONG, async || {
        let members = cluster.view((damaged + 1) % 3).await?.members;
        let member = members.iter().find(|member| member.member.name == node.name).context("it is a member")?;
        let problem = member.link_problem.clone().context("no problem")?;
        ensure!(problem.contains("runs on an old data directory"), "{problem}");
        Ok(())
    })
    .await?;
    node.kill()?;
    node.wipe()?;
    fs::rename(aside.path().join("new"), node.data())?;
    let looked = cluster.finish_on_disk().await?;
    println!("on the disks: {looked:?}");
    ensure!(looked.states_compared > 0, "no two states were compared: {looked:?}");
    Ok(())
}
