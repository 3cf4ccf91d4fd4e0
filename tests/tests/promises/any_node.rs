//! Section 4: any node takes any request. Section 10 and reliability 18: reads see what was acknowledged.

use anyhow::{Context, Result, ensure};
use holdfast_client::{Failure, ReadMode, Write};
use holdfast_machine::{Payload, RowStatus};
use holdfast_tests::cluster::{NAMES, Setup};
use holdfast_tests::{check, work};

#[tokio::test(flavor = "multi_thread")]
async fn any_node_takes_any_request() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    for writer in 0..NAMES.len() {
        let other = (writer + 1) % NAMES.len();
        let (here, there) = (cluster.client(writer), cluster.client(other));
        let id = work::id(&format!("order-{writer}"))?;
        let queue = format!("queue-{writer}");

        // Commit here, read there, at once.
        work::open(here, &id, 3, "work", &queue).await?;
        let history = there.history(&id, 1, 100, ReadMode::Linearizable).await?.value;
        ensure!(history.len() == 7, "{} events", history.len());

        // Claim here; heartbeat, complete, fail and hand back there.
        let claimed = work::claim(here, &queue, 3, "a worker").await?;
        let [first, second, third] = &claimed[..] else { anyhow::bail!("{claimed:?}") };
        there.heartbeat(&first.key, first.token, 60_000, Payload::text("half"), Write::default()).await?;
        work::complete(there, first, "done").await?;
        let failed = there
            .fail(&second.key, Some(second.token), Failure::retryable(Payload::text("no")), Write::default())
            .await?;
        ensure!(failed.value.context("a row")?.status == RowStatus::Pending, "a failed row waits for its next attempt");
        let back = there.retry(&third.key, Some(third.token), 60_000, Write::default()).await?;
        ensure!(back.value.context("a row")?.deliveries == 1, "a row that was handed back counts");

        // Settle and re-arm there, reconcile and append here.
        let settled = there.settle(&id, Write::default()).await?.value;
        ensure!(settled == [work::key(&id, 2), work::key(&id, 3)], "{settled:?}");
        let rearmed = there.rearm(&id, vec![work::row(2, "work", &queue)?], Write::default()).await?.value;
        ensure!(rearmed == [work::key(&id, 2)], "{rearmed:?}");
        here.reconcile(0, 10, Vec::new(), Write::default()).await?;
        let view = there.workflow(&id, ReadMode::Linearizable).await?.value;
        let head = view.workflow.context("the workflow")?.head;
        here.append(&id, head, vec![work::note("the end")], Write::default()).await?;
        check::workflow(there, &id).await?;
    }

    // Ownership moves through any node as well.
    let directory = cluster.directory(0).await?;
    let (shard, entry) = directory.first_key_value().context("a shard")?;
    let to = (cluster.place(&entry.owner)? + 1) % NAMES.len();
    let through = cluster.follower().await?;
    let moved = cluster.client(through);
    let moved = moved.transfer(*shard, &cluster.nodes[to].name, entry.epoch, Write::default()).await?.value;
    ensure!(moved.epoch.0 == entry.epoch.0 + 1, "{moved:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_sees_every_write_acknowledged_before_it_also_over_a_failover() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("counter")?;
    let any = cluster.any()?;
    work::open(&any, &id, 0, "work", "default").await?;
    let leader = cluster.leader().await?;
    let mut head = 1;
    for round in 0..60 {
        if round == 20 {
            cluster.nodes[leader].kill()?;
        }
        if round == 40 {
            cluster.nodes[leader].start()?;
        }
        any.append(&id, head, vec![work::note(&format!("round {round}"))], Write::default()).await?;
        head += 1;
        for node in cluster.running() {
            let seen = cluster.client(node).history(&id, head, 1, ReadMode::Linearizable).await?.value;
            ensure!(seen.len() == 1, "round {round}: {} misses event {head}", cluster.nodes[node].name);
        }
    }
    check::workflow(&any, &id).await?;
    cluster.finish().await
}
