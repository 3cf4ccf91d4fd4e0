//! Visibility: workflows are listed and counted by what they are. Each check lists a workflow type of its own.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use holdfast_client::{ListCall, ReadMode, Write};
use holdfast_machine::{
    AttributeFilter, AttributeName, AttributeRange, AttributeValue, AttributesUpdate, EventKind, ListedWorkflow,
    Millis, Namespace, NewEvent, SortOrder, TimeRange, WorkflowFilter, WorkflowId, WorkflowQuery, WorkflowSort,
    WorkflowStart, WorkflowStatus, WorkflowType,
};

use crate::checks::checks;
use crate::trial::{Trial, note, over_limit, refused_as, same};

checks! {
    "visibility":
    as_it_is = "a workflow is listed as its last run makes it, as soon as that is acknowledged",
    by_status = "a workflow is listed under the status that it has, and under no other",
    by_namespace = "a workflow is listed in its namespace only, and under its type only",
    orders = "listings go by start or close, then by id, newest or oldest first",
    closed_only = "a listing by close has closed workflows only, and a reopened one is gone from it",
    pages = "a listing is read in pages that have each workflow once, and ends with a null cursor",
    cursors = "a cursor goes on with its own filter, sort and order, and is refused with any other",
    limits = "a page of nothing makes no sense; one over the limit is refused with both figures",
    times = "a range of times is from its first moment on, up to before its last",
    runs = "a workflow that goes on in another run is listed once, as the new run, with its attributes",
    counts = "a count is exactly as many as the listing of its filter has",
    nonsense = "a filter that makes no sense is refused",
}

/// The type of this check's workflows.
pub(super) fn own_type(trial: &Trial) -> Result<WorkflowType> {
    Ok(WorkflowType::new(trial.name("type"))?)
}

pub(super) fn started(trial: &Trial) -> Result<NewEvent> {
    let start = WorkflowStart { namespace: trial.namespace()?, workflow_type: own_type(trial)?, run_id: None };
    Ok(NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) })
}

/// Opens a workflow of the check's own type with these attributes.
pub(super) async fn open(trial: &Trial, text: &str, attributes: &[(&str, AttributeValue)]) -> Result<WorkflowId> {
    let workflow = trial.id(text)?;
    let event = NewEvent { search_attributes: Some(update(attributes)?), ..started(trial)? };
    trial.store.append(&workflow, 0, vec![event], Write::default()).await?;
    Ok(workflow)
}

pub(super) fn update(attributes: &[(&str, AttributeValue)]) -> Result<AttributesUpdate> {
    let one = |(name, value): &(&str, AttributeValue)| Ok((AttributeName::new(name)?, Some(value.clone())));
    attributes.iter().map(one).collect()
}

pub(super) fn filter(trial: &Trial) -> Result<WorkflowFilter> {
    let (namespace, workflow_types) = (trial.namespace()?, vec![own_type(trial)?]);
    Ok(WorkflowFilter { namespace, workflow_types, ..WorkflowFilter::default() })
}

async fn list(
    trial: &Trial,
    filter: &WorkflowFilter,
    sort: WorkflowSort,
    order: SortOrder,
) -> Result<Vec<ListedWorkflow>> {
    pages_of(trial, ListCall { limit: 1_000, ..ListCall::new(WorkflowQuery { filter: filter.clone(), sort, order }) })
        .await
}

async fn pages_of(trial: &Trial, mut call: ListCall) -> Result<Vec<ListedWorkflow>> {
    let mut listed = Vec::new();
    loop {
        let page = trial.store.list_workflows(&call, ReadMode::Linearizable).await?.value;
        let (found, limit) = (page.workflows.len(), call.limit);
        ensure!(found <= limit as usize, "a page of {found} workflows where {limit} were asked for");
        listed.extend(page.workflows);
        call.cursor = page.next_cursor;
        if call.cursor.is_none() {
            return Ok(listed);
        }
    }
}

