//! What a check works with: a store, and names that nobody else uses. Whatever else is in the store, and
//! whichever checks run beside it, a check sees its own workflows and rows only.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use holdfast_client::wire::PageCall;
use holdfast_client::{Answer, ClaimCall, ClaimHolder, Delivery, ReadMode, RowView, Write};
use holdfast_machine::{
    ActivityType, Claimant, Commit, DispatchKey, EventKind, HistoryEvent, IdempotencyKey, Limits, Namespace, NewEvent,
    NewRow, Payload, Reject, RetryPolicy, RowStatus, Scope, TaskQueue, Workflow, WorkflowId, WorkflowStart,
    WorkflowType,
};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::backend::{Backend, Called, Failure};
use crate::run::Options;

/// A lease that outlives every check.
pub(crate) const LONG_LEASE_MS: u64 = 3_600_000;
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pages of a listing that a check reads at most; a store in use may have more of everything than is worth it.
const PAGES_MAX: u32 = 200;
/// How much of a value is shown when it is not what it should be.
const SHOWN_CHARS_MAX: usize = 400;

/// The check does not apply to this store, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub &'static str);

/// One check's place in a store.
pub struct Trial {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) limits: Limits,
    /// Where the store is spoken to by HTTP, if it is.
    pub(crate) url: Option<String>,
    patience: Duration,
    /// Part of every name.
    tag: String,
    used: Mutex<Vec<WorkflowId>>,
}

impl Trial {
    pub(crate) fn new(store: Arc<dyn Backend>, options: &Options) -> Self {
        let Options { limits, url, patience, .. } = options.clone();
        let tag = Uuid::new_v4().simple().to_string();
        Self { store, limits, url, patience, tag, used: Mutex::new(Vec::new()) }
    }

    /// A name of this check's own.
    pub(crate) fn name(&self, text: &str) -> String {
        format!("{text}-{}", self.tag)
    }

    /// A workflow id of this check's own; what becomes of it is ended afterwards.
    pub(crate) fn id(&self, text: &str) -> Result<WorkflowId> {
        let id = WorkflowId::new(self.name(text))?;
        self.uses(&id);
        Ok(id)
    }

    /// Has the workflow ended afterwards.
    pub(crate) fn uses(&self, id: &WorkflowId) {
        self.used.lock().push(id.clone());
    }

    /// Where rows go unless a check says otherwise.
    pub(crate) fn queue(&self) -> Result<TaskQueue> {
        Ok(TaskQueue::new(self.name("queue"))?)
    }

    /// One namespace for all checks that do not need one to themselves, so that a store does not fill up with them.
    pub(crate) fn namespace(&self) -> Result<Namespace> {
        Ok(Namespace::new("conformance")?)
    }

    /// True for a workflow of this check.
    pub(crate) fn is_own(&self, id: &WorkflowId) -> bool {
        id.as_str().ends_with(&self.tag)
    }

    pub(crate) fn key(&self, text: &str) -> Result<IdempotencyKey> {
        Ok(IdempotencyKey::new(self.name(text))?)
    }

    /// A write under a key of this check's own.
    pub(crate) fn keyed(&self, text: &str) -> Result<Write> {
        Ok(Write::keyed(self.key(text)?))
    }

