//! Limits: what is over one is refused with the limit and the figure, and nothing is written.

use anyhow::Result;
use holdfast_client::{ClaimCall, ClaimHolder, Failure, PageCall, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, NewRow, Payload, RetryPolicy};

use crate::checks::checks;
use crate::trial::{Trial, claimant, note, over_limit, refused_as, row_key, same};

checks! {
    "limits":
    payloads = "a payload over the limit is refused with limit and size; one at the limit is kept",
    last_of_many = "a batch whose last event is over the limit is refused whole",
    batches = "a batch over the limit is refused with limit and number; one at the limit is kept",
    pages = "a page or a claim of nothing makes no sense; one over the limit is refused with both figures",
    leases = "a lease of nothing makes no sense; one over the limit is refused with both figures",
    kinds = "an event's kind is a name of 1 to 255 bytes without control characters",
    budgets = "a row that may never be delivered makes no sense",
}

fn sized(bytes: usize) -> Payload {
    Payload::octets(vec![7; bytes])
}

async fn payloads(trial: &Trial) -> Result<()> {
    let most = trial.limits.payload_bytes_max;
    let (limit, actual) = (most as u64, most as u64 + 1);
    let workflow = trial.open("payloads", [1]).await?;
    let (store, write) = (&trial.store, Write::default);
    let result = store.append(&workflow, 3, vec![note("").with(sized(most + 1))], write()).await;
    over_limit("an event", result, limit, actual)?;
    let commit = Commit::new(workflow.clone(), 3).activity(NewRow { input: sized(most + 1), ..trial.row(2)? });
    over_limit("an input", store.commit(commit, write()).await, limit, actual)?;
    let taken = trial.claim_one().await?;
    let (key, token) = (&taken.key, taken.token);
    over_limit("a result", store.complete(key, Some(token), sized(most + 1), write()).await, limit, actual)?;
    over_limit(
        "an error",
        store.fail(key, Some(token), Failure::retryable(sized(most + 1)), write()).await,
        limit,
        actual,
    )?;
    over_limit("details", store.heartbeat(key, token, 1_000, sized(most + 1), write()).await, limit, actual)?;
    same("the head", trial.head(&workflow).await?, 3)?;
    store.append(&workflow, 3, vec![note("").with(sized(most))], write()).await?;
    let kept = store.history(&workflow, 4, 1, ReadMode::Linearizable).await?.value;
    same("its size", kept.first().map(|event| event.payload.data.len()), Some(most))
}

async fn last_of_many(trial: &Trial) -> Result<()> {
    let (batch, most) = (trial.limits.batch_max, trial.limits.payload_bytes_max);
    let workflow = trial.open("last", []).await?;
    let mut events = vec![note("small"); batch];
    events[batch - 1] = note("").with(sized(most + 1));
    let result = trial.store.append(&workflow, 1, events, Write::default()).await;
    over_limit("the batch", result, most as u64, most as u64 + 1)?;
    same("the head", trial.head(&workflow).await?, 1)
}

async fn batches(trial: &Trial) -> Result<()> {
    let most = trial.limits.batch_max;
    let (limit, actual) = (most as u64, most as u64 + 1);
    let workflow = trial.open("batches", []).await?;
    let result = trial.store.append(&workflow, 1, vec![note("x"); most + 1], Write::default()).await;
    over_limit("events", result, limit, actual)?;
    let rows = (0..=most as u64).map(|ordinal| trial.row(ordinal)).collect::<Result<Vec<_>>>()?;
    let result = trial.store.rearm(&workflow, rows, Write::default()).await;
    over_limit("rows", result, limit, actual)?;
    let settle = Commit { settle: (0..=most as u64).collect(), ..Commit::new(workflow.clone(), 1) };
    over_limit("settled rows", trial.store.commit(settle, Write::default()).await, limit, actual)?;
    let hold = vec![workflow.clone(); most + 1];
    let claim = ClaimCall { hold, ..trial.claiming(1)? };
    over_limit("held workflows", trial.store.claim(claim, Write::default()).await, limit, actual)?;
    let excluded = (0..=most as u64).map(|ordinal| row_key(&workflow, ordinal)).collect();
    let result = trial.store.reconcile(u64::MAX, 1, excluded, Write::default()).await;
    over_limit("excluded rows", result, limit, actual)?;
    same("the head", trial.head(&workflow).await?, 1)?;
    let committed = trial.store.append(&workflow, 1, vec![note("x"); most], Write::default()).await?.value;
    same("the head after a full batch", committed.head, most as u64 + 1)
}

