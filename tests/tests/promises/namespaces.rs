//! Section 8: a namespace's ceiling is counted over the cluster. Section 6: finished workflows are kept for their
//! retention and then removed by committed purges.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::try_join_all;
use holdfast_client::{Client, EventMessage, ReadMode, Write};
use holdfast_machine::limits::WORKFLOWS_PURGED_PER_ENTRY_MAX;
use holdfast_machine::{ClusterEvent, EventKind, Namespace, NamespaceSettings, NewEvent, WorkflowFilter, WorkflowId};
use holdfast_tests::cluster::{NAMES, Setup};
use holdfast_tests::wait::{LONG, SOON, wait_until};
use holdfast_tests::{check, work};

const CEILING: usize = 4;
const ROWS: u64 = 40;

async fn put(client: &Client, settings: NamespaceSettings) -> Result<()> {
    client.put_namespace(&Namespace::default(), &settings, Write::default()).await?;
    Ok(())
}

async fn claimed(client: &Client) -> Result<u64> {
    Ok(client.namespace(&Namespace::default(), ReadMode::Linearizable).await?.value.claimed)
}

/// Takes rows and finishes them until all are done.
async fn labour(client: Client, done: Arc<AtomicUsize>, name: String) -> Result<()> {
    while done.load(Ordering::SeqCst) < ROWS as usize {
        let mut call = work::lease("orders", 3, &name, work::LONG_LEASE_MS)?;
        call.wait_ms = 500;
        let taken = client.claim(call, Write::default()).await?.value;
        ensure!(taken.len() <= CEILING, "{name} got {}", taken.len());
        for delivery in &taken {
            let claimed = claimed(&client).await?;
            ensure!(claimed <= CEILING as u64, "{claimed} rows are claimed, and the ceiling is {CEILING}");
            work::complete(&client, delivery, "done").await?;
            done.fetch_add(1, Ordering::SeqCst);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_holds_over_the_whole_cluster() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    put(&any, NamespaceSettings { claimed_max: Some(CEILING as u32), ..Default::default() }).await?;

    // Claimants on all nodes want more than there is room for, and all work gets done.
    let id = work::id("order-1")?;
    work::open(&any, &id, ROWS, "work", "orders").await?;
    let done = Arc::new(AtomicUsize::new(0));
    let labourers = (0..3 * NAMES.len()).map(|number| {
        let client = cluster.client(number % NAMES.len()).clone();
        labour(client, Arc::clone(&done), format!("labourer {number}"))
    });
    try_join_all(labourers).await?;
    ensure!(done.load(Ordering::SeqCst) == ROWS as usize, "a row was done twice");

    // With the ceiling reached through two nodes, a claim through the third waits until something is done.
    let id = work::id("order-2")?;
    work::open(&any, &id, ROWS, "work", "orders").await?;
    let first = work::claim(cluster.client(0), "orders", CEILING - 1, "the first").await?;
    let second = work::claim(cluster.client(1), "orders", 1, "the second").await?;
    for (node, name) in NAMES.iter().enumerate() {
        let none = cluster.client(node).claim(work::lease("orders", 10, "greedy", 1_000)?, Write::default()).await?;
        ensure!(none.value.is_empty(), "{name} handed out {:?}", none.value);
    }
    let third = cluster.client(2).clone();
    let mut call = work::lease("orders", 10, "the third", work::LONG_LEASE_MS)?;
    call.wait_ms = 60_000;
    let waiting = tokio::spawn(async move { third.claim(call, Write::default()).await });
    work::complete(cluster.client(0), &second[0], "done").await?;
    let third = waiting.await??.value;
    ensure!(third.len() == 1, "{third:?}");
    ensure!(claimed(&any).await? == CEILING as u64, "the ceiling is reached again");
    for delivery in first.iter().chain(&third) {
        work::complete(&any, delivery, "done").await?;
    }
    check::workflow(&any, &id).await?;
    cluster.finish().await
}

async fn count(client: &Client) -> Result<u64> {
    Ok(client.count_workflows(&WorkflowFilter::default(), ReadMode::Stale).await?.value)
}

async fn finish(client: &Client, id: &WorkflowId, head: u64) -> Result<()> {
    let end = vec![NewEvent::of(EventKind::WorkflowCompleted)];
    client.append(id, head, end, Write::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_what_is_finished_on_all_nodes() -> Result<()> {
    const SHORT: u64 = 150;
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    let start = async |id: WorkflowId| -> Result<()> {
        let head = work::open(&any, &id, 1, "work", "orders").await?.head;
        finish(&any, &id, head).await
    };
    let ids = (0..SHORT).map(|number| work::id(&format!("short-{number}"))).collect::<Result<Vec<_>>>()?;
    try_join_all(ids.into_iter().map(start)).await?;
    let long = work::id("long")?;
    let mut head = 0;
    for _ in 0..3 {
        head = any.append(&long, head, vec![work::note("one of many"); 1_000], Write::default()).await?.value.head;
    }
    finish(&any, &long, head).await?;
    let open = work::id("open")?;
    work::open(&any, &open, 2, "work", "kept").await?;
    ensure!(count(&any).await? == SHORT + 2, "nothing goes before its time");

    // The retention is cut short: all that is finished goes, in portions, on every node.
    let mut events = any.events(None);
    events.next().await.context("the snapshot")??;
    put(&any, NamespaceSettings { retention_ms: Some(1), ..Default::default() }).await?;
    for node in 0..NAMES.len() {
        let client = cluster.client(node);
        wait_until("only the open workflow is left", LONG, async || {
            let left = count(client).await?;
            ensure!(left == 1, "{left} are left");
            Ok(())
        })
        .await?;
    }
    let mut removed = 0;
    while removed < SHORT + 1 {
        let message = tokio::time::timeout(SOON, events.next()).await?.context("the stream ended")??;
        if let EventMessage::Event { event: ClusterEvent::WorkflowsRemoved { workflows }, .. } = message {
            ensure!(workflows <= WORKFLOWS_PURGED_PER_ENTRY_MAX as u64, "{workflows} in one entry");
            removed += workflows;
        }
    }
    ensure!(removed == SHORT + 1, "{removed} were removed");
    for gone in ["short-0", "long"] {
        let history = any.history(&work::id(gone)?, 1, 10, ReadMode::Linearizable).await?.value;
        ensure!(history.is_empty(), "{gone} has a history");
    }

    // The id of a long history is free once all of it is cleared away; the client waits for that.
    work::open(&any, &long, 1, "work", "orders").await?;
    ensure!(check::workflow(&any, &open).await?.len() == 5, "the open workflow is as it was");

    // Nothing is due any more, so nothing is written: looks for it come every second.
    wait_until("two seconds pass without a log entry", LONG, async || {
        let last = cluster.view(0).await?.last;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = cluster.view(0).await?.last;
        ensure!(now == last, "the log grew from {last} to {now}");
        Ok(())
    })
    .await?;
    cluster.finish().await
}
