//! What an embedding engine sees when nodes die: their shards are adopted once each, the rows that they held
//! themselves are handed out again, and each piece of work has one outcome.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use holdfast_node::api::{ClaimCall, ClaimHolder, Delivery, ReadMode, Store, StoreError, Write};
use holdfast_node::machine::{
    DispatchKey, Effect, EventKind, Fence, Payload, Reject, RowStatus, Scope, ShardEntry, ShardId,
};
use holdfast_node::{MembershipChange, ShardChange, ShardChanges};
use support::{Cluster, PATIENCE, SHARDS, staged, until, within, workflow_in};

const ROWS: u64 = 2;

async fn claim_all(store: &Store) -> Vec<Delivery> {
    let (scope, holder) = (Scope::default(), ClaimHolder::Node);
    let call = ClaimCall { scope, limit: 1_000, holder, hold: Vec::new(), wait_ms: 0 };
    store.claim(call, Write::default()).await.unwrap().value
}

async fn stage_everywhere(store: &Store) {
    for shard in (0..SHARDS).map(ShardId) {
        store.commit(staged(workflow_in(shard), ROWS), Write::default()).await.unwrap();
    }
}

/// Takes the shards that a node owns at the start of its stream.
async fn owned_at_first(changes: &mut ShardChanges, count: usize) -> BTreeSet<ShardId> {
    let mut owned = BTreeSet::new();
    while owned.len() < count {
        let change = within("a shard that is owned", changes.next()).await.unwrap();
        assert!(matches!(change, ShardChange::Acquired { .. }), "{change:?}");
        owned.insert(change.shard());
    }
    owned
}

/// Waits until the stream says that all of `orphans` that `cluster` sees with this owner are acquired.
async fn adopted(changes: &mut ShardChanges, orphans: &[ShardEntry], expected: usize) -> BTreeMap<ShardId, u64> {
    let mut heard = BTreeMap::new();
    while heard.len() < expected {
        match within("an adoption", changes.next()).await.unwrap() {
            ShardChange::Acquired { shard, epoch, settled, rearmed } => {
                assert!(settled.is_empty());
                let keys: Vec<DispatchKey> = rearmed;
                assert_eq!(keys.len() as u64, ROWS, "the dead node held the rows of {shard}");
                assert!(keys.iter().all(|key| ShardId::of(&key.workflow, SHARDS) == shard));
                assert_eq!(heard.insert(shard, epoch.0), None, "{shard} was told twice");
                assert!(orphans.iter().any(|entry| entry.shard == shard));
            }
            lost => panic!("{lost:?}"),
        }
    }
    heard
}