/// The workflows that a filter takes, by id.
pub(super) async fn found(trial: &Trial, filter: &WorkflowFilter) -> Result<BTreeSet<WorkflowId>> {
    let listed = list(trial, filter, WorkflowSort::Started, SortOrder::Oldest).await?;
    let count = trial.store.count_workflows(filter, ReadMode::Linearizable).await?.value;
    same("the count beside the listing", count, listed.len() as u64)?;
    Ok(listed.into_iter().map(|listed| listed.workflow).collect())
}

pub(super) fn set<'a>(workflows: impl IntoIterator<Item = &'a WorkflowId>) -> BTreeSet<WorkflowId> {
    workflows.into_iter().cloned().collect()
}

async fn as_it_is(trial: &Trial) -> Result<()> {
    let attributes = [("customer", AttributeValue::Text("c-7".into()))];
    let workflow = open(trial, "listed", &attributes).await?;
    trial.store.append(&workflow, 1, vec![note("a")], Write::default()).await?;
    for ended in [false, true] {
        if ended {
            trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
        }
        let state = trial.workflow(&workflow).await?;
        let expected = ListedWorkflow {
            workflow: workflow.clone(),
            namespace: trial.namespace()?,
            workflow_type: Some(own_type(trial)?),
            status: state.status,
            run_id: state.run.run_id.clone(),
            started_at: state.run.started_at,
            closed_at: state.run.closed_at,
            head: state.head,
            search_attributes: [(AttributeName::new("customer")?, AttributeValue::Text("c-7".into()))].into(),
        };
        let listed = list(trial, &filter(trial)?, WorkflowSort::Started, SortOrder::Newest).await?;
        same("the listing", listed, vec![expected])?;
    }
    Ok(())
}

async fn by_status(trial: &Trial) -> Result<()> {
    use EventKind::*;
    let workflow = open(trial, "status", &[]).await?;
    let steps = [
        (None, WorkflowStatus::Running),
        (Some(WorkflowPaused), WorkflowStatus::Paused),
        (Some(WorkflowResumed), WorkflowStatus::Running),
        (Some(WorkflowFailed), WorkflowStatus::Failed),
        (Some(WorkflowReopened), WorkflowStatus::Running),
        (Some(WorkflowTimedOut), WorkflowStatus::TimedOut),
        (Some(WorkflowReopened), WorkflowStatus::Running),
        (Some(WorkflowCompleted), WorkflowStatus::Completed),
    ];
    let all = [
        WorkflowStatus::Running,
        WorkflowStatus::Paused,
        WorkflowStatus::Completed,
        WorkflowStatus::Failed,
        WorkflowStatus::Cancelled,
        WorkflowStatus::TimedOut,
        WorkflowStatus::ContinuedAsNew,
    ];
    for (kind, status) in steps {
        if let Some(kind) = kind {
            trial.then(&workflow, &[kind]).await?;
        }
        for asked in all {
            let filter = WorkflowFilter { statuses: vec![asked], ..filter(trial)? };
            let expected = if asked == status { set([&workflow]) } else { BTreeSet::new() };
            same(&format!("what is {asked} while the workflow is {status}"), found(trial, &filter).await?, expected)?;
        }
        let several = WorkflowFilter { statuses: vec![WorkflowStatus::Cancelled, status], ..filter(trial)? };
        same("one of two statuses", found(trial, &several).await?, set([&workflow]))?;
    }
    Ok(())
}

