//! Listings of what is under way, which an engine reads after a start or an adoption.

use anyhow::{Result, ensure};
use holdfast_client::wire::{Head, PageCall, RowsInNamespace, UnsettledWorkflow, WaitingRoute};
use holdfast_client::{ReadMode, Write};
use holdfast_machine::{
    ActivityType, EventKind, Millis, NewRow, NodeName, Reject, ShardId, WorkflowId, WorkflowStatus,
};

use crate::checks::checks;
use crate::trial::{Trial, all_pages, over_limit, refused, refused_as, same};

checks! {
    "listings":
    unsettled = "unsettled workflows are those with live rows, by shard and id, with how many wait and are held",
    by_shard = "the unsettled workflows of a shard are those of that shard",
    routes = "pending routes say what a claim has to name, how many rows wait there, and when the first is due",
    route_order = "pending routes come by namespace, task queue, node and activity type",
    counted = "rows are counted by namespace, and in flight is pending and claimed together",
    heads = "heads say where histories end, of open workflows or of all, by id",
    pages = "each listing is read in pages, and a cursor belongs to its listing",
    no_such_shard = "a listing of a shard beyond the count is refused with the count",
}

const MODE: ReadMode = ReadMode::Linearizable;

async fn all_unsettled(trial: &Trial, shard: Option<ShardId>, limit: u32) -> Result<Vec<UnsettledWorkflow>> {
    all_pages(limit, |page| async move {
        let page = trial.store.unsettled(shard, &page, MODE).await?.value;
        Ok((page.workflows, page.next_cursor))
    })
    .await
}

async fn all_routes(trial: &Trial, limit: u32) -> Result<Vec<WaitingRoute>> {
    all_pages(limit, |page| async move {
        let page = trial.store.pending_routes(&page, MODE).await?.value;
        Ok((page.routes, page.next_cursor))
    })
    .await
}

async fn all_heads(trial: &Trial, shard: Option<ShardId>, open_only: bool, limit: u32) -> Result<Vec<Head>> {
    all_pages(limit, |page| async move {
        let page = trial.store.heads(shard, open_only, &page, MODE).await?.value;
        Ok((page.heads, page.next_cursor))
    })
    .await
}

async fn shard_of(trial: &Trial, workflow: &WorkflowId) -> Result<ShardId> {
    Ok(trial.store.workflow(workflow, MODE).await?.value.shard)
}

async fn unsettled(trial: &Trial) -> Result<()> {
    let (one, two) = (trial.open("one", [1, 2, 3]).await?, trial.open("two", [1]).await?);
    trial.open("none", []).await?;
    let paused = trial.open("paused", [1]).await?;
    trial.then(&paused, &[EventKind::WorkflowPaused]).await?;
    let taken = trial.claim(2).await?;
    trial.complete(&taken[0], "ok").await?;
    let shards = trial.store.shards(MODE).await?.value.shard_count;
    let look = async || -> Result<Vec<(WorkflowId, u64, u64)>> {
        let all = all_unsettled(trial, None, 1_000).await?;
        let place = |found: &UnsettledWorkflow| (ShardId::of(&found.workflow, shards), found.workflow.clone());
        ensure!(all.is_sorted_by_key(place), "not by shard and id: {all:?}");
        let mut own: Vec<_> = all
            .into_iter()
            .filter(|found| trial.is_own(&found.workflow))
            .map(|found| (found.workflow, found.pending, found.claimed))
            .collect();
        own.sort();
        Ok(own)
    };
    let mut expected = vec![(one.clone(), 1, 1), (two.clone(), 1, 0), (paused.clone(), 1, 0)];
    expected.sort();
    same("the workflows", look().await?, expected)?;
    for workflow in [&one, &two, &paused] {
        trial.store.settle(workflow, Write::default()).await?;
    }
    same("after all is settled", look().await?, vec![])
}

async fn by_shard(trial: &Trial) -> Result<()> {
    let workflow = trial.open("shard", [1]).await?;
    let shard = shard_of(trial, &workflow).await?;
    let shards = trial.store.shards(MODE).await?.value.shard_count;
    let of_shard = all_unsettled(trial, Some(shard), 1_000).await?;
    ensure!(of_shard.iter().any(|found| found.workflow == workflow), "the workflow is not in its shard");
    ensure!(of_shard.iter().all(|found| ShardId::of(&found.workflow, shards) == shard), "others are: {of_shard:?}");
    let other = ShardId((shard.0 + 1) % shards);
    if other != shard {
        let elsewhere = all_unsettled(trial, Some(other), 1_000).await?;
        ensure!(elsewhere.iter().all(|found| found.workflow != workflow), "the workflow is in another shard");
    }
    Ok(())
}

