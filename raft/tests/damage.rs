//! Rows that cannot be read any more: the node stops and says what to do, and its next start makes the state anew.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_machine::{Command, Commit, EventKind, NewEvent, Payload, WorkflowId, WorkflowType};
use holdfast_raft::{Handle, Options};
use holdfast_storage::fault::rot::{generation, rot};
use support::{DEADLINE, TestCluster, eventually, propose_tick, same_state};

/// Histories that make a state of many of sled's segments. A larger event would be one of the rows that are read at a start.
const WORKFLOWS: u64 = 160;
const EVENTS: usize = 5;
const PAYLOAD_BYTES: usize = 12 * 1024;
/// One in the middle: beside rows of no other kind, which may be read at a start.
const DAMAGED: u64 = 80;

fn short_log(options: &mut Options) {
    options.compaction.snapshot_every = 50;
    options.compaction.keep = 5;
    options.compaction.purge_batch = 1;
    // The machine may be busy with other tests.
    (options.timing.election_min_ms, options.timing.election_max_ms) = (2_000, 3_000);
}

/// Eight bytes of its own for each history.
fn text(number: u64) -> String {
    format!("<{number:06}>")
}

async fn open(node: &Handle, number: u64) {
    let id = WorkflowId::new(format!("order-{number}")).unwrap();
    let mut commit = Commit::new(id, 0).event(NewEvent::started(WorkflowType::new("test").unwrap()));
    for _ in 0..EVENTS {
        let payload = Payload::text(text(number).repeat(PAYLOAD_BYTES / 8));
        commit = commit.event(NewEvent::of(EventKind::Other("Note".to_owned())).with(payload));
    }
    node.propose(Command::Commit(commit).into()).await.unwrap();
}

/// Whether these bytes are out of the history that is to be damaged, which has nothing but its text.
fn is_of_it(bytes: &[u8]) -> bool {
    let start = bytes.iter().position(|byte| *byte == b'<').filter(|start| *start < 8);
    start.is_some_and(|start| text(DAMAGED).repeat(bytes.len()).as_bytes().starts_with(&bytes[start..]))
}

/// Damages the state of a node behind its back; it starts, because nothing of that is looked at yet.
async fn damage(cluster: &mut TestCluster, id: u64) -> Handle {
    cluster.kill(id).await;
    // sled notes how far it has come when it opens.
    cluster.start_node(id).await;
    cluster.kill(id).await;
    let before = generation(&cluster.data_dir(id)).unwrap();
    assert!(rot(&before, is_of_it).unwrap() > 100);
    let node = cluster.start_node(id).await;
    assert_eq!(generation(&cluster.data_dir(id)).unwrap(), before, "the start has seen it");
    node
}

/// The node stops with a sentence that names the state and says what to do; started again, it is as all are.
async fn stops_and_comes_back(cluster: &mut TestCluster, id: u64, node: Handle) {
    let damaged = generation(&cluster.data_dir(id)).unwrap();
    let mut fatal = node.fatal();
    let told = tokio::time::timeout(DEADLINE, fatal.wait_for(Option::is_some)).await.unwrap().unwrap().clone();
    let told = told.unwrap();
    for part in [damaged.to_str().unwrap(), "is damaged", "Start it again"] {
        assert!(told.contains(part), "no word of {part:?} in {told}");
    }
    drop(node);
    cluster.kill(id).await;
    let leader = cluster.leader().await;
    propose_tick(cluster.node(leader)).await;
    cluster.start_node(id).await;
    let last = cluster.node(leader).status().last;
    eventually("it has caught up", || cluster.node(id).status().applied >= last).await;
    same_state(cluster).await;
    assert!(!damaged.exists() && generation(&cluster.data_dir(id)).unwrap() > damaged);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_state_stops_the_node_once() {
    let mut cluster = TestCluster::start(3, short_log).await;
    let leader = cluster.leader().await;
    for number in 0..WORKFLOWS {
        open(cluster.node(leader), number).await;
    }
    eventually("all have purged", || cluster.nodes().all(|node| node.status().purged > Some(WORKFLOWS / 2))).await;
    same_state(&cluster).await;
    let odd = cluster.follower().await;
    // A read comes across it.
    let node = damage(&mut cluster, odd).await;
    let read = node.view(|_, archive| archive.scan(b"", &[0xff; 8], usize::MAX).map(drop));
    assert!(read.unwrap_err().to_string().contains("is damaged"));
    stops_and_comes_back(&mut cluster, odd, node).await;
    // A snapshot does.
    let node = damage(&mut cluster, odd).await;
    let leader = cluster.leader().await;
    for _ in 0..120 {
        propose_tick(cluster.node(leader)).await;
    }
    stops_and_comes_back(&mut cluster, odd, node).await;
    cluster.shutdown().await;
}