async fn pages(trial: &Trial) -> Result<()> {
    let workflow = trial.open("pages", [1]).await?;
    let most = trial.limits.page_max as u64;
    let mode = ReadMode::Linearizable;
    let store = &trial.store;
    let none = &["invalid_argument"];
    refused_as("a history of nothing", store.history(&workflow, 1, 0, mode).await, none)?;
    refused_as("runs of nothing", store.runs(&workflow, &PageCall::first(0), mode).await, none)?;
    refused_as("stale rows of nothing", store.stale(0, &PageCall::first(0), mode).await, none)?;
    refused_as("a claim of nothing", store.claim(trial.claiming(0)?, Write::default()).await, none)?;
    refused_as("a reconciliation of nothing", store.reconcile(u64::MAX, 0, Vec::new(), Write::default()).await, none)?;
    for limit in [most as u32 + 1, u32::MAX] {
        let actual = u64::from(limit);
        over_limit("a history", store.history(&workflow, 1, limit, mode).await, most, actual)?;
        over_limit("runs", store.runs(&workflow, &PageCall::first(limit), mode).await, most, actual)?;
        over_limit("stale rows", store.stale(0, &PageCall::first(limit), mode).await, most, actual)?;
        over_limit("a claim", store.claim(trial.claiming(limit)?, Write::default()).await, most, actual)?;
        let reconciled = store.reconcile(u64::MAX, limit, Vec::new(), Write::default()).await;
        over_limit("a reconciliation", reconciled, most, actual)?;
    }
    same("a claim at the limit", trial.claim(most as u32).await?.len(), 1)
}

async fn leases(trial: &Trial) -> Result<()> {
    trial.open("leases", [1]).await?;
    let most = trial.limits.lease_ms_max;
    let claim = async |lease_ms| {
        let holder = ClaimHolder::Lease { claimant: claimant()?, lease_ms };
        anyhow::Ok(trial.store.claim(ClaimCall { holder, ..trial.claiming(1)? }, Write::default()).await)
    };
    refused_as("a lease of nothing", claim(0).await?, &["invalid_argument"])?;
    for lease in [most + 1, u64::MAX] {
        over_limit("a lease", claim(lease).await?, most, lease)?;
    }
    let taken = claim(most).await??.value;
    same("rows taken under the longest lease", taken.len(), 1)?;
    let (key, token) = (&taken[0].key, taken[0].token);
    let beat = |lease_ms| trial.store.heartbeat(key, token, lease_ms, Payload::default(), Write::default());
    refused_as("a heartbeat of nothing", beat(0).await, &["invalid_argument"])?;
    over_limit("a heartbeat", beat(most + 1).await, most, most + 1)?;
    let retried = trial.store.retry(key, Some(token), most + 1, Write::default()).await;
    over_limit("a delay", retried, most, most + 1)?;
    trial.complete(&taken[0], "ok").await?;
    Ok(())
}

async fn kinds(trial: &Trial) -> Result<()> {
    let workflow = trial.open("kinds", []).await?;
    let append = |kind: String| {
        let events = vec![NewEvent::of(EventKind::from_name(&kind))];
        trial.store.append(&workflow, 1, events, Write::default())
    };
    for bad in ["", "a\nb", "a\0b"] {
        refused_as(&format!("the kind {bad:?}"), append(bad.to_owned()).await, &["invalid_argument"])?;
    }
    over_limit("a long kind", append("k".repeat(256)).await, 255, 256)?;
    append("k".repeat(255)).await?;
    Ok(())
}

async fn budgets(trial: &Trial) -> Result<()> {
    let workflow = trial.open("budgets", []).await?;
    let retry = RetryPolicy { deliveries_max: 0, ..RetryPolicy::default() };
    let row = NewRow { retry, ..trial.row(1)? };
    let commit = Commit::new(workflow.clone(), 1).activity(row.clone());
    refused_as("staging", trial.store.commit(commit, Write::default()).await, &["invalid_argument"])?;
    refused_as("re-arming", trial.store.rearm(&workflow, vec![row], Write::default()).await, &["invalid_argument"])?;
    same("the head", trial.head(&workflow).await?, 1)
}
