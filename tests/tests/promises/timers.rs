//! Section 7: adoption takes timers along, and retired ones do not come back.

use anyhow::{Context, Result, ensure};
use futures::future::select_all;
use holdfast_client::{DueTimer, ExpiredCall, PageCall, ReadMode, Write};
use holdfast_machine::{Arming, Commit, EventKind, Fence, NewEvent, Retirement, TimerChange, TimerId};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::work;

/// The first timers that are due on the shards of a node, asked of that node; waits for them.
async fn fires(cluster: &Cluster, node: usize) -> Result<Vec<DueTimer>> {
    let owner = Some(cluster.nodes[node].name.clone());
    let wait_ms = u64::try_from(LONG.as_millis())?;
    let call = ExpiredCall { owner, namespace: None, as_of: None, limit: 10, wait_ms };
    Ok(cluster.client(node).expired_timers(call, ReadMode::Stale).await?.value.timers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_a_killed_owner_fires_on_the_adopter_and_once_retired_stays_away() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let owner = cluster.follower().await?;
    let survivors: Vec<usize> = (0..3).filter(|node| *node != owner).collect();
    let (id, fence) = cluster.workflow_of(owner, "timer").await?;
    let seen_by = survivors[0];

    // The owner arms a timer that is due in a second, and dies before it is.
    let now = cluster.view(owner).await?.now;
    let arming = Arming { timer: TimerId::new("wake")?, fire_at: now.plus(1_000), armed_seq: 2 };
    let far = Arming { timer: TimerId::new("far")?, fire_at: now.plus(3_600_000), armed_seq: 1 };
    let timers = [arming.clone(), far.clone()].map(TimerChange::Schedule).to_vec();
    let opening = Commit { timers, ..work::opening(&id, Vec::new())?.event(NewEvent::of(EventKind::TimerStarted)) };
    let write = |fence: &Fence| Write { fence: Some(fence.clone()), idempotency_key: None };
    cluster.client(owner).commit(opening, write(&fence)).await?;
    cluster.nodes[owner].kill()?;

    // Both survivors wait for timers of their own shards; the one that adopts gets it, as it was armed.
    let (due, place, _) = select_all(survivors.iter().map(|node| Box::pin(fires(&cluster, *node)))).await;
    let adopter = survivors[place];
    let due = due?;
    ensure!(due.len() == 1 && due[0].workflow == id && due[0].arming() == arming, "{due:?}");
    let view = cluster.client(adopter).workflow(&id, ReadMode::Linearizable).await?.value;
    let adopted = view.fence.context("the shard has no owner")?;
    ensure!(adopted.owner == cluster.nodes[adopter].name && adopted.epoch > fence.epoch, "{adopted:?}");

    // The adopter fires it: the event and the retirement in one step. The dead owner's fence is of no use.
    let fired = Commit {
        timers: vec![TimerChange::Retire(arming.clone())],
        ..Commit::new(id.clone(), 2).event(NewEvent::of(EventKind::TimerFired))
    };
    let late = cluster.client(seen_by).commit(fired.clone(), write(&fence)).await;
    ensure!(late.as_ref().is_err_and(|error| error.reject().is_some_and(|r| r.code() == "not_owner")), "{late:?}");
    let committed = cluster.client(adopter).commit(fired, write(&adopted)).await?.value;
    ensure!(committed.retirements == [Retirement::Retired], "{committed:?}");

    // Wherever the shard goes from here, the timer does not come back, and the other one is still armed.
    cluster.nodes[owner].start()?;
    cluster.whole().await?;
    cluster.nodes[adopter].kill()?;
    wait_until("the shard has a third owner", LONG, async || {
        let view = cluster.client(owner).workflow(&id, ReadMode::Linearizable).await?.value;
        let fence = view.fence.context("no owner")?;
        ensure!(fence.epoch > adopted.epoch && fence.owner != adopted.owner, "{fence:?}");
        Ok(())
    })
    .await?;
    let left = cluster
        .client(owner)
        .timers(&id, &PageCall { limit: 10, cursor: None }, ReadMode::Linearizable)
        .await?
        .value
        .timers;
    ensure!(left == [far.clone()], "{left:?}");
    let call = ExpiredCall { owner: None, namespace: None, as_of: None, limit: 10, wait_ms: 0 };
    let due = cluster.client(owner).expired_timers(call, ReadMode::Linearizable).await?.value;
    ensure!(due.timers.is_empty() && due.next_due == Some(far.fire_at), "{due:?}");
    cluster.finish().await
}
