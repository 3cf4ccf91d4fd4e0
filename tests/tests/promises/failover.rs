//! Sections 3 and 4: what becomes of the work when its owner dies, is paused, or starts again. Cases 5, 5b, 7,
//! 8 and 25.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{BootId, DispatchKey, EventKind, Fence, Holder, NewEvent, Payload, RowStatus, ShardId};
use holdfast_tests::cluster::{Cluster, SHARDS, Setup};
use holdfast_tests::engine::{Execution, HOLD, Order, QUEUE, Record, WORK};
use holdfast_tests::process::Process;
use holdfast_tests::wait::{LONG, SOON, wait_until};
use holdfast_tests::{check, work};

/// Rows of the workflow in each story.
const ROWS: u64 = 4;

/// A detector that no start of a process is slow enough for.
fn slow_to_judge(setup: Setup) -> Setup {
    setup.set("HOLDFAST_DETECTOR_POLL_INTERVAL_MS", 5_000).set("HOLDFAST_DETECTOR_CONFIRMATIONS", 10)
}

/// The rows that a node has executed.
fn rows_of<'a>(node: &Process, executions: &'a [Execution]) -> BTreeSet<&'a DispatchKey> {
    executions.iter().filter(|execution| execution.by == node.label).map(|execution| &execution.key).collect()
}

