//! Section 8: a dispatch that nobody can serve is parked and visible with its reason, and whoever asks why something
//! does not move is told one reason. Case 22.

use std::process::Command as Process;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use holdfast_client::{Client, EventMessage, EventStream, WorkerStream, Write};
use holdfast_machine::{
    ClusterEvent, Command, Commit, DispatchKey, EventKind, Millis, Namespace, NamespaceSettings, NewEvent, NewRow,
    NodeName, Outlook, Parked, RowReason, ShardId, ShardReason, Vantage, Worker, WorkflowReason,
};
use holdfast_tests::bare::Bare;
use holdfast_tests::cluster::{Cluster, NAMES, Setup};
use holdfast_tests::program::Program;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{stream, work};

const UNSERVED: &str = "unserved";
const ROWS: u64 = 1_000;
/// Rows in one commit.
const PORTION: u64 = 250;
const SLOTS: u32 = 10;

async fn attach(client: &Client, identity: &str, queue: &str) -> Result<WorkerStream> {
    let activity_types = vec!["work".parse()?];
    let worker =
        Worker { identity: identity.parse()?, activity_types, max_concurrency: SLOTS, ..stream::worker(queue)? };
    Ok(stream::attach(client, &identity.parse()?, &worker, Vec::new()).await?.0)
}

async fn reason(client: &Client, key: &DispatchKey) -> Result<RowReason> {
    Ok(client.explain_row(key).await?.value.reason)
}

/// The next event about a parked dispatch of the queue; none for one that is parked no more.
async fn next_parked(events: &mut EventStream, queue: &str) -> Result<Option<Parked>> {
    let next = async {
        while let Some(message) = events.next().await {
            match message? {
                EventMessage::Event { event: ClusterEvent::DispatchParked { route, reason, .. }, .. }
                    if route.task_queue.as_str() == queue =>
                {
                    return Ok(Some(reason));
                }
                EventMessage::Event { event: ClusterEvent::DispatchUnparked { route }, .. }
                    if route.task_queue.as_str() == queue =>
                {
                    return Ok(None);
                }
                _ => {}
            }
        }
        bail!("the stream has ended")
    };
    tokio::time::timeout(LONG, next).await.context("nothing was said of a parked dispatch")?
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_for_a_queue_that_nobody_serves_are_told_of_once_and_explained() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let owner = 1;
    let client = cluster.client(owner);
    let mut events = client.events(None);
    events.next().await.context("the snapshot")??;

    // One queue is served, the one next to it is not.
    let served = attach(cluster.client(0), "a worker of orders", "orders").await?;
    let (id, _) = cluster.workflow_of(owner, "unserved").await?;
    let mut head = work::open(client, &id, PORTION, "work", UNSERVED).await?.head;
    for portion in 1..ROWS / PORTION {
        let ordinals = portion * PORTION + 1..=(portion + 1) * PORTION;
        let rows = ordinals.map(|ordinal| work::row(ordinal, "work", UNSERVED)).collect::<Result<Vec<_>>>()?;
        let commit = rows.into_iter().fold(Commit::new(id.clone(), head), Commit::activity);
        head = client.commit(commit, Write::default()).await?.value.head;
    }
    let busy = work::id("served")?;
    work::open(client, &busy, 1, "work", "orders").await?;

    // Each row says so on every node, with the workers that there are.
    for (node, name) in NAMES.iter().enumerate() {
        let explained = cluster.client(node).explain_row(&work::key(&id, ROWS)).await?.value;
        ensure!(matches!(explained.reason, RowReason::NoWorker { .. }), "{name} says {explained:?}");
        ensure!(explained.fresh && explained.outlook == Outlook::HeldUp, "{explained:?}");
        let census = explained.census.context("there is a census")?;
        ensure!((census.workers, census.elsewhere.len()) == (0, 1), "{census:?}");
        ensure!(census.elsewhere[0].task_queue.as_str() == "orders", "{census:?}");
    }
    let of_workflow = client.explain_workflow(&id).await?.value.reason;
    ensure!(matches!(of_workflow, WorkflowReason::RowHeldUp { pending: ROWS, claimed: 0, .. }), "{of_workflow:?}");
    let moving = reason(client, &work::key(&busy, 1)).await?;
    ensure!(matches!(moving, RowReason::ClaimedBySession { .. }), "the served queue is held up: {moving:?}");

    // It is told once, and counted.
    ensure!(next_parked(&mut events, UNSERVED).await? == Some(Parked::NoWorker));
    let metrics = async || -> Result<String> {
        Ok(cluster.http().get(format!("{}/metrics", cluster.nodes[owner].url)).send().await?.text().await?)
    };
    let counted = format!("holdfast_parked_rows{{node=\"{}\",reason=\"no_worker\"}} {ROWS}", NAMES[owner]);
    wait_until("all rows are counted as parked", LONG, async || {
        let metrics = metrics().await?;
        ensure!(metrics.lines().any(|line| line == counted), "not {counted}");
        Ok(())
    })
    .await?;

    // A worker comes: it takes what it can, and the rest waits for another reason, which is what is told next.
    let unserved = attach(cluster.client(2), "a worker of unserved", UNSERVED).await?;
    let first = work::key(&id, 1);
    wait_until("the first row is given to the worker", LONG, async || match reason(client, &first).await? {
        RowReason::ClaimedBySession { identity, .. } if identity.as_str() == "a worker of unserved" => Ok(()),
        other => bail!("{other:?}"),
    })
    .await?;
    let last = client.explain_row(&work::key(&id, ROWS)).await?.value;
    match &last.reason {
        RowReason::WorkersFull { workers: 1, rows, slots, .. } if *rows == *slots && *slots == u64::from(SLOTS) => {}
        other => bail!("{other:?}"),
    }
    ensure!(last.census.context("there is a census")?.sessions.len() == 1);
    ensure!(next_parked(&mut events, UNSERVED).await? == Some(Parked::WorkersFull), "told more than once");

    client.settle(&id, Write::default()).await?;
    ensure!(next_parked(&mut events, UNSERVED).await?.is_none());
    drop((served, unserved));
    cluster.finish().await
}

