//! Snapshots on their way over a slow link, under load: broken off, sent by another leader, raced by purges.
#![allow(clippy::unwrap_used)]

#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_machine::{Command, Commit, NewEvent, Payload, WorkflowId, WorkflowType};
use holdfast_raft::{FeedItem, Handle, Options, Since};
use proxy::{Proxy, cluster_with_proxy};
use support::{DEADLINE, TestCluster, eventually, same_state, tick};
use tokio::task::JoinHandle;

const WORKFLOWS: u64 = 64;
const PAYLOAD_BYTES: usize = 64 * 1024;
/// Of a connection to the slow node: a transfer takes seconds.
const BYTES_PER_SECOND: u64 = 2 * 1024 * 1024;

fn small(options: &mut Options) {
    options.compaction.snapshot_every = 50;
    options.compaction.keep = 5;
    options.compaction.purge_batch = 1;
    // The machine may be busy with other tests.
    (options.timing.election_min_ms, options.timing.election_max_ms) = (2_000, 3_000);
}

/// Bytes that do not become fewer by compression.
fn noise(mut seed: u64, count: usize) -> String {
    let next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        char::from(b' ' + (seed % 95) as u8)
    };
    std::iter::repeat_with(next).take(count).collect()
}

async fn open(node: &Handle, number: u64, bytes: usize) {
    let id = WorkflowId::new(format!("order-{number}")).unwrap();
    let event = NewEvent::started(WorkflowType::new("test").unwrap()).with(Payload::text(noise(number + 1, bytes)));
    let commit = Command::Commit(Commit::new(id, 0).event(event));
    let begun = Instant::now();
    while let Err(error) = node.propose(commit.clone().into()).await {
        assert!(begun.elapsed() < DEADLINE, "{error}");
    }
}

/// Writes on and on; gives the number of writes so far.
fn load(node: Handle) -> (Arc<AtomicU64>, JoinHandle<()>) {
    let written = Arc::new(AtomicU64::new(0));
    let counter = written.clone();
    let task = tokio::spawn(async move {
        loop {
            if node.propose(tick()).await.is_ok() {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    (written, task)
}

/// A cluster that has some megabytes, and node 3, behind a slow link, not running; the log that it misses is gone.
async fn one_is_away() -> (TestCluster, Proxy, u64) {
    let (mut cluster, proxy) = cluster_with_proxy(small).await;
    let leader = cluster.leader().await;
    cluster.node(leader).propose(Command::Create { shard_count: 16 }.into()).await.unwrap();
    cluster.kill(3).await;
    let gone_at = cluster.node(leader).status().last.unwrap();
    for number in 0..WORKFLOWS {
        open(cluster.node(leader), number, PAYLOAD_BYTES).await;
    }
    for number in WORKFLOWS..WORKFLOWS + 100 {
        open(cluster.node(leader), number, 10).await;
    }
    eventually("purged beyond what node 3 has", || {
        cluster.nodes().all(|node| node.status().purged.is_some_and(|purged| purged > gone_at))
    })
    .await;
    proxy.limit(BYTES_PER_SECOND);
    (cluster, proxy, leader)
}

/// Node 3 has what the leader had at `index`.
async fn has(cluster: &TestCluster, index: u64) {
    eventually("node 3 has caught up", || cluster.node(3).status().applied >= Some(index)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_snapshot_is_enough_however_much_is_written_and_purged_meanwhile() {
    let (mut cluster, proxy, leader) = one_is_away().await;
    let (term, before) = (cluster.node(leader).status().term, cluster.node(leader).status().snapshot);
    let (written, load) = load(cluster.node(leader).clone());
    let node = cluster.start_node(3).await;
    let mut events = node.feed().subscribe(Since::Now);
    eventually("half of it is there", || proxy.passed() > WORKFLOWS * PAYLOAD_BYTES as u64 / 2).await;
    let at_half = written.load(Ordering::Relaxed);
    // Several snapshots are taken, and the log behind the one that is on its way is not purged.
    has(&cluster, cluster.node(leader).status().last.unwrap()).await;
    assert!(written.load(Ordering::Relaxed) > at_half, "nothing was written meanwhile");
    assert!(cluster.node(leader).status().snapshot > before, "no snapshot was taken meanwhile");
    has(&cluster, cluster.node(leader).status().last.unwrap()).await;
    load.abort();
    same_state(&cluster).await;
    let mut jumps = 0;
    while let Some(item) = events.try_next() {
        jumps += u32::from(matches!(item, FeedItem::Lagged { .. }));
    }
    assert_eq!(jumps, 1, "one snapshot");
    assert_eq!((cluster.leader().await, cluster.node(leader).status().term), (leader, term));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_not_kept_for_a_node_that_is_not_there() {
    let (cluster, _proxy, leader) = one_is_away().await;
    // The leader tries to send this one, or an earlier one, all the time.
    let first = cluster.node(leader).status().snapshot.unwrap();
    for number in 1_000..1_200 {
        open(cluster.node(leader), number, 10).await;
    }
    eventually("purged beyond it", || cluster.node(leader).status().purged > Some(first)).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_is_broken_off_again_and_again_comes_through() {
    let (mut cluster, proxy, leader) = one_is_away().await;
    let first = cluster.node(leader).status().snapshot.unwrap();
    let (_, load) = load(cluster.node(leader).clone());
    cluster.start_node(3).await;
    let length = WORKFLOWS * PAYLOAD_BYTES as u64;
    for round in 1..=6 {
        let before = proxy.passed();
        // Never as much as half of it in one go; the last part may be smaller.
        let is_there = || cluster.node(3).status().applied >= Some(first);
        eventually("some of it has come", || proxy.passed() > before + length / 5 || is_there()).await;
        proxy.cut();
        let applied = cluster.node(3).status().applied;
        assert!(applied.is_none_or(|applied| applied < first) || round > 4, "{applied:?} in round {round}");
        if round == 3 {
            // The receiver is gone for a moment; what it had is still there.
            cluster.kill(3).await;
            cluster.start_node(3).await;
        }
        if cluster.node(3).status().applied >= Some(first) {
            break;
        }
    }
    has(&cluster, first).await;
    assert!(proxy.passed() < length * 2, "{} bytes for a snapshot of {length}", proxy.passed());
    load.abort();
    // What was written meanwhile follows through links that were cut a moment ago.
    has(&cluster, cluster.node(leader).status().last.unwrap()).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_leaders_in_the_middle_does_no_harm() {
    let (mut cluster, proxy, leader) = one_is_away().await;
    let next = 3 - leader;
    let (_, load) = load(cluster.node(next).clone());
    cluster.start_node(3).await;
    eventually("half of it is there", || proxy.passed() > WORKFLOWS * PAYLOAD_BYTES as u64 / 2).await;
    cluster.node(leader).transfer_leader(next).await.unwrap();
    eventually("another leader", || cluster.node(next).is_leader()).await;
    has(&cluster, cluster.node(next).status().last.unwrap()).await;
    load.abort();
    same_state(&cluster).await;
    cluster.shutdown().await;
}