async fn by_namespace(trial: &Trial) -> Result<()> {
    let here = open(trial, "here", &[]).await?;
    let there = trial.id("there")?;
    let other = Namespace::new("conformance-other")?;
    let start = WorkflowStart { namespace: other.clone(), workflow_type: own_type(trial)?, run_id: None };
    let event = NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) };
    trial.store.append(&there, 0, vec![event], Write::default()).await?;
    same("in its namespace", found(trial, &filter(trial)?).await?, set([&here]))?;
    let elsewhere = WorkflowFilter { namespace: other, ..filter(trial)? };
    same("in the other one", found(trial, &elsewhere).await?, set([&there]))?;
    let strange = vec![WorkflowType::new(trial.name("strange"))?];
    let foreign = WorkflowFilter { workflow_types: strange.clone(), ..filter(trial)? };
    same("under another type", found(trial, &foreign).await?, BTreeSet::new())?;
    let either = WorkflowFilter { workflow_types: [strange, vec![own_type(trial)?]].concat(), ..filter(trial)? };
    same("under one of two types", found(trial, &either).await?, set([&here]))
}

async fn orders(trial: &Trial) -> Result<()> {
    for name in ["b", "a", "d", "c", "e"] {
        open(trial, name, &[]).await?;
    }
    let all = filter(trial)?;
    let oldest = list(trial, &all, WorkflowSort::Started, SortOrder::Oldest).await?;
    same("how many there are", oldest.len(), 5)?;
    for name in ["d", "a", "c"] {
        let workflow = WorkflowId::new(trial.name(name))?;
        trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
    }
    for (sort, count) in [(WorkflowSort::Started, 5), (WorkflowSort::Closed, 3)] {
        let place = |listed: &ListedWorkflow| {
            let at = if sort == WorkflowSort::Started { Some(listed.started_at) } else { listed.closed_at };
            (at, listed.workflow.clone())
        };
        let oldest = list(trial, &all, sort, SortOrder::Oldest).await?;
        same("how many are listed", oldest.len(), count)?;
        ensure!(oldest.is_sorted_by_key(place), "not by time and id: {oldest:?}");
        let mut newest = list(trial, &all, sort, SortOrder::Newest).await?;
        newest.reverse();
        same("the newest first, read backwards", newest, oldest)?;
    }
    Ok(())
}

async fn closed_only(trial: &Trial) -> Result<()> {
    let (open_one, closed_one) = (open(trial, "open", &[]).await?, open(trial, "closed", &[]).await?);
    trial.then(&closed_one, &[EventKind::WorkflowCompleted]).await?;
    let listed = async || -> Result<BTreeSet<WorkflowId>> {
        let listed = list(trial, &filter(trial)?, WorkflowSort::Closed, SortOrder::Newest).await?;
        Ok(listed.into_iter().map(|listed| listed.workflow).collect())
    };
    same("by close", listed().await?, set([&closed_one]))?;
    trial.then(&closed_one, &[EventKind::WorkflowReopened]).await?;
    same("after it was reopened", listed().await?, BTreeSet::new())?;
    same("by start", found(trial, &filter(trial)?).await?, set([&open_one, &closed_one]))
}

async fn pages(trial: &Trial) -> Result<()> {
    for number in 0..7 {
        let workflow = open(trial, &format!("w{number}"), &[("n", AttributeValue::Integer(number % 2))]).await?;
        if number % 3 == 0 {
            trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
        }
    }
    let odd = AttributeFilter { name: AttributeName::new("n")?, equals: Some(AttributeValue::Integer(1)), range: None };
    let some = WorkflowFilter { attributes: vec![odd], ..filter(trial)? };
    for filter in [filter(trial)?, some] {
        for sort in [WorkflowSort::Started, WorkflowSort::Closed] {
            for order in [SortOrder::Newest, SortOrder::Oldest] {
                let whole = list(trial, &filter, sort, order).await?;
                for limit in [1, 2, 3] {
                    let call =
                        ListCall { limit, ..ListCall::new(WorkflowQuery { filter: filter.clone(), sort, order }) };
                    same(&format!("pages of {limit}"), pages_of(trial, call).await?, whole.clone())?;
                }
            }
        }
    }
    Ok(())
}

