//! Section 4 for a whole engine: its workflows go on where their owner died, was paused or was followed by an adopter
//! that died in turn, and nothing of them happens twice. Cases 5, 7 and 8.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{EventKind, Fence, HistoryEvent, RowStatus, ShardId, WorkflowId};
use holdfast_tests::cluster::{Cluster, SHARDS, Setup};
use holdfast_tests::engine::{Order, Record};
use holdfast_tests::story::Plot;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, work};

async fn start(cluster: &Cluster, id: &WorkflowId, plot: Plot) -> Result<()> {
    cluster.any()?.append(id, 0, vec![plot.started()?], Write::default()).await.context("starting a story")?;
    Ok(())
}

fn count(history: &[HistoryEvent], kind: &EventKind) -> u64 {
    history.iter().filter(|event| event.kind == *kind).count() as u64
}

/// Waits until a story and those inside it have ended, and checks that nothing of them was doubled or left out.
async fn told(client: &Client, id: &WorkflowId, plot: Plot) -> Result<()> {
    let mut id = id.clone();
    for depth in (0..=plot.depth).rev() {
        let history = wait_until(&format!("{id} has ended"), LONG, async || {
            let history = check::workflow(client, &id).await?;
            ensure!(count(&history, &EventKind::WorkflowCompleted) > 0, "{history:#?}");
            Ok(history)
        })
        .await?;
        check::outcomes::exactly_one(&id, &history, 1..=plot.activities())?;
        let children = u64::from(depth > 0);
        let expected = [
            (EventKind::WorkflowStarted, 1),
            (EventKind::ActivityScheduled, plot.activities()),
            (EventKind::ActivityCompleted, plot.activities()),
            (EventKind::TimerStarted, 1),
            (EventKind::TimerFired, 1),
            (EventKind::from_name("ChildWorkflowScheduled"), children),
            (EventKind::from_name("ChildWorkflowEnded"), children),
            (EventKind::WorkflowCompleted, 1),
        ];
        for (kind, times) in expected {
            ensure!(count(&history, &kind) == times, "{id} has {} {kind}: {history:#?}", count(&history, &kind));
        }
        let ended = history.last().context("an end")?;
        let result = ((depth + 1) * plot.activities()).to_string();
        ensure!(ended.payload.data == result, "{id} ended with {:?}, not with {result}", ended.payload);
        for ordinal in 1..=plot.activities() {
            let status = work::status(client, &work::key(&id, ordinal)).await?;
            ensure!(status == RowStatus::Done, "row {ordinal} of {id} is {status}");
        }
        id = WorkflowId::new(format!("{id}/inside"))?;
    }
    Ok(())
}

/// How many executions of a workflow's rows have begun, over all nodes.
fn executions(cluster: &Cluster, id: &WorkflowId) -> Result<u64> {
    let mut begun = 0;
    for node in &cluster.nodes {
        let records: Vec<Record> = node.records()?;
        begun += records.iter().filter(|r| matches!(r, Record::Began { key, .. } if key.workflow == *id)).count();
    }
    Ok(begun as u64)
}

async fn held(cluster: &Cluster, id: &WorkflowId, most: u64) -> Result<()> {
    wait_until("the fan-out is being executed", LONG, async || {
        let begun = executions(cluster, id)?;
        ensure!(begun >= most, "{begun} of {most} executions");
        Ok(())
    })
    .await
}

fn release(cluster: &Cluster) -> Result<()> {
    let order = serde_json::to_string(&Order::Release)?;
    cluster.running().into_iter().try_for_each(|node| cluster.nodes[node].tell(&order))
}

