//! Staging by itself: rows without events of their own, for engines that write their histories later or elsewhere.

use anyhow::{Result, ensure};
use holdfast_client::{ClaimCall, ClaimHolder, ReadMode, Write};
use holdfast_machine::{
    EventKind, Fence, NewRow, NodeName, Payload, Reject, RowStatus, Staged, WorkflowId, WorkflowStatus,
};

use crate::checks::checks;
use crate::trial::{Skip, Trial, keys, note, over_limit, refused, row_key, row_keys, same};

checks! {
    "staging":
    delivered = "rows that are staged by themselves are delivered like any other, and no history comes of it",
    duplicates = "a key that has a row is left as it is, whether live or finished, and the reply says so",
    outcomes = "the outcome of such a row begins the history",
    history_later = "a history that is opened later finds the rows, and its end cancels them",
    into_the_run = "rows staged for a workflow with a history belong to its open run and its namespace",
    ended = "nothing is staged for a finished workflow",
    again = "staging again under a key gets the first answer",
    fenced = "staging is fenced like every write to a workflow",
    limits = "more rows than a batch may have are refused with limit and number",
    [disturbing]
    unknown_liveness = "a row of a workflow without a history is left claimed by a reconciliation, and reported",
}

async fn stage(trial: &Trial, workflow: &WorkflowId, rows: Vec<NewRow>) -> Result<Vec<bool>> {
    let staged = trial.store.stage(workflow, trial.namespace()?, rows, Write::default()).await?.value;
    ensure!(staged.iter().all(|staged| staged.key.workflow == *workflow), "rows of another workflow: {staged:?}");
    Ok(staged.into_iter().map(|Staged { written, .. }| written).collect())
}

async fn delivered(trial: &Trial) -> Result<()> {
    let workflow = trial.id("bare")?;
    same("what was written", stage(trial, &workflow, trial.rows([2, 1])?).await?, vec![true, true])?;
    let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
    same("the projection", view.workflow, None)?;
    same("the history", trial.history(&workflow).await?, vec![])?;
    let row = trial.view(&row_key(&workflow, 1)).await?;
    same("its status and input", (row.row.status, row.input), (RowStatus::Pending, Payload::text("input 1")))?;
    same("its namespace", row.row.namespace, trial.namespace()?)?;
    let taken = trial.claim(10).await?;
    same("what is due", keys(&taken), row_keys(&workflow, [1, 2]))?;
    same("its run", taken[0].run_id.as_str(), "run-1")?;
    trial.store.settle(&workflow, Write::default()).await?;
    Ok(())
}

async fn duplicates(trial: &Trial) -> Result<()> {
    let workflow = trial.id("twice")?;
    same("one row twice in a call", stage(trial, &workflow, trial.rows([1, 1, 2])?).await?, vec![true, false, true])?;
    let done = trial.claim_one().await?;
    trial.complete(&done, "ok").await?;
    let other = |ordinal| anyhow::Ok(NewRow { input: Payload::text("other"), ..trial.row(ordinal)? });
    let again = stage(trial, &workflow, vec![other(1)?, other(2)?, other(3)?]).await?;
    same("once more", again, vec![false, false, true])?;
    same("the finished row", trial.status(&done.key).await?, RowStatus::Done)?;
    same("the live row", trial.view(&row_key(&workflow, 2)).await?.input, Payload::text("input 2"))?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [2, 3]))
}

async fn outcomes(trial: &Trial) -> Result<()> {
    let workflow = trial.id("begins")?;
    stage(trial, &workflow, trial.rows([1])?).await?;
    let delivery = trial.claim_one().await?;
    same("its number", trial.complete(&delivery, "ok").await?.value, Some(1))?;
    same("the history", trial.kinds(&workflow).await?, vec![EventKind::ActivityCompleted])?;
    let state = trial.workflow(&workflow).await?;
    same("status and namespace", (state.status, state.namespace), (WorkflowStatus::Running, trial.namespace()?))?;
    let terminal = Reject::AlreadyTerminal { key: delivery.key.clone(), status: Some(RowStatus::Done) };
    refused("a second outcome", trial.complete(&delivery, "late").await, terminal)
}

