//! Section 10: acknowledged means written by a quorum. Section 3: without one, nothing happens at all.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_client::{ReadMode, Write};
use holdfast_machine::IdempotencyKey;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::wait::holds_for;
use holdfast_tests::{check, work};

/// Time for a lone node to do something that it must not do: many times what a detector, an election and
/// an adoption need.
const TEMPTATION: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_acknowledged_only_with_a_quorum() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    let any = cluster.any()?;

    // All three: written.
    work::open(&any, &id, 0, "work", "default").await?;

    // Two of three: written.
    let leader = cluster.leader().await?;
    let others: Vec<usize> = cluster.running().into_iter().filter(|node| *node != leader).collect();
    cluster.nodes[others[0]].kill()?;
    any.append(&id, 1, vec![work::note("two of three")], Write::default()).await?;

    // One of three: neither written nor read, in either order of events.
    cluster.nodes[others[1]].kill()?;
    let alone = cluster.impatient(leader, Duration::from_secs(3))?;
    let key = Write::keyed(IdempotencyKey::new("the write that waits")?);
    let append = || alone.append(&id, 2, vec![work::note("one of three")], key.clone());
    let refused = work::refusal(append().await)?;
    ensure!(matches!(refused.code(), "no_quorum" | "unknown" | "unreachable"), "{refused:?}");
    let refused = work::refusal(alone.history(&id, 1, 10, ReadMode::Linearizable).await)?;
    ensure!(matches!(refused.code(), "no_quorum" | "unreachable"), "{refused:?}");
    let stale = alone.history(&id, 1, 10, ReadMode::Stale).await?.value;
    ensure!(stale.len() == 2, "what was acknowledged is still there to be shown: {stale:?}");

    let ready = cluster.http().get(format!("{}/readyz", cluster.nodes[leader].url)).send().await?;
    ensure!(ready.status().as_u16() == 503, "a node without a quorum says {} of itself", ready.status());

    // Two again: the same call under the same key gets through, once.
    cluster.nodes[others[0]].start()?;
    let written = any.append(&id, 2, vec![work::note("one of three")], key).await?.value;
    ensure!(written.head == 3, "{written:?}");
    let history = check::workflow(&any, &id).await?;
    ensure!(history.len() == 3, "{history:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_adopted_or_acknowledged() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (first, second, last) = (0, 1, 2);
    let (id, _) = cluster.workflow_of(second, "order").await?;
    work::open(&cluster.any()?, &id, 1, "work", "default").await?;

    // One dies: the other two share its shards.
    cluster.nodes[first].kill()?;
    cluster.committed_as(false, first, last).await?;
    let before = cluster.all_shards_owned().await?;

    // Another dies: the last one keeps still.
    cluster.nodes[second].kill()?;
    let alone = cluster.impatient(last, Duration::from_secs(2))?;
    let refused = work::refusal(alone.append(&id, 3, vec![work::note("alone")], Write::default()).await)?;
    ensure!(refused.is_retryable(), "{refused:?}");
    holds_for(TEMPTATION, async || {
        ensure!(cluster.directory(last).await? == before, "a shard moved without a quorum");
        let view = cluster.view(last).await?;
        let of_second = view.members.iter().find(|member| member.member.name == cluster.nodes[second].name);
        let liveness = of_second.map(|member| member.member.liveness);
        ensure!(liveness == Some(holdfast_machine::Liveness::Up), "a death was committed without a quorum");
        Ok(())
    })
    .await?;

    // The first comes back: the two of them see to everything.
    cluster.nodes[first].start()?;
    cluster.committed_as(false, second, first).await?;
    cluster.committed_as(true, first, last).await?;
    let after = cluster.all_shards_owned().await?;
    for (shard, entry) in &before {
        let orphaned = entry.owner == cluster.nodes[second].name;
        let moved = after[shard].epoch > entry.epoch;
        ensure!(!orphaned || moved, "shard {shard} was orphaned and is {:?}", after[shard]);
    }
    let history = check::workflow(&cluster.any()?, &id).await?;
    ensure!(history.len() <= 4, "{history:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_member_still_counts_for_the_quorum() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 0, "work", "default").await?;

    // One is committed as down, and the quorum is still two of three.
    let leader = cluster.leader().await?;
    let others: Vec<usize> = cluster.running().into_iter().filter(|node| *node != leader).collect();
    cluster.nodes[others[0]].kill()?;
    cluster.committed_as(false, others[0], leader).await?;
    ensure!(cluster.view(leader).await?.members.len() == 3, "a dead member was dropped");

    // So with the second paused, the leader alone acknowledges nothing.
    cluster.nodes[others[1]].pause()?;
    let alone = cluster.impatient(leader, Duration::from_secs(3))?;
    let refused = work::refusal(alone.append(&id, 1, vec![work::note("alone")], Write::default()).await)?;
    ensure!(refused.is_retryable(), "{refused:?}");
    cluster.nodes[others[1]].go_on()?;
    finish_with_history(cluster, &id).await
}

async fn finish_with_history(cluster: Cluster, id: &holdfast_machine::WorkflowId) -> Result<()> {
    cluster.nodes.iter().filter(|node| !node.is_running()).try_for_each(|node| node.start())?;
    cluster.whole().await?;
    check::workflow(&cluster.any()?, id).await?;
    cluster.finish().await
}