/// Waits until somebody else owns the workflow's shard, as a node that runs sees it; who.
async fn adopted(cluster: &Cluster, id: &WorkflowId, fence: &Fence, seen_by: usize) -> Result<usize> {
    wait_until("the shard is adopted", LONG, async || {
        let owner = cluster.directory(seen_by).await?.remove(&ShardId::of(id, SHARDS)).context("an owner")?;
        ensure!(owner.epoch > fence.epoch, "not yet");
        cluster.place(&owner.owner)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_replays_the_workflows_of_a_dead_owner_and_nothing_of_them_is_doubled() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let owner = cluster.leader().await?;
    let plot = Plot { width: 4, held: true, depth: 1 };
    let (id, fence) = cluster.workflow_of(owner, "story").await?;
    start(&cluster, &id, plot).await?;
    held(&cluster, &id, plot.width).await?;

    // Killed in the middle of the fan-out. A workflow of a shard that stays where it is goes its way meanwhile.
    cluster.nodes[owner].kill()?;
    let witness = cluster.running()[0];
    let other = Plot { held: false, ..plot };
    let (witnessed, _) = cluster.workflow_of(witness, "witness").await?;
    start(&cluster, &witnessed, other).await?;
    told(cluster.client(witness), &witnessed, other).await?;

    adopted(&cluster, &id, &fence, witness).await?;
    held(&cluster, &id, 2 * plot.width).await?;
    release(&cluster)?;
    told(&cluster.any()?, &id, plot).await?;
    ensure!(executions(&cluster, &id)? > plot.activities(), "more executions than ordinals");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_die_between_any_two_steps_leave_nothing_undone() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let plot = Plot { width: 3, held: false, depth: 2 };
    for round in 0..6u64 {
        let owner = if round % 2 == 0 { cluster.follower().await? } else { cluster.leader().await? };
        let (id, fence) = cluster.workflow_of(owner, &format!("story-{round}")).await?;
        start(&cluster, &id, plot).await?;
        // Each round a little later.
        tokio::time::sleep(Duration::from_millis(15 * round)).await;
        cluster.nodes[owner].kill()?;
        let seen_by = cluster.running()[0];
        let adopter = adopted(&cluster, &id, &fence, seen_by).await?;
        if round % 3 == 2 {
            // So does the adopter, before its engine has done much. Two are down: nothing happens until one is back.
            cluster.nodes[adopter].kill()?;
            cluster.nodes[owner].start()?;
            told(&cluster.any()?, &id, plot).await?;
            cluster.nodes[adopter].start()?;
        } else {
            told(&cluster.any()?, &id, plot).await?;
            cluster.nodes[owner].start()?;
        }
        cluster.whole().await?;
        let history = check::workflow(&cluster.any()?, &id).await?;
        ensure!(count(&history, &EventKind::WorkflowCompleted) == 1, "{history:#?}");
        share_out(&cluster, owner).await?;
    }
    cluster.finish().await
}

/// A node that was down owns nothing; it gets a shard of each of the others.
async fn share_out(cluster: &Cluster, to: usize) -> Result<()> {
    let name = &cluster.nodes[to].name;
    for from in (0..3).filter(|from| *from != to) {
        // Linearizable: it has just come back, and a transfer is made under the present epoch.
        let directory = cluster.client(to).shards(ReadMode::Linearizable).await?.value;
        let mut theirs = directory.shards.into_iter().filter(|entry| entry.owner == cluster.nodes[from].name);
        if let Some(entry) = theirs.next() {
            cluster.client(to).transfer(entry.shard, name, entry.epoch, Write::default()).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_paused_finds_its_workflows_gone_and_changes_nothing_of_them() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let owner = cluster.follower().await?;
    let plot = Plot { width: 4, held: true, depth: 1 };
    let (id, fence) = cluster.workflow_of(owner, "story").await?;
    start(&cluster, &id, plot).await?;
    held(&cluster, &id, plot.width).await?;

    // Paused in the middle of the fan-out. The order to finish it waits in its stdin.
    cluster.nodes[owner].pause()?;
    let witness = (owner + 1) % 3;
    adopted(&cluster, &id, &fence, witness).await?;
    held(&cluster, &id, 2 * plot.width).await?;
    release(&cluster)?;
    told(cluster.client(witness), &id, plot).await?;

    cluster.nodes[owner].go_on()?;
    wait_until("it hears that the shard is lost, and its executions are answered", LONG, async || {
        let records: Vec<Record> = cluster.nodes[owner].records()?;
        let shard = ShardId::of(&id, SHARDS);
        ensure!(records.iter().any(|r| matches!(r, Record::Lost { shard: of, .. } if *of == shard)), "no word of it");
        let late =
            records.iter().filter(|r| matches!(r, Record::Ended { key, refused: Some(_), .. } if key.workflow == id));
        ensure!(late.count() as u64 == plot.width, "its executions are not all answered");
        Ok(())
    })
    .await?;
    told(&cluster.any()?, &id, plot).await?;
    cluster.finish().await
}
