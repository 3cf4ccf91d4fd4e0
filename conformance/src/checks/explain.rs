//! Explaining: whoever asks why something does not move is told one reason, with its figures and what to do.

use anyhow::{Result, bail, ensure};
use holdfast_client::Write;
use holdfast_machine::{
    Deadline, EventKind, Millis, NamespaceSettings, NewRow, NextTimeout, Outlook, RowReason, RowStatus, ShardId,
    ShardReason, Timeouts, WorkflowReason,
};

use crate::checks::checks;
use crate::trial::{LONG_LEASE_MS, Trial, row_key, same};

checks! {
    "explain":
    missing = "what is not there is explained as such, and that is an answer",
    unserved = "a due row in a queue without workers says so, with a census of the workers",
    paused = "a row of a paused workflow is held by the pause, and so is its workflow",
    later = "a row whose time has not come says when it comes, and one that failed that it comes again",
    claimed = "a claimed row says who has it, and how much of the lease is left",
    timeouts = "the timeout of a row that passes first is told with its reason: of one that waits, and of an attempt",
    ended = "a row that has ended says how; one that was given up is held up",
    waiting = "a workflow says which of its rows is held up, and when nothing is pending that it waits for its engine",
    owners = "a shard says who owns it, and under which epoch",
    [disturbing]
    ceiling = "a row in a namespace at its ceiling says so",
}

async fn row(trial: &Trial, key: &holdfast_machine::DispatchKey) -> Result<RowReason> {
    Ok(trial.store.explain_row(key).await?.value.reason)
}

async fn missing(trial: &Trial) -> Result<()> {
    let workflow = trial.id("missing")?;
    let of_row = trial.store.explain_row(&row_key(&workflow, 1)).await?.value;
    same("the reason", of_row.reason, RowReason::NoSuchRow { workflow_known: false, being_removed: false })?;
    same("its outlook", of_row.outlook, Outlook::Unknown)?;
    same("the subject", of_row.subject, row_key(&workflow, 1).to_string())?;
    let reason = trial.store.explain_workflow(&workflow).await?.value.reason;
    same("a workflow's reason", reason, WorkflowReason::NoSuchWorkflow)?;
    let of_shard = trial.store.explain_shard(ShardId(u32::MAX)).await?.value.reason;
    ensure!(matches!(of_shard, ShardReason::NoSuchShard { .. }), "a shard that is not there: {of_shard:?}");
    Ok(())
}

async fn unserved(trial: &Trial) -> Result<()> {
    let workflow = trial.open("unserved", [1]).await?;
    let explained = trial.store.explain_row(&row_key(&workflow, 1)).await?.value;
    let (namespace, task_queue) = (trial.namespace()?, trial.queue()?);
    same("the reason", &explained.reason, &RowReason::NoWorker { namespace, task_queue: task_queue.clone() })?;
    ensure!(!explained.sentence.is_empty() && !explained.advice.is_empty(), "nothing is said: {explained:?}");
    same("its outlook", explained.outlook, Outlook::HeldUp)?;
    let Some(census) = explained.census else { bail!("there is no census") };
    same("the census", (census.task_queue, census.workers, census.polls_here), (task_queue, 0, 0))
}

async fn paused(trial: &Trial) -> Result<()> {
    let workflow = trial.open("paused", [1]).await?;
    trial.then(&workflow, &[EventKind::WorkflowPaused]).await?;
    let reason = row(trial, &row_key(&workflow, 1)).await?;
    let is_paused = matches!(&reason, RowReason::WorkflowPaused { workflow: of, since: Some(_) } if *of == workflow);
    ensure!(is_paused, "a row: {reason:?}");
    let reason = trial.store.explain_workflow(&workflow).await?.value.reason;
    ensure!(matches!(reason, WorkflowReason::Paused { pending: 1, claimed: 0, .. }), "the workflow: {reason:?}");
    Ok(())
}

async fn later(trial: &Trial) -> Result<()> {
    let workflow = trial.id("later")?;
    let now = trial.store.cluster().await?.value.now.0;
    let visible_after = Millis(now + LONG_LEASE_MS);
    let mut retried = trial.row(2)?;
    retried.retry.initial_ms = LONG_LEASE_MS;
    retried.retry.maximum_ms = LONG_LEASE_MS;
    trial.open_with(&workflow, vec![NewRow { visible_after, ..trial.row(1)? }, retried]).await?;
    match row(trial, &row_key(&workflow, 1)).await? {
        RowReason::NotYetVisible { visible_after: at, visible_in_ms } if at == visible_after => {
            ensure!(visible_in_ms > 0, "its time has come");
        }
        other => bail!("a row whose time has not come: {other:?}"),
    }
    trial.fail(&trial.claim_one().await?, true).await?;
    match row(trial, &row_key(&workflow, 2)).await? {
        RowReason::WaitingForRetry { attempt: 2, deliveries: 1, last_said, .. } => {
            same("what the last attempt said", last_said.as_deref(), Some("broken"))
        }
        other => bail!("a row that failed: {other:?}"),
    }
}

async fn claimed(trial: &Trial) -> Result<()> {
    let workflow = trial.open("claimed", [1]).await?;
    trial.claim_one().await?;
    let explained = trial.store.explain_row(&row_key(&workflow, 1)).await?.value;
    match explained.reason {
        RowReason::ClaimedByLease { claimant, lease_left_ms, attempt: 1, .. } => {
            same("the claimant", claimant.as_str(), "conformance")?;
            ensure!(lease_left_ms > 0 && lease_left_ms <= LONG_LEASE_MS, "{lease_left_ms} ms of lease left");
        }
        other => bail!("a claimed row: {other:?}"),
    }
    same("its outlook", explained.outlook, Outlook::Moving)
}

