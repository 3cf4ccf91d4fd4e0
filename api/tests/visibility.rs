//! Finding workflows over HTTP: filters, pages and their cursors, counts.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_api::{ListCall, Store, StoreOptions};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{
    AttributeFilter, AttributeRange, AttributeValue, Attributes, AttributesUpdate, EventKind, ListedWorkflow, Millis,
    NewEvent, Reject, SortOrder, TimeRange, WorkflowFilter, WorkflowQuery, WorkflowSort, WorkflowStatus, WorkflowType,
};
use support::{Served, id, reject, serve, signal, started};

fn attributes(pairs: &[(&str, AttributeValue)]) -> AttributesUpdate {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), Some(value.clone()))).collect()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.to_owned())
}

async fn start(served: &Served, workflow: &str, workflow_type: &str, update: Option<AttributesUpdate>) {
    let started = NewEvent::started(WorkflowType::new(workflow_type).unwrap());
    let event = NewEvent { search_attributes: update, ..started };
    served.client.append(&id(workflow), 0, vec![event], Write::default()).await.unwrap();
}

async fn end(served: &Served, workflow: &str, kind: EventKind) {
    served.client.append(&id(workflow), 1, vec![NewEvent::of(kind)], Write::default()).await.unwrap();
}

/// All pages of a listing.
async fn pages(client: &Client, mut call: ListCall) -> Vec<ListedWorkflow> {
    let mut listed = Vec::new();
    loop {
        let page = client.list_workflows(&call, ReadMode::Linearizable).await.unwrap().value;
        assert!(page.workflows.len() <= call.limit as usize);
        listed.extend(page.workflows);
        call.cursor = page.next_cursor;
        if call.cursor.is_none() {
            return listed;
        }
    }
}

