//! Section 3: how a death becomes known, and what is no death. Case 9.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use holdfast_client::{Client, EventId, EventMessage, ReadMode, Write};
use holdfast_machine::{ClusterEvent, Evidence, Liveness};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::links::Flow;
use holdfast_tests::wait::{LONG, SOON, wait_until};
use holdfast_tests::{check, work};

/// The first committed event that `wanted` is about, with its number.
async fn first_event(client: &Client, wanted: impl Fn(&ClusterEvent) -> bool) -> Result<(EventId, ClusterEvent)> {
    let mut events = client.events(Some(EventId { index: 0, position: 0 }));
    let found = async {
        while let Some(message) = events.next().await {
            match message {
                Ok(EventMessage::Event { id: Some(id), event }) if wanted(&event) => return Ok((id, event)),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => bail!(error),
            }
        }
        bail!("the stream has ended")
    };
    tokio::time::timeout(LONG, found).await.context("the event never came")?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_down_is_a_committed_membership_entry_with_the_voters_unchanged() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let dead = cluster.follower().await?;
    cluster.nodes[dead].kill()?;

    // The same event under the same number on both survivors: it is an entry of the log.
    let name = cluster.nodes[dead].name.clone();
    let is_down = |event: &ClusterEvent| matches!(event, ClusterEvent::PeerDown { node, .. } if *node == name);
    let mut seen = Vec::new();
    for survivor in cluster.running() {
        seen.push(first_event(cluster.client(survivor), is_down).await?);
    }
    ensure!(seen[0] == seen[1], "the survivors tell different stories: {seen:?}");
    let ClusterEvent::PeerDown { evidence, .. } = &seen[0].1 else { bail!("{seen:?}") };
    ensure!(*evidence == Evidence::LinkClosed, "a killed process is seen by its closed connection: {evidence:?}");

    // The members are as they were, but for that one's life; see also the quorum's stories.
    for survivor in cluster.running() {
        let members = cluster.view(survivor).await?.members;
        ensure!(members.len() == 3, "{members:?}");
        let down = members.iter().filter(|member| matches!(member.member.liveness, Liveness::Down { .. }));
        ensure!(down.map(|member| &member.member.name).eq([&name]), "{members:?}");
    }

    // It comes back and is committed as up; it truly dies again and is committed as down again.
    for _ in 0..2 {
        cluster.nodes[dead].start()?;
        cluster.committed_as(true, dead, cluster.leader().await?).await?;
        cluster.whole().await?;
        cluster.nodes[dead].kill()?;
        cluster.committed_as(false, dead, cluster.leader().await?).await?;
        cluster.all_shards_owned().await?;
    }
    cluster.finish().await
}

/// Everything that a false alarm would change.
async fn standing(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut standing = BTreeMap::new();
    for node in cluster.running() {
        let view = cluster.view(node).await?;
        for member in view.members {
            let what = format!("{:?} since {}", member.member.liveness, member.since);
            standing.insert(format!("{} on {}", member.member.name, view.node), what);
        }
        standing.insert(format!("term on {}", view.node), view.term.to_string());
        standing.insert(format!("directory on {}", view.node), format!("{:?}", cluster.directory(node).await?));
    }
    Ok(standing)
}

