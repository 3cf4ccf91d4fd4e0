//! Section 10: every mutating call takes an idempotency key, and a retry gets the first reply, whichever node
//! answers it and whoever leads by then.

use anyhow::{Context, Result, ensure};
use holdfast_client::Write;
use holdfast_machine::{IdempotencyKey, Payload};
use holdfast_tests::cluster::Setup;
use holdfast_tests::{check, work};

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_first_reply_also_over_a_failover() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&any, &id, 4, "work", "orders").await?;
    let keyed = |text: &str| anyhow::Ok(Write::keyed(IdempotencyKey::new(text)?));

    // First replies, from the leader.
    let leader = cluster.leader().await?;
    let first = cluster.client(leader);
    let claim = work::lease("orders", 2, "a worker", work::LONG_LEASE_MS)?;
    let claimed = first.claim(claim.clone(), keyed("claim")?).await?;
    let row = claimed.value.first().context("a row")?.clone();
    let result = Payload::text("done");
    let completed = first.complete(&row.key, Some(row.token), result.clone(), keyed("complete")?).await?;
    let appended = first.append(&id, 10, vec![work::note("noted")], keyed("append")?).await?;
    let refused = work::refusal(first.append(&id, 3, vec![work::note("stale")], keyed("refused")?).await)?;
    let settled = first.settle(&id, keyed("settle")?).await?;

    // The leader dies, and every call is sent again to a survivor.
    cluster.nodes[leader].kill()?;
    for survivor in cluster.running() {
        let client = cluster.client(survivor);
        ensure!(client.claim(claim.clone(), keyed("claim")?).await?.value == claimed.value, "another claim");
        let again = client.complete(&row.key, Some(row.token), result.clone(), keyed("complete")?).await?;
        ensure!(again.value == completed.value, "{again:?}, not {completed:?}");
        let again = client.append(&id, 10, vec![work::note("noted")], keyed("append")?).await?;
        ensure!(again.value == appended.value, "{again:?}, not {appended:?}");
        let again = client.append(&id, 3, vec![work::note("stale")], keyed("refused")?).await;
        ensure!(work::refusal(again)?.reject() == refused.reject(), "another refusal");
        ensure!(client.settle(&id, keyed("settle")?).await?.value == settled.value, "settled again");
        // The key of one call is no key for another.
        let other = client.append(&id, 11, vec![work::note("other")], keyed("append")?).await;
        ensure!(work::refusal(other)?.code() == "idempotency_conflict", "two calls under one key");
    }
    let history = check::workflow(&any, &id).await?;
    ensure!(history.len() == 11, "{} events", history.len());
    cluster.finish().await
}
