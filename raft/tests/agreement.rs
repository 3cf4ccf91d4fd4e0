//! Proposals and reads on every node, alone and in a cluster; time does not move back.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_machine::{Command, DispatchKey, EventId, ReadMode, Reply, Request, WorkflowId};
use holdfast_raft::{Clock, FeedItem, ProposeError, REQUEST_BYTES_MAX, Since, SystemClock};
use support::{TestCluster, eventually, propose_tick, same_state, tick};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_works_and_remembers() {
    let mut cluster = TestCluster::start(1, |_| {}).await;
    let create = Command::Create { shard_count: 8 };
    let committed = cluster.node(1).propose(create.clone().into()).await.unwrap();
    assert_eq!(committed.reply, Ok(Reply::Created { shard_count: 8 }));
    let index = cluster.node(1).read_index(ReadMode::Linearizable).await.unwrap();
    assert!(index >= committed.index);
    let hash = cluster.node(1).view(|machine, _| machine.state_hash());

    cluster.kill(1).await;
    cluster.start_node(1).await;
    cluster.node(1).read_index(ReadMode::Linearizable).await.unwrap();
    cluster.node(1).view(|machine, _| {
        assert_eq!(machine.shard_count(), 8);
        assert_eq!(machine.state_hash(), hash);
    });
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_takes_proposals_and_reads_see_them() {
    let cluster = TestCluster::start(3, |_| {}).await;
    for writer in cluster.nodes() {
        for reader in cluster.nodes() {
            let committed = writer.propose(tick()).await.unwrap();
            let index = reader.read_index(ReadMode::Linearizable).await.unwrap();
            assert!(index >= committed.index, "a read missed a write that was acknowledged before");
        }
    }
    same_state(&cluster).await;
    let mut events = cluster.node(1).feed().subscribe(Since::After(EventId::default()));
    assert!(matches!(events.try_next(), Some(FeedItem::Event { local: _, .. })));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_share_entries() {
    const CALLERS: usize = 64;
    const CALLS: usize = 50;
    let cluster = TestCluster::start(3, |_| {}).await;
    let before = cluster.node(1).status().last.unwrap();
    let begun = Instant::now();
    let calls = (0..CALLERS).map(|caller| {
        let node = cluster.node(caller as u64 % 3 + 1).clone();
        tokio::spawn(async move {
            for _ in 0..CALLS {
                propose_tick(&node).await;
            }
        })
    });
    for call in futures::future::join_all(calls).await {
        call.unwrap();
    }
    let elapsed = begun.elapsed();
    same_state(&cluster).await;
    let entries = cluster.node(1).status().last.unwrap() - before;
    println!("{} requests in {entries} entries, {elapsed:?}", CALLERS * CALLS);
    assert!(entries < (CALLERS * CALLS) as u64, "nothing was batched");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn past_the_bound_requests_are_turned_away_at_once() {
    let tight = |options: &mut holdfast_raft::Options| {
        options.batching.requests_waiting_max = 4;
        options.batching.entries_in_flight = 1;
    };
    let cluster = TestCluster::start(3, tight).await;
    let calls = (0..200).map(|caller| {
        let node = cluster.node(caller % 3 + 1).clone();
        tokio::spawn(async move { node.propose(tick()).await })
    });
    let (mut done, mut turned_away) = (0, 0);
    for call in futures::future::join_all(calls).await {
        match call.unwrap() {
            Ok(_) => done += 1,
            Err(ProposeError::Overloaded) => turned_away += 1,
            Err(other) => panic!("{other}"),
        }
    }
    println!("{done} done, {turned_away} turned away");
    assert!(done >= 4 && turned_away > 0);
    propose_tick(cluster.node(1)).await;
    cluster.shutdown().await;
}

/// A request of about `bytes` that changes nothing.
fn large(bytes: usize) -> Request {
    let workflow = WorkflowId::new("w".repeat(250)).unwrap();
    let keys = (0..bytes as u64 / 255).map(|ordinal| DispatchKey { workflow: workflow.clone(), ordinal });
    Command::Reconcile { older_than_ms: u64::MAX, limit: 1, excluded: keys.collect() }.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_get_through_and_larger_ones_are_refused() {
    const MIB: usize = 1024 * 1024;
    // A debug build takes its time over them.
    let mut cluster = TestCluster::start(3, |options| options.timing.answer_ms = 30_000).await;
    let leader = cluster.leader().await;
    let away = cluster.follower().await;
    cluster.kill(away).await;
    let other = 6 - leader - away;
    for _ in 0..8 {
        while let Err(error) = cluster.node(other).propose(large(3 * MIB)).await {
            assert_eq!(error, ProposeError::Unknown);
        }
    }
    let refused = cluster.node(other).propose(large(REQUEST_BYTES_MAX + MIB)).await;
    assert!(matches!(refused, Err(ProposeError::TooLarge { .. })), "{refused:?}");
    // All of it at once, to one that was away.
    cluster.start_node(away).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[derive(Debug, Default)]
struct Stepped(AtomicU64);

impl Clock for Stepped {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_time_never_moves_back() {
    let clock = Arc::new(Stepped::default());
    clock.0.store(SystemClock.now_ms(), Ordering::Relaxed);
    let mut cluster = TestCluster::prepare(3, |_| {});
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let mut options = cluster.options(id);
        // One clock for all: it is the leader's, whoever leads.
        options.environment.clock = clock.clone();
        nodes.push(cluster.start_with(id, options).await);
    }
    cluster.all_up().await;
    const HOUR: u64 = 3_600_000;
    let noon = clock.0.load(Ordering::Relaxed);
    let steps = [noon, noon - HOUR, noon + HOUR, noon, noon + 2 * HOUR, noon - HOUR];
    let mut last = 0;
    for (round, at) in steps.into_iter().enumerate() {
        clock.0.store(at, Ordering::Relaxed);
        let now = propose_tick(&nodes[round % 3]).await;
        assert!(now >= last, "log time went back from {last} to {now}");
        assert!(now >= at);
        last = now;
        let to = round as u64 % 3 + 1;
        let leader = cluster.leader().await;
        if to != leader {
            cluster.node(leader).transfer_leader(to).await.unwrap();
            eventually("the new leader is known", || cluster.node(to).is_leader()).await;
        }
    }
    cluster.shutdown().await;
}

/// Everything in `from`, under `to`.
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, path) = (entry.as_ref().unwrap(), to.join(entry.as_ref().unwrap().file_name()));
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &path),
            false => drop(std::fs::copy(entry.path(), path).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_log_went_back_harms_nobody_else() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let (data, older) = (cluster.data_dir(follower), cluster.data_dir(99));
    cluster.kill(follower).await;
    copy_dir(&data, &older);
    cluster.start_node(follower).await;
    let before = propose_tick(cluster.node(leader)).await;
    let last = cluster.node(leader).status().last;
    // To have it is not enough: what the leader was never told of may well come once more.
    let has_acknowledged = || {
        let status = cluster.node(leader).status();
        status.members.iter().any(|member| member.id == follower && member.matched >= last)
    };
    eventually("the follower has acknowledged it all", has_acknowledged).await;

    cluster.kill(follower).await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&older, &data).unwrap();
    cluster.start_node(follower).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert!(propose_tick(cluster.node(leader)).await >= before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(cluster.node(leader).fatal().borrow().is_none(), "the leader has stopped");
    assert!(cluster.node(follower).status().applied < last, "what was lost came back, and nobody was told");
    cluster.shutdown().await;
}
