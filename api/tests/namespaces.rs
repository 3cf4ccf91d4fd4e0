//! Namespaces over HTTP: their listing and settings, their ceilings, and the removal of what is finished.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use holdfast_api::ClaimCall;
use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{
    Command, EventKind, Namespace, NamespaceSettings, NewEvent, Payload, RETENTION_MS_DEFAULT, Reject, WorkflowFilter,
    WorkflowStart, WorkflowStatus,
};
use support::{DEADLINE, Served, claim, eventually, id, keys, reject, serve, signal, staged};

const FRESH: ReadMode = ReadMode::Linearizable;

fn name(text: &str) -> Namespace {
    text.parse().unwrap()
}

fn ceiling(claimed_max: u32) -> NamespaceSettings {
    NamespaceSettings { claimed_max: Some(claimed_max), ..NamespaceSettings::default() }
}

async fn put(served: &Served, namespace: &str, settings: &NamespaceSettings) {
    served.client.put_namespace(&name(namespace), settings, Write::default()).await.unwrap();
}

fn started_in(namespace: &str) -> NewEvent {
    let start = WorkflowStart { namespace: name(namespace), workflow_type: "order".parse().unwrap(), run_id: None };
    NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_minted_described_changed_and_listed() {
    let served = serve().await;
    let client = &served.client;
    assert!(client.namespaces(&PageCall::first(10), FRESH).await.unwrap().value.namespaces.is_empty());
    served.stage("w", [1, 2]).await;
    client.claim(claim(1, 0), Write::default()).await.unwrap();
    let view = client.namespace(&Namespace::default(), FRESH).await.unwrap().value;
    assert_eq!((view.pending, view.claimed, view.settings.retention_ms), (1, 1, Some(RETENTION_MS_DEFAULT)));
    assert_eq!(served.store.namespace(&Namespace::default(), FRESH).await.unwrap().value, view);
    let unknown = client.namespace(&name("a/b é"), FRESH).await;
    assert_eq!(reject(unknown), Reject::NamespaceNotFound { namespace: name("a/b é") });

    let settings = NamespaceSettings { description: "billing".into(), retention_ms: None, ..ceiling(7) };
    let state = client.put_namespace(&name("a/b é"), &settings, Write::default()).await.unwrap();
    assert_eq!(state.value.settings, settings);
    let view = client.namespace(&name("a/b é"), ReadMode::AtLeast(state.index)).await.unwrap().value;
    assert_eq!((view.created_at, view.settings), (state.value.created_at, settings));
    client.append(&id("v"), 0, vec![started_in("zoo")], Write::default()).await.unwrap();

    let mut listed = Vec::new();
    let mut call = PageCall::first(2);
    loop {
        let page = client.namespaces(&call, FRESH).await.unwrap().value;
        listed.extend(page.namespaces.into_iter().map(|view| view.namespace));
        let Some(cursor) = page.next_cursor else { break };
        call = PageCall::after(2, cursor);
    }
    assert_eq!(listed, ["a/b é", "default", "zoo"].map(name));
    for call in [PageCall::first(0), PageCall::after(1, "no cursor")] {
        assert_eq!(reject(client.namespaces(&call, FRESH).await).code(), "invalid_argument");
    }
    let long = NamespaceSettings { description: "x".repeat(1_025), ..NamespaceSettings::default() };
    let refused = client.put_namespace(&name("zoo"), &long, Write::default()).await;
    assert!(matches!(reject(refused), Reject::LimitExceeded { limit: 1_024, actual: 1_025, .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deprecated_namespace_takes_no_new_workflows() {
    let served = serve().await;
    served.stage("w", [1]).await;
    put(&served, "default", &NamespaceSettings { deprecated: true, ..NamespaceSettings::default() }).await;
    let refused = served.client.commit(staged("v", [1]), Write::default()).await;
    assert_eq!(reject(refused), Reject::NamespaceDeprecated { namespace: Namespace::default() });
    served.client.append(&id("w"), 3, vec![signal("go on")], Write::default()).await.unwrap();
    put(&served, "default", &NamespaceSettings::default()).await;
    served.client.commit(staged("v", [1]), Write::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_wait_at_the_ceiling_without_a_proposal_and_go_on_when_there_is_room() {
    let served = serve().await;
    let client = &served.client;
    put(&served, "default", &ceiling(2)).await;
    served.stage("w", 1..=5).await;
    let taken = client.claim(claim(10, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&taken), ["w:1", "w:2"]);

    let waiting = |limit| {
        let (client, call): (_, ClaimCall) = (client.clone(), claim(limit, 20_000));
        tokio::spawn(async move { client.claim(call, Write::default()).await.unwrap().value })
    };
    let first = waiting(10);
    eventually("the claim waits", || served.store.claims_waiting() == 1).await;
    // Its first look at the state may have made a proposal of its own; from here on there is none.
    let last = served.last();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((served.last(), first.is_finished()), (last, false), "a claim at the ceiling does something");

    client.complete(&taken[0].key, Some(taken[0].token), Payload::default(), Write::default()).await.unwrap();
    let first = tokio::time::timeout(DEADLINE, first).await.unwrap().unwrap();
    assert_eq!(keys(&first), ["w:3"], "as many as there was room for");

    let second = waiting(10);
    eventually("the claim waits", || served.store.claims_waiting() == 1).await;
    put(&served, "default", &ceiling(3)).await;
    assert_eq!(keys(&tokio::time::timeout(DEADLINE, second).await.unwrap().unwrap()), ["w:4"]);

    put(&served, "default", &ceiling(0)).await;
    let beat = client.heartbeat(&first[0].key, first[0].token, 60_000, Payload::default(), Write::default()).await;
    assert!(beat.is_ok(), "nothing but a claim is held up");
    assert_eq!(client.claim(claim(1, 0), Write::default()).await.unwrap().value, []);
    let view = client.namespace(&Namespace::default(), FRESH).await.unwrap().value;
    assert_eq!((view.pending, view.claimed), (1, 3), "lowering it takes nothing away");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_workflow_is_deleted_and_its_id_is_free() {
    let served = serve().await;
    let client = &served.client;
    served.stage("w", [1]).await;
    let open = client.delete(&id("w"), Write::default()).await;
    assert_eq!(reject(open), Reject::WorkflowOpen { workflow: id("w"), status: WorkflowStatus::Running });
    client.append(&id("w"), 3, vec![NewEvent::of(EventKind::WorkflowFailed)], Write::default()).await.unwrap();
    let key = Write::keyed("delete-w".parse().unwrap());
    client.delete(&id("w"), key.clone()).await.unwrap();
    // A retry gets the first answer.
    client.delete(&id("w"), key).await.unwrap();
    let again = client.delete(&id("w"), Write::default()).await;
    assert_eq!(reject(again), Reject::WorkflowNotFound { workflow: id("w") });

    assert_eq!(client.workflow(&id("w"), FRESH).await.unwrap().value.workflow, None);
    assert!(client.history(&id("w"), 1, 10, FRESH).await.unwrap().value.is_empty());
    assert!(client.runs(&id("w"), &PageCall::first(10), FRESH).await.unwrap().value.runs.is_empty());
    assert_eq!(reject(client.row(&"w:1".parse().unwrap(), FRESH).await).code(), "row_not_found");
    assert_eq!(client.count_workflows(&WorkflowFilter::default(), FRESH).await.unwrap().value, 0);
    client.commit(staged("w", [1]), Write::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_a_workflow_that_is_being_removed_may_be_tried_again() {
    let served = serve().await;
    let mut head = 0;
    for _ in 0..3 {
        let events = vec![signal("one of many"); 1_000];
        head = served.store.append(&id("w"), head, events, Write::default()).await.unwrap().value.head;
    }
    let end = vec![NewEvent::of(EventKind::WorkflowCompleted)];
    served.store.append(&id("w"), head, end, Write::default()).await.unwrap();
    served.client.delete(&id("w"), Write::default()).await.unwrap();

    let write = Write::keyed("again".parse().unwrap());
    let workflow = id("w");
    let append = || served.store.append(&workflow, 0, vec![support::started()], write.clone());
    let refused = append().await.unwrap_err();
    assert_eq!((refused.code(), refused.status(), refused.is_retryable()), ("being_removed", 503, true));
    assert!(served.client.history(&id("w"), 1, 10, FRESH).await.unwrap().value.is_empty());
    let purge = || served.raft.propose(Command::Purge { workflows: Vec::new() }.into());
    while served.raft.view(|machine, _| machine.is_being_removed(&id("w"))) {
        purge().await.unwrap().reply.unwrap();
    }
    // The refusal is not remembered under the key.
    append().await.unwrap();
}