async fn found(served: &Served, filter: WorkflowFilter) -> Vec<String> {
    let query = WorkflowQuery { filter: filter.clone(), order: SortOrder::Oldest, ..WorkflowQuery::default() };
    let listed = pages(&served.client, ListCall { limit: 2, ..ListCall::new(query.clone()) }).await;
    let at_once = served.store.list_workflows(&ListCall::new(query), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(listed, at_once.workflows, "over HTTP, in pages of two");
    let count = served.client.count_workflows(&filter, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(count, listed.len() as u64);
    listed.into_iter().map(|listed| listed.workflow.to_string()).collect()
}

async fn some() -> Served {
    let served = serve().await;
    let tags = AttributeValue::Texts(vec!["vip".into(), "eu".into()]);
    start(
        &served,
        "a",
        "order",
        Some(attributes(&[("customer", text("c-7")), ("amount", AttributeValue::Integer(5))])),
    )
    .await;
    start(&served, "b", "order", Some(attributes(&[("customer", text("c-7")), ("tags", tags)]))).await;
    let due = AttributeValue::Time(Millis(1_700_000_000_000));
    start(&served, "c", "mail", Some(attributes(&[("due", due), ("paid", AttributeValue::Bool(true))]))).await;
    start(&served, "d", "mail", None).await;
    end(&served, "a", EventKind::WorkflowCompleted).await;
    end(&served, "d", EventKind::WorkflowFailed).await;
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn workflows_are_found_by_what_they_are() {
    let served = some().await;
    let all = WorkflowFilter::default();
    assert_eq!(found(&served, all.clone()).await, ["a", "b", "c", "d"]);
    assert_eq!(
        found(&served, WorkflowFilter { workflow_types: vec!["mail".parse().unwrap()], ..all.clone() }).await,
        ["c", "d"]
    );
    let statuses = vec![WorkflowStatus::Running, WorkflowStatus::Failed];
    assert_eq!(found(&served, WorkflowFilter { statuses, ..all.clone() }).await, ["b", "c", "d"]);
    let closed = TimeRange { from: Some(Millis(0)), to: None };
    assert_eq!(found(&served, WorkflowFilter { closed, ..all.clone() }).await, ["a", "d"]);
    let started = TimeRange { from: None, to: Some(Millis(1)) };
    assert!(found(&served, WorkflowFilter { started, ..all.clone() }).await.is_empty());
    assert!(found(&served, WorkflowFilter { namespace: "other".parse().unwrap(), ..all }).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn search_attributes_of_each_type_find_their_workflows() {
    let served = some().await;
    let with = |name: &str, equals, range| WorkflowFilter {
        attributes: vec![AttributeFilter { name: name.parse().unwrap(), equals, range }],
        ..WorkflowFilter::default()
    };
    assert_eq!(found(&served, with("customer", Some(text("c-7")), None)).await, ["a", "b"]);
    assert_eq!(found(&served, with("tags", Some(text("eu")), None)).await, ["b"]);
    assert_eq!(found(&served, with("paid", Some(AttributeValue::Bool(true)), None)).await, ["c"]);
    let amount = AttributeRange::Integer { from: Some(5), to: Some(6) };
    assert_eq!(found(&served, with("amount", None, Some(amount))).await, ["a"]);
    let due = AttributeRange::Time { from: None, to: Some(Millis(1_700_000_000_000)) };
    assert!(found(&served, with("due", None, Some(due))).await.is_empty());
    let mut both = with("customer", Some(text("c-7")), None);
    both.statuses = vec![WorkflowStatus::Running];
    assert_eq!(found(&served, both).await, ["b"]);

    let listed = &pages(&served.client, ListCall::default()).await[3];
    let expected: Attributes = [("amount".parse().unwrap(), AttributeValue::Integer(5))]
        .into_iter()
        .chain([("customer".parse().unwrap(), text("c-7"))])
        .collect();
    assert_eq!((listed.workflow.as_str(), &listed.search_attributes), ("a", &expected));
    let view = served.client.workflow(&id("a"), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(view.search_attributes, expected);
    assert_eq!(view.workflow.unwrap().run.started_at, listed.started_at);
}

/// Case 17: a cursor belongs to its own listing, and a page has at least one item.
#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let served = some().await;
    for name in ["e", "f"] {
        start(&served, name, "mail", None).await;
        end(&served, name, EventKind::WorkflowFailed).await;
    }
    let of = |status| ListCall { statuses: vec![status], limit: 1, ..ListCall::default() };
    let failed = of(WorkflowStatus::Failed);
    let page = served.client.list_workflows(&failed, ReadMode::Linearizable).await.unwrap().value;
    let cursor = page.next_cursor;
    assert!(cursor.is_some());
    let from_after_to = TimeRange { from: Some(Millis(2)), to: Some(Millis(1)) };
    for bad in [
        ListCall { cursor: cursor.clone(), ..of(WorkflowStatus::Running) },
        ListCall { cursor: cursor.clone(), sort: WorkflowSort::Closed, ..failed.clone() },
        ListCall { cursor: cursor.clone(), order: SortOrder::Oldest, ..failed.clone() },
        ListCall { cursor: Some("nonsense".to_owned()), ..failed.clone() },
        ListCall { limit: 0, ..failed.clone() },
        ListCall { started: from_after_to, ..failed.clone() },
    ] {
        let over_http = reject(served.client.list_workflows(&bad, ReadMode::Linearizable).await);
        assert!(matches!(over_http, Reject::InvalidArgument { .. }), "{bad:?}: {over_http:?}");
        let embedded = served.store.list_workflows(&bad, ReadMode::Stale).await.unwrap_err();
        assert_eq!(embedded.code(), "invalid_argument", "{bad:?}");
    }
    let filter = WorkflowFilter { closed: from_after_to, ..WorkflowFilter::default() };
    let refused = reject(served.client.count_workflows(&filter, ReadMode::Linearizable).await);
    assert_eq!(refused.code(), "invalid_argument");
    let large = ListCall { limit: 1_001, ..failed.clone() };
    assert_eq!(reject(served.client.list_workflows(&large, ReadMode::Linearizable).await).code(), "limit_exceeded");

    // With the limit of another page it is still the same listing.
    let next = ListCall { cursor, limit: 9, ..failed };
    let rest = served.client.list_workflows(&next, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((rest.workflows.len(), rest.next_cursor), (2, None));
}

/// While others start, pause and end, a workflow that stays in its place is in one page and in one only.
#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_still_for_what_holds_still() {
    let served = serve().await;
    let standing: Vec<String> = (0..60).map(|number| format!("standing-{number:02}")).collect();
    for (number, workflow) in standing.iter().enumerate() {
        start(&served, workflow, "order", None).await;
        start(&served, &format!("moving-{number:02}"), "order", None).await;
    }
    let done = AtomicBool::new(false);
    let moving = async {
        for number in 0..60 {
            start(&served, &format!("late-{number:02}"), "order", None).await;
            let kind = [EventKind::WorkflowPaused, EventKind::WorkflowCompleted][number % 2].clone();
            end(&served, &format!("moving-{number:02}"), kind).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let reading = async {
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) || rounds == 0 {
            for order in [SortOrder::Newest, SortOrder::Oldest] {
                let call = ListCall { limit: 7, order, ..ListCall::default() };
                let listed = pages(&served.client, call).await;
                let names: Vec<&str> = listed.iter().map(|listed| listed.workflow.as_str()).collect();
                let mut distinct = names.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), names.len(), "a workflow is listed twice: {names:?}");
                // Those that changed their status stayed in their place too.
                let stood = names.iter().filter(|name| !name.starts_with("late")).count();
                assert_eq!(stood, 120, "{names:?}");
            }
            rounds += 1;
        }
    };
    tokio::join!(moving, reading);
    assert_eq!(
        served.client.count_workflows(&WorkflowFilter::default(), ReadMode::Linearizable).await.unwrap().value,
        180
    );
}

/// Fewer are found than were looked at, over several looks and pages.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_rare_is_found_over_several_looks() {
    let served = serve().await;
    let commits = (0..2_300).map(|number| {
        let mut event = started();
        let kind = if number % 1_000 == 17 { "rare" } else { "common" };
        event.search_attributes = Some(attributes(&[("n", AttributeValue::Integer(number)), ("kind", text(kind))]));
        let commit = holdfast_machine::Commit::new(id(&format!("w{number:04}")), 0).event(event);
        served.store.commit(commit, Write::default())
    });
    for committed in futures::future::join_all(commits).await {
        committed.unwrap();
    }
    // A condition that the range does not drive, and more rows than are gathered: all lanes are walked over.
    let range = AttributeRange::Integer { from: Some(0), to: None };
    let wide = AttributeFilter { name: "n".parse().unwrap(), equals: None, range: Some(range) };
    let filter = WorkflowFilter { attributes: vec![wide.clone()], ..WorkflowFilter::default() };
    assert_eq!(served.client.count_workflows(&filter, ReadMode::Linearizable).await.unwrap().value, 2_300);
    let call = ListCall { limit: 1_000, ..ListCall::new(WorkflowQuery { filter, ..WorkflowQuery::default() }) };
    assert_eq!(pages(&served.client, call).await.len(), 2_300);
    let rare = AttributeFilter { name: "kind".parse().unwrap(), equals: Some(text("rare")), range: None };
    let filter = WorkflowFilter { attributes: vec![wide, rare], ..WorkflowFilter::default() };
    assert_eq!(found(&served, filter).await.len(), 3);
}

/// A count that is not finished is no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_with_too_much_to_look_at_is_refused() {
    let served = some().await;
    let boot = "boot-1".parse().unwrap();
    let options = StoreOptions { count_rows_max: 3, ..StoreOptions::new(support::node(), boot) };
    let store = Store::new(served.raft.clone(), options);
    let since = |from| TimeRange { from: Some(Millis(from)), to: None };
    let filter = WorkflowFilter { started: since(0), ..WorkflowFilter::default() };
    let refused = store.count_workflows(&filter, ReadMode::Linearizable).await.unwrap_err();
    assert!(matches!(refused.reject(), Some(Reject::LimitExceeded { limit: 3, actual: 4, .. })), "{refused:?}");
    let closed = WorkflowFilter { closed: since(0), ..WorkflowFilter::default() };
    assert_eq!(store.count_workflows(&closed, ReadMode::Linearizable).await.unwrap().value, 2);
    let mail = WorkflowFilter { workflow_types: vec!["mail".parse().unwrap()], ..WorkflowFilter::default() };
    assert_eq!(store.count_workflows(&mail, ReadMode::Linearizable).await.unwrap().value, 2, "known without a look");
}

#[tokio::test(flavor = "multi_thread")]
async fn workflows_may_be_called_as_routes_are() {
    let served = serve().await;
    for name in ["list", "count"] {
        start(&served, name, "order", None).await;
        let appended = served.client.append(&id(name), 1, vec![signal("a")], Write::default()).await.unwrap();
        assert_eq!(appended.value.head, 2);
        let view = served.client.workflow(&id(name), ReadMode::Linearizable).await.unwrap().value;
        assert_eq!((view.id.as_str(), view.workflow.unwrap().head), (name, 2));
    }
}
