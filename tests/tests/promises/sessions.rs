//! Section 8: workers that are pushed to. Cases 2, 5 and 8.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use holdfast_client::{Client, Delivery, Ended, HeldRow, NodeMessage, ReadMode, WorkerStream, Write};
use holdfast_machine::{RowStatus, SessionId, Worker};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::stream::{self, delivered, next};
use holdfast_tests::wait::LONG;
use holdfast_tests::{check, work};
use tokio::time::timeout;

fn session() -> Result<SessionId> {
    Ok("a worker's session".parse()?)
}

/// Attaches the session at one node, and tells whether it was there.
async fn attach(client: &Client, holding: Vec<HeldRow>) -> Result<(WorkerStream, bool)> {
    stream::attach(client, &session()?, &stream::worker("orders")?, holding).await
}

fn held(rows: &[Delivery]) -> Vec<HeldRow> {
    rows.iter().map(|row| HeldRow { key: row.key.clone(), token: row.token }).collect()
}

/// That the next thing a stream says is the delivery of a row that is staged now: nothing was said before it.
async fn nothing_but_news(cluster: &Cluster, stream: &mut WorkerStream, news: &str) -> Result<Delivery> {
    let id = work::id(news)?;
    work::open(&cluster.any()?, &id, 1, "work", "orders").await?;
    let row = delivered(stream, 1).await?.remove(0);
    ensure!(row.key.workflow == id, "{row:?} came instead of the news");
    Ok(row)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_node_dies_goes_on_with_its_rows_at_another_one() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 3, "work", "orders").await?;
    let (mut stream, resumed) = attach(cluster.client(0), Vec::new()).await?;
    ensure!(!resumed, "the session is new");
    let rows = delivered(&mut stream, 3).await?;

    // The node is killed: the stream breaks without a word, or tells nothing more.
    cluster.nodes[0].kill()?;
    while let Some(Ok(message)) = timeout(LONG, stream.next()).await? {
        ensure!(!matches!(message, NodeMessage::Ended { .. }), "a node that is killed says nothing: {message:?}");
    }
    let (mut stream, resumed) = attach(cluster.client(1), held(&rows)).await?;
    ensure!(resumed, "the session was not there any more");
    cluster.committed_as(false, 0, 1).await?;

    // Also when the dead node's shards have been adopted the rows are the worker's, under the same tokens.
    cluster.all_shards_owned().await?;
    nothing_but_news(&cluster, &mut stream, "order-2").await?;
    for row in &rows {
        work::complete(&cluster.any()?, row, "once").await?;
    }
    check::workflow(&cluster.any()?, &id).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_sends_its_workers_to_the_others() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 1, "work", "orders").await?;
    let (mut stream, _) = attach(cluster.client(0), Vec::new()).await?;
    let rows = delivered(&mut stream, 1).await?;
    cluster.nodes[0].stop(LONG).await?;
    let last = next(&mut stream).await?;
    ensure!(matches!(last, NodeMessage::Ended { reason: Ended::NodeStopping, .. }), "{last:?}");
    let view = cluster.client(1).session(&session()?, ReadMode::Linearizable).await?.value;
    ensure!(view.session.attached.is_none() && view.session.rows == 1, "{view:?}");

    let (mut stream, resumed) = attach(cluster.client(2), held(&rows)).await?;
    ensure!(resumed, "the session was not there any more");
    nothing_but_news(&cluster, &mut stream, "order-2").await?;
    work::complete(&cluster.any()?, &rows[0], "once").await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_away_loses_its_rows_when_its_lease_ends_and_not_before() -> Result<()> {
    const SHORT_LEASE_MS: u64 = 3_000;
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 1, "work", "orders").await?;
    let worker = Worker { lease_ms: SHORT_LEASE_MS, ..stream::worker("orders")? };
    let (mut stream, _) = stream::attach(cluster.client(1), &session()?, &worker, Vec::new()).await?;
    let rows = delivered(&mut stream, 1).await?;
    let deadline = client.session(&session()?, ReadMode::Linearizable).await?.value.session.deadline;
    drop(stream);

    // It is handed out again, to whoever asks, by itself; and that is not before the end of the lease, in log time.
    let call = holdfast_client::ClaimCall { wait_ms: 30_000, ..work::lease("orders", 1, "another", 60_000)? };
    let again = client.claim(call, Write::default()).await?.value;
    ensure!(again.len() == 1 && again[0].token != rows[0].token, "{again:?}");
    let claimed_at = client.row(&rows[0].key, ReadMode::Linearizable).await?.value.row.claim.map(|c| c.claimed_at);
    ensure!(claimed_at >= Some(deadline), "handed out at {claimed_at:?}, and the lease ended at {deadline:?}");
    let late = work::refusal(work_late(&client, &rows[0]).await)?;
    ensure!(late.code() == "claim_lost", "{late:?}");
    ensure!(again[0].deliveries == 0, "the loss of a worker is not the row's fault");
    cluster.finish().await
}

