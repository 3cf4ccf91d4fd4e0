//! Histories that grow: waiting for the next event, and the stream of heads.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use futures::StreamExt;
use holdfast_api::{HeadMessage, HeadScope, ReadMode, StoreError, Write};
use holdfast_client::{Failure, HeadStream};
use holdfast_machine::{Commit, Namespace, NewRow, NodeName, Payload, RetryPolicy, ShardId};
use support::{DEADLINE, Served, claim, id, new_row, node, serve, signal, started};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

async fn append(served: &Served, workflow: &str, expected_seq: u64) {
    let event = if expected_seq == 0 { started() } else { signal("next") };
    served.store.append(&id(workflow), expected_seq, vec![event], Write::default()).await.unwrap();
}

async fn next(stream: &mut HeadStream) -> HeadMessage {
    timeout(DEADLINE, stream.next()).await.expect("no message in time").unwrap().unwrap()
}

async fn grew(stream: &mut HeadStream) -> (String, u64) {
    match next(stream).await {
        HeadMessage::Grew(grew) => (grew.workflow.to_string(), grew.head),
        other => panic!("no head: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_waits_for_the_next_event() {
    let served = serve().await;
    let reader = |from_seq| {
        let client = served.client.clone();
        async move { client.next_events(&id("w"), from_seq, 10, LONG, ReadMode::Linearizable).await.unwrap() }
    };
    let (first, third) = (tokio::spawn(reader(1)), tokio::spawn(reader(3)));
    // What other workflows do wakes nobody here; nor does it matter in which order they come.
    append(&served, "other", 0).await;
    append(&served, "w", 0).await;
    assert_eq!(timeout(DEADLINE, first).await.unwrap().unwrap().value[0].seq, 1);
    append(&served, "w", 1).await;
    append(&served, "w", 2).await;
    let third = timeout(DEADLINE, third).await.unwrap().unwrap();
    assert_eq!(third.value.iter().map(|event| event.seq).collect::<Vec<_>>(), [3]);
    // What is there already is not waited for, and a wait has an end.
    assert_eq!(reader(1).await.value.len(), 3);
    let short = served.client.next_events(&id("w"), 4, 10, Duration::from_millis(1), ReadMode::Linearizable).await;
    assert_eq!(short.unwrap().value, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_lets_its_readers_go() {
    let served = serve().await;
    let store = served.store.clone();
    let waiting = tokio::spawn(async move { store.next_events(&id("w"), 1, 10, LONG, ReadMode::Linearizable).await });
    served.store.close();
    assert!(matches!(timeout(DEADLINE, waiting).await.unwrap().unwrap(), Err(StoreError::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_hears_which_histories_grow() {
    let served = serve().await;
    append(&served, "before", 0).await;
    let mut all = served.client.watch_heads(HeadScope::default());
    let HeadMessage::Resync { index } = next(&mut all).await else { panic!("a stream begins with resync") };
    let seen = served.client.workflow(&id("before"), ReadMode::AtLeast(index)).await.unwrap().value;
    assert_eq!(seen.workflow.unwrap().head, 1, "what grew before the stream is in the state of its index");

    append(&served, "w", 0).await;
    assert_eq!(grew(&mut all).await, ("w".to_owned(), 1));
    append(&served, "w", 1).await;
    assert_eq!(grew(&mut all).await, ("w".to_owned(), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_heads_is_about_its_scope() {
    let served = serve().await;
    append(&served, "w", 0).await;
    let shard = served.client.workflow(&id("w"), ReadMode::Linearizable).await.unwrap().value.shard;
    let nobody = NodeName::new("node-9").unwrap();
    let scope = |shard, owner| HeadScope { shard, owner, namespace: None };
    let elsewhere = HeadScope { namespace: Some(Namespace::new("elsewhere").unwrap()), ..HeadScope::default() };
    let here = HeadScope { namespace: Some(Namespace::default()), ..HeadScope::default() };
    let mut streams = [
        served.client.watch_heads(scope(Some(shard), None)),
        served.client.watch_heads(scope(None, Some(node()))),
        served.client.watch_heads(here),
        served.client.watch_heads(scope(Some(ShardId(shard.0 ^ 1)), None)),
        served.client.watch_heads(scope(None, Some(nobody))),
        served.client.watch_heads(elsewhere),
    ];
    for stream in &mut streams {
        assert!(matches!(next(stream).await, HeadMessage::Resync { .. }));
    }
    append(&served, "w", 1).await;
    assert_eq!(grew(&mut streams[0]).await, ("w".to_owned(), 2));
    assert_eq!(grew(&mut streams[1]).await, ("w".to_owned(), 2));
    assert_eq!(grew(&mut streams[2]).await, ("w".to_owned(), 2));
    // Of another shard, owner or namespace there is nothing to tell: the next thing told there is the end.
    served.store.close();
    for stream in &mut streams[3..] {
        assert!(timeout(DEADLINE, stream.next()).await.unwrap().unwrap().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_hears_of_a_row_that_is_given_up() {
    let served = serve().await;
    let row = NewRow { retry: RetryPolicy { deliveries_max: 1, ..RetryPolicy::default() }, ..new_row(1) };
    let opening = Commit::new(id("w"), 0).event(started()).activity(row);
    served.store.commit(opening, Write::default()).await.unwrap();
    let mut stream = served.client.watch_heads(HeadScope::default());
    assert!(matches!(next(&mut stream).await, HeadMessage::Resync { .. }));
    let taken = served.client.claim(claim(1, 0), Write::default()).await.unwrap().value.remove(0);
    served
        .client
        .fail(&taken.key, Some(taken.token), Failure::retryable(Payload::text("no")), Write::default())
        .await
        .unwrap();
    match next(&mut stream).await {
        HeadMessage::DeadLetter(letter) => assert_eq!(letter.key, taken.key),
        other => panic!("no dead letter: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_engine_hears_the_last_heads_or_that_it_must_look() {
    let served = serve().await;
    let mut slow = served.store.watch_heads(HeadScope::default());
    assert!(matches!(slow.next().await, Some(HeadMessage::Resync { .. })));
    for expected_seq in 0..50 {
        append(&served, "w", expected_seq).await;
    }
    // It was not read in the meantime; 50 appends come to one head.
    match timeout(DEADLINE, slow.next()).await.unwrap() {
        Some(HeadMessage::Grew(grew)) => assert_eq!(grew.head, 50),
        other => panic!("no head: {other:?}"),
    }
}
