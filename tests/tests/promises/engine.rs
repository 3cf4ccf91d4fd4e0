//! Section 4 for a whole engine: its workflows, and their children, go on wherever their owner died, or the adopter
//! after it, and nothing of them happens twice. `capstone.rs` has the stories of what is in hand meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{EventKind, Fence, HistoryEvent, RowStatus, ShardId, WorkflowId};
use holdfast_tests::cluster::{Cluster, SHARDS, Setup};
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
