//! A cluster of one node: starting, stopping, starting again, and what keeps a node from starting.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use holdfast_node::api::{ClaimCall, ClaimHolder, ExpiredCall, ReadMode, Write};
use holdfast_node::machine::{Arming, DispatchKey, Epoch, Scope, ShardId};
use holdfast_node::{Config, Node, ShardChange};
use support::{free_address, staged, until, within, workflow_in};

fn config(folder: &tempfile::TempDir) -> Config {
    Config {
        http_listen: (Ipv4Addr::LOCALHOST, 0).into(),
        peer_listen: free_address(),
        data_dir: folder.path().join("data"),
        shard_count: support::SHARDS,
        ..Config::default()
    }
}

async fn refused(config: Config) -> String {
    match Node::start(config).await {
        Ok(_) => panic!("the node started"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_again_holds_its_shards_under_new_epochs_and_its_rows_are_pending() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(config(&folder)).await.unwrap();
    let mut shards = node.shards();
    for _ in 0..support::SHARDS {
        let change = within("a first owner", shards.next()).await.unwrap();
        assert!(matches!(change, ShardChange::Acquired { epoch: Epoch(1), .. }), "{change:?}");
    }
    let workflow = workflow_in(ShardId(3));
    let store = node.store();
    store.commit(staged(workflow.clone(), 2), Write::default()).await.unwrap();
    let (scope, holder) = (Scope::default(), ClaimHolder::Node);
    let call = ClaimCall { scope, limit: 10, holder, hold: Vec::new(), wait_ms: 0 };
    assert_eq!(store.claim(call, Write::default()).await.unwrap().value.len(), 2);
    let boot = node.boot().clone();
    node.abort().await;
    assert_eq!(within("the stream ends with the node", shards.next()).await, None);
    drop((shards, store));

    let node = Node::start(config(&folder)).await.unwrap();
    assert_ne!(*node.boot(), boot);
    let mut shards = node.shards();
    let mut rearmed = Vec::new();
    for _ in 0..support::SHARDS {
        match within("an owned shard", shards.next()).await.unwrap() {
            ShardChange::Acquired { shard, epoch, rearmed: rows, .. } => {
                assert_eq!(epoch, Epoch(2));
                assert!(rows.is_empty() || shard == ShardId(3));
                rearmed.extend(rows);
            }
            lost => panic!("{lost:?}"),
        }
    }
    let key = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
    assert_eq!(rearmed, [key(1), key(2)]);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_end_although_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(config(&folder)).await.unwrap();
    assert!(within("the node is ready", node.ready()).await);
    let store = node.store();
    store.commit(staged(workflow_in(ShardId(0)), 1), Write::default()).await.unwrap();
    let claimant = holdfast_node::machine::Claimant::new("worker").unwrap();
    let holder = ClaimHolder::Lease { claimant, lease_ms: 50 };
    let call = ClaimCall { scope: Scope::default(), limit: 1, holder, hold: Vec::new(), wait_ms: 0 };
    assert_eq!(store.claim(call, Write::default()).await.unwrap().value.len(), 1);
    until("the row is pending again", || {
        node.raft().view(|machine, _| (machine.row_counts().pending == 1).then_some(()))
    })
    .await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = taken.local_addr().unwrap();
    for (key, config) in [
        ("http_listen", Config { http_listen: addr, ..config(&folder) }),
        ("peer_listen", Config { peer_listen: addr, ..config(&folder) }),
    ] {
        let sentence = refused(config).await;
        for part in [key, &addr.to_string(), "choose another one"] {
            assert!(sentence.contains(part), "{sentence}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_clusters_data_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(config(&folder)).await.unwrap();
    assert!(within("the node is ready", node.ready()).await);
    node.shutdown().await;
    let identity = std::fs::read(folder.path().join("data/identity")).unwrap();

    let sentence = refused(Config { cluster_id: "another".to_owned(), ..config(&folder) }).await;
    for part in ["belongs to cluster `holdfast`", "`another`", "Correct the configured cluster"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    assert_eq!(std::fs::read(folder.path().join("data/identity")).unwrap(), identity);

    // The rightful cluster goes on with it.
    let node = Node::start(config(&folder)).await.unwrap();
    assert!(within("the node is ready", node.ready()).await);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_api_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(config(&folder)).await.unwrap();
    assert!(within("the node is ready", node.ready()).await);
    let url = format!("http://{}", node.http_addr());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ready = client.get(format!("{url}/readyz")).send().await.unwrap();
    assert!(ready.status().is_success());
    let metrics = client.get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("holdfast_shards_owned"), "{metrics}");
    let cluster = holdfast_client::Client::new([&url]).unwrap().cluster().await.unwrap().value;
    assert_eq!(cluster.node, *node.name());
    node.shutdown().await;
    assert!(client.get(format!("{url}/readyz")).send().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_fall_due_although_nobody_writes_and_cost_nothing_while_they_are_far_off_or_past() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(config(&folder)).await.unwrap();
    assert!(within("the node is ready", node.ready()).await);
    until("all shards are given out", || {
        node.raft().view(|machine, _| (machine.shards().count() == support::SHARDS as usize).then_some(()))
    })
    .await;
    let (store, workflow) = (node.store(), workflow_in(ShardId(0)));
    store.commit(staged(workflow.clone(), 0), Write::default()).await.unwrap();
    let schedule = async |timer: &str, in_ms| {
        let fire_at = node.raft().view(|machine, _| machine.now()).plus(in_ms);
        let arming = Arming { timer: timer.parse().unwrap(), fire_at, armed_seq: 1 };
        store.schedule_timer(&workflow, arming, Write::default()).await.unwrap();
    };
    let last = || node.raft().view(|machine, _| machine.applied());
    let stays = async |last_before| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(last(), last_before, "an idle node wrote to its log");
    };
    schedule("far", 3_600_000).await;
    stays(last()).await;
    schedule("soon", 60).await;
    let call =
        ExpiredCall { owner: Some(node.name().clone()), namespace: None, as_of: None, limit: 10, wait_ms: 60_000 };
    let due = within("a timer", store.expired_timers(call, ReadMode::Linearizable)).await.unwrap().value;
    assert_eq!(due.timers.iter().map(|due| due.timer.as_str()).collect::<Vec<_>>(), ["soon"]);
    // It stays armed and is no reason for another entry.
    stays(last()).await;
    node.shutdown().await;
}
