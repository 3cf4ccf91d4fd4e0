//! Members that lose their data and are replaced: under load, with a snapshot, with leaders dying at each step, again
//! and again, and what is refused.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_machine::{Command, Liveness, NodeName};
use holdfast_raft::{Handle, Options, ReplaceError, ReplacementStage, Standing};
use support::{TestCluster, eventually, propose_tick, same_state, tick};
use tokio::task::JoinHandle;

fn name(cluster: &TestCluster, place: u64) -> NodeName {
    cluster.members[place as usize - 1].name.clone()
}

/// The Raft ids of the voters, as a node knows them.
fn voters(node: &Handle) -> Vec<u64> {
    node.status().members.iter().filter(|member| member.voter).map(|member| member.id).collect()
}

/// Takes a stopped node's data away. It is moved rather than removed: sled's threads may be about to write a last file.
fn lose_data(cluster: &TestCluster, place: u64) {
    static LOST: AtomicU64 = AtomicU64::new(0);
    let lost = format!("lost-{}", LOST.fetch_add(1, Ordering::Relaxed));
    std::fs::rename(cluster.data_dir(place), cluster.data_dir(place).with_file_name(lost)).unwrap();
}

/// Takes a node's data away, and starts it again.
async fn wipe(cluster: &mut TestCluster, place: u64) -> Handle {
    cluster.kill(place).await;
    lose_data(cluster, place);
    cluster.start_node(place).await
}

/// Waits until the node waits at `at` for its replacement, and is committed as down there.
async fn waits(cluster: &TestCluster, at: u64, place: u64) {
    let name = name(cluster, place);
    eventually("the wiped node waits", || {
        let waiting = cluster.node(at).status().replacements;
        let waits = waiting.iter().any(|one| one.name == name && one.stage == ReplacementStage::Waiting);
        waits && matches!(cluster.liveness(at, place), Some(Liveness::Down { .. }))
    })
    .await;
}

/// Waits until the new member votes and nothing is left of the old one.
async fn replaced(cluster: &TestCluster, expected: &[u64]) {
    eventually("the new member votes", || {
        cluster.nodes().all(|node| voters(node) == expected && node.status().replacements.is_empty())
    })
    .await;
    cluster.all_up().await;
}

