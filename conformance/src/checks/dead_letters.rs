//! Dead letters: rows that nobody tries any more, until an operator puts them back.

use anyhow::{Result, ensure};
use holdfast_client::wire::{ListedRow, PageCall, RedriveMode};
use holdfast_client::{ReadMode, Write};
use holdfast_machine::{DispatchKey, EventKind, NewRow, Reject, RetryPolicy, RowStatus, WorkflowId, WorkflowStatus};

use crate::checks::checks;
use crate::trial::{Trial, all_pages, keys, over_limit, refused, refused_as, row_key, row_keys, same};

checks! {
    "dead letters":
    of_a_workflow = "the dead letters of a workflow are listed by ordinal, and nothing else is",
    in_a_namespace = "the dead letters of a namespace are listed by workflow and ordinal, in pages",
    marks = "the mark that a failure was delivered is set once and for all, on dead letters only",
    redriven = "a redriven row is due at once, with a delivery count of 0 and its mark cleared",
    judged = "a dead letter whose failure was delivered is redriven only if it is forced",
    not_dead = "only dead letters are redriven: refused with no such row, or with the row's status",
    of_the_ended = "a dead letter of a finished workflow is not redriven, forced or not",
    outcome_stands = "a redriven row whose activity has its outcome gets no second one",
    again = "a redrive and a mark sent again under their keys get the first answer",
    cursors = "a cursor belongs to its listing, and a page of nothing makes no sense",
}

/// A workflow whose rows of these ordinals are dead letters.
async fn bury(trial: &Trial, text: &str, ordinals: &[u64]) -> Result<WorkflowId> {
    let workflow = trial.id(text)?;
    let retry = RetryPolicy { initial_ms: 0, deliveries_max: 1, ..RetryPolicy::default() };
    let rows = trial.rows(ordinals.iter().copied())?.into_iter();
    trial.open_with(&workflow, rows.map(|row| NewRow { retry: retry.clone(), ..row }).collect()).await?;
    for delivery in trial.claim(1_000).await? {
        let returned = trial.fail(&delivery, true).await?.value;
        same("what came of it", returned.map(|returned| returned.status), Some(RowStatus::Failed))?;
    }
    Ok(workflow)
}

async fn letters(trial: &Trial, workflow: &WorkflowId) -> Result<Vec<DispatchKey>> {
    let page = trial.store.dead_letters(workflow, &PageCall::first(1_000), ReadMode::Linearizable).await?.value;
    ensure!(page.rows.iter().all(|letter| letter.row.status == RowStatus::Failed), "one that is not failed: {page:?}");
    Ok(page.rows.into_iter().map(|letter| letter.key).collect())
}

async fn redrive(trial: &Trial, key: &DispatchKey, mode: RedriveMode) -> crate::backend::Called<()> {
    trial.store.redrive(key, mode, Write::default()).await
}

async fn of_a_workflow(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[10, 9, 2]).await?;
    let live = trial.open("live", [1, 2]).await?;
    let done = trial.claim_one().await?;
    trial.complete(&done, "ok").await?;
    same("the dead letters", letters(trial, &workflow).await?, row_keys(&workflow, [2, 9, 10]))?;
    same("those of a workflow without any", letters(trial, &live).await?, vec![])?;
    same("those of nobody", letters(trial, &trial.id("nobody")?).await?, vec![])?;
    let one = trial.store.dead_letters(&workflow, &PageCall::first(1), ReadMode::Linearizable).await?.value;
    let row = one.rows[0].row.clone();
    same("count and mark", (row.deliveries, row.failure_delivered), (1, false))?;
    same("the row as it is by itself", trial.view(&row_key(&workflow, 2)).await?.row, row)
}