async fn routes(trial: &Trial) -> Result<()> {
    let workflow = trial.id("routes")?;
    let node = NodeName::new(trial.name("node"))?;
    let row = |ordinal, kind: &str, at, node: Option<&NodeName>| {
        let (activity_type, node) = (ActivityType::new(kind)?, node.cloned());
        anyhow::Ok(NewRow { activity_type, visible_after: Millis(at), node, ..trial.row(ordinal)? })
    };
    let rows = vec![
        row(1, "a", 30, None)?,
        row(2, "a", 20, None)?,
        row(3, "a", u64::MAX, None)?,
        row(4, "b", 10, None)?,
        row(5, "a", 5, Some(&node))?,
    ];
    trial.open_with(&workflow, rows).await?;
    let queue = trial.queue()?;
    let look = async || -> Result<Vec<_>> {
        let all = all_routes(trial, 1_000).await?;
        let own = all.into_iter().filter(|route| route.task_queue == queue);
        let facts =
            |route: WaitingRoute| (route.node, route.activity_type.to_string(), route.pending, route.next_due.0);
        Ok(own.map(facts).collect())
    };
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let pinned = (Some(node), a.clone(), 1, 5);
    same("the routes", look().await?, vec![(None, a.clone(), 3, 20), (None, b.clone(), 1, 10), pinned.clone()])?;
    trial.claim(2).await?;
    same("after two rows were taken", look().await?, vec![(None, a, 2, 30), pinned])?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    same("while the workflow is paused", look().await?, vec![])
}

async fn route_order(trial: &Trial) -> Result<()> {
    let workflow = trial.id("order")?;
    let row =
        |ordinal, kind: &str| anyhow::Ok(NewRow { activity_type: ActivityType::new(kind)?, ..trial.row(ordinal)? });
    trial.open_with(&workflow, vec![row(1, "c")?, row(2, "a")?, row(3, "b")?]).await?;
    for limit in [1_000, 20] {
        let all = all_routes(trial, limit).await?;
        let place = |route: &WaitingRoute| {
            let WaitingRoute { namespace, task_queue, node, activity_type, .. } = route.clone();
            (namespace, task_queue, node, activity_type)
        };
        ensure!(all.is_sorted_by_key(place), "not in order: {all:?}");
        let queue = trial.queue()?;
        let own = all.iter().filter(|route| route.task_queue == queue);
        let kinds: Vec<&str> = own.map(|route| route.activity_type.as_str()).collect();
        same("the routes", kinds, vec!["a", "b", "c"])?;
    }
    Ok(())
}

async fn counted(trial: &Trial) -> Result<()> {
    trial.open("counted", [1, 2, 3]).await?;
    trial.claim(1).await?;
    let all: Vec<RowsInNamespace> = all_pages(1_000, |page| async move {
        let page = trial.store.row_counts(&page, MODE).await?.value;
        Ok((page.namespaces, page.next_cursor))
    })
    .await?;
    ensure!(all.is_sorted_by_key(|counts| counts.namespace.clone()), "not by name: {all:?}");
    for RowsInNamespace { namespace, pending, claimed, in_flight } in &all {
        same(&format!("in flight in {namespace}"), *in_flight, pending + claimed)?;
    }
    let namespace = trial.namespace()?;
    let own = all.into_iter().find(|counts| counts.namespace == namespace);
    let Some(own) = own else { anyhow::bail!("nothing is counted in {namespace}") };
    ensure!(own.pending >= 2 && own.claimed >= 1, "less than there is: {own:?}");
    Ok(())
}

