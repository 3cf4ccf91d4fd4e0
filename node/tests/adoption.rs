//! Adoption when things happen at the same moment, or again.

#![allow(clippy::unwrap_used)]

mod support;

use holdfast_node::ShardChange;
use holdfast_node::api::{Adoption, ClaimCall, ClaimHolder, ReadMode, Write};
use holdfast_node::machine::{Epoch, EventKind, NodeName, Payload, Scope, ShardEntry, ShardId};
use support::{Cluster, SHARDS, staged, until, within, workflow_in};

/// Who holds a shard and under which epoch, as the answer to one proposal says it.
async fn proposed(cluster: &Cluster, by: usize, orphan: &ShardEntry) -> (NodeName, Epoch, bool) {
    let node = cluster.node(by);
    let store = node.store();
    let answer = store.adopt(orphan.shard, &orphan.owner, node.name(), orphan.epoch, Write::default()).await;
    match answer.unwrap().value {
        Adoption::Adopted(moved) => (node.name().clone(), moved.epoch, true),
        Adoption::AlreadyAdopted { held_by, epoch } => (held_by, epoch, false),
    }
}

/// Case 6: every proposal for one orphan hears of one and the same winner, whoever proposed it.
#[tokio::test(flavor = "multi_thread")]
async fn survivors_that_propose_at_the_same_moment_hear_of_one_winner() {
    let mut cluster = Cluster::start(3).await;
    let orphans = cluster.owned_by(1, 0);
    let dead = cluster.node(0).name().clone();
    cluster.abort(0).await;
    until("the death is committed", || {
        cluster.node(1).raft().view(|machine, _| machine.member(&dead).filter(|member| !member.serves()).map(drop))
    })
    .await;
    for orphan in &orphans {
        let (one, two) = tokio::join!(proposed(&cluster, 1, orphan), proposed(&cluster, 2, orphan));
        assert_eq!((&one.0, one.1), (&two.0, two.1), "{}", orphan.shard);
        assert_eq!(one.1, Epoch(orphan.epoch.0 + 1));
        assert!(!(one.2 && two.2), "both won {}", orphan.shard);
        let again = proposed(&cluster, 2, orphan).await;
        assert_eq!(again, (one.0, one.1, false), "a retry after success is harmless");
    }
}

/// Case 7: the adopter dies right after its adoption, before its engine has done anything.
#[tokio::test(flavor = "multi_thread")]
async fn an_adopter_that_dies_at_once_is_followed_by_the_next() {
    let mut cluster = Cluster::start(5).await;
    for shard in (0..SHARDS).map(ShardId) {
        cluster.node(4).store().commit(staged(workflow_in(shard), 1), Write::default()).await.unwrap();
    }
    let mut streams: Vec<_> = (1..5).map(|number| (number, cluster.node(number).shards())).collect();
    for (number, stream) in &mut streams {
        for _ in 0..cluster.owned_by(*number, *number).len() {
            within("an owned shard", stream.next()).await.unwrap();
        }
    }
    cluster.abort(0).await;
    let heard = streams.iter_mut().map(|(number, stream)| Box::pin(async move { (*number, stream.next().await) }));
    let ((adopter, change), ..) = within("an adoption", futures::future::select_all(heard)).await;
    assert!(matches!(change, Some(ShardChange::Acquired { .. })), "{change:?}");
    drop(streams);
    cluster.abort(adopter).await;

    let survivors: Vec<usize> = (1..5).filter(|number| *number != adopter).collect();
    let seen_by = survivors[0];
    until("every shard has a live owner", || {
        (cluster.owned_by(seen_by, 0).is_empty() && cluster.owned_by(seen_by, adopter).is_empty()).then_some(())
    })
    .await;
    for number in &survivors {
        let store = cluster.node(*number).store();
        let (scope, holder) = (Scope::default(), ClaimHolder::Node);
        let call = ClaimCall { scope, limit: 1_000, holder, hold: Vec::new(), wait_ms: 0 };
        for work in store.claim(call, Write::default()).await.unwrap().value {
            store.complete(&work.key, Some(work.token), Payload::default(), Write::default()).await.unwrap();
        }
    }
    let store = cluster.node(seen_by).store();
    for shard in (0..SHARDS).map(ShardId) {
        let history = store.history(&workflow_in(shard), 1, 10, ReadMode::Linearizable).await.unwrap().value;
        let outcomes = history.iter().filter(|event| event.kind == EventKind::ActivityCompleted).count();
        assert_eq!(outcomes, 1, "{shard}");
    }
}
