//! Rows that are staged by themselves, and dead letters: listed, marked, redriven.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_client::{Client, ClientError, DeadLetterPage, Failure, PageCall, ReadMode, RedriveMode, Write};
use holdfast_machine::{EventKind, Namespace, NewEvent, NewRow, Payload, RetryPolicy, RowStatus, Staged};
use support::{Served, claim, id, keys, new_row, reject, serve, staged};

/// A row that is a dead letter after its first delivery.
fn fragile(ordinal: u64) -> NewRow {
    NewRow { retry: RetryPolicy { deliveries_max: 1, ..RetryPolicy::default() }, ..new_row(ordinal) }
}

/// Takes all that is due in the default pool, and makes dead letters of it.
async fn bury(served: &Served, limit: u32) {
    let taken = served.client.claim(claim(limit, 0), Write::default()).await.unwrap().value;
    assert_eq!(taken.len(), limit as usize);
    for one in taken {
        let failed =
            served.client.fail(&one.key, Some(one.token), Failure::retryable(Payload::default()), Write::default());
        assert_eq!(failed.await.unwrap().value.unwrap().status, RowStatus::Failed);
    }
}

async fn redrive(served: &Served, key: &str, mode: RedriveMode) -> Result<(), ClientError> {
    served.client.redrive(&key.parse().unwrap(), mode, Write::default()).await.map(|answer| answer.value)
}

fn letters(page: &DeadLetterPage) -> Vec<String> {
    page.rows.iter().map(|letter| letter.key.to_string()).collect()
}

fn written(staged: Vec<Staged>) -> Vec<bool> {
    staged.into_iter().map(|staged| staged.written).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_staged_by_themselves_and_their_outcome_begins_a_history() {
    let served = serve().await;
    let client = &served.client;
    let stage = |workflow: &'static str, rows: Vec<NewRow>| async move {
        client.stage(&id(workflow), Namespace::default(), rows, Write::default()).await
    };
    let first = stage("w", vec![new_row(1), new_row(2), new_row(1)]).await.unwrap().value;
    assert_eq!(written(first), [true, true, false]);
    assert_eq!(written(stage("w", vec![new_row(2), new_row(3)]).await.unwrap().value), [false, true]);
    assert_eq!(client.workflow(&id("w"), ReadMode::Linearizable).await.unwrap().value.workflow, None);

    let taken = client.claim(claim(10, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&taken), ["w:1", "w:2", "w:3"]);
    assert_eq!((taken[0].run_id.as_str(), taken[0].input.clone()), ("run-1", Payload::text("input 1")));
    let done = client.complete(&taken[0].key, Some(taken[0].token), Payload::text("paid"), Write::default());
    assert_eq!(done.await.unwrap().value, Some(1));
    let history = client.history(&id("w"), 1, 10, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((history.len(), history[0].kind.clone()), (1, EventKind::ActivityCompleted));

    client.append(&id("w"), 1, vec![NewEvent::of(EventKind::WorkflowCompleted)], Write::default()).await.unwrap();
    assert_eq!(reject(stage("w", vec![new_row(4)]).await).code(), "workflow_ended");
    let late = client.complete(&taken[1].key, Some(taken[1].token), Payload::default(), Write::default()).await;
    assert_eq!(reject(late).code(), "already_terminal");
}

/// Case 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_redriven_until_its_workflow_has_heard_of_it() {
    let served = serve().await;
    let (client, key) = (&served.client, "w:1".parse().unwrap());
    client.commit(staged("w", []).activity(fragile(1)), Write::default()).await.unwrap();
    assert_eq!(reject(redrive(&served, "w:1", RedriveMode::Forced).await).code(), "not_dead_letter");
    bury(&served, 1).await;
    redrive(&served, "w:1", RedriveMode::Eligible).await.unwrap();
    bury(&served, 1).await;
    let mark = |key: &str| {
        let key = key.parse().unwrap();
        async move { client.mark_failure_delivered(&key, Write::default()).await }
    };
    assert!(mark("w:1").await.unwrap().value);
    assert!(!mark("w:9").await.unwrap().value);
    let row = client.row(&key, ReadMode::Linearizable).await.unwrap().value.row;
    assert_eq!((row.status, row.failure_delivered, row.deliveries), (RowStatus::Failed, true, 1));
    assert_eq!(reject(redrive(&served, "w:1", RedriveMode::Eligible).await).code(), "already_judged");
    redrive(&served, "w:1", RedriveMode::Forced).await.unwrap();
    let row = client.row(&key, ReadMode::Linearizable).await.unwrap().value.row;
    assert_eq!((row.status, row.failure_delivered, row.deliveries), (RowStatus::Pending, false, 0));
    assert_eq!(reject(mark("w:1").await).code(), "not_dead_letter");
    assert_eq!(reject(redrive(&served, "w:9", RedriveMode::Forced).await).code(), "row_not_found");

    bury(&served, 1).await;
    client.append(&id("w"), 3, vec![NewEvent::of(EventKind::WorkflowFailed)], Write::default()).await.unwrap();
    assert_eq!(reject(redrive(&served, "w:1", RedriveMode::Forced).await).code(), "workflow_ended");
}