async fn heads(trial: &Trial) -> Result<()> {
    let (open, closed) = (trial.open("open", [1]).await?, trial.open("closed", []).await?);
    trial.then(&closed, &[EventKind::WorkflowCompleted]).await?;
    let look = async |shard, open_only| -> Result<Vec<(WorkflowId, u64, WorkflowStatus, String)>> {
        let all = all_heads(trial, shard, open_only, 1_000).await?;
        ensure!(all.is_sorted_by_key(|head| head.workflow.clone()), "not by id: {all:?}");
        ensure!(all.iter().all(|head| shard.is_none_or(|shard| head.shard == shard)), "of another shard: {all:?}");
        ensure!(!open_only || all.iter().all(|head| !head.status.is_terminal()), "a finished one: {all:?}");
        let own = all.into_iter().filter(|head| trial.is_own(&head.workflow));
        Ok(own.map(|head| (head.workflow, head.head, head.status, head.run_id.to_string())).collect())
    };
    let run = || "run-1".to_owned();
    let (of_open, of_closed) =
        ((open.clone(), 3, WorkflowStatus::Running, run()), (closed.clone(), 2, WorkflowStatus::Completed, run()));
    same("all of them", look(None, false).await?, vec![of_closed.clone(), of_open.clone()])?;
    same("the open ones", look(None, true).await?, vec![of_open.clone()])?;
    let shard = shard_of(trial, &closed).await?;
    ensure!(look(Some(shard), false).await?.contains(&of_closed), "it is not in its shard");
    ensure!(!look(Some(shard), true).await?.contains(&of_closed), "it is listed as open");
    Ok(())
}

async fn pages(trial: &Trial) -> Result<()> {
    for name in ["a", "b", "c"] {
        trial.open(name, [1]).await?;
    }
    let store = &trial.store;
    let first = PageCall::first(1);
    let unsettled = store.unsettled(None, &first, MODE).await?.value;
    let heads = store.heads(None, true, &first, MODE).await?.value;
    let routes = store.pending_routes(&first, MODE).await?.value;
    same("a page of one", (unsettled.workflows.len(), routes.routes.len()), (1, 1))?;
    ensure!(heads.heads.len() <= 1, "more than one: {heads:?}");
    let (Some(unsettled), Some(heads)) = (unsettled.next_cursor, heads.next_cursor) else {
        anyhow::bail!("a page of one of three has no cursor");
    };
    for (what, foreign) in [
        ("heads", store.heads(None, true, &PageCall::after(1, unsettled.as_str()), MODE).await.map(drop_value)),
        ("heads of all", store.heads(None, false, &PageCall::after(1, heads.as_str()), MODE).await.map(drop_value)),
        ("unsettled", store.unsettled(None, &PageCall::after(1, heads.as_str()), MODE).await.map(drop_value)),
        ("routes", store.pending_routes(&PageCall::after(1, heads.as_str()), MODE).await.map(drop_value)),
        ("counts", store.row_counts(&PageCall::after(1, heads.as_str()), MODE).await.map(drop_value)),
        ("a shard", store.unsettled(Some(ShardId(0)), &PageCall::after(1, unsettled), MODE).await.map(drop_value)),
    ] {
        refused_as(&format!("{what} with the cursor of another listing"), foreign, &["invalid_argument"])?;
    }
    let most = trial.limits.page_max as u64;
    for (limit, is_zero) in [(0, true), (most as u32 + 1, false)] {
        let page = PageCall::first(limit);
        for result in [
            store.unsettled(None, &page, MODE).await.map(drop_value),
            store.heads(None, true, &page, MODE).await.map(drop_value),
            store.pending_routes(&page, MODE).await.map(drop_value),
            store.row_counts(&page, MODE).await.map(drop_value),
        ] {
            match is_zero {
                true => refused_as("a page of nothing", result, &["invalid_argument"])?,
                false => over_limit("a page", result, most, most + 1)?,
            }
        }
    }
    Ok(())
}

fn drop_value<T>(answer: holdfast_client::Answer<T>) -> holdfast_client::Answer<()> {
    answer.map(|_| ())
}

async fn no_such_shard(trial: &Trial) -> Result<()> {
    let shard_count = trial.store.shards(MODE).await?.value.shard_count;
    let shard = ShardId(shard_count);
    let missing = || Reject::NoSuchShard { shard, shard_count };
    refused("unsettled", trial.store.unsettled(Some(shard), &PageCall::first(1), MODE).await, missing())?;
    refused("heads", trial.store.heads(Some(shard), true, &PageCall::first(1), MODE).await, missing())
}
