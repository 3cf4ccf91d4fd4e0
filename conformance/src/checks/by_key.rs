//! Transitions by key: an engine's own dispatcher drives its rows without a claim of its own.

use anyhow::Result;
use holdfast_client::{Failure, Write};
use holdfast_machine::{EventKind, NewEvent, Payload, Reject, RowStatus};

use crate::checks::checks;
use crate::trial::{Trial, refused, row_key, same};

checks! {
    "by key":
    unknown = "an unknown key is no error and changes nothing, and the reply says so",
    completes = "a row is completed by its key, pending or claimed, and its claimant comes too late",
    fails = "a row is failed by its key",
    hands_back = "a claimed row is handed back by its key; one that nobody holds is not",
    finished = "a finished row is refused with its status",
    outcome_appended = "an outcome that the engine appends finishes the row",
}

async fn unknown(trial: &Trial) -> Result<()> {
    let workflow = trial.open("unknown", []).await?;
    for key in [row_key(&workflow, 9), row_key(&trial.id("nobody")?, 1)] {
        let write = Write::default;
        same("complete", trial.store.complete(&key, None, Payload::text("x"), write()).await?.value, None)?;
        same("fail", trial.store.fail(&key, None, Failure::for_good(Payload::text("x")), write()).await?.value, None)?;
        same("retry", trial.store.retry(&key, None, 0, write()).await?.value, None)?;
        same("the head", trial.head(&key.workflow).await?, if key.workflow == workflow { 1 } else { 0 })?;
    }
    Ok(())
}

async fn completes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("completes", [1, 2]).await?;
    let held = trial.claim_one().await?;
    for ordinal in [1, 2] {
        let key = row_key(&workflow, ordinal);
        let seq = trial.store.complete(&key, None, Payload::text("by key"), Write::default()).await?.value;
        same("its number", seq, Some(5 + ordinal))?;
        same("the row", trial.status(&key).await?, RowStatus::Done)?;
    }
    let terminal = Reject::AlreadyTerminal { key: held.key.clone(), status: Some(RowStatus::Done) };
    refused("the claimant", trial.complete(&held, "late").await, terminal)
}

async fn fails(trial: &Trial) -> Result<()> {
    let workflow = trial.open("fails", [1]).await?;
    let key = row_key(&workflow, 1);
    let returned =
        trial.store.fail(&key, None, Failure::for_good(Payload::text("by key")), Write::default()).await?.value;
    let found = returned.map(|returned| (returned.status, returned.failed_seq));
    same("what came of it", found, Some((RowStatus::Failed, Some(4))))?;
    same("the last event", trial.kinds(&workflow).await?.pop(), Some(EventKind::ActivityFailed))
}

async fn hands_back(trial: &Trial) -> Result<()> {
    let workflow = trial.open("back", [1]).await?;
    let key = row_key(&workflow, 1);
    let pending = || Reject::RowNotClaimed { key: key.clone(), status: RowStatus::Pending };
    let retry = async || trial.store.retry(&key, None, 0, Write::default()).await;
    refused("a row that nobody holds", retry().await, pending())?;
    let failed = trial.store.fail(&key, None, Failure::retryable(Payload::default()), Write::default()).await;
    refused("a failed attempt of a row that nobody holds", failed, pending())?;
    let held = trial.claim_one().await?;
    let back = retry().await?.value.map(|back| (back.status, back.deliveries));
    same("what came of it", back, Some((RowStatus::Pending, 1)))?;
    refused("the claimant", trial.complete(&held, "late").await, Reject::ClaimLost { key: key.clone() })
}

async fn finished(trial: &Trial) -> Result<()> {
    let workflow = trial.open("finished", [1, 2, 3]).await?;
    trial.store.complete(&row_key(&workflow, 1), None, Payload::default(), Write::default()).await?;
    trial.store.fail(&row_key(&workflow, 2), None, Failure::for_good(Payload::default()), Write::default()).await?;
    trial.store.settle(&workflow, Write::default()).await?;
    let head = trial.head(&workflow).await?;
    for (ordinal, status) in [(1, RowStatus::Done), (2, RowStatus::Failed), (3, RowStatus::Cancelled)] {
        let key = row_key(&workflow, ordinal);
        let terminal = || Reject::AlreadyTerminal { key: key.clone(), status: Some(status) };
        let write = Write::default;
        refused("complete", trial.store.complete(&key, None, Payload::default(), write()).await, terminal())?;
        refused(
            "fail",
            trial.store.fail(&key, None, Failure::retryable(Payload::default()), write()).await,
            terminal(),
        )?;
        refused("retry", trial.store.retry(&key, None, 0, write()).await, terminal())?;
    }
    same("the head", trial.head(&workflow).await?, head)
}

async fn outcome_appended(trial: &Trial) -> Result<()> {
    let workflow = trial.open("appended", [1, 2, 3]).await?;
    let held = trial.claim_one().await?;
    let kinds = [EventKind::ActivityCompleted, EventKind::ActivityFailed, EventKind::ActivityCancelled];
    let statuses = [RowStatus::Done, RowStatus::Failed, RowStatus::Cancelled];
    let outcomes = kinds.into_iter().zip(1..).map(|(kind, ordinal)| NewEvent::activity(kind, ordinal)).collect();
    trial.store.append(&workflow, 7, outcomes, Write::default()).await?;
    for (status, ordinal) in statuses.into_iter().zip(1..) {
        let row = trial.view(&row_key(&workflow, ordinal)).await?.row;
        same("status and outcome", (row.status, row.outcome_seq), (status, Some(7 + ordinal)))?;
    }
    let terminal = Reject::AlreadyTerminal { key: held.key.clone(), status: Some(RowStatus::Done) };
    refused("the claimant", trial.complete(&held, "late").await, terminal)?;
    let again = vec![NewEvent::activity(EventKind::ActivityFailed, 1)];
    let again = trial.store.append(&workflow, 10, again, Write::default()).await;
    refused("a second outcome", again, Reject::AlreadyTerminal { key: held.key, status: Some(RowStatus::Done) })?;
    same("the head", trial.head(&workflow).await?, 10)
}