async fn in_a_namespace(trial: &Trial) -> Result<()> {
    let (second, first) = (bury(trial, "b", &[1]).await?, bury(trial, "a", &[2, 1]).await?);
    let namespace = trial.namespace()?;
    for limit in [1_000, 50] {
        let listed: Vec<ListedRow> = all_pages(limit, |page| {
            let namespace = &namespace;
            async move {
                let page = trial.store.dead_letters_in(namespace, &page, ReadMode::Linearizable).await?.value;
                Ok((page.rows, page.next_cursor))
            }
        })
        .await?;
        ensure!(listed.is_sorted_by_key(|letter| letter.key.clone()), "not by workflow and ordinal: {listed:?}");
        let own = |key: &DispatchKey| key.workflow == first || key.workflow == second;
        let own: Vec<_> = listed.into_iter().map(|letter| letter.key).filter(own).collect();
        same("the dead letters", own, [row_keys(&first, [1, 2]), row_keys(&second, [1])].concat())?;
    }
    Ok(())
}

async fn marks(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[1]).await?;
    let key = row_key(&workflow, 1);
    let mark = async |key: &DispatchKey| trial.store.mark_failure_delivered(key, Write::default()).await;
    for _ in 0..2 {
        same("the row is there", mark(&key).await?.value, true)?;
        ensure!(trial.view(&key).await?.row.failure_delivered, "the mark is not set");
    }
    same("it is a dead letter still", letters(trial, &workflow).await?, vec![key])?;
    same("a row that is not there", mark(&row_key(&workflow, 9)).await?.value, false)?;
    let live = trial.open("live", [1]).await?;
    let pending = row_key(&live, 1);
    let refusal = Reject::NotDeadLetter { key: pending.clone(), status: RowStatus::Pending };
    refused("a row that is pending", mark(&pending).await, refusal)
}

async fn redriven(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[1]).await?;
    let key = row_key(&workflow, 1);
    redrive(trial, &key, RedriveMode::Eligible).await?;
    let row = trial.view(&key).await?.row;
    let found = (row.status, row.deliveries, row.failure_delivered);
    same("status, count and mark", found, (RowStatus::Pending, 0, false))?;
    same("its dead letters", letters(trial, &workflow).await?, vec![])?;
    let again = trial.claim_one().await?;
    same("the row that is due", (&again.key, again.deliveries), (&key, 0))?;
    same("its outcome", trial.complete(&again, "ok").await?.value, Some(4))
}

async fn judged(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[1]).await?;
    let key = row_key(&workflow, 1);
    trial.store.mark_failure_delivered(&key, Write::default()).await?;
    let judged = Reject::AlreadyJudged { key: key.clone() };
    refused("a redrive", redrive(trial, &key, RedriveMode::Eligible).await, judged)?;
    same("the row", trial.status(&key).await?, RowStatus::Failed)?;
    redrive(trial, &key, RedriveMode::Forced).await?;
    let row = trial.view(&key).await?.row;
    let found = (row.status, row.deliveries, row.failure_delivered);
    same("status, count and mark", found, (RowStatus::Pending, 0, false))?;
    same("what is due", keys(&trial.claim(10).await?), vec![key])
}

async fn not_dead(trial: &Trial) -> Result<()> {
    let workflow = trial.open("live", [1, 2, 3, 4]).await?;
    let taken = trial.claim(2).await?;
    trial.complete(&taken[0], "ok").await?;
    let cancel = holdfast_machine::Commit { settle: vec![4], ..holdfast_machine::Commit::new(workflow.clone(), 10) };
    trial.store.commit(cancel, Write::default()).await?;
    use RowStatus::*;
    for (ordinal, status) in [(1, Done), (2, Claimed), (3, Pending), (4, Cancelled)] {
        let key = row_key(&workflow, ordinal);
        for mode in [RedriveMode::Eligible, RedriveMode::Forced] {
            let refusal = Reject::NotDeadLetter { key: key.clone(), status };
            refused("a row that is no dead letter", redrive(trial, &key, mode).await, refusal)?;
        }
        same("the row", trial.status(&key).await?, status)?;
    }
    let nobody = row_key(&workflow, 9);
    let refusal = Reject::RowNotFound { key: nobody.clone() };
    refused("a row that is not there", redrive(trial, &nobody, RedriveMode::Forced).await, refusal)
}