/// Callers that propose through the given nodes until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start<'a>(nodes: impl Iterator<Item = &'a Handle>) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let caller = |node: &Handle| {
            let (node, stop, done) = (node.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // What is refused or unknown while a leader is gone is tried again.
                    if node.propose(tick()).await.is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        let callers = nodes.flat_map(|node| [node, node]).map(caller).collect();
        Self { stop, done, callers }
    }

    async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually("the load goes on", || self.done.load(Ordering::Relaxed) > before + 20).await;
    }

    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        self.done.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_follower_is_replaced_under_load_and_votes_again() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    cluster.node(leader).propose(Command::Create { shard_count: 16 }.into()).await.unwrap();
    let load = Load::start(cluster.nodes().filter(|node| node.is_leader()));
    load.goes_on().await;
    let wiped = cluster.follower().await;
    let other = 6 - leader - wiped;
    let of = name(&cluster, wiped);
    assert_eq!(cluster.node(other).replace_member(&of, false).await.unwrap_err(), ReplaceError::Alive);

    let node = wipe(&mut cluster, wiped).await;
    waits(&cluster, leader, wiped).await;
    let planned = cluster.node(other).replace_member(&of, true).await.unwrap();
    assert_eq!((planned.old, planned.new, planned.stage), (wiped, Some(4), ReplacementStage::Waiting));
    assert_eq!(voters(cluster.node(leader)), [1, 2, 3], "a dry run changes nothing");
    // Through the follower, which passes it on.
    cluster.node(other).replace_member(&of, false).await.unwrap();
    let mut expected = vec![leader, other, 4];
    expected.sort_unstable();
    replaced(&cluster, &expected).await;
    assert_eq!((node.status().node, node.status().standing), (4, Standing::Member));
    load.goes_on().await;
    println!("{} proposals meanwhile", load.stop().await);
    same_state(&cluster).await;
    node.view(|machine, _| assert_eq!(machine.shard_count(), 16));

    // It makes a majority with the other one, and keeps its id over a restart.
    drop(node);
    cluster.kill(wiped).await;
    cluster.start_node(wiped).await;
    cluster.all_up().await;
    cluster.kill(leader).await;
    propose_tick(cluster.node(wiped)).await;
    assert_eq!(cluster.node(wiped).status().node, 4);
    cluster.start_node(leader).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_leader_is_replaced_by_the_next_one_without_being_told() {
    let mut cluster = TestCluster::start(3, |options| options.auto_replace = true).await;
    let wiped = cluster.leader().await;
    propose_tick(cluster.node(wiped)).await;
    wipe(&mut cluster, wiped).await;
    let mut expected: Vec<u64> = (1..=3).filter(|id| *id != wiped).collect();
    expected.push(4);
    replaced(&cluster, &expected).await;
    same_state(&cluster).await;
    // And once more, the same one.
    wipe(&mut cluster, wiped).await;
    expected.pop();
    expected.push(5);
    replaced(&cluster, &expected).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

fn small(options: &mut Options) {
    options.compaction.snapshot_every = 20;
    options.compaction.keep = 5;
    options.compaction.lag_max = 10;
    options.compaction.purge_batch = 1;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_log_is_purged_the_new_member_gets_a_snapshot() {
    let mut cluster = TestCluster::start(3, small).await;
    let leader = cluster.leader().await;
    cluster.node(leader).propose(Command::Create { shard_count: 16 }.into()).await.unwrap();
    for _ in 0..100 {
        propose_tick(cluster.node(leader)).await;
    }
    eventually("purged", || cluster.node(leader).status().purged.is_some_and(|purged| purged > 50)).await;
    let load = Load::start(cluster.nodes().filter(|node| node.is_leader()));
    let wiped = cluster.follower().await;
    let node = wipe(&mut cluster, wiped).await;
    waits(&cluster, leader, wiped).await;
    cluster.node(leader).replace_member(&name(&cluster, wiped), false).await.unwrap();
    eventually("the new member votes", || voters(cluster.node(leader)).contains(&4)).await;
    load.goes_on().await;
    load.stop().await;
    same_state(&cluster).await;
    node.view(|machine, _| assert_eq!(machine.shard_count(), 16));
    cluster.shutdown().await;
}

/// Replaces a follower, and kills the leader once `reached` holds there; the next leader has to finish.
async fn leader_dies_when(what: &str, adjust: support::Adjust, reached: impl Fn(&Handle) -> bool) {
    let mut cluster = TestCluster::start(3, adjust).await;
    let leader = cluster.leader().await;
    for _ in 0..50 {
        propose_tick(cluster.node(leader)).await;
    }
    let wiped = cluster.follower().await;
    let other = 6 - leader - wiped;
    wipe(&mut cluster, wiped).await;
    waits(&cluster, leader, wiped).await;
    let of = name(&cluster, wiped);
    let dying = cluster.node(leader).clone();
    let (asked, ()) = tokio::join!(dying.replace_member(&of, false), async {
        eventually(what, || reached(&dying)).await;
    });
    println!("{what}: {asked:?}, then the leader goes");
    drop(dying);
    cluster.kill(leader).await;
    // Without the old leader the voters that are left are no majority until the new member votes, or it comes back.
    cluster.start_node(leader).await;
    let mut expected = vec![leader, other, 4];
    expected.sort_unstable();
    replaced(&cluster, &expected).await;
    propose_tick(cluster.node(other)).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

fn stage(node: &Handle) -> Option<ReplacementStage> {
    node.status().replacements.first().map(|replacement| replacement.stage)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_after_the_learner_was_added() {
    leader_dies_when("a learner was added", |_| {}, |node| stage(node) == Some(ReplacementStage::CatchingUp)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_after_the_learner_has_caught_up() {
    leader_dies_when(
        "the learner has caught up",
        |_| {},
        |node| {
            let status = node.status();
            let new = status.members.iter().find(|member| member.id == 4);
            new.is_some_and(|new| new.matched.is_some() && new.matched >= status.last)
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_finishes_a_change_of_voters() {
    leader_dies_when(
        "the vote is taken over",
        |_| {},
        |node| {
            // Joint for a moment only: whoever misses it sees the end.
            stage(node) == Some(ReplacementStage::TakingOver) || voters(node).contains(&4)
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_lost_again_while_it_is_copied_is_copied_again() {
    let mut cluster = TestCluster::start(3, small).await;
    let leader = cluster.leader().await;
    for _ in 0..100 {
        propose_tick(cluster.node(leader)).await;
    }
    let wiped = cluster.follower().await;
    let other = 6 - leader - wiped;
    let of = name(&cluster, wiped);
    wipe(&mut cluster, wiped).await;
    waits(&cluster, leader, wiped).await;
    // It is gone before anything can be copied to it, and comes back with another empty directory.
    cluster.kill(wiped).await;
    cluster.node(leader).replace_member(&of, false).await.unwrap();
    lose_data(&cluster, wiped);
    cluster.start_node(wiped).await;
    assert_eq!(stage(cluster.node(leader)), Some(ReplacementStage::CatchingUp));
    eventually("it gets an id of its own", || {
        futures::executor::block_on(cluster.node(leader).replace_member(&of, false))
            .is_ok_and(|next| next.new == Some(5))
    })
    .await;
    let mut expected = vec![leader, other, 5];
    expected.sort_unstable();
    replaced(&cluster, &expected).await;
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_disk_is_refused_once_its_node_was_replaced() {
    let mut cluster = TestCluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let wiped = cluster.follower().await;
    let aside = tempfile::tempdir().unwrap();
    cluster.kill(wiped).await;
    std::fs::rename(cluster.data_dir(wiped), aside.path().join("old")).unwrap();
    cluster.start_node(wiped).await;
    waits(&cluster, leader, wiped).await;
    cluster.node(leader).replace_member(&name(&cluster, wiped), false).await.unwrap();
    eventually("the new member votes", || voters(cluster.node(leader)).contains(&4)).await;

    cluster.kill(wiped).await;
    std::fs::rename(cluster.data_dir(wiped), aside.path().join("new")).unwrap();
    std::fs::rename(aside.path().join("old"), cluster.data_dir(wiped)).unwrap();
    let old = cluster.start_node(wiped).await;
    let expected = format!("node {wiped} was replaced: node-{wiped} is member 4 now");
    eventually("it hears why", || {
        let problem = |member: &holdfast_raft::MemberStatus| member.link_problem.clone().unwrap_or_default();
        old.status().members.iter().any(|member| problem(member).contains(&expected))
    })
    .await;
    let other = 6 - leader - wiped;
    eventually("it knows what it is", || match old.status().standing {
        Standing::Replaced { node, new, by } => {
            assert_eq!((node, new), (wiped, 4));
            assert!(by == name(&cluster, leader) || by == name(&cluster, other), "{by} says so");
            true
        }
        standing => {
            assert_eq!(standing, Standing::Member);
            false
        }
    })
    .await;
    let said = old.status().standing.to_string();
    assert!(said.contains(&format!("node {wiped} was replaced")) && said.contains("move it aside"), "{said}");
    for place in [leader, other] {
        eventually("the others say that an old data directory is there", || {
            let status = cluster.node(place).status();
            let new = status.members.iter().find(|member| member.id == 4).unwrap();
            new.link_problem.as_ref().is_some_and(|problem| problem.contains("runs on an old data directory"))
        })
        .await;
    }
    // It makes no majority with anybody.
    cluster.kill(other).await;
    let answer = cluster.node(leader).propose(tick()).await;
    assert!(answer.is_err(), "{answer:?}");
    cluster.start_node(other).await;
    drop(old);
    cluster.kill(wiped).await;
    lose_data(&cluster, wiped);
    std::fs::rename(aside.path().join("new"), cluster.data_dir(wiped)).unwrap();
    let new = cluster.start_node(wiped).await;
    cluster.all_up().await;
    assert_eq!(new.status().standing, Standing::Member);
    same_state(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_that_has_its_data_nobody_is_replaced() {
    let mut cluster = TestCluster::start(3, |options| options.auto_replace = true).await;
    let kept = cluster.leader().await;
    for place in (1..=3).filter(|place| *place != kept) {
        cluster.kill(place).await;
        lose_data(&cluster, place);
    }
    let lost: Vec<u64> = (1..=3).filter(|place| *place != kept).collect();
    for place in &lost {
        cluster.start_node(*place).await;
    }
    let names: Vec<NodeName> = lost.iter().map(|place| name(&cluster, *place)).collect();
    eventually("both know that they lost their data, and so does the third", || {
        let standings = lost.iter().map(|place| cluster.node(*place).status().standing);
        let known = cluster.node(kept).status().replacements;
        standings.into_iter().all(|standing| matches!(standing, Standing::Lost { .. })) && known.len() == 2
    })
    .await;
    eventually("the third one knows that it leads nobody", || {
        let refused = futures::executor::block_on(cluster.node(kept).replace_member(&names[0], false)).unwrap_err();
        match refused {
            ReplaceError::MajorityLost { lost } => lost == names,
            ReplaceError::TooFew { found: 1, .. } => true,
            other => panic!("{other}"),
        }
    })
    .await;
    // The two must not begin a new cluster between them, however long they are left alone.
    cluster.kill(kept).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for place in &lost {
        let status = cluster.node(*place).status();
        assert_eq!((status.node, status.leader), (0, None));
    }
    cluster.start_node(kept).await;
    cluster.shutdown().await;
}
