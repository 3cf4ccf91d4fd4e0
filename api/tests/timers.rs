//! Timers over HTTP and in the process: armed, waited for, retired by what they were armed as; and commits that
//! move rows and arm timers.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use holdfast_api::{DueTimers, ExpiredCall, PageCall, ReadMode, StoreError, Write};
use holdfast_machine::{
    Arming, Commit, EventKind, Millis, NewEvent, Payload, Reject, Retirement, RowAction, RowStatus, TimerChange,
    TimerId, Transition, WorkflowStart, WorkflowStatus,
};
use support::{DEADLINE, Served, claim, id, node, reject, serve, signal, staged, started};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LONG_MS: u64 = 60_000;

fn arming(timer: &str, fire_at: u64, armed_seq: u64) -> Arming {
    Arming { timer: TimerId::new(timer).unwrap(), fire_at: Millis(fire_at), armed_seq }
}

fn all(wait_ms: u64) -> ExpiredCall {
    ExpiredCall { owner: None, namespace: None, as_of: None, limit: 100, wait_ms }
}

fn page(limit: u32, cursor: Option<String>) -> PageCall {
    PageCall { limit, cursor }
}

fn names(due: &DueTimers) -> Vec<String> {
    due.timers.iter().map(|due| format!("{}/{}@{}", due.workflow, due.timer, due.armed_seq)).collect()
}

async fn serve_started(workflows: &[&str]) -> Served {
    let served = serve().await;
    for workflow in workflows {
        served.store.append(&id(workflow), 0, vec![started()], Write::default()).await.unwrap();
    }
    served
}

async fn schedule(served: &Served, workflow: &str, arming: Arming) {
    served.client.schedule_timer(&id(workflow), arming, Write::default()).await.unwrap();
}

/// A call on its way that has had time to begin; tests hold whether or not it has.
fn waiting(served: &Served, call: ExpiredCall) -> JoinHandle<DueTimers> {
    let client = served.client.clone();
    tokio::spawn(async move { client.expired_timers(call, ReadMode::Linearizable).await.unwrap().value })
}

async fn arrived(call: JoinHandle<DueTimers>) -> Vec<String> {
    names(&timeout(DEADLINE, call).await.unwrap().unwrap())
}

