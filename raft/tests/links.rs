//! What bad links do, and do not do.
#![allow(clippy::unwrap_used)]

#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::time::{Duration, Instant};

use holdfast_machine::{ClusterEvent, Evidence, Liveness};
use holdfast_raft::{FeedItem, Options, Raft, Since, Standing, StartError};
use proxy::{BLIP, Proxy, cluster_with_proxy};
use support::{TestCluster, at_rest, eventually, own_address, propose_tick};

fn membership_changes(cluster: &TestCluster, seen_by: u64) -> u64 {
    cluster.node(seen_by).view(|machine, _| machine.members().map(|m| m.since.0).max().unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_drop_for_a_moment_are_no_deaths() {
    let (cluster, proxy) = cluster_with_proxy(|_| {}).await;
    let leader = cluster.leader().await;
    // Whatever the start still has to write is no blip's doing.
    at_rest(&cluster, leader).await;
    let before = (membership_changes(&cluster, leader), cluster.node(leader).status().last);
    let mut events = cluster.node(leader).feed().subscribe(Since::Now);
    for _ in 0..100 {
        proxy.cut();
        tokio::time::sleep(BLIP).await;
        eventually("linked again", || cluster.node(leader).status().members.iter().all(|member| member.linked)).await;
    }
    let after = (membership_changes(&cluster, leader), cluster.node(leader).status().last);
    assert_eq!(after, before, "a blip left an entry in the log");
    let (mut noticed, mut confirmed_ones) = (0, 0);
    while let Some(item) = events.try_next() {
        if let FeedItem::Event { event: ClusterEvent::PeerSuspected { confirmed, .. }, .. } = item {
            noticed += 1;
            confirmed_ones += u32::from(confirmed);
        }
    }
    assert!(noticed >= 50, "only {noticed} of 100 cuts were noticed");
    assert_eq!(confirmed_ones, 0);
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(cluster.liveness(leader, 3), Some(Liveness::Up));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_is_down_and_comes_back() {
    let (cluster, proxy) = cluster_with_proxy(|_| {}).await;
    let leader = cluster.leader().await;
    let stalled = Instant::now();
    proxy.stall();
    eventually("down", || cluster.liveness(leader, 3) == Some(Liveness::Down { evidence: Evidence::Silent })).await;
    println!("silent -> down committed: {:?}", stalled.elapsed());
    propose_tick(cluster.node(leader)).await;
    proxy.resume();
    eventually("up", || cluster.liveness(leader, 3) == Some(Liveness::Up)).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_stall_is_no_death() {
    let (cluster, proxy) = cluster_with_proxy(|_| {}).await;
    let leader = cluster.leader().await;
    let before = membership_changes(&cluster, leader);
    for _ in 0..5 {
        proxy.stall();
        tokio::time::sleep(Duration::from_millis(250)).await;
        proxy.resume();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(membership_changes(&cluster, leader), before);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_follower_that_cannot_reach_the_leader_does_not_depose_it() {
    let mut cluster = TestCluster::prepare(3, |_| {});
    cluster.start_node(1).await;
    cluster.start_node(2).await;
    // Only node 3 goes through the proxies.
    let mut options = cluster.options(3);
    let mut proxies = Vec::new();
    for member in &mut options.members[..2] {
        let way = own_address(member.id);
        proxies.push(Proxy::start(&way, &member.peer_addr).await);
        member.peer_addr = way;
    }
    cluster.start_with(3, options).await;
    cluster.all_up().await;
    while cluster.leader().await == 3 {
        let _ = cluster.node(3).transfer_leader(1).await;
    }
    let leader = cluster.leader().await;
    let term = cluster.node(leader).status().term;
    let mut events = cluster.node(3).feed().subscribe(Since::Now);
    proxies[leader as usize - 1].refuse();
    let name = &cluster.members[leader as usize - 1].name;
    eventually("node 3 takes the leader for dead", || {
        let wanted = ClusterEvent::PeerSuspected { node: name.clone(), consecutive: 3, confirmed: true };
        matches!(events.try_next(), Some(FeedItem::Event { event, .. }) if event == wanted)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let status = cluster.node(leader).status();
    assert_eq!((status.leader, status.term), (Some(leader), term));
    propose_tick(cluster.node(leader)).await;
    cluster.shutdown().await;
}

/// The reason that node 1 gives for having no link to `peer`.
async fn refusal(cluster: &TestCluster, seen_by: u64, peer: u64, expected: &str) {
    eventually(expected, || {
        let members = cluster.node(seen_by).status().members;
        let problem = members.iter().find(|m| m.id == peer).and_then(|m| m.link_problem.clone());
        problem.is_some_and(|problem| problem.contains(expected))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_disk_is_refused_and_does_not_vote() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let follower = cluster.follower().await;
    cluster.kill(follower).await;
    std::fs::remove_dir_all(cluster.data_dir(follower)).unwrap();
    // The others have forgotten what they saw; what is committed is what counts.
    for id in (1..=3).filter(|id| *id != follower) {
        cluster.kill(id).await;
        cluster.start_node(id).await;
    }
    let leader = cluster.leader().await;
    let wiped = cluster.start_node(follower).await;
    refusal(&cluster, leader, follower, "lost its disk").await;
    eventually("it knows that it lost its disk", || {
        let standing = wiped.status().standing;
        matches!(standing, Standing::Lost { node, .. } if node == follower)
    })
    .await;
    // With only one other voter left there is no quorum: the wiped node must not make one.
    let other = 6 - leader - follower;
    cluster.kill(other).await;
    let answer = cluster.node(leader).propose(support::tick()).await;
    assert!(answer.is_err(), "{answer:?}");
    cluster.start_node(other).await;
    propose_tick(cluster.node(other)).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_refused() {
    let mut cluster = TestCluster::prepare(2, |_| {});
    cluster.start_node(1).await;
    let foreign = Options { cluster: "other".to_owned(), ..cluster.options(2) };
    cluster.start_with(2, foreign).await;
    refusal(&cluster, 1, 2, "cluster \"other\"").await;
    refusal(&cluster, 2, 1, "cluster \"test\"").await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_to_another_node_is_refused() {
    let mut cluster = TestCluster::prepare(3, |_| {});
    cluster.start_node(1).await;
    cluster.start_node(2).await;
    let mut options = cluster.options(3);
    options.members[0].peer_addr = options.members[1].peer_addr.clone();
    cluster.start_with(3, options).await;
    refusal(&cluster, 3, 1, "this is node-2, not node-1").await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_and_taken_addresses_are_said_at_the_start() {
    let cluster = TestCluster::prepare(1, |_| {});
    let mut options = cluster.options(1);
    options.detection.confirmations = 0;
    let refused = Raft::start(options).await.err().unwrap();
    assert!(refused.to_string().contains("confirmations"), "{refused}");
    let taken = tokio::net::TcpListener::bind(&cluster.listen[&1]).await.unwrap();
    let refused = Raft::start(cluster.options(1)).await.err().unwrap();
    assert!(matches!(refused, StartError::Listen { .. }), "{refused}");
    drop(taken);
}
