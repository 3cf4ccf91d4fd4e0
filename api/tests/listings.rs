//! Listings of what is under way: workflows with live rows, routes, counts, heads; and the orders of rows.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use holdfast_client::{Head, PageCall, ReadMode, UnsettledWorkflow, Write};
use holdfast_machine::{EventKind, Millis, Namespace, NewEvent, NewRow, ShardId, WorkflowStatus};
use serde_json::Value;
use support::{SHARDS, Served, claim, id, keys, new_row, reject, serve, staged};

const LINEARIZABLE: ReadMode = ReadMode::Linearizable;

fn row(ordinal: u64, activity_type: &str, visible_after: u64) -> NewRow {
    NewRow { activity_type: activity_type.parse().unwrap(), visible_after: Millis(visible_after), ..new_row(ordinal) }
}

async fn get(served: &Served, path: &str) -> Value {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http.get(format!("{}{path}", served.url)).send().await.unwrap().json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn workflows_with_live_rows_are_listed_with_their_numbers() {
    let served = serve().await;
    let client = &served.client;
    for name in ["a", "b", "c", "d", "e"] {
        served.stage(name, [1, 2]).await;
    }
    let taken = client.claim(claim(1, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&taken), ["a:1"]);
    client.settle(&id("e"), Write::default()).await.unwrap();

    let whole = client.unsettled(None, &PageCall::first(10), LINEARIZABLE).await.unwrap().value;
    assert_eq!(whole.next_cursor, None);
    let numbers = |found: &UnsettledWorkflow| (found.workflow.to_string(), found.pending, found.claimed);
    let mut by_name: Vec<_> = whole.workflows.iter().map(numbers).collect();
    by_name.sort();
    let expected = [("a", 1, 1), ("b", 2, 0), ("c", 2, 0), ("d", 2, 0)];
    assert_eq!(by_name, expected.map(|(name, pending, claimed)| (name.to_owned(), pending, claimed)));

    let mut by_shard = Vec::new();
    for shard in 0..SHARDS {
        let mut page = PageCall::first(1);
        loop {
            let found = client.unsettled(Some(ShardId(shard)), &page, LINEARIZABLE).await.unwrap().value;
            by_shard.extend(found.workflows);
            let Some(cursor) = found.next_cursor else { break };
            page = PageCall::after(1, cursor);
        }
    }
    assert_eq!(by_shard, whole.workflows, "by shard, then by id");
    let nowhere = client.unsettled(Some(ShardId(SHARDS)), &PageCall::first(1), LINEARIZABLE).await;
    assert_eq!(reject(nowhere).code(), "no_such_shard");
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_and_counts_are_one_call() {
    let served = serve().await;
    let client = &served.client;
    let stage = |workflow: &'static str, namespace: &'static str, rows: Vec<NewRow>| async move {
        client.stage(&id(workflow), namespace.parse().unwrap(), rows, Write::default()).await.unwrap();
    };
    stage("a", "default", vec![row(1, "charge", 900), row(2, "mail", 800)]).await;
    stage("b", "default", vec![row(1, "charge", 700), row(2, "charge", u64::MAX)]).await;
    let pinned = NewRow { node: Some(support::node()), task_queue: "slow".parse().unwrap(), ..row(1, "mail", 5) };
    stage("c", "other", vec![pinned]).await;
    client.commit(staged("held", [1]), Write::default()).await.unwrap();
    client.append(&id("held"), 3, vec![NewEvent::of(EventKind::WorkflowPaused)], Write::default()).await.unwrap();

    let routes = get(&served, "/v1/outbox/routes").await;
    let route = |namespace: &str, queue: &str, node: Value, kind: &str, pending: u64, next_due: u64| {
        serde_json::json!({
            "namespace": namespace, "task_queue": queue, "node": node, "activity_type": kind,
            "pending": pending, "next_due": next_due,
        })
    };
    let expected = [
        route("default", "default", Value::Null, "charge", 3, 700),
        route("default", "default", Value::Null, "mail", 1, 800),
        route("other", "slow", "node-1".into(), "mail", 1, 5),
    ];
    assert_eq!(routes, serde_json::json!({"routes": expected, "next_cursor": null}));
    let mut page = PageCall::first(1);
    for expected in &expected {
        let found = client.pending_routes(&page, LINEARIZABLE).await.unwrap().value;
        assert_eq!(serde_json::to_value(&found.routes[0]).unwrap(), *expected);
        page.cursor = found.next_cursor;
    }
    assert_eq!(page.cursor, None);

    let taken = client.claim(claim(1, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&taken), ["b:1"]);
    let counts = get(&served, "/v1/outbox/counts").await;
    let expected = serde_json::json!({"namespaces": [
        {"namespace": "default", "pending": 4, "claimed": 1, "in_flight": 5},
        {"namespace": "other", "pending": 1, "claimed": 0, "in_flight": 1},
    ], "next_cursor": null});
    assert_eq!(counts, expected);
    let first = client.row_counts(&PageCall::first(1), LINEARIZABLE).await.unwrap().value;
    let cursor = first.next_cursor.unwrap();
    let next = client.row_counts(&PageCall::after(1, &cursor), LINEARIZABLE).await.unwrap().value;
    assert_eq!((next.namespaces[0].namespace.as_str(), next.next_cursor), ("other", None));
    let foreign = client.pending_routes(&PageCall::after(1, cursor), LINEARIZABLE).await;
    assert_eq!(reject(foreign).code(), "invalid_argument");
}

/// All heads in pages of this size.
async fn heads(served: &Served, shard: Option<ShardId>, open_only: bool, limit: u32) -> Vec<Head> {
    let (mut page, mut all) = (PageCall::first(limit), Vec::new());
    loop {
        let found = served.client.heads(shard, open_only, &page, LINEARIZABLE).await.unwrap().value;
        assert!(found.heads.len() <= limit as usize);
        all.extend(found.heads);
        let Some(cursor) = found.next_cursor else { return all };
        page = PageCall::after(limit, cursor);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heads_of_all_histories_are_read_in_pages() {
    let served = serve().await;
    let names: Vec<String> = (0..30).map(|n| format!("w-{n:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        served.stage(name, []).await;
        if number % 3 == 0 {
            let end = vec![NewEvent::of(EventKind::WorkflowCompleted)];
            served.client.append(&id(name), 1, end, Write::default()).await.unwrap();
        }
    }
    served.client.stage(&id("rows-alone"), Namespace::default(), vec![new_row(1)], Write::default()).await.unwrap();
    let whole = heads(&served, None, false, 1_000).await;
    let seen: Vec<&str> = whole.iter().map(|head| head.workflow.as_str()).collect();
    assert_eq!(seen, names, "by id; rows make no history");
    let ended: Vec<u64> = whole.iter().filter(|h| h.status == WorkflowStatus::Completed).map(|h| h.head).collect();
    assert_eq!(ended, [2; 10]);
    assert!(whole.iter().all(|head| head.run_id.as_str() == "run-1"));
    for limit in [1, 2, 7, 30] {
        assert_eq!(heads(&served, None, false, limit).await, whole, "pages of {limit}");
    }
    let open: Vec<Head> = whole.iter().filter(|head| head.status == WorkflowStatus::Running).cloned().collect();
    assert_eq!(heads(&served, None, true, 3).await, open);
    let mut shards = BTreeSet::new();
    for shard in (0..SHARDS).map(ShardId) {
        let of_shard: Vec<Head> = whole.iter().filter(|head| head.shard == shard).cloned().collect();
        assert_eq!(heads(&served, Some(shard), false, 2).await, of_shard);
        let open: Vec<Head> = open.iter().filter(|head| head.shard == shard).cloned().collect();
        assert_eq!(heads(&served, Some(shard), true, 2).await, open);
        shards.extend(of_shard.iter().map(|head| head.shard));
    }
    assert!(shards.len() > 1);
    let nowhere = served.client.heads(Some(ShardId(SHARDS)), false, &PageCall::first(1), LINEARIZABLE).await;
    assert_eq!(reject(nowhere).code(), "no_such_shard");
}

/// The orders that are promised: due rows by `visible_after`, then key; stale ones by time of claim, then key.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_due_and_stale_in_their_order() {
    let served = serve().await;
    let client = &served.client;
    let stage = |workflow: &'static str, rows: Vec<NewRow>| async move {
        client.stage(&id(workflow), Namespace::default(), rows, Write::default()).await.unwrap();
    };
    // Ten is after nine: keys go by id, then by number.
    stage("b", vec![row(10, "x", 50), row(9, "y", 50), row(1, "x", 70)]).await;
    stage("a", vec![row(3, "y", 50), row(2, "x", 60), row(1, "x", 40)]).await;
    stage("later", vec![row(1, "x", u64::MAX)]).await;
    let due = ["a:1", "a:3", "b:9", "b:10", "a:2", "b:1"];
    let mut taken = Vec::new();
    for limit in [2, 1, 3] {
        let claimed = client.claim(claim(limit, 0), Write::default()).await.unwrap().value;
        taken.extend(keys(&claimed));
        // The next claim has another time, so that it is younger.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(taken, due);
    let stale = get(&served, "/v1/outbox/stale?older_than_ms=0").await;
    let stale: Vec<&str> = stale["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(stale, ["a:1", "a:3", "b:9", "a:2", "b:1", "b:10"]);
}