/// What the program says with, and its exit code.
fn program(cluster: &Cluster, node: usize, kind: &str, subject: &str) -> Result<(String, Option<i32>)> {
    let mut program = Process::new(Program::Holdfast.path()?);
    let output = program.args(["explain", kind, subject, "--url", &cluster.nodes[node].url]).output()?;
    Ok((String::from_utf8(output.stdout)?, output.status.code()))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_thing_that_waits_says_for_what() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    let (asked, gone, last) = (0, 1, 2);
    let client = cluster.client(asked);

    // Held by a pause; and its workflow says the same.
    let paused = work::id("paused")?;
    let head = work::open(&any, &paused, 1, "work", "q").await?.head;
    any.append(&paused, head, vec![NewEvent::of(EventKind::WorkflowPaused)], Write::default()).await?;
    match reason(client, &work::key(&paused, 1)).await? {
        RowReason::WorkflowPaused { since: Some(_), .. } => {}
        other => bail!("{other:?}"),
    }
    let of_workflow = client.explain_workflow(&paused).await?.value;
    ensure!(matches!(of_workflow.reason, WorkflowReason::Paused { pending: 1, .. }), "{of_workflow:?}");

    // Visible later; claimed; done; pinned to a node.
    let mixed = work::id("mixed")?;
    let now = any.cluster().await?.value.now.0;
    let rows = vec![
        NewRow { visible_after: Millis(now + 3_600_000), ..work::row(1, "work", "q")? },
        work::row(2, "work", "claimed")?,
        work::row(3, "work", "done")?,
        NewRow { node: Some(NodeName::new(NAMES[gone])?), ..work::row(4, "work", "q")? },
    ];
    any.commit(work::opening(&mixed, rows)?, Write::default()).await?;
    match reason(client, &work::key(&mixed, 1)).await? {
        RowReason::NotYetVisible { visible_in_ms, .. } if visible_in_ms <= 3_600_000 && visible_in_ms > 3_000_000 => {}
        other => bail!("{other:?}"),
    }
    work::claim(&any, "claimed", 1, "a claimant").await?;
    match reason(client, &work::key(&mixed, 2)).await? {
        RowReason::ClaimedByLease { claimant, lease_left_ms, .. } if claimant.as_str() == "a claimant" => {
            ensure!(lease_left_ms <= work::LONG_LEASE_MS && lease_left_ms > work::LONG_LEASE_MS / 2, "{lease_left_ms}");
        }
        other => bail!("{other:?}"),
    }
    let taken = work::claim(&any, "done", 1, "a claimant").await?;
    work::complete(&any, &taken[0], "ok").await?;
    let unserved = reason(client, &work::key(&mixed, 4)).await?;
    ensure!(matches!(unserved, RowReason::PinnedNodeUnserved { .. }), "{unserved:?}");

    // A namespace at its ceiling.
    let small = Namespace::new("small")?;
    let settings = NamespaceSettings { claimed_max: Some(0), ..Default::default() };
    any.put_namespace(&small, &settings, Write::default()).await?;
    let tenant = work::id("tenant")?;
    any.stage(&tenant, small, vec![work::row(1, "work", "q")?], Write::default()).await?;
    let stopped = reason(client, &work::key(&tenant, 1)).await?;
    ensure!(matches!(stopped, RowReason::NamespaceStopped { .. }), "{stopped:?}");

    // The same from the program, with an exit code.
    for (kind, subject, says, code) in [
        ("row", "mixed:1", "moves", 0),
        ("row", "mixed:3", "has ended", 0),
        ("row", "paused:1", "has been paused for", 1),
        ("workflow", "paused", "is held up", 1),
        ("shard", "0", "owns the shard", 0),
        ("row", "nobody:1", "is not known", 2),
        ("shard", "9999", "is not known", 2),
    ] {
        let (said, found) = program(&cluster, asked, kind, subject)?;
        ensure!(said.contains(says) && found == Some(code), "{kind} {subject}: {found:?} {said}");
    }

    // A node goes: its pinned row waits for it, its shards get another owner.
    let (of_gone, _) = cluster.workflow_of(gone, "of-gone").await?;
    cluster.nodes[gone].kill()?;
    cluster.committed_as(false, gone, asked).await?;
    match reason(client, &work::key(&mixed, 4)).await? {
        RowReason::PinnedNodeAway { node, down_since: Some(_) } if node.as_str() == NAMES[gone] => {}
        other => bail!("{other:?}"),
    }
    cluster.all_shards_owned().await?;
    let shard = client.explain_shard(ShardId::of(&of_gone, holdfast_tests::cluster::SHARDS)).await?.value;
    match &shard.reason {
        ShardReason::Owned { previous: Some(previous), .. } if previous.as_str() == NAMES[gone] => {}
        other => bail!("{other:?}"),
    }

    // Another goes: the last one says that it cannot tell, except for what has ended.
    cluster.nodes[last].kill()?;
    wait_until("the node knows that it is alone", LONG, async || {
        let explained = client.explain_row(&work::key(&mixed, 1)).await?.value;
        match explained.reason {
            RowReason::NoQuorum(alone) if !explained.fresh && (alone.linked, alone.voters) == (1, 3) => {
                ensure!(alone.for_ms.is_some(), "{alone:?}");
                Ok(())
            }
            other => bail!("{other:?}"),
        }
    })
    .await?;
    let done = client.explain_row(&work::key(&mixed, 3)).await?.value;
    ensure!(matches!(done.reason, RowReason::Finished { .. }) && !done.fresh, "{done:?}");
    let shard = client.explain_shard(ShardId(0)).await?.value.reason;
    ensure!(matches!(shard, ShardReason::NoQuorum(_)), "{shard:?}");
    let (said, code) = program(&cluster, asked, "workflow", "mixed")?;
    ensure!(said.contains("does not reach a majority") && code == Some(1), "{code:?} {said}");
    cluster.finish().await
}

