//! Claims over HTTP: what a claimant may do, and how claims wait for work.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use holdfast_api::{ClaimCall, ClaimHolder, StoreError};
use holdfast_client::{Failure, PageCall, ReadMode, Write};
use holdfast_machine::{ActivityType, Claimant, Millis, Payload, Reject, RowStatus};
use support::{claim, eventually, id, keys, reject, serve, staged};
use tokio::io::AsyncWriteExt;

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_row_is_completed_once() {
    let served = serve().await;
    let client = &served.client;
    served.stage("w", [1, 2]).await;
    let taken = client.claim(claim(10, 0), Write::default()).await.unwrap();
    assert_eq!(keys(&taken.value), ["w:1", "w:2"]);
    let one = taken.value[0].clone();
    assert_eq!((one.run_id.as_str(), one.attempt, one.deliveries), ("run-1", 1, 0));
    assert_eq!(one.input, Payload::text("input 1"));
    assert_eq!(client.claim(claim(10, 0), Write::default()).await.unwrap().value, []);

    let beat = client.heartbeat(&one.key, one.token, 120_000, Payload::text("half"), Write::default()).await.unwrap();
    assert!(Some(beat.value) > one.deadline);
    let row = client.row(&one.key, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((row.row.status, row.details), (RowStatus::Claimed, Payload::text("half")));

    let done = client.complete(&one.key, Some(one.token), Payload::text("ok"), Write::default()).await.unwrap();
    assert_eq!(done.value, Some(6));
    let again = client.complete(&one.key, Some(one.token), Payload::text("no"), Write::default()).await;
    assert_eq!(reject(again), Reject::AlreadyTerminal { key: one.key, status: Some(RowStatus::Done) });
    let nobody = client.complete(&"w:9".parse().unwrap(), None, Payload::default(), Write::default()).await;
    assert_eq!(nobody.unwrap().value, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_rows_come_back_and_then_stop() {
    let served = serve().await;
    let client = &served.client;
    served.stage("w", [1, 2]).await;
    let taken = client.claim(claim(10, 0), Write::default()).await.unwrap().value;
    let (one, two) = (taken[0].clone(), taken[1].clone());
    let error = || Payload::text("broken");
    let back = client
        .fail(&one.key, Some(one.token), Failure::retryable(error()), Write::default())
        .await
        .unwrap()
        .value
        .unwrap();
    assert_eq!((back.status, back.deliveries), (RowStatus::Pending, 1));
    let end = client
        .fail(&two.key, Some(two.token), Failure::for_good(error()), Write::default())
        .await
        .unwrap()
        .value
        .unwrap();
    assert_eq!((end.status, end.failed_seq), (RowStatus::Failed, Some(6)));

    // The row is due a millisecond later; the claim waits for that.
    let again = client.claim(claim(10, 20_000), Write::default()).await.unwrap().value;
    assert_eq!((again[0].key.clone(), again[0].attempt, again[0].deliveries), (one.key.clone(), 2, 1));
    let retry = client.retry(&one.key, Some(again[0].token), 0, Write::default()).await.unwrap().value.unwrap();
    assert_eq!((retry.status, retry.deliveries), (RowStatus::Pending, 2));
    let lost = client.complete(&one.key, Some(one.token), Payload::default(), Write::default()).await;
    assert_eq!(reject(lost), Reject::ClaimLost { key: one.key });
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_leases_are_stale_and_come_back() {
    let served = serve().await;
    let client = &served.client;
    served.stage("w", [1]).await;
    let holder = ClaimHolder::Lease { claimant: Claimant::new("brief").unwrap(), lease_ms: 1 };
    let brief = ClaimCall { holder, ..claim(1, 0) };
    let taken = client.claim(brief, Write::default()).await.unwrap().value;
    let stale = client.stale(0, &PageCall::first(10), ReadMode::Linearizable).await.unwrap().value.rows;
    assert_eq!(stale[0].key, taken[0].key);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.claim(claim(1, 20_000), Write::default()).await }
    });
    eventually("a claim waits", || served.store.claims_waiting() == 1).await;
    while !waiting.is_finished() {
        served.tick().await;
    }
    assert_eq!(keys(&waiting.await.unwrap().unwrap().value), ["w:1"]);
    let reconciled = client.reconcile(0, 10, Vec::new(), Write::default()).await.unwrap().value;
    assert_eq!(reconciled.rearmed, [], "a running lease is left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_claim_proposes_nothing_and_wakes_when_a_row_is_staged() {
    let served = serve().await;
    served.stage("first", []).await;
    let before = served.last();
    let waiting = tokio::spawn({
        let client = served.client.clone();
        async move { client.claim(claim(5, 20_000), Write::default()).await }
    });
    eventually("a claim waits", || served.store.claims_waiting() == 1).await;
    assert_eq!(served.last(), before, "a claim that waits was proposed");
    served.stage("w", [1]).await;
    assert_eq!(keys(&waiting.await.unwrap().unwrap().value), ["w:1"]);
    assert_eq!(served.last(), before + 2, "the commit and one claim");
    assert_eq!(served.store.claims_waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_as_many_claims_wake_as_there_are_rows_and_the_first_come_first() {
    const CLAIMS: usize = 20;
    let served = serve().await;
    let before = served.last();
    let mut waiting = Vec::new();
    for number in 0..CLAIMS {
        let store = served.store.clone();
        waiting.push(tokio::spawn(async move { store.claim(claim(1, 60_000), Write::default()).await }));
        eventually("the next claim waits", || served.store.claims_waiting() == number + 1).await;
    }
    served.stage("w", [1, 2, 3]).await;
    let mut taken = Vec::new();
    for call in waiting.drain(..3) {
        taken.extend(keys(&call.await.unwrap().unwrap().value));
    }
    taken.sort();
    assert_eq!(taken, ["w:1", "w:2", "w:3"]);
    assert_eq!(served.store.claims_waiting(), CLAIMS - 3);
    let proposals = served.last() - before - 1;
    assert!(proposals <= 3, "{proposals} entries for three claims");
    served.store.close();
    for call in waiting {
        assert!(matches!(call.await.unwrap(), Err(StoreError::Stopped)));
    }
    assert_eq!(served.store.claims_waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_wakes_its_claim_when_its_time_comes() {
    let served = serve().await;
    let now = served.raft.view(|machine, _| machine.now());
    let mut commit = staged("later", [1]);
    commit.rows[0].visible_after = now.plus(300);
    served.store.commit(commit, Write::default()).await.unwrap();
    let before = served.last();
    let taken = served.client.claim(claim(1, 20_000), Write::default()).await.unwrap();
    assert_eq!(keys(&taken.value), ["later:1"]);
    let at = served.raft.view(|machine, _| machine.now());
    assert!(at >= Millis(now.0 + 300));
    assert!(served.last() <= before + 2, "the claim polled the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_ends_empty_when_nothing_comes() {
    let served = serve().await;
    served.stage("w", [1]).await;
    let before = served.last();
    let mut other = claim(1, 50);
    other.scope.activity_types = vec![ActivityType::new("ship").unwrap()];
    assert_eq!(served.client.claim(other, Write::default()).await.unwrap().value, []);
    let mut held = claim(1, 50);
    held.hold = vec![id("w")];
    assert_eq!(served.client.claim(held, Write::default()).await.unwrap().value, []);
    assert_eq!(served.last(), before);
    assert_eq!(served.store.claims_waiting(), 0);
}

/// A worker that beats for an hour leaves nothing behind that has to be remembered.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_not_remembered_unless_it_asks_for_it() {
    let served = serve().await;
    served.stage("w", [1]).await;
    let one = served.client.claim(claim(1, 0), Write::default()).await.unwrap().value.remove(0);
    let remembered = || served.raft.view(|machine, _| machine.remembered_count());
    let before = remembered();
    for _ in 0..3 {
        let beat = served.client.heartbeat(&one.key, one.token, 60_000, Payload::default(), Write::default());
        beat.await.unwrap();
    }
    assert_eq!(remembered(), before);
    let keyed = Write::keyed("beat-1".parse().unwrap());
    served.client.heartbeat(&one.key, one.token, 60_000, Payload::default(), keyed).await.unwrap();
    assert_eq!(remembered(), before + 1);
}

/// Case 13: a claim whose connection is closed takes nothing that comes later.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_caller_is_gone_takes_nothing() {
    let served = serve().await;
    let address = served.url.strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = serde_json::to_string(&claim(10, 60_000)).unwrap();
    let request = format!(
        "POST /v1/outbox/claim HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    eventually("the claim waits", || served.store.claims_waiting() == 1).await;
    drop(connection);
    eventually("the claim is gone", || served.store.claims_waiting() == 0).await;
    served.stage("w", [1]).await;
    let row = served.client.row(&"w:1".parse().unwrap(), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(row.row.status, RowStatus::Pending);
    assert_eq!(keys(&served.client.claim(claim(10, 0), Write::default()).await.unwrap().value), ["w:1"]);
}

/// Case 13, in all ways in which a caller can go: in the middle of its body, after it, and by dropping the call, with a
/// key and without.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_are_given_up_take_nothing_whatever_ended_them() {
    let served = serve().await;
    let address = served.url.strip_prefix("http://").unwrap();
    let body = serde_json::to_string(&claim(10, 60_000)).unwrap();
    let head = |key: &str| {
        format!(
            "POST /v1/outbox/claim HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{key}Content-Length: {}\r\n\r\n",
            body.len()
        )
    };
    let mut connections = Vec::new();
    for (key, sent) in [("", body.len()), ("Idempotency-Key: gone\r\n", body.len()), ("", body.len() / 2)] {
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        connection.write_all(format!("{}{}", head(key), &body[..sent]).as_bytes()).await.unwrap();
        connections.push(connection);
    }
    let store = served.store.clone();
    let embedded = tokio::spawn(async move { store.claim(claim(10, 60_000), Write::default()).await });
    let client = served.client.clone();
    let keyed = Write::keyed("dropped".parse().unwrap());
    let over_http = tokio::spawn(async move { client.claim(claim(10, 60_000), keyed).await });
    eventually("the claims wait", || served.store.claims_waiting() == 4).await;
    drop(connections);
    embedded.abort();
    over_http.abort();
    eventually("the claims are gone", || served.store.claims_waiting() == 0).await;
    served.stage("w", [1, 2, 3]).await;
    // A retry under a key that a dead call had is a claim like any other.
    let again = served.client.claim(claim(1, 0), Write::keyed("gone".parse().unwrap())).await.unwrap().value;
    assert_eq!(keys(&again), ["w:1"]);
    assert_eq!(keys(&served.client.claim(claim(10, 0), Write::default()).await.unwrap().value), ["w:2", "w:3"]);
}

/// Case 14, later: the first answer stays what it was when its lease is over and the rows are somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_does_not_take_rows_back() {
    let served = serve().await;
    let client = &served.client;
    served.stage("w", [1, 2]).await;
    let holder = ClaimHolder::Lease { claimant: Claimant::new("slow").unwrap(), lease_ms: 1 };
    let call = || ClaimCall { holder: holder.clone(), ..claim(2, 0) };
    let write = || Write::keyed("claim-1".parse().unwrap());
    let first = client.claim(call(), write()).await.unwrap().value;
    assert_eq!(keys(&first), ["w:1", "w:2"]);
    let pending = || served.raft.view(|machine, _| machine.row_counts().pending);
    while pending() < 2 {
        served.tick().await;
    }
    let second = client.claim(claim(2, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&second), ["w:1", "w:2"]);
    let again = client.claim(call(), write()).await.unwrap().value;
    let tokens = |deliveries: &[holdfast_client::Delivery]| deliveries.iter().map(|d| d.token).collect::<Vec<_>>();
    assert_eq!(tokens(&again), tokens(&first));
    let void = client.complete(&again[0].key, Some(again[0].token), Payload::default(), Write::default()).await;
    assert_eq!(reject(void).code(), "claim_lost");
    for one in second {
        let done = client.complete(&one.key, Some(one.token), Payload::default(), Write::default());
        assert!(done.await.unwrap().value.is_some());
    }
    // Another claim under the key is no retry.
    let other = client.claim(claim(1, 0), write()).await;
    assert_eq!(reject(other), Reject::IdempotencyConflict);
}

/// Case 14: the same claim under the same key gets the same rows and tokens, even if it would wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_gets_the_same_rows() {
    let served = serve().await;
    served.stage("w", [1, 2, 3]).await;
    let write = || Write::keyed("claim-1".parse().unwrap());
    let first = served.client.claim(claim(2, 20_000), write()).await.unwrap().value;
    let again = served.client.claim(claim(2, 20_000), write()).await.unwrap().value;
    assert_eq!(keys(&first), ["w:1", "w:2"]);
    assert_eq!(first, again);
    let rest = served.client.claim(claim(2, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&rest), ["w:3"]);
}

/// Case 23: a limit of nothing, and one of everything.
#[tokio::test(flavor = "multi_thread")]
async fn odd_limits_are_refused_clearly() {
    let served = serve().await;
    let none = reject(served.client.claim(claim(0, 20_000), Write::default()).await);
    assert_eq!(none.code(), "invalid_argument");
    let all = reject(served.client.claim(claim(u32::MAX, 20_000), Write::default()).await);
    assert_eq!(all.code(), "limit_exceeded");
    let node = ClaimCall { holder: ClaimHolder::Node, ..claim(1, 0) };
    assert_eq!(reject(served.client.claim(node.clone(), Write::default()).await).code(), "invalid_argument");
    served.stage("w", [1]).await;
    let own = served.store.claim(node, Write::default()).await.unwrap().value;
    assert_eq!((keys(&own), own[0].deadline), (vec!["w:1".to_owned()], None));
    tokio::time::timeout(Duration::from_secs(30), served.raft.shutdown()).await.unwrap();
}
