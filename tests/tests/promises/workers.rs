//! Section 8: what workers are given, keep and lose. Cases 2, 5b, 13 and 22 with real workers.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use holdfast_client::{Client, PageCall, ReadMode, Write};
use holdfast_machine::{EventKind, NewEvent, Payload, RowReason, RowStatus, SessionId, ShardId, WorkflowId};
use holdfast_tests::cluster::{Cluster, SHARDS, Setup};
use holdfast_tests::crew::{Crew, Execution};
use holdfast_tests::door::Door;
use holdfast_tests::engine::{HOLD, WORK};
use holdfast_tests::stream::{self, attach, delivered};
use holdfast_tests::wait::{LONG, holds_for, wait_until};
use holdfast_tests::{check, work};
use holdfast_worker::Cancelled;

const QUEUE: &str = "workers";
/// A lease that is over before a test has lost its patience, and long enough for a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// Waits until `count` executions of a workflow have begun.
async fn begun(crew: &Crew, id: &WorkflowId, count: usize) -> Result<Vec<Execution>> {
    wait_until("the rows are being executed", LONG, async || {
        let executions = crew.executions(id);
        ensure!(executions.len() >= count, "{} of {count} executions", executions.len());
        Ok(executions)
    })
    .await
}

/// A client that asks this node first.
fn first_of_all(cluster: &Cluster, node: usize) -> Result<Client> {
    let nodes = (0..cluster.nodes.len()).map(|place| &cluster.nodes[(node + place) % cluster.nodes.len()].url);
    Ok(Client::new(nodes)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_worker_holds_for_long_is_executed_once() -> Result<()> {
    let cluster = Setup::plain()
        .set("HOLDFAST_RECONCILE_INTERVAL_MS", 50)
        .set("HOLDFAST_RECONCILE_OLDER_THAN_MS", 100)
        .start()
        .await?;
    let (client, crew, id) = (cluster.any()?, Crew::default(), work::id("order-1")?);
    let hand = crew.hire(&client, "steady", QUEUE, |worker| worker.lease(SHORT));
    work::open(&client, &id, 1, HOLD, QUEUE).await?;
    begun(&crew, &id, 1).await?;

    // For longer than its lease, under reconciliation by the cluster and by hand.
    holds_for(2 * SHORT, async || {
        let reconciled = client.reconcile(100, 100, Vec::new(), Write::default()).await?.value;
        ensure!(reconciled.rearmed.is_empty(), "{reconciled:?}");
        Ok(())
    })
    .await?;
    hand.let_go();
    work::all_done(&client, &id, 1).await?;
    let tally = hand.end().await?;
    ensure!((tally.sessions, tally.started, tally.completed) == (1, 1, 1), "{tally:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_node_that_dies_attach_to_another_and_go_on() -> Result<()> {
    const ROWS: u64 = 4;
    let cluster = Setup::plain().start().await?;
    for leads in [false, true] {
        let owner = if leads { cluster.leader().await? } else { cluster.follower().await? };
        let (id, fence) = cluster.workflow_of(owner, &format!("order-{leads}")).await?;
        let (client, crew) = (first_of_all(&cluster, owner)?, Crew::default());
        let one_each = |number| crew.hire(&client, &format!("worker {number}"), QUEUE, |one| one.max_concurrency(1));
        let hands: Vec<_> = (1..=ROWS).map(one_each).collect();
        work::open(&client, &id, ROWS, HOLD, QUEUE).await?;
        let first = begun(&crew, &id, ROWS as usize).await?;
        let workers: BTreeSet<_> = first.iter().map(|execution| &execution.worker).collect();
        ensure!(workers.len() == ROWS as usize, "one has more rows than it has room for: {first:?}");

        cluster.nodes[owner].kill()?;
        let any = cluster.any()?;
        wait_until("the shard is adopted, and the workers are attached elsewhere", LONG, async || {
            let survivor = *cluster.running().first().context("no node runs")?;
            let entry = cluster.directory(survivor).await?.remove(&ShardId::of(&id, SHARDS)).context("an owner")?;
            ensure!(entry.epoch > fence.epoch, "not adopted yet");
            ensure!(hands.iter().all(|hand| hand.tally().attached >= 2), "not attached yet");
            Ok(())
        })
        .await?;
        for execution in crew.executions(&id) {
            let row = any.row(&execution.key, ReadMode::Linearizable).await?.value.row;
            ensure!(row.status == RowStatus::Claimed, "a row was taken from a worker that lives: {row:?}");
        }
        hands.iter().for_each(|hand| hand.let_go());
        work::all_done(&any, &id, ROWS).await?;
        for hand in hands {
            let tally = hand.end().await?;
            ensure!((tally.sessions, tally.started, tally.completed) == (1, 1, 1), "{tally:?}");
        }
        ensure!(crew.executions(&id).len() == ROWS as usize, "{:?}", crew.executions(&id));
        cluster.nodes[owner].start()?;
        cluster.whole().await?;
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_to_a_connection_that_is_gone_is_given_to_the_next_one() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let (session, worker): (SessionId, _) = ("a session by hand".parse()?, stream::worker(QUEUE)?);
    let mut tokens = BTreeSet::new();
    for (number, moment) in ["before", "at once", "unread", "unconfirmed"].into_iter().enumerate() {
        let id = work::id(&format!("order-{number}"))?;
        let (mut stream, _) = attach(&client, &session, &worker, Vec::new()).await?;
        if moment == "before" {
            drop(stream);
            work::open(&client, &id, 3, WORK, QUEUE).await?;
        } else if moment == "at once" {
            let (opened, ()) = tokio::join!(work::open(&client, &id, 3, WORK, QUEUE), async { drop(stream) });
            opened?;
        } else {
            work::open(&client, &id, 3, WORK, QUEUE).await?;
            if moment == "unconfirmed" {
                let given = delivered(&mut stream, 3).await?;
                tokens.extend(given.iter().map(|delivery| delivery.token));
            }
            drop(stream);
        }
        // The same session, at any node: all that it has comes again, and once.
        let (mut stream, _) = attach(cluster.client(number % 3), &session, &worker, Vec::new()).await?;
        let given = delivered(&mut stream, 3).await?;
        let keys: BTreeSet<_> = given.iter().map(|delivery| &delivery.key).collect();
        ensure!(keys.len() == 3 && given.len() == 3, "{moment}: {given:?}");
        if moment == "unconfirmed" {
            ensure!(given.iter().all(|delivery| tokens.contains(&delivery.token)), "claimed anew: {given:?}");
        }
        for delivery in &given {
            work::complete(&client, delivery, moment).await?;
        }
        work::all_done(&client, &id, 3).await?;
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_nobody_serves_do_not_stand_in_the_way_of_others() -> Result<()> {
    const SERVED: u64 = 100;
    let cluster = Setup::plain().start().await?;
    let (client, crew) = (cluster.any()?, Crew::default());
    let unserved: Vec<_> = (0..10).map(|number| work::id(&format!("unserved-{number}"))).collect::<Result<_>>()?;
    try_join_all(unserved.iter().map(|id| work::open(&client, id, 100, WORK, "nobody's"))).await?;
    let hand = crew.hire(&client, "worker", QUEUE, |worker| worker.max_concurrency(4));
    let id = work::id("served")?;
    work::open(&client, &id, SERVED, WORK, QUEUE).await?;
    work::all_done(&client, &id, SERVED).await?;

    // Whoever asks about the others hears what is missing, while somebody serves another queue.
    let why = client.explain_row(&work::key(&unserved[0], 1)).await?.value;
    let missing = RowReason::NoWorker { namespace: Default::default(), task_queue: "nobody's".parse()? };
    ensure!(why.reason == missing, "{why:?}");

    // One execution each, and nothing was done with the others.
    let tally = hand.end().await?;
    ensure!((tally.started, tally.completed) == (SERVED, SERVED), "{tally:?}");
    for id in &unserved {
        for ordinal in 1..=100 {
            let row = client.row(&work::key(id, ordinal), ReadMode::Stale).await?.value.row;
            ensure!(row.status == RowStatus::Pending && row.deliveries == 0 && row.claim.is_none(), "{row:?}");
        }
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_worker_that_is_killed_go_to_another_one() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (client, crew, id) = (cluster.any()?, Crew::default(), work::id("order-1")?);
    let first = crew.hire(&client, "first", QUEUE, |worker| worker.lease(SHORT));
    work::open(&client, &id, 2, HOLD, QUEUE).await?;
    begun(&crew, &id, 2).await?;
    let second = crew.hire(&client, "second", QUEUE, |worker| worker);
    first.kill().await;
    let executions = begun(&crew, &id, 4).await?;
    let again: Vec<_> = executions.iter().filter(|execution| execution.worker == "second").collect();
    ensure!(
        again.len() == 2 && again.iter().all(|one| one.attempt == 1),
        "a death is no failed attempt: {executions:?}"
    );
    second.let_go();
    work::all_done(&client, &id, 2).await?;
    let tally = second.end().await?;
    ensure!(tally.completed == 2 && crew.executions(&id).len() == 4, "{tally:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_replies_after_its_row_was_given_to_another_is_not_heard() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (client, crew, id) = (cluster.any()?, Crew::default(), work::id("order-1")?);
    let port = cluster.nodes[0].url.rsplit(':').next().context("a port")?.parse()?;
    let door = Door::to(port).await?;
    let late = crew.hire(&Client::new([door.url()])?, "late", QUEUE, |worker| worker.lease(SHORT));
    work::open(&client, &id, 1, HOLD, QUEUE).await?;
    begun(&crew, &id, 1).await?;

    // Cut off, it finishes and cannot say so; meanwhile its lease ends, and the row is another worker's.
    door.shut();
    late.let_go();
    let second = crew.hire(&client, "second", QUEUE, |worker| worker);
    let executions = begun(&crew, &id, 2).await?;
    ensure!(executions[1].worker == "second", "{executions:?}");
    second.let_go();
    work::all_done(&client, &id, 1).await?;
    let before = check::workflow(&client, &id).await?;

    door.open();
    wait_until("the late reply counts for nothing", LONG, async || {
        ensure!(late.tally().absorbed == 1, "{:?}", late.tally());
        Ok(())
    })
    .await?;
    ensure!(check::workflow(&client, &id).await? == before, "the first outcome did not stand");
    let (late, second) = (late.end().await?, second.end().await?);
    ensure!((late.completed, second.completed) == (0, 1), "{late:?} {second:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_told_when_its_work_is_for_nothing() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (client, crew) = (cluster.any()?, Crew::default());
    let (ended, other) = (work::id("ended")?, work::id("other")?);
    let hand = crew.hire(&client, "worker", QUEUE, |worker| worker);
    work::open(&client, &ended, 1, HOLD, QUEUE).await?;
    work::open(&client, &other, 1, HOLD, QUEUE).await?;
    begun(&crew, &ended, 1).await?;
    begun(&crew, &other, 1).await?;
    client.append(&ended, 3, vec![NewEvent::of(EventKind::WorkflowCancelled)], Write::default()).await?;
    wait_until("the handler hears of it", LONG, async || {
        let told = crew.executions(&ended)[0].cancelled;
        ensure!(told == Some(Cancelled::Withdrawn(Some(RowStatus::Cancelled))), "{told:?}");
        Ok(())
    })
    .await?;
    hand.let_go();
    work::all_done(&client, &other, 1).await?;
    let tally = hand.end().await?;
    ensure!((tally.cancelled, tally.completed, tally.failed) == (1, 1, 0), "{tally:?}");
    check::workflow(&client, &ended).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_end_in_good_order_lose_nothing_and_leave_nothing_behind() -> Result<()> {
    const ROWS: u64 = 300;
    let cluster = Setup::plain().start().await?;
    let (client, crew, id) = (cluster.any()?, Crew::default(), work::id("order-1")?);
    let hire = |name: &str, node: usize| crew.hire(cluster.client(node), name, QUEUE, |one| one.max_concurrency(3));
    let mut hands = vec![hire("0", 0), hire("1", 1)];
    work::open(&client, &id, ROWS, WORK, QUEUE).await?;
    // A shift ends as soon as the next one has begun.
    for shift in 2..8 {
        begun(&crew, &id, ROWS as usize / 8 * (shift - 1)).await?;
        hands.push(hire(&shift.to_string(), shift % 3));
        let tally = hands.remove(0).end().await?;
        ensure!(tally.started == tally.completed && tally.cancelled == 0, "{tally:?}");
    }
    work::all_done(&client, &id, ROWS).await?;
    ensure!(crew.executions(&id).len() == ROWS as usize, "{} executions", crew.executions(&id).len());
    for hand in hands {
        hand.end().await?;
    }

    // What is not finished in time goes back at once, as it was.
    let held = work::id("held")?;
    work::open(&client, &held, 1, HOLD, QUEUE).await?;
    let hasty = crew.hire(&client, "hasty", QUEUE, |one| one.drain_deadline(Duration::from_millis(50)));
    begun(&crew, &held, 1).await?;
    let tally = hasty.end().await?;
    ensure!((tally.cancelled, tally.failed) == (1, 0), "{tally:?}");
    let row = client.row(&work::key(&held, 1), ReadMode::Linearizable).await?.value.row;
    ensure!(row.status == RowStatus::Pending && row.attempt == 1 && row.deliveries == 0, "{row:?}");
    let page = PageCall { limit: 10, cursor: None };
    let sessions = client.sessions(&Default::default(), &page, ReadMode::Linearizable).await?.value;
    ensure!(sessions.sessions.is_empty(), "{sessions:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_a_node_that_stands_still() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let (crew, id) = (Crew::default(), work::id("order-1")?);
    let stands = cluster.follower().await?;
    let hand = crew.hire(&first_of_all(&cluster, stands)?, "worker", QUEUE, |one| one.lease(Duration::from_secs(9)));
    wait_until("it is attached", LONG, async || {
        ensure!(hand.tally().attached == 1, "not yet");
        Ok(())
    })
    .await?;
    cluster.nodes[stands].pause()?;
    let witness = cluster.client((stands + 1) % 3);
    work::open(witness, &id, 1, WORK, QUEUE).await?;
    work::all_done(witness, &id, 1).await?;
    cluster.nodes[stands].go_on()?;
    let tally = hand.end().await?;
    ensure!((tally.sessions, tally.started) == (1, 1), "{tally:?}");
    let result =
        check::workflow(witness, &id).await?.into_iter().find(|event| event.kind == EventKind::ActivityCompleted);
    ensure!(result.context("an outcome")?.payload == Payload::json("done")?, "another result");
    cluster.finish().await
}