/// Nobody adopts here, so that there is time to ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_owner_is_down_says_who_is_to_adopt_it() -> Result<()> {
    let mut bare = Bare::start(1).await?;
    let (gone, asked) = (2, 0);
    let owners = vec![(ShardId(0), NodeName::new(NAMES[gone])?)];
    bare.ask(asked, Command::Assign { owners }).await?;
    let explain = |bare: &Bare| -> Result<ShardReason> {
        Ok(bare.handle(asked)?.view(|machine, _| {
            machine.explain_shard(ShardId(0), &Vantage { now: machine.now(), ..Vantage::default() })
        }))
    };
    // The node that is asked may have to catch up with what was agreed on.
    wait_until("the shard is owned", LONG, async || {
        let owned = explain(&bare)?;
        ensure!(matches!(owned, ShardReason::Owned { .. }), "{owned:?}");
        Ok(())
    })
    .await?;
    bare.stop(gone).await?;
    bare.committed_as(gone, false).await?;
    wait_until("the shard's owner is down", LONG, async || match explain(&bare)? {
        ShardReason::OwnerDown { owner, down_since: Some(_), adopter: Some(adopter), .. } => {
            ensure!(owner.as_str() == NAMES[gone] && adopter != owner, "{adopter}");
            Ok(())
        }
        other => bail!("{other:?}"),
    })
    .await?;
    bare.finish().await;
    Ok(())
}
