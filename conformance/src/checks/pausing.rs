//! Pausing: the rows of a paused workflow wait. They are held, not settled.

use anyhow::Result;
use holdfast_client::{ClaimCall, Write};
use holdfast_machine::{Commit, EventKind, RowStatus};

use crate::checks::checks;
use crate::trial::{Trial, keys, row_key, row_keys, same};

checks! {
    "pausing":
    waits = "nobody gets the rows of a paused workflow; after it is resumed all of them are due",
    beside = "a paused workflow does not hold up others in its queue",
    staged_meanwhile = "rows that are staged while the workflow is paused wait as well",
    under_way = "work that was under way when the workflow was paused can be finished",
    wakes = "a claim that waits wakes when the workflow is resumed",
    ended = "a paused workflow that ends has its rows cancelled",
}

async fn waits(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", 1..=5).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    same("while it is paused", keys(&trial.claim(10).await?), Vec::new())?;
    for key in row_keys(&workflow, 1..=5) {
        same("a row", trial.status(&key).await?, RowStatus::Pending)?;
    }
    trial.then(&workflow, &[EventKind::WorkflowResumed]).await?;
    same("after it was resumed", keys(&trial.claim(10).await?), row_keys(&workflow, 1..=5))
}

async fn beside(trial: &Trial) -> Result<()> {
    let paused = trial.open("paused", [1, 2]).await?;
    trial.then(&paused, &[EventKind::WorkflowPaused]).await?;
    let other = trial.open("running", [1, 2]).await?;
    same("what is due", keys(&trial.claim(2).await?), row_keys(&other, [1, 2]))
}

async fn staged_meanwhile(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", []).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    let commit = Commit::new(workflow.clone(), 2).activity(trial.row(1)?);
    trial.store.commit(commit, Write::default()).await?;
    trial.store.rearm(&workflow, trial.rows([2])?, Write::default()).await?;
    same("while it is paused", keys(&trial.claim(10).await?), Vec::new())?;
    trial.then(&workflow, &[EventKind::WorkflowResumed]).await?;
    same("after it was resumed", keys(&trial.claim(10).await?), row_keys(&workflow, [1, 2]))
}

async fn under_way(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", [1, 2]).await?;
    let taken = trial.claim(2).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    same("its number", trial.complete(&taken[0], "ok").await?.value, Some(7))?;
    trial.store.retry(&taken[1].key, Some(taken[1].token), 0, Write::default()).await?;
    same("what came back waits", keys(&trial.claim(10).await?), Vec::new())?;
    same("the row that came back", trial.status(&row_key(&workflow, 2)).await?, RowStatus::Pending)
}

async fn wakes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", [1]).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    let call = ClaimCall { wait_ms: 30_000, ..trial.claiming(1)? };
    let resuming = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        trial.then(&workflow, &[EventKind::WorkflowResumed]).await
    };
    let (taken, resumed) = tokio::join!(trial.store.claim(call, Write::default()), resuming);
    resumed?;
    same("the row", keys(&taken?.value), row_keys(&workflow, [1]))
}

async fn ended(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", [1]).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    trial.then(&workflow, &[EventKind::WorkflowCancelled]).await?;
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Cancelled)
}