/// A story is told twice: once with an owner that leads, and once with one that does not.
async fn owner_that_leads(cluster: &Cluster, leads: bool) -> Result<usize> {
    if leads { cluster.leader().await } else { cluster.follower().await }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_held_by_a_dead_node_are_handed_out_again_with_one_outcome_each() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let any = cluster.any()?;
    for leads in [false, true] {
        let owner = owner_that_leads(&cluster, leads).await?;
        let (id, fence) = cluster.workflow_of(owner, &format!("order-{leads}")).await?;
        work::open(&any, &id, ROWS, HOLD, QUEUE).await?;
        let first = cluster.begun(&id, ROWS as usize).await?;
        let owners = &cluster.nodes[owner].label;
        ensure!(first.iter().all(|execution| execution.by == *owners), "rows of others' shards were taken: {first:?}");

        // The owner dies with all of it in its hands; a survivor adopts and is handed the rows.
        cluster.nodes[owner].kill()?;
        let all = cluster.begun(&id, 2 * ROWS as usize).await?;
        let (adopter, epoch) = cluster.owner_of(&id).await?;
        ensure!(adopter != owner && epoch.0 == fence.epoch.0 + 1, "{adopter} owns it under {epoch}");
        let again = rows_of(&cluster.nodes[adopter], &all);
        ensure!(again.len() == ROWS as usize, "{all:?}");
        let row = any.row(&work::key(&id, 1), ReadMode::Linearizable).await?.value.row;
        ensure!(row.deliveries == 0 && row.attempt == 1, "a node's death is not the row's fault: {row:?}");
        cluster.tell_all(&Order::Release)?;
        work::all_done(&any, &id, ROWS).await?;
        ensure!(cluster.executions(&id)?.len() == 2 * ROWS as usize, "too many executions");

        cluster.nodes[owner].start()?;
        cluster.whole().await?;
        cluster.hold_all().await?;
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_held_by_workers_stay_with_them_when_their_node_dies() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    for leads in [false, true] {
        let owner = owner_that_leads(&cluster, leads).await?;
        let (id, fence) = cluster.workflow_of(owner, &format!("order-{leads}")).await?;
        work::open(&cluster.any()?, &id, ROWS, WORK, "workers").await?;

        // Four workers attached to the owner take a row each.
        let mut taken = Vec::new();
        for worker in 1..=ROWS {
            taken.extend(work::claim(cluster.client(owner), "workers", 1, &format!("worker {worker}")).await?);
        }
        cluster.nodes[owner].kill()?;
        let adopted = wait_until("a survivor has adopted the shard", LONG, async || {
            let (adopter, epoch) = cluster.owner_of(&id).await?;
            ensure!(adopter != owner && epoch > fence.epoch, "not yet");
            Ok(adopter)
        })
        .await?;

        // Nobody else gets the rows; the workers attach to survivors and finish under their tokens.
        let survivors = cluster.running();
        let thief = work::lease("workers", 10, "thief", work::LONG_LEASE_MS)?;
        let stolen = cluster.client(adopted).claim(thief, Write::default()).await?.value;
        ensure!(stolen.is_empty(), "rows of living workers were handed out: {stolen:?}");
        for (worker, delivery) in taken.iter().enumerate() {
            let client = cluster.client(survivors[worker % survivors.len()]);
            client.heartbeat(&delivery.key, delivery.token, 60_000, Payload::default(), Write::default()).await?;
            work::complete(client, delivery, "by the worker that had it").await?;
        }
        work::all_done(&cluster.any()?, &id, ROWS).await?;
        cluster.nodes[owner].start()?;
        cluster.whole().await?;
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn adoption_settles_what_is_finished_and_leaves_what_is_paused() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let any = cluster.any()?;
    let owner = cluster.follower().await?;
    let (id, _) = cluster.workflow_of(owner, "paused").await?;
    work::open(&any, &id, ROWS, HOLD, QUEUE).await?;
    cluster.begun(&id, ROWS as usize).await?;
    let head = 1 + 2 * ROWS;
    any.append(&id, head, vec![NewEvent::of(EventKind::WorkflowPaused)], Write::default()).await?;

    // Held rows of a paused workflow come back, and wait for its resumption.
    cluster.nodes[owner].kill()?;
    wait_until("the rows have come back", LONG, async || {
        for ordinal in 1..=ROWS {
            let status = work::status(&any, &work::key(&id, ordinal)).await?;
            ensure!(status == RowStatus::Pending, "row {ordinal} is {status}");
        }
        Ok(())
    })
    .await?;
    ensure!(cluster.executions(&id)?.len() == ROWS as usize, "rows of a paused workflow were handed out");
    cluster.tell_all(&Order::Release)?;
    any.append(&id, head + 1, vec![NewEvent::of(EventKind::WorkflowResumed)], Write::default()).await?;
    work::all_done(&any, &id, ROWS).await?;
    any.append(&id, head + 2 + ROWS, vec![NewEvent::of(EventKind::WorkflowCompleted)], Write::default()).await?;
    check::workflow(&any, &id).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopter_that_dies_at_once_is_adopted_in_turn() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    let owner = cluster.follower().await?;
    let (id, fence) = cluster.workflow_of(owner, "order").await?;
    work::open(&cluster.any()?, &id, ROWS, HOLD, QUEUE).await?;
    cluster.begun(&id, ROWS as usize).await?;

    // The adopter is killed as soon as its adoption can be seen anywhere.
    cluster.nodes[owner].kill()?;
    let adopter = wait_until("somebody has adopted the shard", LONG, async || {
        let (adopter, epoch) = cluster.owner_of(&id).await?;
        ensure!(epoch.0 == fence.epoch.0 + 1, "not yet");
        Ok(adopter)
    })
    .await?;
    cluster.nodes[adopter].kill()?;

    // Two are down, so nothing happens until one is back; then the shard moves on, and nothing is lost.
    cluster.nodes[owner].start()?;
    wait_until("the shard has moved on", LONG, async || {
        let (next, epoch) = cluster.owner_of(&id).await?;
        ensure!(next != adopter && epoch.0 > fence.epoch.0 + 1, "{} owns it under {epoch}", cluster.nodes[next].name);
        Ok(())
    })
    .await?;
    wait_until("the rows are handed out by the last owner", LONG, async || {
        let (next, _) = cluster.owner_of(&id).await?;
        let all = cluster.executions(&id)?;
        let last = rows_of(&cluster.nodes[next], &all);
        ensure!(last.len() == ROWS as usize, "{last:?}");
        Ok(())
    })
    .await?;
    cluster.tell_all(&Order::Release)?;
    work::all_done(&cluster.any()?, &id, ROWS).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_owner_finds_its_shards_lost_and_its_writes_refused() -> Result<()> {
    let cluster = Setup::with_engines().start().await?;
    for leads in [false, true] {
        let owner = owner_that_leads(&cluster, leads).await?;
        let witness = (owner + 1) % 3;
        let (id, fence) = cluster.workflow_of(owner, &format!("order-{leads}")).await?;
        work::open(&cluster.any()?, &id, 0, WORK, QUEUE).await?;
        let known = |record: &Record| {
            matches!(record, Record::Acquired { epoch, shard }
            if *epoch == fence.epoch && *shard == ShardId::of(&id, SHARDS))
        };
        wait_until("the owner's engine knows its shard", SOON, async || {
            ensure!(cluster.nodes[owner].records()?.iter().any(known), "it was not told yet");
            Ok(())
        })
        .await?;

        // Paused until its shards have been adopted. The order waits in its stdin.
        cluster.nodes[owner].pause()?;
        cluster.committed_as(false, owner, witness).await?;
        let new_owner = wait_until("the shard is adopted", LONG, async || {
            let entry = cluster.directory(witness).await?.remove(&ShardId::of(&id, SHARDS)).context("an owner")?;
            ensure!(entry.epoch > fence.epoch, "not yet");
            Ok(entry)
        })
        .await?;
        let text = format!("from the past {leads}");
        let late = Order::Append { workflow: id.clone(), expected_seq: 1, text: text.clone() };
        cluster.nodes[owner].tell(&late)?;
        cluster.nodes[owner].go_on()?;

        // Its write is refused and names the new owner; its engine hears that the shard is lost.
        wait_until("the late write is answered, and the loss is heard", LONG, async || {
            let records: Vec<Record> = cluster.nodes[owner].records()?;
            let lost =
                Record::Lost { shard: new_owner.shard, epoch: new_owner.epoch, new_owner: new_owner.owner.clone() };
            ensure!(records.contains(&lost), "no word of the loss");
            let answer = records.into_iter().find_map(|record| match record {
                Record::Appended { text: of, epoch, refused } if of == text => Some((epoch, refused)),
                _ => None,
            });
            let (epoch, refused) = answer.context("no answer")?;
            ensure!(epoch == fence.epoch, "the write was made under {epoch}");
            Ok(refused)
        })
        .await?
        .map_or_else(
            || bail!("a write under an old epoch has landed"),
            |(code, sentence)| {
                let named = sentence.contains(new_owner.owner.as_str());
                ensure!(code == "not_owner" && named, "{code}: {sentence}");
                Ok(())
            },
        )?;
        let history = check::workflow(&cluster.any()?, &id).await?;
        ensure!(history.len() == 1, "a write under an old epoch has landed: {history:?}");

        // It is committed as up again, and gets no shard back by itself.
        cluster.committed_as(true, owner, witness).await?;
        cluster.whole().await?;
        let name = &cluster.nodes[owner].name;
        ensure!(cluster.directory(witness).await?.values().all(|entry| entry.owner != *name), "a shard went back");

        // By transfer it does: all that it had.
        let adopted = cluster.directory(witness).await?;
        for (shard, entry) in adopted.iter().filter(|(_, entry)| entry.previous.as_ref() == Some(name)) {
            let back = cluster.client(witness).transfer(*shard, name, entry.epoch, Write::default()).await?.value;
            ensure!(back.epoch.0 == entry.epoch.0 + 1, "{back:?}");
        }
    }
    cluster.finish().await
}

/// The boot under which a node holds a row.
async fn held_under(client: &Client, key: &DispatchKey) -> Result<BootId> {
    let row = client.row(key, ReadMode::Linearizable).await?.value.row;
    match row.claim.context("nobody holds it")?.holder {
        Holder::Node { boot, .. } => Ok(boot),
        other => bail!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_again_before_anyone_notices_has_let_go_of_everything() -> Result<()> {
    let cluster = slow_to_judge(Setup::with_engines()).start().await?;
    let any = cluster.any()?;
    let owner = cluster.follower().await?;
    let (id, mut fence) = cluster.workflow_of(owner, "order").await?;
    work::open(&any, &id, ROWS, HOLD, QUEUE).await?;
    let mut count = ROWS as usize;

    for all_at_once in [false, true] {
        let before = cluster.begun(&id, count).await?;
        let Execution { key, token, .. } = before.last().context("an execution")?.clone();
        let boot = held_under(&any, &key).await?;

        // Killed and started again at once: one owner, then the whole cluster.
        let killed: Vec<usize> = if all_at_once { vec![0, 1, 2] } else { vec![owner] };
        killed.iter().try_for_each(|node| cluster.nodes[*node].kill())?;
        killed.iter().try_for_each(|node| cluster.nodes[*node].start())?;

        // The rows are handed out again by the same node, under a new boot and the next epoch.
        count += ROWS as usize;
        let again = cluster.begun(&id, count).await?;
        let owners = &cluster.nodes[owner].label;
        ensure!(again.iter().all(|execution| execution.by == *owners), "the shard has moved: {again:?}");
        ensure!(held_under(&any, &key).await? != boot, "the old boot still holds the row");
        let (same, epoch) = cluster.owner_of(&id).await?;
        ensure!(same == owner && epoch.0 == fence.epoch.0 + 1, "{same} owns it under {epoch}");

        // What the dead process had sent and what comes late is refused.
        let late = Write { fence: Some(fence.clone()), idempotency_key: None };
        let refused = any.append(&id, 1 + 2 * ROWS, vec![work::note("late")], late).await;
        ensure!(work::refusal(refused)?.code() == "not_owner", "a write of the dead process has landed");
        let refused = any.complete(&key, Some(token), Payload::text("late"), Write::default()).await;
        ensure!(work::refusal(refused)?.code() == "claim_lost", "a completion of the dead process has landed");
        fence = Fence { epoch, ..fence };
    }
    cluster.tell_all(&Order::Release)?;
    work::all_done(&any, &id, ROWS).await?;
    cluster.finish().await
}