async fn history_later(trial: &Trial) -> Result<()> {
    let workflow = trial.id("later")?;
    stage(trial, &workflow, trial.rows([1, 2])?).await?;
    trial.store.append(&workflow, 0, vec![trial.started()?, note("later")], Write::default()).await?;
    let delivery = trial.claim_one().await?;
    same("its number", trial.complete(&delivery, "ok").await?.value, Some(3))?;
    let ended = vec![holdfast_machine::NewEvent::of(EventKind::WorkflowCompleted)];
    let committed = trial.store.append(&workflow, 3, ended, Write::default()).await?.value;
    same("what was settled", committed.settled, row_keys(&workflow, [2]))
}

async fn into_the_run(trial: &Trial) -> Result<()> {
    let workflow = trial.open("running", [1]).await?;
    let elsewhere = holdfast_machine::Namespace::new("conformance-other")?;
    let staged = trial.store.stage(&workflow, elsewhere, trial.rows([1, 2])?, Write::default()).await?.value;
    let written: Vec<bool> = staged.iter().map(|staged| staged.written).collect();
    same("what was written", written, vec![false, true])?;
    same("its namespace", trial.view(&row_key(&workflow, 2)).await?.row.namespace, trial.namespace()?)?;
    same("the head", trial.head(&workflow).await?, 3)?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [1, 2]))
}

async fn ended(trial: &Trial) -> Result<()> {
    let workflow = trial.open("ended", []).await?;
    trial.then(&workflow, &[EventKind::WorkflowCancelled]).await?;
    let staged = trial.store.stage(&workflow, trial.namespace()?, trial.rows([1])?, Write::default()).await;
    let refusal = Reject::WorkflowEnded { workflow: workflow.clone(), status: WorkflowStatus::Cancelled };
    refused("staging", staged, refusal)?;
    let key = row_key(&workflow, 1);
    refused("the row", trial.store.row(&key, ReadMode::Linearizable).await, Reject::RowNotFound { key })
}

async fn again(trial: &Trial) -> Result<()> {
    let workflow = trial.id("again")?;
    let staging = async |ordinal| {
        let write = trial.keyed("stage")?;
        anyhow::Ok(trial.store.stage(&workflow, trial.namespace()?, trial.rows([ordinal])?, write).await)
    };
    let first = staging(1).await??.value;
    ensure!(first[0].written, "the row was not written");
    same("the same call again", staging(1).await??.value, first)?;
    refused("another one under the key", staging(2).await?, Reject::IdempotencyConflict)?;
    trial.store.settle(&workflow, Write::default()).await?;
    Ok(())
}

async fn fenced(trial: &Trial) -> Result<()> {
    let workflow = trial.id("fenced")?;
    let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
    let Some(Fence { owner, epoch }) = view.fence else { anyhow::bail!("shard {} has no owner", view.shard) };
    let wrong = Fence { owner: NodeName::new(trial.name("stranger"))?, epoch };
    let write = Write { fence: Some(wrong), idempotency_key: None };
    let staged = trial.store.stage(&workflow, trial.namespace()?, trial.rows([1])?, write).await;
    refused("staging", staged, Reject::NotOwner { shard: view.shard, owner: Some(owner), epoch })
}

async fn limits(trial: &Trial) -> Result<()> {
    let workflow = trial.id("limits")?;
    let most = trial.limits.batch_max as u64;
    let rows = trial.rows(0..=most)?;
    let staged = trial.store.stage(&workflow, trial.namespace()?, rows, Write::default()).await;
    over_limit("rows", staged, most, most + 1)
}

async fn unknown_liveness(trial: &Trial) -> Result<()> {
    if !trial.store.is_embedded() {
        return Err(Skip("only claims without a deadline grow old, and nobody makes them over HTTP").into());
    }
    let (workflow, _) = trial.own_and_foreign().await?;
    stage(trial, &workflow, trial.rows([1])?).await?;
    let call = ClaimCall { holder: ClaimHolder::Node, ..trial.claiming(1)? };
    let taken = trial.store.claim(call, Write::default()).await?.value;
    same("what was taken", keys(&taken), row_keys(&workflow, [1]))?;
    let reconciled = trial.store.reconcile(0, 1_000, Vec::new(), Write::default()).await?.value;
    ensure!(reconciled.unknown.contains(&row_key(&workflow, 1)), "it is not reported: {reconciled:?}");
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Claimed)?;
    trial.store.settle(&workflow, Write::default()).await?;
    Ok(())
}