async fn cursors(trial: &Trial) -> Result<()> {
    for name in ["a", "b", "c"] {
        let workflow = open(trial, name, &[]).await?;
        trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    }
    let failed = WorkflowFilter { statuses: vec![WorkflowStatus::Failed], ..filter(trial)? };
    let call = ListCall { limit: 1, ..ListCall::new(WorkflowQuery { filter: failed, ..WorkflowQuery::default() }) };
    let first = trial.store.list_workflows(&call, ReadMode::Linearizable).await?.value;
    ensure!(first.next_cursor.is_some(), "two more workflows, and no cursor");
    let next = ListCall { cursor: first.next_cursor, ..call };
    let foreign = [
        ("status", ListCall { statuses: vec![WorkflowStatus::Running], ..next.clone() }),
        ("no status", ListCall { statuses: Vec::new(), ..next.clone() }),
        ("namespace", ListCall { namespace: Namespace::new("conformance-other")?, ..next.clone() }),
        ("type", ListCall { workflow_types: Vec::new(), ..next.clone() }),
        ("times", ListCall { started: TimeRange { from: Some(Millis(1)), to: None }, ..next.clone() }),
        ("sort", ListCall { sort: WorkflowSort::Closed, ..next.clone() }),
        ("order", ListCall { order: SortOrder::Oldest, ..next.clone() }),
        ("made-up cursor", ListCall { cursor: Some("made up".to_owned()), ..next.clone() }),
        ("empty cursor", ListCall { cursor: Some(String::new()), ..next.clone() }),
    ];
    for (what, call) in foreign {
        let listed = trial.store.list_workflows(&call, ReadMode::Linearizable).await;
        refused_as(&format!("another {what}"), listed, &["invalid_argument"])?;
    }
    // The length of a page is not part of what is listed.
    let rest = trial.store.list_workflows(&ListCall { limit: 10, ..next }, ReadMode::Linearizable).await?.value;
    same("the rest", (rest.workflows.len(), rest.next_cursor), (2, None))
}

async fn limits(trial: &Trial) -> Result<()> {
    let most = trial.limits.page_max as u64;
    let page = async |limit| {
        let query = WorkflowQuery { filter: filter(trial)?, ..WorkflowQuery::default() };
        let call = ListCall { limit, ..ListCall::new(query) };
        anyhow::Ok(trial.store.list_workflows(&call, ReadMode::Linearizable).await)
    };
    refused_as("a page of nothing", page(0).await?, &["invalid_argument"])?;
    for limit in [most as u32 + 1, u32::MAX] {
        over_limit("a page", page(limit).await?, most, u64::from(limit))?;
    }
    same("a page at the limit", page(most as u32).await??.value.workflows, Vec::new())
}

async fn times(trial: &Trial) -> Result<()> {
    let (first, second) = (open(trial, "first", &[]).await?, open(trial, "second", &[]).await?);
    trial.then(&first, &[EventKind::WorkflowCompleted]).await?;
    let run = trial.workflow(&first).await?.run;
    let (start, close) = (run.started_at, run.closed_at.unwrap_or_default());
    let range = |from: Option<Millis>, to: Option<Millis>| TimeRange { from, to };
    let by_start = async |started| found(trial, &WorkflowFilter { started, ..filter(trial)? }).await;
    let by_close = async |closed| found(trial, &WorkflowFilter { closed, ..filter(trial)? }).await;
    ensure!(by_start(range(Some(start), Some(start.plus(1)))).await?.contains(&first), "its very moment is not in");
    ensure!(!by_start(range(None, Some(start))).await?.contains(&first), "the end of a range is in");
    ensure!(!by_start(range(Some(start.plus(1)), None)).await?.contains(&first), "what is before a range is in");
    same("an open range", by_start(range(Some(Millis(0)), Some(Millis(u64::MAX)))).await?, set([&first, &second]))?;
    same("an empty range", by_start(range(Some(start), Some(start))).await?, BTreeSet::new())?;
    same("closed at any time", by_close(range(Some(Millis(0)), None)).await?, set([&first]))?;
    same("closed at that time", by_close(range(Some(close), Some(close.plus(1)))).await?, set([&first]))?;
    same("closed before that time", by_close(range(None, Some(close))).await?, BTreeSet::new())?;
    same("closed after that time", by_close(range(Some(close.plus(1)), None)).await?, BTreeSet::new())
}

