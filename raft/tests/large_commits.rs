//! Many large commits at once: each gets through, and nobody is given up over them.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use futures::future::join_all;
use holdfast_machine::{
    ClusterEvent, Command, Commit, EventId, EventKind, NewEvent, Payload, Request, WorkflowId, WorkflowType,
};
use holdfast_raft::{FeedItem, Options, Since};
use support::{TestCluster, same_state};

const MIB: usize = 1024 * 1024;

/// Opens a workflow with so many bytes.
fn opening(id: &str, bytes: usize) -> Request {
    let body = NewEvent::of(EventKind::SignalReceived).with(Payload::octets(vec![7; bytes]));
    let events = vec![NewEvent::started(WorkflowType::new("large").unwrap()), body];
    Command::Commit(Commit { events, ..Commit::new(WorkflowId::new(id).unwrap(), 0) }).into()
}

/// A debug build takes its time over large commits. What is held up by them must not be, so there is room only for a
/// machine with other work.
fn unhurried(options: &mut Options) {
    options.timing.answer_ms = 300_000;
    (options.timing.election_min_ms, options.timing.election_max_ms) = (600, 1_200);
    options.detection.silence_ms = 1_200;
    options.batching.bytes_waiting_max = 512 * MIB;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dozen_large_commits_at_once_depose_nobody() {
    let cluster = TestCluster::start(3, unhurried).await;
    let leader = cluster.leader().await;
    let term = cluster.node(leader).status().term;
    let mut events = cluster.node(leader).feed().subscribe(Since::After(EventId::default()));
    let begun = Instant::now();
    let calls = (0..12u64).map(|number| {
        let node = cluster.node(number % 3 + 1).clone();
        tokio::spawn(async move { node.propose(opening(&format!("large-{number}"), 22 * MIB)).await })
    });
    for call in join_all(calls).await {
        call.unwrap().unwrap().reply.unwrap();
    }
    println!("{:?}", begun.elapsed());
    assert_eq!((cluster.leader().await, cluster.node(leader).status().term), (leader, term));
    let told = std::iter::from_fn(|| events.try_next());
    let dead: Vec<_> = told.filter(|item| matches!(item, FeedItem::Event { event, .. } if is_death(event))).collect();
    assert!(dead.is_empty(), "{dead:?}");
    same_state(&cluster).await;
    cluster.shutdown().await;
}

fn is_death(event: &ClusterEvent) -> bool {
    matches!(event, ClusterEvent::PeerDown { .. } | ClusterEvent::PeerSuspected { confirmed: true, .. })
}
