//! Snapshots, purges, and a follower that has to catch up by a snapshot.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_machine::{Command, ReadMode};
use holdfast_raft::{FeedItem, Since};
use support::{TestCluster, eventually, propose_tick, same_state};

fn small(options: &mut holdfast_raft::Options) {
    options.compaction.snapshot_every = 20;
    options.compaction.keep = 5;
    options.compaction.lag_max = 10;
    options.compaction.purge_batch = 1;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_follower_gets_a_snapshot_and_the_log_is_purged() {
    let mut cluster = TestCluster::start(3, small).await;
    let leader = cluster.leader().await;
    let create = Command::Create { shard_count: 16 };
    cluster.node(leader).propose(create.into()).await.unwrap();
    let follower = cluster.follower().await;
    cluster.kill(follower).await;
    let gone_at = cluster.node(leader).status().last.unwrap();
    for _ in 0..100 {
        propose_tick(cluster.node(leader)).await;
    }
    eventually("purged beyond what the follower has", || {
        cluster.node(leader).status().purged.is_some_and(|purged| purged > gone_at + 10)
    })
    .await;
    let status = cluster.node(leader).status();
    assert!(status.purged <= status.snapshot && status.snapshot <= status.applied);

    let node = cluster.start_node(follower).await;
    let mut events = node.feed().subscribe(Since::Now);
    same_state(&cluster).await;
    node.view(|machine, _| assert_eq!(machine.shard_count(), 16));
    let mut lagged = false;
    while let Some(item) = events.try_next() {
        lagged |= matches!(item, FeedItem::Lagged { .. });
    }
    assert!(lagged, "the feed is silent about what the snapshot jumped over");

    // Everything restarts from snapshot and log.
    for id in 1..=3 {
        cluster.kill(id).await;
    }
    drop(node);
    for id in 1..=3 {
        cluster.start_node(id).await;
    }
    propose_tick(cluster.node(1)).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_snapshots_are_taken() {
    let cluster = TestCluster::start(3, small).await;
    let mut last = 0;
    for round in 0..300 {
        let node = cluster.node(round % 3 + 1);
        propose_tick(node).await;
        let applied = node.read_index(ReadMode::Stale).await.unwrap();
        last = last.max(applied);
    }
    eventually("snapshots on all nodes", || cluster.nodes().all(|node| node.status().snapshot > Some(200))).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}
