//! A node whose state has come apart from the others' stops itself and stays stopped.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use holdfast_machine::{Command, Entry, Machine, Millis};
use holdfast_raft::{Raft, StartError};
use holdfast_storage::{Expected, Options, Storage, StorageError};
use support::{DEADLINE, TestCluster, at_rest, eventually, propose_tick, same_state};

fn often(options: &mut holdfast_raft::Options) {
    options.timing.checkpoint_ms = 50;
}

/// Changes rows of a stopped node behind the log's back, as no entry has.
fn corrupt(data: &Path, id: u64, shard_count: u32) {
    let expected = Expected { cluster: "test".into(), name: format!("node-{id}") };
    let storage = Storage::open(data, &expected, &Options::default()).unwrap();
    let applied = storage.state.applied().unwrap();
    let mut machine = Machine::load(&*storage.state).unwrap();
    let entry = Entry { at: Millis(1), requests: vec![Command::Create { shard_count }.into()] };
    machine.apply(applied.index, entry, &*storage.state).unwrap();
    storage.state.commit(machine.take_writes(), applied, None).unwrap();
    storage.state.sync().unwrap();
}

async fn stops_as_diverged(cluster: &TestCluster, id: u64) {
    let mut fatal = cluster.node(id).fatal();
    let told = tokio::time::timeout(DEADLINE, fatal.wait_for(Option::is_some)).await.unwrap().unwrap().clone();
    let told = told.unwrap();
    assert!(told.contains("on a majority of the nodes"), "{told}");
}

async fn is_refused(cluster: &TestCluster, id: u64) {
    let Err(refused) = Raft::start(cluster.options(id)).await else { panic!("it started again") };
    assert!(matches!(refused, StartError::Storage(StorageError::Condemned { .. })), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_differs_stops_and_the_others_go_on() {
    let mut cluster = TestCluster::start(3, often).await;
    let leader = cluster.leader().await;
    propose_tick(cluster.node(leader)).await;
    let odd = cluster.follower().await;
    same_state(&cluster).await;
    cluster.kill(odd).await;
    corrupt(&cluster.data_dir(odd), odd, 7);
    cluster.start_node(odd).await;
    propose_tick(cluster.node(leader)).await;
    stops_as_diverged(&cluster, odd).await;
    cluster.kill(odd).await;
    is_refused(&cluster, odd).await;
    propose_tick(cluster.node(leader)).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_differs_stops_and_the_majority_goes_on() {
    let mut cluster = TestCluster::start(3, often).await;
    let odd = cluster.leader().await;
    propose_tick(cluster.node(odd)).await;
    same_state(&cluster).await;
    cluster.kill(odd).await;
    corrupt(&cluster.data_dir(odd), odd, 7);
    cluster.start_node(odd).await;
    // It is caught wherever it stands; here it is to lead first.
    let node = cluster.node(odd).clone();
    let begun = std::time::Instant::now();
    while !node.is_leader() && node.fatal().borrow().is_none() {
        assert!(begun.elapsed() < DEADLINE);
        let leader = cluster.node(cluster.leader().await).clone();
        let _ = leader.transfer_leader(odd).await;
    }
    stops_as_diverged(&cluster, odd).await;
    cluster.kill(odd).await;
    let leader = cluster.leader().await;
    propose_tick(cluster.node(leader)).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_for_any_hash_nobody_is_stopped() {
    let mut cluster = TestCluster::start(3, often).await;
    let leader = cluster.leader().await;
    propose_tick(cluster.node(leader)).await;
    // A checkpoint of the sound state that were applied to a corrupted one only would stop its node, and rightly so.
    at_rest(&cluster, leader).await;
    same_state(&cluster).await;
    for id in 1..=3 {
        cluster.kill(id).await;
    }
    for id in 1..=3 {
        corrupt(&cluster.data_dir(id), id, id as u32);
        cluster.start_node(id).await;
    }
    let leader = cluster.leader().await;
    let before = cluster.node(leader).status().last;
    for _ in 0..20 {
        propose_tick(cluster.node(leader)).await;
    }
    eventually("it goes on", || cluster.node(leader).status().applied > before).await;
    assert!(cluster.nodes().all(|node| node.status().fatal.is_none()));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_takes_no_second_checkpoint() {
    let cluster = TestCluster::start(3, often).await;
    let leader = cluster.leader().await;
    propose_tick(cluster.node(leader)).await;
    at_rest(&cluster, leader).await;
    cluster.shutdown().await;
}