    pub(crate) fn started(&self) -> Result<NewEvent> {
        let start = WorkflowStart {
            namespace: self.namespace()?,
            workflow_type: WorkflowType::new("conformance")?,
            run_id: None,
        };
        Ok(NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) })
    }

    /// A row in this check's queue; a failed attempt comes back after a millisecond.
    pub(crate) fn row(&self, ordinal: u64) -> Result<NewRow> {
        Ok(NewRow {
            task_queue: self.queue()?,
            input: Payload::text(format!("input {ordinal}")),
            retry: RetryPolicy { initial_ms: 1, ..RetryPolicy::default() },
            ..NewRow::new(ordinal, activity_type("work")?)
        })
    }

    pub(crate) fn rows(&self, ordinals: impl IntoIterator<Item = u64>) -> Result<Vec<NewRow>> {
        ordinals.into_iter().map(|ordinal| self.row(ordinal)).collect()
    }

    /// The commit that opens a workflow and stages these rows.
    pub(crate) fn opening(&self, workflow: &WorkflowId, rows: Vec<NewRow>) -> Result<Commit> {
        let opening = Commit::new(workflow.clone(), 0).event(self.started()?);
        Ok(rows.into_iter().fold(opening, Commit::activity))
    }

    /// Opens a workflow with these rows.
    pub(crate) async fn open_with(&self, workflow: &WorkflowId, rows: Vec<NewRow>) -> Result<()> {
        self.store.commit(self.opening(workflow, rows)?, Write::default()).await?;
        Ok(())
    }

    /// Opens a workflow with a row for each ordinal.
    pub(crate) async fn open(&self, text: &str, ordinals: impl IntoIterator<Item = u64>) -> Result<WorkflowId> {
        let workflow = self.id(text)?;
        self.open_with(&workflow, self.rows(ordinals)?).await?;
        Ok(workflow)
    }

    /// Appends events of these kinds at the head.
    pub(crate) async fn then(&self, workflow: &WorkflowId, kinds: &[EventKind]) -> Result<()> {
        let head = self.head(workflow).await?;
        let events = kinds.iter().cloned().map(NewEvent::of).collect();
        self.store.append(workflow, head, events, Write::default()).await?;
        Ok(())
    }

    /// A claim from this check's queue under a long lease.
    pub(crate) fn claiming(&self, limit: u32) -> Result<ClaimCall> {
        let scope = Scope { namespace: self.namespace()?, task_queue: self.queue()?, ..Scope::default() };
        let holder = ClaimHolder::Lease { claimant: claimant()?, lease_ms: LONG_LEASE_MS };
        Ok(ClaimCall { scope, limit, holder, hold: Vec::new(), wait_ms: 0 })
    }

    pub(crate) async fn claim(&self, limit: u32) -> Result<Vec<Delivery>> {
        Ok(self.store.claim(self.claiming(limit)?, Write::default()).await?.value)
    }

    /// Claims exactly one row.
    pub(crate) async fn claim_one(&self) -> Result<Delivery> {
        let mut taken = self.claim(1).await?;
        taken.pop().ok_or_else(|| anyhow!("a claim found none of the rows that are due"))
    }

    /// Claims a row under a lease of one millisecond, and waits until it is pending again.
    pub(crate) async fn claim_and_let_go(&self) -> Result<Delivery> {
        let holder = ClaimHolder::Lease { claimant: claimant()?, lease_ms: 1 };
        let call = ClaimCall { holder, ..self.claiming(1)? };
        let taken = self.store.claim(call, Write::default()).await?.value;
        let Some(delivery) = taken.into_iter().next() else { bail!("a claim found none of the rows that are due") };
        self.eventually("the lease has ended and the row is pending", || async {
            same("the row's status", self.status(&delivery.key).await?, RowStatus::Pending)
        })
        .await?;
        Ok(delivery)
    }

    pub(crate) async fn complete(&self, delivery: &Delivery, result: &str) -> Called<Option<u64>> {
        self.store.complete(&delivery.key, Some(delivery.token), Payload::text(result), Write::default()).await
    }

    pub(crate) async fn fail(
        &self,
        delivery: &Delivery,
        retryable: bool,
    ) -> Called<Option<holdfast_machine::Returned>> {
        let failure = holdfast_client::Failure { error: Payload::text("broken"), error_type: None, retryable };
        self.store.fail(&delivery.key, Some(delivery.token), failure, Write::default()).await
    }

    pub(crate) async fn history(&self, workflow: &WorkflowId) -> Result<Vec<HistoryEvent>> {
        let mut events: Vec<HistoryEvent> = Vec::new();
        loop {
            let from = events.last().map_or(1, |event| event.seq + 1);
            let page = self.store.history(workflow, from, 1_000, ReadMode::Linearizable).await?.value;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    pub(crate) async fn kinds(&self, workflow: &WorkflowId) -> Result<Vec<EventKind>> {
        Ok(self.history(workflow).await?.into_iter().map(|event| event.kind).collect())
    }

    /// The workflow's projection, which must be there.
    pub(crate) async fn workflow(&self, workflow: &WorkflowId) -> Result<Workflow> {
        let view = self.store.workflow(workflow, ReadMode::Linearizable).await?.value;
        view.workflow.ok_or_else(|| anyhow!("workflow {workflow} has a history and is not known"))
    }

    /// The number of the last event; 0 without a history.
    pub(crate) async fn head(&self, workflow: &WorkflowId) -> Result<u64> {
        let view = self.store.workflow(workflow, ReadMode::Linearizable).await?.value;
        Ok(view.workflow.map_or(0, |workflow| workflow.head))
    }

    pub(crate) async fn view(&self, key: &DispatchKey) -> Result<RowView> {
        Ok(self.store.row(key, ReadMode::Linearizable).await?.value)
    }

    pub(crate) async fn status(&self, key: &DispatchKey) -> Result<RowStatus> {
        Ok(self.view(key).await?.row.status)
    }

    /// A workflow id of a shard that the answering node owns, and one of another node's if there is one.
    pub(crate) async fn own_and_foreign(&self) -> Result<(WorkflowId, Option<WorkflowId>)> {
        let node = self.store.cluster().await?.value.node;
        let (mut own, mut foreign) = (None, None);
        for number in 0..1_000 {
            let id = WorkflowId::new(self.name(&format!("w{number}")))?;
            let owner = self.store.workflow(&id, ReadMode::Linearizable).await?.value.fence.map(|fence| fence.owner);
            let place = if owner.as_ref() == Some(&node) { &mut own } else { &mut foreign };
            if place.is_none() {
                self.uses(&id);
                *place = Some(id);
            }
            if own.is_some() && (foreign.is_some() || number >= 50) {
                break;
            }
        }
        Ok((own.ok_or_else(|| anyhow!("{node} owns no shard"))?, foreign))
    }

    /// Tries a condition until it holds. An error means "not yet, because".
    pub(crate) async fn eventually<F, T>(&self, what: &str, condition: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begun = Instant::now();
        loop {
            match condition().await {
                Ok(value) => return Ok(value),
                Err(reason) if begun.elapsed() > self.patience => {
                    return Err(reason.context(format!("waited {:?} in vain until {what}", self.patience)));
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Ends and removes what the check has made, so that a store in use is not left with work that nobody does.
    pub(crate) async fn tidy(&self) {
        let used = std::mem::take(&mut *self.used.lock());
        for workflow in used {
            // A workflow that cannot be ended was not opened, or its check has found a store that is broken.
            let _ = self.end(&workflow).await;
        }
    }

    async fn end(&self, workflow: &WorkflowId) -> Result<()> {
        let view = self.store.workflow(workflow, ReadMode::Linearizable).await?.value;
        if let Some(state) = view.workflow.filter(|state| !state.status.is_terminal()) {
            let cancelled = vec![NewEvent::of(EventKind::WorkflowCancelled)];
            self.store.append(workflow, state.head, cancelled, Write::default()).await?;
        }
        self.store.delete(workflow, Write::default()).await?;
        Ok(())
    }
}

/// Everything on a listing's pages of `limit` items.
pub(crate) async fn all_pages<T, F>(limit: u32, page: impl Fn(PageCall) -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<(Vec<T>, Option<String>)>>,
{
    let mut listed = Vec::new();
    let mut call = PageCall::first(limit);
    for _ in 0..PAGES_MAX {
        let (items, cursor) = page(call).await?;
        ensure!(items.len() <= limit as usize, "a page of {} where {limit} were asked for", items.len());
        listed.extend(items);
        match cursor {
            Some(cursor) => call = PageCall::after(limit, cursor),
            None => return Ok(listed),
        }
    }
    Err(Skip("there is so much in the store that its listing was not read to the end").into())
}

pub(crate) fn activity_type(text: &str) -> Result<ActivityType> {
    Ok(ActivityType::new(text)?)
}

pub(crate) fn claimant() -> Result<Claimant> {
    Ok(Claimant::new("conformance")?)
}

pub(crate) fn row_key(workflow: &WorkflowId, ordinal: u64) -> DispatchKey {
    DispatchKey { workflow: workflow.clone(), ordinal }
}

pub(crate) fn row_keys(workflow: &WorkflowId, ordinals: impl IntoIterator<Item = u64>) -> Vec<DispatchKey> {
    ordinals.into_iter().map(|ordinal| row_key(workflow, ordinal)).collect()
}

pub(crate) fn keys(deliveries: &[Delivery]) -> Vec<DispatchKey> {
    deliveries.iter().map(|delivery| delivery.key.clone()).collect()
}

/// An event that means nothing to the store, with a text.
pub(crate) fn note(text: &str) -> NewEvent {
    NewEvent::of(EventKind::Other("conformance.note".to_owned())).with(Payload::text(text))
}

/// Fails unless the two are equal.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Result<()> {
    ensure!(found == expected, "{what}: {} instead of {}", shown(&found), shown(&expected));
    Ok(())
}

/// A value for people: as much of it as a line can bear.
fn shown(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{} … ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

/// The failure of a call that must not succeed.
pub(crate) fn failure<T: Debug>(what: &str, result: Called<T>) -> Result<Failure> {
    match result {
        Err(failure) if failure.is_retryable() => Err(failure.into()),
        Err(failure) => Ok(failure),
        Ok(Answer { value, .. }) => bail!("{what} was not refused: {value:?}"),
    }
}

/// Fails unless the call was refused in just this way.
pub(crate) fn refused<T: Debug>(what: &str, result: Called<T>, expected: Reject) -> Result<()> {
    same(what, failure(what, result)?, Failure::Refused(expected))
}

/// Fails unless the call was refused under one of these codes.
pub(crate) fn refused_as<T: Debug>(what: &str, result: Called<T>, codes: &[&str]) -> Result<()> {
    let failure = failure(what, result)?;
    ensure!(codes.contains(&failure.code()), "{what}: {failure} instead of {codes:?}");
    Ok(())
}

/// Fails unless the call was refused as over a limit, with these figures.
pub(crate) fn over_limit<T: Debug>(what: &str, result: Called<T>, limit: u64, actual: u64) -> Result<()> {
    match failure(what, result)? {
        Failure::Refused(Reject::LimitExceeded { limit: l, actual: a, .. }) => same(what, (l, a), (limit, actual)),
        other => bail!("{what}: {other} instead of limit_exceeded"),
    }
}
