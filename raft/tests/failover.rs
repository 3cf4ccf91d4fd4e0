//! Deaths and returns: who is committed as down, how soon, and what stays as it was.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use holdfast_machine::{ClusterEvent, Evidence, Liveness};
use holdfast_raft::{FeedItem, ProposeError, Since};
use support::{DEADLINE, TestCluster, eventually, propose_tick, same_state, tick};

fn is_down(liveness: Option<Liveness>) -> bool {
    matches!(liveness, Some(Liveness::Down { .. }))
}

fn voters(cluster: &TestCluster, seen_by: u64) -> Vec<u64> {
    let members = cluster.node(seen_by).status().members;
    members.iter().filter(|member| member.voter).map(|member| member.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_follower_is_committed_as_down_and_up_again_on_return() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let witness = 6 - leader - follower;
    let mut events = cluster.node(witness).feed().subscribe(Since::Now);

    let killed = Instant::now();
    cluster.kill(follower).await;
    eventually("committed as down", || is_down(cluster.liveness(witness, follower))).await;
    println!("follower killed -> down committed: {:?}", killed.elapsed());
    let evidence = Evidence::LinkClosed;
    // A follower may have applied the entry before the leader has.
    let down_on_leader = || cluster.liveness(leader, follower) == Some(Liveness::Down { evidence });
    eventually("down on the leader as well", down_on_leader).await;
    assert_eq!(voters(&cluster, leader), [1, 2, 3]);
    assert_eq!(cluster.leader().await, leader, "a follower's death is no reason for an election");

    cluster.start_node(follower).await;
    eventually("up again", || cluster.liveness(witness, follower) == Some(Liveness::Up)).await;
    let mut committed = Vec::new();
    while let Some(item) = events.try_next() {
        if let FeedItem::Event { local: false, event, .. } = item {
            committed.push(event);
        }
    }
    let node = cluster.members[follower as usize - 1].name.clone();
    let down = ClusterEvent::PeerDown { node: node.clone(), evidence };
    assert_eq!(committed, [down, ClusterEvent::PeerUp { node }]);
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_by_another_and_committed_as_down() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let mut writes = Vec::new();
    for round in 0..5 {
        let leader = cluster.leader().await;
        let survivor = leader % 3 + 1;
        let node = cluster.node(survivor).clone();
        let killed = Instant::now();
        let (written, ()) = tokio::join!(
            async {
                // Whatever was under way at the kill gets an answer; then comes the first new write.
                while node.status().leader == Some(leader) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                propose_tick(&node).await;
                killed.elapsed()
            },
            cluster.kill(leader)
        );
        writes.push(written);
        eventually("the old leader is down", || is_down(cluster.liveness(survivor, leader))).await;
        let down = killed.elapsed();
        println!("round {round}: leader killed -> first commit {written:?}, down committed {down:?}");
        cluster.start_node(leader).await;
        cluster.all_up().await;
    }
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_acknowledged_and_nobody_is_down() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let survivor = cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != survivor).collect();
    // Both at once: the survivor must not get either of them committed as down.
    let (first, second) = (cluster.take(others[0]), cluster.take(others[1]));
    tokio::join!(first.shutdown(), second.shutdown());
    drop((first, second));
    let asked = Instant::now();
    let answer = cluster.node(survivor).propose(tick()).await;
    assert!(matches!(answer, Err(ProposeError::NoQuorum { .. } | ProposeError::Unknown)), "{answer:?}");
    assert!(asked.elapsed() < Duration::from_secs(3), "an answer within the deadline");
    for id in &others {
        assert_eq!(cluster.liveness(survivor, *id), Some(Liveness::Up));
    }
    cluster.start_node(others[0]).await;
    propose_tick(cluster.node(survivor)).await;
    eventually("the missing one is down", || is_down(cluster.liveness(survivor, others[1]))).await;
    cluster.start_node(others[1]).await;
    cluster.all_up().await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_in_flight_at_a_kill_gets_an_answer() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let survivors: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let stop = Instant::now() + Duration::from_millis(1_500);
    let calls: Vec<_> = (0..32)
        .map(|caller| {
            let node = cluster.node(survivors[caller % 2]).clone();
            tokio::spawn(async move {
                let (mut done, mut unknown, mut longest) = (0u32, 0u32, Duration::ZERO);
                while Instant::now() < stop {
                    let asked = Instant::now();
                    match node.propose(tick()).await {
                        Ok(_) => done += 1,
                        Err(ProposeError::Unknown) => unknown += 1,
                        Err(other) => panic!("{other}"),
                    }
                    longest = longest.max(asked.elapsed());
                }
                (done, unknown, longest)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.kill(leader).await;
    let (mut done, mut unknown, mut longest) = (0, 0, Duration::ZERO);
    for call in calls {
        let (d, u, l) = tokio::time::timeout(DEADLINE, call).await.unwrap().unwrap();
        (done, unknown, longest) = (done + d, unknown + u, longest.max(l));
    }
    println!("{done} acknowledged, {unknown} unknown, longest wait {longest:?}");
    assert!(longest < Duration::from_millis(2_500));
    same_state(&cluster).await;
    cluster.shutdown().await;
}
