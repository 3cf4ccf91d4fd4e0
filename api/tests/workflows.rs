//! Workflows over HTTP: append, commit, read; retries, conflicts and limits.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{EventKind, NewEvent, Payload, Reject, WorkflowStatus};
use support::{claim, id, new_row, reject, serve, signal, staged, started};

/// Case 11: a retry with the same bytes is a success, one with other bytes a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_landed_may_be_repeated_but_not_changed() {
    let served = serve().await;
    let client = &served.client;
    let order = id("order-1");
    let events = || vec![started(), signal("a")];
    let first = client.append(&order, 0, events(), Write::default()).await.unwrap();
    assert_eq!((first.value.head, first.value.duplicate), (2, false));
    let again = client.append(&order, 0, events(), Write::default()).await.unwrap();
    assert_eq!((again.value.head, again.value.duplicate), (2, true));
    let other = client.append(&order, 0, vec![started(), signal("b")], Write::default()).await;
    assert_eq!(reject(other), Reject::SequenceConflict { workflow: order.clone(), expected: 0, found: 2 });

    let read = client.history(&order, 1, 10, ReadMode::AtLeast(again.index)).await.unwrap();
    assert!(read.index >= again.index);
    let seqs: Vec<u64> = read.value.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 2]);
    assert_eq!(read.value[1].payload, Payload::text("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_stages_and_settles_and_is_read_back() {
    let served = serve().await;
    let client = &served.client;
    let order = id("order-1");
    let committed = client.commit(staged("order-1", [1, 2]), Write::default()).await.unwrap().value;
    assert_eq!(committed.head, 5);
    assert!(committed.staged.iter().all(|staged| staged.written));

    let view = client.workflow(&order, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(view.workflow.unwrap().status, WorkflowStatus::Running);
    assert_eq!(view.fence.unwrap().owner, support::node());
    let row = client.row(&"order-1:1".parse().unwrap(), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(row.input, Payload::text("input 1"));

    let settled = client.settle(&order, Write::default()).await.unwrap().value;
    assert_eq!(settled.len(), 2);
    assert_eq!(client.settle(&order, Write::default()).await.unwrap().value, []);
    let rearmed = client.rearm(&order, vec![new_row(2), new_row(3)], Write::default()).await.unwrap().value;
    assert_eq!(rearmed, ["order-1:2".parse().unwrap(), "order-1:3".parse().unwrap()]);

    let end = vec![NewEvent::of(EventKind::WorkflowCompleted)];
    client.append(&order, 5, end, Write::default()).await.unwrap();
    let runs = client.runs(&order, &PageCall::first(10), ReadMode::Linearizable).await.unwrap().value.runs;
    assert_eq!((runs.len(), runs[0].status), (1, WorkflowStatus::Completed));
    let unknown = client.workflow(&id("nobody"), ReadMode::Stale).await.unwrap().value;
    assert_eq!(unknown.workflow, None);
    assert_eq!(client.history(&id("nobody"), 1, 10, ReadMode::Linearizable).await.unwrap().value, []);
    let missing = client.row(&"nobody:1".parse().unwrap(), ReadMode::Linearizable).await;
    assert_eq!(reject(missing).code(), "row_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_idempotency_key_has_one_effect() {
    let served = serve().await;
    let write = || Write::keyed("key-1".parse().unwrap());
    let first = served.client.commit(staged("w", [1]), write()).await.unwrap();
    let again = served.client.commit(staged("w", [1]), write()).await.unwrap();
    assert_eq!(first.value, again.value);
    let other = served.client.commit(staged("x", [1]), write()).await;
    assert_eq!(reject(other), Reject::IdempotencyConflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_an_old_fence_is_refused() {
    let served = serve().await;
    let order = id("order-1");
    let view = served.client.workflow(&order, ReadMode::Linearizable).await.unwrap().value;
    let fence = view.fence.unwrap();
    let fenced = served.client.with_fence(fence.clone());
    fenced.append(&order, 0, vec![started()], Write::default()).await.unwrap();
    let mut old = fence.clone();
    old.epoch.0 += 1;
    let refused = served.client.with_fence(old).append(&order, 1, vec![signal("a")], Write::default()).await;
    assert_eq!(reject(refused), Reject::NotOwner { shard: view.shard, owner: Some(fence.owner), epoch: fence.epoch });
}

/// Case 12: one payload over the limit refuses the whole commit before anything is proposed.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_over_a_limit_costs_nothing() {
    let served = serve().await;
    let limit = served.store.limits().payload_bytes_max;
    let mut events: Vec<NewEvent> = (0..998).map(|n| signal(&n.to_string())).collect();
    events.insert(0, started());
    events.push(NewEvent::of(EventKind::SignalReceived).with(Payload::octets(vec![7; limit + 1])));
    assert_eq!(events.len(), 1_000);
    let before = served.last();
    let refused = reject(served.client.append(&id("big"), 0, events.clone(), Write::default()).await);
    let Reject::LimitExceeded { limit: named, actual, .. } = refused else { panic!("{refused}") };
    assert_eq!((named, actual), (limit as u64, limit as u64 + 1));
    assert_eq!(served.last(), before, "something was proposed");
    assert_eq!(served.client.history(&id("big"), 1, 10, ReadMode::Linearizable).await.unwrap().value, []);

    events.pop();
    events.push(NewEvent::of(EventKind::SignalReceived).with(Payload::octets(vec![7; limit])));
    let committed = served.client.append(&id("big"), 0, events, Write::default()).await.unwrap();
    assert_eq!(committed.value.head, 1_000);
    let page = served.client.history(&id("big"), 1, 1_000, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(page.len(), 1_000);
    let last = served.client.history(&id("big"), 1_000, 1_000, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((last.len(), last[0].payload.data.len()), (1, limit));
}

/// Case 23: odd ids and ordinals read back as they were.
/// No page of a history is much larger than 8 MiB, however many events it may have.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_events_is_short() {
    let served = serve().await;
    let (store, order) = (&served.store, id("order-1"));
    let large = || NewEvent::of(EventKind::SignalReceived).with(Payload::octets(vec![7; 1 << 20]));
    for expected_seq in [0, 8] {
        let events = (0..8).map(|_| large()).collect();
        store.append(&order, expected_seq, events, Write::default()).await.unwrap();
    }
    let mut read: Vec<u64> = Vec::new();
    for _ in 0..2 {
        let page = store.history(&order, read.len() as u64 + 1, 100, ReadMode::Linearizable).await.unwrap().value;
        assert_eq!(page.len(), 8);
        read.extend(page.iter().map(|event| event.seq));
    }
    assert_eq!(read, (1..=16).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_ids_read_back_as_they_were() {
    let served = serve().await;
    let client = &served.client;
    let long = "x".repeat(255);
    for text in [long.as_str(), "🎉", "a:b:c", "a/b", "a%2Fb", "a b", "?#&", "…", "...", "a\\b", "é/ü:%25"] {
        let ordinals = [0, u64::MAX];
        client.commit(staged(text, ordinals), Write::default()).await.unwrap();
        let view = client.workflow(&id(text), ReadMode::Linearizable).await.unwrap().value;
        assert_eq!((view.id.as_str(), view.workflow.unwrap().head), (text, 5));
        for ordinal in ordinals {
            let key = format!("{text}:{ordinal}").parse().unwrap();
            assert_eq!(client.row(&key, ReadMode::Linearizable).await.unwrap().value.key, key);
        }
        let taken = client.claim(support::claim(2, 0), Write::default()).await.unwrap().value;
        assert_eq!(taken.len(), 2);
        for delivery in taken {
            let done = client.complete(&delivery.key, Some(delivery.token), Payload::default(), Write::default());
            assert!(done.await.unwrap().value.is_some());
        }
    }
    for text in [".", ".."] {
        let refused = client.append(&id(text), 0, vec![started()], Write::default()).await.unwrap_err();
        assert_eq!(refused.code(), "invalid_argument");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_come_in_pages_whose_cursors_are_their_own() {
    let served = serve().await;
    let (client, mode) = (&served.client, ReadMode::Linearizable);
    let chain = |run: u32| {
        let again = (run > 1).then(|| NewEvent::of(EventKind::WorkflowContinuedAsNew));
        again.into_iter().chain([started()]).collect::<Vec<_>>()
    };
    client.append(&id("w"), 0, (1..=5).flat_map(chain).collect(), Write::default()).await.unwrap();
    served.stage("x", 1..=5).await;
    client.claim(claim(5, 0), Write::default()).await.unwrap();

    let (mut numbers, mut keys, mut page) = (Vec::new(), Vec::new(), PageCall::first(2));
    loop {
        let runs = client.runs(&id("w"), &page, mode).await.unwrap().value;
        numbers.extend(runs.runs.iter().map(|run| run.number));
        let Some(cursor) = runs.next_cursor else { break };
        page = PageCall::after(2, cursor);
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    let foreign = page.clone();
    page = PageCall::first(2);
    loop {
        let stale = client.stale(0, &page, mode).await.unwrap().value;
        keys.extend(stale.rows.iter().map(|row| row.key.to_string()));
        let Some(cursor) = stale.next_cursor else { break };
        page = PageCall::after(2, cursor);
    }
    assert_eq!(keys, ["x:1", "x:2", "x:3", "x:4", "x:5"]);

    for refused in [
        reject(client.runs(&id("other"), &foreign, mode).await),
        reject(client.stale(0, &foreign, mode).await),
        reject(client.stale(1, &page, mode).await),
        reject(client.runs(&id("w"), &PageCall::after(2, "no cursor"), mode).await),
        reject(client.runs(&id("w"), &PageCall::first(0), mode).await),
    ] {
        assert_eq!(refused.code(), "invalid_argument");
    }
}