async fn timeouts(trial: &Trial) -> Result<()> {
    let workflow = trial.id("timeouts")?;
    let (schedule_to_start_ms, start_to_close_ms) = (Some(LONG_LEASE_MS), Some(2 * LONG_LEASE_MS));
    let timeouts = Timeouts { schedule_to_start_ms, start_to_close_ms, ..Timeouts::default() };
    trial.open_with(&workflow, vec![NewRow { timeouts, ..trial.row(1)? }]).await?;
    for (expected, sentence) in [
        (Deadline::ScheduleToStart, "If nobody takes it, its activity fails for good in"),
        (Deadline::StartToClose, "Without an outcome, the attempt times out in"),
    ] {
        let explained = trial.store.explain_row(&row_key(&workflow, 1)).await?.value;
        ensure!(explained.sentence.contains(sentence), "the sentence is {:?}", explained.sentence);
        let Some(NextTimeout { timeout, at, in_ms }) = explained.timeout else { bail!("{explained:?}") };
        same("what passes first", timeout, expected)?;
        same("in how long", in_ms, at.0.saturating_sub(explained.at.0))?;
        if expected == Deadline::ScheduleToStart {
            trial.claim_one().await?;
        }
    }
    trial.store.settle(&workflow, Write::default()).await?;
    let ended = trial.store.explain_row(&row_key(&workflow, 1)).await?.value;
    same("once the row has ended", ended.timeout, None)
}

async fn ended(trial: &Trial) -> Result<()> {
    let workflow = trial.open("ended", [1, 2, 3]).await?;
    trial.complete(&trial.claim_one().await?, "ok").await?;
    trial.fail(&trial.claim_one().await?, false).await?;
    trial.store.settle(&workflow, Write::default()).await?;
    let done = RowReason::Finished { status: RowStatus::Done, outcome_seq: Some(8) };
    same("a row that is done", row(trial, &row_key(&workflow, 1)).await?, done)?;
    let failed = trial.store.explain_row(&row_key(&workflow, 2)).await?.value;
    match failed.reason {
        RowReason::DeadLetter { outcome_seq: Some(9), failure_delivered: true, .. } => {}
        other => bail!("a row that failed for good: {other:?}"),
    }
    same("its outlook", failed.outlook, Outlook::Finished)?;
    let cancelled = RowReason::Finished { status: RowStatus::Cancelled, outcome_seq: None };
    same("a row that was settled", row(trial, &row_key(&workflow, 3)).await?, cancelled)
}

async fn ceiling(trial: &Trial) -> Result<()> {
    let namespace: holdfast_machine::Namespace = trial.name("small").parse()?;
    let settings = |claimed_max| NamespaceSettings { claimed_max: Some(claimed_max), ..Default::default() };
    trial.store.put_namespace(&namespace, &settings(1), Write::default()).await?;
    let workflow = trial.id("small")?;
    trial.store.stage(&workflow, namespace.clone(), trial.rows([1, 2])?, Write::default()).await?;
    let mut call = trial.claiming(1)?;
    call.scope.namespace = namespace.clone();
    trial.store.claim(call, Write::default()).await?;
    let full = RowReason::NamespaceFull { namespace: namespace.clone(), claimed: 1, claimed_max: 1 };
    same("at the ceiling", row(trial, &row_key(&workflow, 2)).await?, full)?;
    trial.store.put_namespace(&namespace, &settings(0), Write::default()).await?;
    let stopped = RowReason::NamespaceStopped { namespace, claimed: 1 };
    same("with a ceiling of 0", row(trial, &row_key(&workflow, 2)).await?, stopped)?;
    trial.store.settle(&workflow, Write::default()).await?;
    Ok(())
}

async fn waiting(trial: &Trial) -> Result<()> {
    let workflow = trial.open("waiting", [1, 2]).await?;
    trial.claim_one().await?;
    match trial.store.explain_workflow(&workflow).await?.value.reason {
        WorkflowReason::RowHeldUp { pending: 1, claimed: 1, row, row_reason: RowReason::NoWorker { .. } } => {
            same("the row that is held up", row, row_key(&workflow, 2))?;
        }
        other => bail!("a workflow with a row that nobody takes: {other:?}"),
    }
    trial.store.settle(&workflow, Write::default()).await?;
    match trial.store.explain_workflow(&workflow).await?.value.reason {
        WorkflowReason::WaitingForEngine { head: 5, .. } => {}
        other => bail!("a workflow without rows: {other:?}"),
    }
    trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
    let ended = trial.store.explain_workflow(&workflow).await?.value;
    ensure!(matches!(ended.reason, WorkflowReason::Finished { head: 6, .. }), "one that has ended: {ended:?}");
    same("its outlook", ended.outlook, Outlook::Finished)
}

async fn owners(trial: &Trial) -> Result<()> {
    let explained = trial.store.explain_shard(ShardId(0)).await?.value;
    match explained.reason {
        ShardReason::Owned { epoch, .. } if epoch.0 > 0 => Ok(()),
        other => bail!("shard 0: {other:?}"),
    }
}
