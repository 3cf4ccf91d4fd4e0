//! Section 6, and the issue of delivery: the timeouts of an activity are the state's own, so they pass on time whoever
//! leads, and nobody has to come by for that.

use anyhow::{Result, ensure};
use holdfast_client::{ReadMode, Write};
use holdfast_machine::{EventKind, NewRow, Payload, RetryPolicy, RowStatus, Timeouts};
use holdfast_tests::cluster::Setup;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, work};

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_pass_on_an_idle_cluster_whose_leader_was_killed_before() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let leader = cluster.leader().await?;
    let any = cluster.any()?;
    let id = work::id("order-1")?;

    // Row 1 is held under a lease far longer than its attempt may last; row 2 is nobody's.
    let retry = RetryPolicy { initial_ms: 1, ..RetryPolicy::default() };
    let attempt = Timeouts { start_to_close_ms: Some(3_000), ..Timeouts::default() };
    let start = Timeouts { schedule_to_start_ms: Some(3_000), ..Timeouts::default() };
    let held = NewRow { timeouts: attempt, retry, ..work::row(1, "held", "served")? };
    let unserved = NewRow { timeouts: start, ..work::row(2, "unserved", "nobody")? };
    any.commit(work::opening(&id, vec![held, unserved])?, Write::default()).await?;
    let first = work::claim(&any, "served", 1, "slow").await?.remove(0);
    cluster.nodes[leader].kill()?;

    // The attempt has failed and is repeated; the activity that nobody began has failed for good.
    let row = |ordinal| {
        let (any, key) = (&any, work::key(&id, ordinal));
        async move { anyhow::Ok(any.row(&key, ReadMode::Linearizable).await?.value.row) }
    };
    wait_until("both timeouts have passed", LONG, async || {
        let (held, unserved) = (row(1).await?, row(2).await?);
        ensure!(held.status == RowStatus::Pending && unserved.status == RowStatus::Failed, "{held:?} {unserved:?}");
        ensure!((held.attempt, held.deliveries) == (2, 1), "{held:?}");
        Ok(())
    })
    .await?;

    // The old token is of no use; the next attempt completes, and each activity has one outcome.
    let late =
        work::refusal(any.complete(&first.key, Some(first.token), Payload::text("late"), Write::default()).await)?;
    ensure!(late.code() == "claim_lost", "{late:?}");
    let second = wait_until("the row is due again", LONG, async || Ok(work::claim(&any, "served", 1, "quick").await?))
        .await?
        .remove(0);
    ensure!(second.attempt == 2 && second.token != first.token, "{second:?}");
    work::complete(&any, &second, "done").await?;
    let history = check::workflow(&any, &id).await?;
    check::outcomes::exactly_one(&id, &history, 1..=2)?;
    let failed = history.iter().find(|event| event.kind == EventKind::ActivityFailed && event.ordinal == Some(2));
    let told = failed.map(|event| String::from_utf8_lossy(&event.payload.data).into_owned()).unwrap_or_default();
    ensure!(told.contains("schedule_to_start"), "{told:?} does not say which timeout it was");

    cluster.nodes[leader].start()?;
    cluster.finish().await
}