async fn kill_an_owner_and_follow_its_work(leader_dies: bool) {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let victim = if leader_dies { leader } else { (leader + 1) % 3 };
    let survivors: Vec<usize> = (0..3).filter(|number| *number != victim).collect();

    // Work on all shards; the victim holds that of its own.
    stage_everywhere(&cluster.node(survivors[0]).store()).await;
    let orphans = cluster.owned_by(survivors[0], victim);
    assert!(orphans.len() >= SHARDS as usize / 3);
    let stale = claim_all(&cluster.node(victim).store()).await;
    assert_eq!(stale.len(), orphans.len() * ROWS as usize);

    let mut membership = cluster.node(survivors[0]).membership();
    let mut streams = Vec::new();
    for number in &survivors {
        let mut stream = cluster.node(*number).shards();
        owned_at_first(&mut stream, cluster.owned_by(*number, *number).len()).await;
        streams.push(stream);
    }
    let victim_name = cluster.node(victim).name().clone();
    let mut effects = cluster.node(survivors[0]).raft().effects();
    cluster.abort(victim).await;

    // The death is heard, and each orphan gets one new owner and one new epoch.
    loop {
        let change = within("the death is heard", membership.next()).await.unwrap();
        if matches!(&change, MembershipChange::Down { node, .. } if *node == victim_name) {
            break;
        }
    }
    let seen_by = survivors[0];
    until("no shard is left with the dead", || cluster.owned_by(seen_by, victim).is_empty().then_some(())).await;
    let mut heard = BTreeMap::new();
    for (number, stream) in survivors.iter().zip(&mut streams) {
        let taken = cluster.owned_by(seen_by, *number);
        let expected = taken.iter().filter(|entry| orphans.iter().any(|orphan| orphan.shard == entry.shard)).count();
        heard.extend(adopted(stream, &orphans, expected).await);
    }
    let expected: BTreeMap<ShardId, u64> = orphans.iter().map(|entry| (entry.shard, entry.epoch.0 + 1)).collect();
    assert_eq!(heard, expected);
    let mut acquisitions = BTreeMap::new();
    while let Ok((_, effect)) = effects.try_recv() {
        if let Effect::ShardAcquired { shard, .. } = effect {
            *acquisitions.entry(shard).or_insert(0) += 1;
        }
    }
    assert!(acquisitions.values().all(|count| *count == 1), "{acquisitions:?}");

    // The survivors' engines do the work again; the dead claims count for nothing.
    for number in &survivors {
        let store = cluster.node(*number).store();
        for work in claim_all(&store).await {
            store.complete(&work.key, Some(work.token), Payload::text("again"), Write::default()).await.unwrap();
        }
    }
    let store = cluster.node(survivors[1]).store();
    for late in &stale {
        let answer = store.complete(&late.key, Some(late.token), Payload::text("late"), Write::default()).await;
        let status = Some(RowStatus::Done);
        let expected = Reject::AlreadyTerminal { key: late.key.clone(), status };
        assert!(matches!(&answer, Err(StoreError::Reject(reject)) if *reject == expected), "{answer:?}");
    }
    for shard in (0..SHARDS).map(ShardId) {
        let history = store.history(&workflow_in(shard), 1, 100, ReadMode::Linearizable).await.unwrap().value;
        let outcomes = history.iter().filter(|event| event.kind == EventKind::ActivityCompleted).count();
        assert_eq!(outcomes as u64, ROWS, "{shard}");
    }

    // The dead node comes back, owns nothing, is refused under its old epochs, and has the same state.
    cluster.start_node(victim).await;
    assert!(within("the dead node is ready again", cluster.node(victim).ready()).await);
    assert!(cluster.owned_by(victim, victim).is_empty());
    let orphan = &orphans[0];
    let store = cluster.node(victim).store().with_fence(Fence { owner: orphan.owner.clone(), epoch: orphan.epoch });
    let refused = store.settle(&workflow_in(orphan.shard), Write::default()).await;
    assert!(matches!(&refused, Err(StoreError::Reject(Reject::NotOwner { .. }))), "{refused:?}");
    until("all nodes have the same state", || {
        let states: BTreeSet<(u64, u64)> =
            (0..3).map(|n| cluster.node(n).raft().view(|m, _| (m.applied(), m.state_hash()))).collect();
        (states.len() == 1).then_some(())
    })
    .await;
    for node in cluster.nodes.into_iter().flatten() {
        tokio::time::timeout(PATIENCE, node.shutdown()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_follows_dies_and_its_work_goes_on() {
    kill_an_owner_and_follow_its_work(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_that_leads_dies_and_its_work_goes_on() {
    kill_an_owner_and_follow_its_work(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_adopted_and_with_it_back_everything_is() {
    let mut cluster = Cluster::start(3).await;
    cluster.abort(0).await;
    until("the first dead node's shards are adopted", || cluster.owned_by(2, 0).is_empty().then_some(())).await;
    let before = cluster.owned_by(2, 1);
    assert!(!before.is_empty());
    cluster.abort(1).await;

    let refused = cluster.node(2).store().commit(staged(workflow_in(ShardId(0)), 1), Write::default()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(cluster.owned_by(2, 1), before);

    cluster.start_node(0).await;
    until("the second dead node's shards are adopted", || cluster.owned_by(2, 1).is_empty().then_some(())).await;
    let store = cluster.node(0).store();
    store.commit(staged(workflow_in(ShardId(1)), 1), Write::default()).await.unwrap();
}