async fn connected(cluster: &Cluster, one: usize, other: usize) -> Result<()> {
    wait_until("both ends are connected again", SOON, async || {
        for (node, peer) in [(one, other), (other, one)] {
            let name = &cluster.nodes[peer].name;
            let members = cluster.view(node).await?.members;
            let peer = members.iter().find(|member| member.member.name == *name).context("no such member")?;
            ensure!(peer.connected == Some(true), "{} has no connection to {name}", cluster.nodes[node].name);
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blip_is_not_a_death() -> Result<()> {
    // Looks are far apart, so that every blip is over before the next one, however busy the machine is.
    let cluster = Setup::plain()
        .with_links()
        .set("HOLDFAST_DETECTOR_POLL_INTERVAL_MS", 1_000)
        .set("HOLDFAST_DETECTOR_SILENCE_MS", 3_000)
        .set("HOLDFAST_RAFT_ELECTION_MIN_MS", 1_000)
        .set("HOLDFAST_RAFT_ELECTION_MAX_MS", 2_000)
        .start()
        .await?;
    let leader = cluster.leader().await?;
    let peer = cluster.follower().await?;
    let before = standing(&cluster).await?;
    for _ in 0..100 {
        cluster.links()?.break_once(leader, peer);
        connected(&cluster, leader, peer).await?;
    }
    let after = standing(&cluster).await?;
    ensure!(before == after, "a hundred blips changed {before:#?}\ninto {after:#?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_link_is_found_by_its_missing_heartbeats_and_mended_by_nobody_else() -> Result<()> {
    let cluster = Setup::plain().with_links().start().await?;
    let leader = cluster.leader().await?;
    let cut = cluster.follower().await?;

    // Nothing arrives at the follower any more, while what it says still would.
    cluster.links()?.set_into(cut, Flow::Silent);
    cluster.committed_as(false, cut, leader).await?;
    let members = cluster.view(leader).await?.members;
    let found = members.iter().find(|member| member.member.name == cluster.nodes[cut].name).context("the member")?;
    let silent = Liveness::Down { evidence: Evidence::Silent };
    ensure!(found.member.liveness == silent, "{:?}", found.member.liveness);

    // A cut-off node disturbs nobody: the leader leads on in its term when the link is mended.
    let term = cluster.view(leader).await?.term;
    let id = work::id("order-1")?;
    work::open(cluster.client(leader), &id, 0, "work", "default").await?;
    cluster.links()?.mend();
    cluster.committed_as(true, cut, leader).await?;
    let view = cluster.view(leader).await?;
    let name = &cluster.nodes[leader].name;
    ensure!(view.leader.as_ref() == Some(name) && view.term == term, "{name} was disturbed: {view:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_cut_off_from_its_followers_is_succeeded_and_steps_back() -> Result<()> {
    let cluster = Setup::plain().with_links().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 0, "work", "default").await?;
    for (head, flow) in [(1, Flow::Closed), (2, Flow::Silent)] {
        let cut = cluster.leader().await?;
        let others: Vec<usize> = cluster.running().into_iter().filter(|node| *node != cut).collect();
        cluster.links()?.set_around(cut, flow);
        wait_until("the others follow one of themselves", LONG, async || {
            for node in &others {
                let leader = cluster.view(*node).await?.leader.context("no leader yet")?;
                ensure!(others.contains(&cluster.place(&leader)?), "they still follow {leader}");
            }
            Ok(())
        })
        .await?;

        // The majority writes and moves on; the cut-off node acknowledges nothing and shows nothing as fresh.
        let note = |text: &str| vec![work::note(text)];
        cluster.client(others[0]).append(&id, head, note("by the majority"), Write::default()).await?;
        let lone = cluster.impatient(cut, Duration::from_secs(3))?;
        let refused = work::refusal(lone.append(&id, head, note("by the old leader"), Write::default()).await)?;
        ensure!(refused.is_retryable(), "{refused:?}");
        let refused = work::refusal(lone.history(&id, 1, 10, ReadMode::Linearizable).await)?;
        ensure!(refused.is_retryable(), "{refused:?}");
        cluster.committed_as(false, cut, others[1]).await?;

        cluster.links()?.mend();
        cluster.committed_as(true, cut, others[1]).await?;
        cluster.whole().await?;
    }
    let history = check::workflow(&cluster.any()?, &id).await?;
    ensure!(history.len() == 3, "{history:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_owns_nothing_is_watched_but_its_death_moves_nothing() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let idle = cluster.follower().await?;
    let heir = (idle + 1) % 3;
    for (shard, entry) in cluster.directory(idle).await? {
        if entry.owner == cluster.nodes[idle].name {
            let to = &cluster.nodes[heir].name;
            cluster.client(heir).transfer(shard, to, entry.epoch, Write::default()).await?;
        }
    }
    // The heir has applied the transfers before it is asked what it knows.
    cluster.client(heir).shards(ReadMode::Linearizable).await?;
    let before = cluster.directory(heir).await?;
    cluster.nodes[idle].kill()?;
    cluster.committed_as(false, idle, heir).await?;
    // The very next thing that happens anywhere is not an adoption.
    let id = work::id("order-1")?;
    work::open(cluster.client(heir), &id, 0, "work", "default").await?;
    ensure!(cluster.directory(heir).await? == before, "a shard moved");
    cluster.finish().await
}
