//! Section 6: claims, tokens and leases over HTTP. Cases 1, 2, 13 and 14.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use holdfast_client::{ClaimCall, ReadMode, Write};
use holdfast_machine::{EventKind, IdempotencyKey, Payload, RowStatus};
use holdfast_tests::cluster::Setup;
use holdfast_tests::wait::{SOON, holds_for, wait_until};
use holdfast_tests::{check, work};

#[tokio::test(flavor = "multi_thread")]
async fn a_late_completion_under_an_old_token_is_absorbed() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 1, "work", "orders").await?;

    // The first worker's lease runs out, and the row is handed out again.
    let first = client.claim(work::lease("orders", 1, "first", 300)?, Write::default()).await?.value;
    ensure!(first.len() == 1, "{first:?}");
    let mut second = work::lease("orders", 1, "second", work::LONG_LEASE_MS)?;
    second.wait_ms = 20_000;
    let second = client.claim(second, Write::default()).await?.value;
    ensure!(second.len() == 1 && second[0].token != first[0].token, "{second:?}");

    // While the second holds it, the first is refused; after the second has finished, it is told so.
    let complete =
        |token, text: &str| client.complete(&first[0].key, Some(token), Payload::text(text), Write::default());
    let early = work::refusal(complete(first[0].token, "first").await)?;
    ensure!(early.code() == "claim_lost", "{early:?}");
    ensure!(complete(second[0].token, "second").await?.value.is_some(), "the holder was not heard");
    let late = work::refusal(complete(first[0].token, "first").await)?;
    ensure!(late.code() == "already_terminal", "{late:?}");

    let history = check::workflow(&client, &id).await?;
    let outcomes: Vec<_> = history.iter().filter(|event| event.kind == EventKind::ActivityCompleted).collect();
    ensure!(outcomes.len() == 1 && outcomes[0].payload == Payload::text("second"), "{outcomes:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_under_a_running_lease_is_never_reconciled_away() -> Result<()> {
    let cluster = Setup::plain()
        .set("HOLDFAST_RECONCILE_INTERVAL_MS", 50)
        .set("HOLDFAST_RECONCILE_OLDER_THAN_MS", 100)
        .start()
        .await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 1, "work", "orders").await?;
    let held = work::claim(&client, "orders", 1, "a steady worker").await?;

    // Old enough for every reconciliation, which runs all the time, by the cluster and by hand.
    holds_for(Duration::from_secs(2), async || {
        let reconciled = client.reconcile(100, 100, Vec::new(), Write::default()).await?.value;
        ensure!(reconciled.rearmed.is_empty(), "{reconciled:?}");
        let key = &held[0].key;
        client.heartbeat(key, held[0].token, work::LONG_LEASE_MS, Payload::default(), Write::default()).await?;
        ensure!(work::status(&client, key).await? == RowStatus::Claimed, "the row was taken away");
        Ok(())
    })
    .await?;
    work::complete(&client, &held[0], "once").await?;
    check::workflow(&client, &id).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_claims_return_the_same_row() -> Result<()> {
    const ROWS: usize = 200;
    let cluster = Setup::plain().start().await?;
    let ids: Vec<_> = (0..ROWS / 10).map(|number| work::id(&format!("order-{number}"))).collect::<Result<_>>()?;
    for id in &ids {
        work::open(&cluster.any()?, id, 10, "work", "orders").await?;
    }
    // Twelve claimants through three nodes, until nothing is left.
    let claimants = (0..12).map(|number| {
        let client = cluster.client(number % 3).clone();
        async move {
            let mut taken = Vec::new();
            loop {
                let call = work::lease("orders", 3, &format!("worker {number}"), work::LONG_LEASE_MS)?;
                let deliveries = client.claim(call, Write::default()).await?.value;
                if deliveries.is_empty() {
                    return anyhow::Ok(taken);
                }
                taken.extend(deliveries);
            }
        }
    });
    let taken: Vec<_> = try_join_all(claimants).await?.into_iter().flatten().collect();
    let by_key: BTreeMap<_, _> = taken.iter().map(|delivery| (&delivery.key, delivery.token)).collect();
    ensure!(taken.len() == ROWS && by_key.len() == ROWS, "{} deliveries of {} rows", taken.len(), by_key.len());
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_sent_again_under_its_key_gets_the_same_rows() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 4, "work", "orders").await?;
    let call = work::lease("orders", 2, "a worker", work::LONG_LEASE_MS)?;
    let key = Write::keyed(IdempotencyKey::new("a claim whose answer got lost")?);
    let first = cluster.client(0).claim(call.clone(), key.clone()).await?.value;
    let again = cluster.client(1).claim(call.clone(), key).await?.value;
    ensure!(first.len() == 2 && first == again, "{first:?} and {again:?}");
    let rest = cluster.client(2).claim(call, Write::default()).await?.value;
    ensure!(rest.len() == 2 && rest.iter().all(|row| !first.contains(row)), "{rest:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_caller_hung_up_takes_nothing() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let waiting = ClaimCall { wait_ms: 20_000, ..work::lease("orders", 10, "gone", work::LONG_LEASE_MS)? };
    for node in cluster.running() {
        // The answer cannot come before there is work, so the connection is closed while the call waits.
        let call = cluster.client(node).claim(waiting.clone(), Write::default());
        let hung_up = tokio::time::timeout(Duration::from_millis(500), call).await;
        ensure!(hung_up.is_err(), "a claim of nothing was answered at once: {hung_up:?}");
    }
    let id = work::id("order-1")?;
    work::open(&client, &id, 3, "work", "orders").await?;
    let mine = work::lease("orders", 10, "here", work::LONG_LEASE_MS)?;
    let taken = client.claim(mine, Write::default()).await?.value;
    ensure!(taken.len() == 3, "{} rows were left", taken.len());
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_by_itself_when_its_holder_is_silent() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 1, "work", "orders").await?;
    let held = client.claim(work::lease("orders", 1, "silent", 200)?, Write::default()).await?.value;
    ensure!(held.len() == 1, "{held:?}");
    wait_until("the row is pending again although nobody asks for anything", SOON, async || {
        let row = client.row(&held[0].key, ReadMode::Stale).await?.value.row;
        ensure!(row.status == RowStatus::Pending, "{row:?}");
        ensure!(row.deliveries == 0, "the death of a holder is not the row's fault: {row:?}");
        Ok(())
    })
    .await?;
    let error = client.heartbeat(&held[0].key, held[0].token, 1_000, Payload::default(), Write::default()).await;
    ensure!(work::refusal(error)?.code() == "claim_lost", "a lost claim was extended");
    cluster.finish().await
}
