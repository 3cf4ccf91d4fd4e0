//! Case 20: the disk fills up. New work is refused before anything breaks, the rest goes on, and so does everything once
//! there is space, without a restart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ClientError, Delivery, DiskSpace, ReadMode, Write};
use holdfast_machine::{BootId, Commit, EventKind, NewEvent, WorkflowId};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::small_disk::told_apart;
use holdfast_tests::wait::{LONG, SOON, holds_for, wait_until};
use holdfast_tests::{check, work};

const MIB: u64 = 1 << 20;
/// Of each node's disk; the reserve is an eighth of it.
const DISK: u64 = 128 * MIB;
/// Free bytes below the reserve, and above the last quarter of it.
const LOW: u64 = 9 * MIB;
/// How long a node that has no space at all is watched.
const SPELL: Duration = Duration::from_secs(3);

const WORKFLOWS: usize = 6;
const ROWS: u64 = 20;

/// Waits until every node says this of the disks, in the order of the nodes.
async fn told(cluster: &Cluster, wanted: [DiskSpace; 3]) -> Result<()> {
    wait_until("every node knows whose disk is full", SOON, async || {
        for node in cluster.running() {
            let seen: Vec<_> = cluster.view(node).await?.members.into_iter().map(|member| member.disk).collect();
            ensure!(seen == wanted.map(Some), "{} says {seen:?}", cluster.nodes[node].name);
        }
        Ok(())
    })
    .await
}

async fn boots(cluster: &Cluster) -> Result<Vec<Option<BootId>>> {
    Ok(cluster.view(0).await?.members.into_iter().map(|member| member.boot).collect())
}

/// Opens a workflow through this node.
async fn begin(client: &Client, id: &str) -> Result<Result<(), ClientError>> {
    let opening = work::opening(&work::id(id)?, vec![work::row(1, "work", "other")?])?;
    Ok(client.commit(opening, Write::default()).await.map(drop))
}

/// New work is refused as it should be, whatever it is and whoever is asked; all else goes on.
async fn only_new_work_is_refused(cluster: &Cluster, held: &mut Vec<Delivery>, phase: &str) -> Result<()> {
    for node in cluster.running() {
        let client = cluster.client(node);
        wait_until("new work is refused", SOON, async || {
            let error = work::refusal(begin(client, &format!("{phase}-{node}")).await?)?;
            ensure!(error.code() == "storage_full" && error.is_retryable(), "{error:?}");
            Ok(())
        })
        .await?;
        let row = work::row(ROWS + 1, "work", "other")?;
        let id = held.last().context("rows are held")?.key.workflow.clone();
        let refused = work::refusal(client.stage(&id, Default::default(), vec![row], Write::default()).await)?;
        ensure!(refused.code() == "storage_full", "{refused:?}");
        let refused = work::refusal(client.append(&id, 1, vec![work::note("more")], Write::default()).await)?;
        ensure!(refused.code() == "storage_full", "{refused:?}");

        let delivery = held.pop().context("rows are held")?;
        client
            .heartbeat(&delivery.key, delivery.token, work::LONG_LEASE_MS, Default::default(), Write::default())
            .await?;
        work::complete(client, &delivery, "done").await?;
        work::claim(client, "later", 1, "late worker").await?;
        let history = client.history(&delivery.key.workflow, 1, 100, ReadMode::Linearizable).await?.value;
        let done = |event: &&holdfast_machine::HistoryEvent| event.kind == EventKind::ActivityCompleted;
        ensure!(history.iter().any(|event| done(&event)), "the outcome is there to be read");
        let ready = cluster.http().get(format!("{}/readyz", cluster.nodes[node].url)).send().await?;
        ensure!(ready.status().is_success(), "{}", ready.text().await?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_new_work_and_nothing_else() -> Result<()> {
    if told_apart("full_disk::a_full_disk_stops_new_work_and_nothing_else")? {
        return Ok(());
    }
    let cluster = Setup::plain().on_small_disks(DISK).start().await?;
    let any = cluster.any()?;
    let ids: Vec<WorkflowId> = (0..WORKFLOWS).map(|n| work::id(&format!("order-{n}"))).collect::<Result<_>>()?;
    for id in &ids {
        work::open(&any, id, ROWS, "work", "default").await?;
    }
    work::open(&any, &work::id("rest")?, 30, "work", "later").await?;
    let mut held = work::claim(&any, "default", WORKFLOWS * ROWS as usize, "worker").await?;
    let before = boots(&cluster).await?;

    // The leader's disk: another one leads, and takes new work.
    let first = cluster.leader().await?;
    cluster.disks[first].fill_up_to(LOW)?;
    let second = wait_until("a node with space leads", LONG, async || {
        let leader = cluster.leader().await?;
        ensure!(leader != first, "it is still {first}");
        Ok(leader)
    })
    .await?;
    wait_until("new work is taken by the new leader", SOON, async || Ok(begin(&any, "taken").await??)).await?;
    for node in cluster.running() {
        let delivery = held.pop().context("rows are held")?;
        work::complete(cluster.client(node), &delivery, "done").await?;
    }

    // Two of three: there is no quorum with space any more.
    cluster.disks[second].fill_up_to(LOW)?;
    let third = (0..3).find(|node| ![first, second].contains(node)).context("a third")?;
    let mut disks = [DiskSpace::Low; 3];
    disks[third] = DiskSpace::Plenty;
    told(&cluster, disks).await?;
    only_new_work_is_refused(&cluster, &mut held, "two").await?;

    // All three. Work can still be brought to its end, and removed.
    cluster.disks[third].fill_up_to(LOW)?;
    told(&cluster, [DiskSpace::Low; 3]).await?;
    only_new_work_is_refused(&cluster, &mut held, "three").await?;
    let head = any.workflow(&work::id("rest")?, ReadMode::Linearizable).await?.value;
    let head = head.workflow.context("it is there")?.head;
    let end = Commit::new(work::id("rest")?, head).event(NewEvent::of(EventKind::WorkflowCompleted));
    any.commit(end, Write::default()).await?;
    any.delete(&work::id("rest")?, Write::default()).await?;

    // Not a byte is left anywhere: nobody breaks, and what is there can be read.
    for disk in &cluster.disks {
        disk.fill_up_to(0)?;
    }
    told(&cluster, [DiskSpace::Out; 3]).await?;
    holds_for(SPELL, async || {
        for node in 0..3 {
            ensure!(cluster.nodes[node].is_running(), "{} has ended", cluster.nodes[node].name);
            let client = cluster.impatient(node, SOON)?;
            let history = client.history(&ids[0], 1, 100, ReadMode::Stale).await?.value;
            ensure!(history.len() as u64 > 2 * ROWS, "{} events", history.len());
            let error = work::refusal(begin(&client, "none").await?)?;
            ensure!(error.code() == "storage_full", "{error:?}");
        }
        Ok(())
    })
    .await?;

    // There is space again: everything goes on by itself.
    for disk in &cluster.disks {
        disk.clear()?;
    }
    told(&cluster, [DiskSpace::Plenty; 3]).await?;
    wait_until("new work is taken again", LONG, async || Ok(begin(&any, "again").await??)).await?;
    for delivery in held {
        work::complete(&any, &delivery, "done").await?;
    }
    for id in &ids {
        work::all_done(&any, id, ROWS).await?;
        check::workflow(&any, id).await?;
    }
    ensure!(boots(&cluster).await? == before, "a node was started again");
    cluster.finish().await
}