async fn work_late(client: &Client, row: &Delivery) -> Result<Option<u64>, holdfast_client::ClientError> {
    let result = Default::default();
    client.complete(&row.key, Some(row.token), result, Write::default()).await.map(|answer| answer.value)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hears_of_the_end_of_its_work_at_whichever_node_that_is_decided() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let id = work::id("order-1")?;
    work::open(&cluster.any()?, &id, 2, "work", "orders").await?;
    let (mut stream, _) = attach(cluster.client(2), Vec::new()).await?;
    let rows = delivered(&mut stream, 2).await?;
    cluster.client(0).settle(&id, Write::default()).await?;
    let NodeMessage::Withdrawn { rows: withdrawn, .. } = next(&mut stream).await? else { bail!("not withdrawn") };
    let keys: Vec<_> = withdrawn.iter().map(|row| (&row.key, row.token, row.status)).collect();
    let wanted: Vec<_> = rows.iter().map(|row| (&row.key, row.token, Some(RowStatus::Cancelled))).collect();
    ensure!(keys == wanted, "{withdrawn:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_connections_of_a_session_the_newer_one_has_it() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (mut older, _) = attach(cluster.client(0), Vec::new()).await?;
    let (mut newer, resumed) = attach(cluster.client(1), Vec::new()).await?;
    ensure!(resumed, "a second session under one name");
    let last = next(&mut older).await?;
    ensure!(matches!(last, NodeMessage::Ended { reason: Ended::Moved, .. }), "{last:?}");
    nothing_but_news(&cluster, &mut newer, "order-1").await?;
    cluster.finish().await
}

/// Not a promise that a test could hold a busy machine to; the figures are printed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_staged_reaches_a_waiting_worker() -> Result<()> {
    const ROWS: usize = 60;
    let cluster = Setup::plain().start().await?;
    let leader = cluster.leader().await?;
    let (client, follower) = (cluster.client(leader), cluster.client((leader + 1) % 3));
    let (mut stream, _) = attach(follower, Vec::new()).await?;
    let mut waits = Vec::new();
    for number in 0..ROWS {
        let id = work::id(&format!("order-{number}"))?;
        let begin = Instant::now();
        let (staged, row) = tokio::join!(work::open(client, &id, 1, "work", "orders"), delivered(&mut stream, 1));
        waits.push(begin.elapsed());
        let row = row?.remove(0);
        ensure!(staged.is_ok() && row.key.workflow == id, "{staged:?} {row:?}");
        work::complete(client, &row, "once").await?;
    }
    waits.sort();
    let figures = |waits: &[Duration]| format!("median {:?}, 90 % {:?}", waits[ROWS / 2], waits[ROWS * 9 / 10]);
    eprintln!("from staging to the worker, three nodes, commit included: {}", figures(&waits));
    cluster.finish().await
}