/// Case 15: armed for T (5), fired, armed again for the same T (9); then comes a late retirement of (T, 5).
#[tokio::test(flavor = "multi_thread")]
async fn a_late_retirement_leaves_a_newer_arming_alone() {
    let served = serve_started(&["w"]).await;
    let client = &served.client;
    let retire =
        async |seq| client.retire_timer(&id("w"), arming("wake", 1_000, seq), Write::default()).await.unwrap().value;
    let due = async || names(&client.expired_timers(all(0), ReadMode::Linearizable).await.unwrap().value);
    schedule(&served, "w", arming("wake", 1_000, 5)).await;
    assert_eq!(due().await, ["w/wake@5"]);
    schedule(&served, "w", arming("wake", 1_000, 9)).await;
    assert_eq!(retire(5).await, Retirement::Superseded);
    assert_eq!(due().await, ["w/wake@9"], "the second arming stands and fires");
    assert_eq!(retire(9).await, Retirement::Retired);
    assert_eq!(retire(9).await, Retirement::Retired, "it is gone, now or since before");
    assert_eq!(due().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_waits_for_the_first_timer_and_costs_nothing_meanwhile() {
    let served = serve_started(&["w"]).await;
    let soon = served.raft.view(|machine, _| machine.now()).0 + 40;
    schedule(&served, "w", arming("soon", soon, 1)).await;
    let call = waiting(&served, all(LONG_MS));
    let last = served.last();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(served.last(), last, "a caller that waits proposes nothing");
    served.tick().await;
    assert_eq!(arrived(call).await, ["w/soon@1"]);

    // It is there until it is retired; another caller that is given up takes nothing with it.
    let fired = served.client.expired_timers(all(LONG_MS), ReadMode::Stale).await.unwrap().value;
    served.client.retire_timer(&id("w"), fired.timers[0].arming(), Write::default()).await.unwrap();
    waiting(&served, all(LONG_MS)).abort();
    let call = waiting(&served, all(LONG_MS));
    schedule(&served, "w", arming("past", 1, 2)).await;
    assert_eq!(arrived(call).await, ["w/past@2"], "armed for a time that has passed");
    let short = ExpiredCall { as_of: Some(Millis(0)), ..all(1) };
    assert_eq!(arrived(waiting(&served, short)).await, [""; 0], "a wait has an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_of_a_paused_workflow_wait_for_it() {
    let served = serve_started(&["w"]).await;
    schedule(&served, "w", arming("past", 1, 1)).await;
    let event = async |seq, kind| {
        served.store.append(&id("w"), seq, vec![NewEvent::of(kind)], Write::default()).await.unwrap();
    };
    event(1, EventKind::WorkflowPaused).await;
    let due = served.store.expired_timers(all(0), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((due.timers, due.next_due), (Vec::new(), None));
    let listed = served.client.timers(&id("w"), &page(10, None), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(listed.timers, [arming("past", 1, 1)]);
    let call = waiting(&served, all(LONG_MS));
    event(2, EventKind::WorkflowResumed).await;
    assert_eq!(arrived(call).await, ["w/past@1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_hears_of_its_own_shards_in_order() {
    let served = serve_started(&["a", "b"]).await;
    for (workflow, timer, at) in [("b", "x", 5), ("a", "y", 5), ("a", "x", 5), ("b", "w", 3), ("a", "far", u64::MAX)] {
        schedule(&served, workflow, arming(timer, at, 1)).await;
    }
    let of = async |owner: Option<&str>, as_of, limit| {
        let owner = owner.map(|owner| owner.parse().unwrap());
        let call = ExpiredCall { owner, namespace: None, as_of, limit, wait_ms: 0 };
        served.client.expired_timers(call, ReadMode::Linearizable).await.unwrap().value
    };
    let mine = of(Some(node().as_str()), None, 100).await;
    assert_eq!(names(&mine), ["b/w@1", "a/x@1", "a/y@1", "b/x@1"]);
    assert_eq!(mine.next_due, Some(Millis(u64::MAX)));
    assert_eq!(of(Some("a stranger"), None, 100).await, DueTimers::default());
    let early = of(None, Some(Millis(4)), 100).await;
    assert_eq!((names(&early), early.next_due), (vec!["b/w@1".to_owned()], Some(Millis(5))));
    assert_eq!(of(None, Some(Millis(u64::MAX)), 2).await.timers.len(), 2);
    assert_eq!(of(None, Some(Millis(u64::MAX)), 1_000).await.timers.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_hears_of_its_own_namespace() {
    let served = serve_started(&["w"]).await;
    let start = WorkflowStart { namespace: "elsewhere".parse().unwrap(), ..started().start.unwrap() };
    let opening = NewEvent { start: Some(start), ..started() };
    served.store.append(&id("x"), 0, vec![opening], Write::default()).await.unwrap();
    schedule(&served, "w", arming("t", 5, 1)).await;
    let of = |namespace: &str, wait_ms| ExpiredCall { namespace: Some(namespace.parse().unwrap()), ..all(wait_ms) };
    let here = served.client.expired_timers(of("default", 0), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(names(&here), ["w/t@1"]);
    // What is due elsewhere does not end the wait.
    let call = waiting(&served, of("elsewhere", LONG_MS));
    schedule(&served, "x", arming("u", 6, 1)).await;
    assert_eq!(arrived(call).await, ["x/u@1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_lets_its_callers_go() {
    let served = serve().await;
    let store = served.store.clone();
    let call = tokio::spawn(async move { store.expired_timers(all(LONG_MS), ReadMode::Linearizable).await });
    served.store.close();
    assert!(matches!(timeout(DEADLINE, call).await.unwrap().unwrap(), Err(StoreError::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_of_a_workflow_are_read_in_pages() {
    let served = serve_started(&["w", "v"]).await;
    let odd = ["a/b%2F", "\u{1F389}", "c", " "];
    for timer in odd {
        schedule(&served, "w", arming(timer, 0, u64::MAX)).await;
    }
    let client = &served.client;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let found = client.timers(&id("w"), &page(2, cursor), ReadMode::Linearizable).await.unwrap().value;
        seen.extend(found.timers.iter().map(|arming| arming.timer.to_string()));
        cursor = found.next_cursor;
        assert!(cursor.is_some() || seen.len() == odd.len(), "{seen:?}");
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, [" ", "a/b%2F", "c", "\u{1F389}"]);
    let first =
        client.timers(&id("w"), &page(1, None), ReadMode::Linearizable).await.unwrap().value.next_cursor.unwrap();
    let refused = async |workflow: &str, cursor: Option<&str>, limit| {
        let page = page(limit, cursor.map(str::to_owned));
        reject(client.timers(&id(workflow), &page, ReadMode::Linearizable).await).code()
    };
    assert_eq!(refused("v", Some(first.as_str()), 1).await, "invalid_argument", "a cursor of another workflow");
    assert_eq!(refused("w", Some("nonsense"), 1).await, "invalid_argument");
    assert_eq!(refused("w", None, 0).await, "invalid_argument");
    assert_eq!(refused("w", None, 1_001).await, "limit_exceeded");
    let unknown = client.timers(&id("nobody"), &page(10, None), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((unknown.timers, unknown.next_cursor), (Vec::new(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_open_workflow_has_timers() {
    let served = serve_started(&["w"]).await;
    let client = &served.client;
    let write = || Write::default();
    let unknown = client.schedule_timer(&id("nobody"), arming("t", 1, 1), write()).await;
    assert_eq!(reject(unknown), Reject::WorkflowNotFound { workflow: id("nobody") });
    schedule(&served, "w", arming("t", 1, 1)).await;
    client.append(&id("w"), 1, vec![NewEvent::of(EventKind::WorkflowCompleted)], write()).await.unwrap();
    let due = client.expired_timers(all(0), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(due, DueTimers::default(), "its end took its timers along");
    let ended = client.schedule_timer(&id("w"), arming("t", 1, 1), write()).await;
    assert_eq!(reject(ended), Reject::WorkflowEnded { workflow: id("w"), status: WorkflowStatus::Completed });
    let gone = client.retire_timer(&id("w"), arming("t", 1, 1), write()).await.unwrap().value;
    assert_eq!(gone, Retirement::Retired);
    let rearmed = client.rearm(&id("w"), Vec::new(), write()).await;
    assert_eq!(reject(rearmed).code(), "workflow_ended");
}

/// An engine takes a result, fires a timer, arms another and goes on, all in one step; a lost answer is asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_moves_rows_and_timers_with_its_events() {
    let served = serve().await;
    let (store, client) = (&served.store, &served.client);
    store.commit(staged("w", [1, 2]), Write::default()).await.unwrap();
    schedule(&served, "w", arming("wake", 1, 4)).await;
    let claims = client.claim(claim(10, 0), Write::default()).await.unwrap().value;
    let transition = |position: usize, action| {
        let delivery: &holdfast_client::Delivery = &claims[position];
        Transition { ordinal: delivery.key.ordinal, token: Some(delivery.token), action }
    };
    let complete = RowAction::Complete { result: Payload::text("paid") };
    let commit = Commit {
        transitions: vec![transition(0, complete), transition(1, RowAction::Retry { delay_ms: 0 })],
        timers: vec![
            TimerChange::Retire(arming("wake", 1, 4)),
            TimerChange::Retire(arming("wake", 1, 3)),
            TimerChange::Schedule(arming("later", u64::MAX, 6)),
            TimerChange::Retire(arming("later", u64::MAX, 5)),
        ],
        ..Commit::new(id("w"), 5).event(signal("fired"))
    };
    let first = client.commit(commit.clone(), Write::default()).await.unwrap().value;
    assert_eq!((first.head, first.duplicate), (7, false));
    assert_eq!(first.transitions, [RowStatus::Done, RowStatus::Pending]);
    assert_eq!(first.retirements, [Retirement::Retired, Retirement::Retired, Retirement::Superseded]);
    let again = client.commit(commit.clone(), Write::default()).await.unwrap().value;
    assert_eq!((again.head, again.duplicate, again.transitions), (7, true, first.transitions));
    let last = client.history(&id("w"), 6, 10, ReadMode::Linearizable).await.unwrap().value;
    let kinds: Vec<_> = last.iter().map(|event| (event.kind.clone(), event.ordinal)).collect();
    assert_eq!(kinds, [(EventKind::SignalReceived, None), (EventKind::ActivityCompleted, Some(1))]);
    assert_eq!(last[1].payload, Payload::text("paid"));

    let lost = Commit { expected_seq: 7, ..commit };
    assert_eq!(reject(client.commit(lost, Write::default()).await).code(), "already_terminal");
    let timers = client.timers(&id("w"), &page(10, None), ReadMode::Linearizable).await.unwrap().value.timers;
    assert_eq!(timers, [arming("later", u64::MAX, 6)]);
}
