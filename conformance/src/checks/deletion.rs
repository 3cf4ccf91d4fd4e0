//! Deletion: an operator removes a finished workflow before its time.

use anyhow::Result;
use holdfast_client::{ListCall, PageCall, ReadMode, Write};
use holdfast_machine::{EventKind, Fence, NodeName, Reject, WorkflowFilter, WorkflowId, WorkflowQuery, WorkflowStatus};

use crate::checks::checks;
use crate::trial::{Trial, refused, row_key, same};

checks! {
    "deletion":
    removed = "a deleted workflow is out of sight at once, with its history, runs, rows and listing",
    free_again = "the id of a deleted workflow is free again, and nothing of the old one comes back",
    unfinished = "an open workflow is not deleted, nor one that is not there",
    again = "a deletion sent again under its key gets the first answer",
    fenced = "a deletion is fenced like every write to a workflow",
}

const MODE: ReadMode = ReadMode::Linearizable;

async fn finished(trial: &Trial, text: &str) -> Result<WorkflowId> {
    let workflow = trial.open(text, [1, 2]).await?;
    let delivery = trial.claim_one().await?;
    trial.complete(&delivery, "ok").await?;
    trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
    Ok(workflow)
}

async fn removed(trial: &Trial) -> Result<()> {
    let workflow = finished(trial, "removed").await?;
    let filter = WorkflowFilter { namespace: trial.namespace()?, ..WorkflowFilter::default() };
    let listed = async || -> Result<bool> {
        // The newest of the namespace: with so many others beside it, it is on the first page.
        let query = WorkflowQuery { filter: filter.clone(), ..WorkflowQuery::default() };
        let call = ListCall { limit: 1_000, statuses: vec![WorkflowStatus::Completed], ..ListCall::new(query) };
        let page = trial.store.list_workflows(&call, MODE).await?.value;
        Ok(page.workflows.iter().any(|listed| listed.workflow == workflow))
    };
    same("listed before", listed().await?, true)?;
    trial.store.delete(&workflow, Write::default()).await?;
    same("listed after", listed().await?, false)?;
    same("the projection", trial.store.workflow(&workflow, MODE).await?.value.workflow, None)?;
    same("the history", trial.store.history(&workflow, 1, 10, MODE).await?.value, vec![])?;
    same("the runs", trial.store.runs(&workflow, &PageCall::first(10), MODE).await?.value.runs, vec![])?;
    for ordinal in [1, 2] {
        let key = row_key(&workflow, ordinal);
        refused("a row", trial.store.row(&key, MODE).await, Reject::RowNotFound { key })?;
    }
    Ok(())
}

async fn free_again(trial: &Trial) -> Result<()> {
    let workflow = finished(trial, "again").await?;
    trial.store.delete(&workflow, Write::default()).await?;
    trial.eventually("the id is free", || async { trial.open_with(&workflow, trial.rows([1])?).await }).await?;
    same("the head", trial.head(&workflow).await?, 3)?;
    let delivery = trial.claim_one().await?;
    same("its row and run", (&delivery.key, delivery.run_id.as_str()), (&row_key(&workflow, 1), "run-1"))?;
    same("its outcome", trial.complete(&delivery, "new").await?.value, Some(4))?;
    let old = row_key(&workflow, 2);
    refused("a row of the old one", trial.store.row(&old, MODE).await, Reject::RowNotFound { key: old })
}

async fn unfinished(trial: &Trial) -> Result<()> {
    let workflow = trial.open("open", [1]).await?;
    let delete = async |workflow: &WorkflowId| trial.store.delete(workflow, Write::default()).await;
    for (kind, status) in [(None, WorkflowStatus::Running), (Some(EventKind::WorkflowPaused), WorkflowStatus::Paused)] {
        if let Some(kind) = kind {
            trial.then(&workflow, &[kind]).await?;
        }
        let open = Reject::WorkflowOpen { workflow: workflow.clone(), status };
        refused("an open workflow", delete(&workflow).await, open)?;
    }
    same("the head", trial.head(&workflow).await?, 4)?;
    let nobody = trial.id("nobody")?;
    refused("nobody", delete(&nobody).await, Reject::WorkflowNotFound { workflow: nobody.clone() })
}

async fn again(trial: &Trial) -> Result<()> {
    let workflow = finished(trial, "again").await?;
    let delete = async || anyhow::Ok(trial.store.delete(&workflow, trial.keyed("delete")?).await?);
    delete().await?;
    delete().await?;
    Ok(())
}

async fn fenced(trial: &Trial) -> Result<()> {
    let workflow = finished(trial, "fenced").await?;
    let view = trial.store.workflow(&workflow, MODE).await?.value;
    let Some(Fence { owner, epoch }) = view.fence else { anyhow::bail!("shard {} has no owner", view.shard) };
    let wrong = Fence { owner: NodeName::new(trial.name("stranger"))?, epoch };
    let write = Write { fence: Some(wrong), idempotency_key: None };
    let deleted = trial.store.delete(&workflow, write).await;
    refused("a deletion", deleted, Reject::NotOwner { shard: view.shard, owner: Some(owner), epoch })?;
    same("the head", trial.head(&workflow).await?, 7)
}