pub(super) fn equals(name: &str, value: AttributeValue) -> Result<AttributeFilter> {
    Ok(AttributeFilter { name: AttributeName::new(name)?, equals: Some(value), range: None })
}

async fn runs(trial: &Trial) -> Result<()> {
    let workflow = open(trial, "runs", &[("a", AttributeValue::Bool(true))]).await?;
    let again = vec![NewEvent::of(EventKind::WorkflowContinuedAsNew), started(trial)?];
    trial.store.append(&workflow, 1, again, Write::default()).await?;
    let listed = list(trial, &filter(trial)?, WorkflowSort::Started, SortOrder::Newest).await?;
    let facts: Vec<_> = listed.iter().map(|listed| (listed.run_id.as_str(), listed.status, listed.head)).collect();
    same("the listing", facts, vec![("run-2", WorkflowStatus::Running, 3)])?;
    let attributes = vec![equals("a", AttributeValue::Bool(true))?];
    same("by its attribute", found(trial, &WorkflowFilter { attributes, ..filter(trial)? }).await?, set([&workflow]))
}

async fn counts(trial: &Trial) -> Result<()> {
    for number in 0..5 {
        let workflow = open(trial, &format!("w{number}"), &[]).await?;
        if number < 2 {
            trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
        }
    }
    let count = async |statuses: &[WorkflowStatus]| -> Result<u64> {
        let filter = WorkflowFilter { statuses: statuses.to_vec(), ..filter(trial)? };
        Ok(trial.store.count_workflows(&filter, ReadMode::Linearizable).await?.value)
    };
    same("all", count(&[]).await?, 5)?;
    same("those that failed", count(&[WorkflowStatus::Failed]).await?, 2)?;
    same("those that run", count(&[WorkflowStatus::Running]).await?, 3)?;
    same("either", count(&[WorkflowStatus::Running, WorkflowStatus::Failed]).await?, 5)?;
    same("neither", count(&[WorkflowStatus::Paused]).await?, 0)
}

async fn nonsense(trial: &Trial) -> Result<()> {
    let backwards = TimeRange { from: Some(Millis(2)), to: Some(Millis(1)) };
    let name = AttributeName::new("a")?;
    let (equals, range) = (Some(AttributeValue::Integer(1)), Some(AttributeRange::Integer { from: Some(1), to: None }));
    let condition = |equals, range| vec![AttributeFilter { name: name.clone(), equals, range }];
    let all = filter(trial)?;
    for (what, filter) in [
        ("starts backwards", WorkflowFilter { started: backwards, ..all.clone() }),
        ("closes backwards", WorkflowFilter { closed: backwards, ..all.clone() }),
        ("both conditions", WorkflowFilter { attributes: condition(equals, range), ..all.clone() }),
        ("no condition", WorkflowFilter { attributes: condition(None, None), ..all.clone() }),
        ("several texts", WorkflowFilter { attributes: condition(Some(AttributeValue::Texts(vec![])), None), ..all }),
    ] {
        let counted = trial.store.count_workflows(&filter, ReadMode::Linearizable).await;
        refused_as(what, counted, &["invalid_argument"])?;
        let call = ListCall::new(WorkflowQuery { filter, ..WorkflowQuery::default() });
        let listed = trial.store.list_workflows(&call, ReadMode::Linearizable).await;
        refused_as(what, listed, &["invalid_argument"])?;
    }
    Ok(())
}