async fn of_the_ended(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[1]).await?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    let key = row_key(&workflow, 1);
    for mode in [RedriveMode::Eligible, RedriveMode::Forced] {
        let ended = Reject::WorkflowEnded { workflow: workflow.clone(), status: WorkflowStatus::Failed };
        refused("a redrive", redrive(trial, &key, mode).await, ended)?;
    }
    same("what is due", keys(&trial.claim(10).await?), vec![])?;
    trial.then(&workflow, &[EventKind::WorkflowReopened]).await?;
    redrive(trial, &key, RedriveMode::Eligible).await?;
    same("what is due after it was reopened", keys(&trial.claim(10).await?), vec![key])
}

async fn outcome_stands(trial: &Trial) -> Result<()> {
    let workflow = trial.open("judged", [1]).await?;
    let first = trial.claim_one().await?;
    trial.fail(&first, false).await?;
    redrive(trial, &first.key, RedriveMode::Forced).await?;
    let second = trial.claim_one().await?;
    refused_as("a second outcome", trial.complete(&second, "late").await, &["already_terminal"])?;
    same("the row", trial.status(&first.key).await?, RowStatus::Failed)?;
    same("the last event", trial.kinds(&workflow).await?.pop(), Some(EventKind::ActivityFailed))?;
    same("the head", trial.head(&workflow).await?, 4)
}

async fn again(trial: &Trial) -> Result<()> {
    let workflow = bury(trial, "dead", &[1]).await?;
    let key = row_key(&workflow, 1);
    let redrive = async || anyhow::Ok(trial.store.redrive(&key, RedriveMode::Eligible, trial.keyed("redrive")?).await?);
    redrive().await?;
    let delivery = trial.claim_one().await?;
    redrive().await?;
    same("the row that was claimed meanwhile", trial.status(&key).await?, RowStatus::Claimed)?;
    trial.fail(&delivery, true).await?;
    let mark = async || anyhow::Ok(trial.store.mark_failure_delivered(&key, trial.keyed("mark")?).await?.value);
    same("a mark", mark().await?, true)?;
    trial.store.redrive(&key, RedriveMode::Forced, Write::default()).await?;
    same("the same one again", mark().await?, true)?;
    ensure!(!trial.view(&key).await?.row.failure_delivered, "a retry has marked the row that was redriven meanwhile");
    let other = trial.store.redrive(&key, RedriveMode::Forced, trial.keyed("redrive")?).await;
    refused("another redrive under the key", other, Reject::IdempotencyConflict)
}

async fn cursors(trial: &Trial) -> Result<()> {
    let (one, other) = (bury(trial, "one", &[1, 2, 3]).await?, bury(trial, "other", &[1]).await?);
    let page = async |workflow: &WorkflowId, call: PageCall| {
        trial.store.dead_letters(workflow, &call, ReadMode::Linearizable).await
    };
    let mut listed = Vec::new();
    let mut call = PageCall::first(1);
    loop {
        let found = page(&one, call).await?.value;
        listed.extend(found.rows.into_iter().map(|letter| letter.key));
        let Some(cursor) = found.next_cursor else { break };
        let foreign = page(&other, PageCall::after(1, cursor.as_str())).await;
        refused_as("the cursor of another workflow", foreign, &["invalid_argument"])?;
        let namespace = trial.namespace()?;
        let call_elsewhere = PageCall::after(1, cursor.as_str());
        let foreign = trial.store.dead_letters_in(&namespace, &call_elsewhere, ReadMode::Linearizable).await;
        refused_as("the cursor of another listing", foreign, &["invalid_argument"])?;
        call = PageCall::after(1, cursor);
    }
    same("the pages", listed, row_keys(&one, [1, 2, 3]))?;
    refused_as("a page of nothing", page(&one, PageCall::first(0)).await, &["invalid_argument"])?;
    refused_as("a made-up cursor", page(&one, PageCall::after(1, "made up")).await, &["invalid_argument"])?;
    let most = trial.limits.page_max as u64;
    over_limit("a page", page(&one, PageCall::first(most as u32 + 1)).await, most, most + 1)
}