/// All pages of the dead letters of a workflow, and the number of pages.
async fn all_of(client: &Client, workflow: &str, limit: u32) -> (Vec<String>, usize) {
    let (mut page, mut all, mut pages) = (PageCall::first(limit), Vec::new(), 0);
    loop {
        let found = client.dead_letters(&id(workflow), &page, ReadMode::Linearizable).await.unwrap().value;
        pages += 1;
        all.extend(letters(&found));
        let Some(cursor) = found.next_cursor else { return (all, pages) };
        page = PageCall::after(limit, cursor);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_read_in_pages_by_workflow_and_by_namespace() {
    let served = serve().await;
    let client = &served.client;
    let commit = (0..130).fold(staged("w", []), |commit, ordinal| commit.activity(fragile(ordinal)));
    client.commit(commit, Write::default()).await.unwrap();
    client.stage(&id("v"), Namespace::default(), vec![fragile(7)], Write::default()).await.unwrap();
    bury(&served, 131).await;
    let expected: Vec<String> = (0..130).map(|ordinal| format!("w:{ordinal}")).collect();
    for (limit, pages) in [(1_000, 1), (131, 1), (64, 3), (100, 2)] {
        assert_eq!(all_of(client, "w", limit).await, (expected.clone(), pages), "{limit}");
    }
    let (default, other) = (Namespace::default(), "other".parse::<Namespace>().unwrap());
    let first = client.dead_letters_in(&default, &PageCall::first(2), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(letters(&first), ["v:7", "w:0"]);
    let cursor = first.next_cursor.unwrap();
    let next = client.dead_letters_in(&default, &PageCall::after(2, &cursor), ReadMode::Linearizable).await;
    assert_eq!(letters(&next.unwrap().value), ["w:1", "w:2"]);
    let none = client.dead_letters_in(&other, &PageCall::first(2), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((none.rows.len(), none.next_cursor), (0, None));

    // A cursor belongs to its listing, and a page has a size.
    for (page, code) in [
        (PageCall::after(2, &cursor), "invalid_argument"),
        (PageCall::after(2, "x"), "invalid_argument"),
        (PageCall::first(0), "invalid_argument"),
        (PageCall::first(1_001), "limit_exceeded"),
    ] {
        let refused = client.dead_letters(&id("w"), &page, ReadMode::Linearizable).await;
        assert_eq!(reject(refused).code(), code, "{page:?}");
    }
    assert!(client.dead_letters_in(&other, &PageCall::after(2, &cursor), ReadMode::Stale).await.is_err());

    redrive(&served, "w:64", RedriveMode::Eligible).await.unwrap();
    assert_eq!(all_of(client, "w", 1_000).await.0.len(), 129);
    assert_eq!(all_of(client, "nobody", 10).await, (Vec::new(), 1));
}
