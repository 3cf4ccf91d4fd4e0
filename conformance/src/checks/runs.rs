//! Runs: how a history goes on in another run, and what stays with the run that it was made in.

use anyhow::{Result, ensure};
use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, Payload, RowStatus, RunId, WorkflowStart, WorkflowStatus};

use crate::checks::checks;
use crate::trial::{Trial, keys, note, refused_as, row_key, same};

checks! {
    "runs":
    one_run = "a run has an id, a type, a status, and the times and the number of its first event",
    chain = "continue-as-new opens the next run in the same history, with the last one as its parent",
    own_names = "a run is called as its caller says, or run-1, run-2 … otherwise",
    reopening = "reopening takes the end of the run back",
    next_rows = "a finished row of an earlier run makes way for a new run's row with its key",
    old_completion = "a completion of an earlier run never touches the next run's row",
    rows_of_runs = "a delivery names the run that staged its row",
    run_pages = "runs are listed oldest first, at most as many as asked for",
}

async fn one_run(trial: &Trial) -> Result<()> {
    let workflow = trial.open("run", []).await?;
    let runs = trial.store.runs(&workflow, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs;
    same("the number of runs", runs.len(), 1)?;
    let run = &runs[0];
    same("its number and parent", (run.number, run.parent.clone()), (1, None))?;
    same("its status and start", (run.status, run.started_seq), (WorkflowStatus::Running, 1))?;
    same("its type", run.workflow_type.as_ref().map(|text| text.as_str()), Some("conformance"))?;
    same("its end", run.closed_at, None)?;
    same("when it started", run.started_at, trial.history(&workflow).await?[0].at)?;
    same("the run of the workflow", &trial.workflow(&workflow).await?.run, run)?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    let run = trial.workflow(&workflow).await?.run;
    let end = trial.history(&workflow).await?[1].at;
    same("its status and end", (run.status, run.closed_at), (WorkflowStatus::Failed, Some(end)))
}

async fn chain(trial: &Trial) -> Result<()> {
    let workflow = trial.open("chain", []).await?;
    let again = vec![NewEvent::of(EventKind::WorkflowContinuedAsNew), trial.started()?, note("in the second run")];
    trial.store.append(&workflow, 1, again, Write::default()).await?;
    trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
    trial.store.append(&workflow, 5, vec![trial.started()?], Write::default()).await?;
    let runs = trial.store.runs(&workflow, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs;
    let found: Vec<_> = runs.iter().map(|run| (run.number, run.started_seq, run.status)).collect();
    let expected = vec![
        (1, 1, WorkflowStatus::ContinuedAsNew),
        (2, 3, WorkflowStatus::Completed),
        (3, 6, WorkflowStatus::Running),
    ];
    same("the runs", found, expected)?;
    let parents: Vec<Option<RunId>> = runs.iter().map(|run| run.parent.clone()).collect();
    same("their parents", parents, vec![None, Some(runs[0].run_id.clone()), Some(runs[1].run_id.clone())])?;
    ensure!(runs[0].closed_at.is_some() && runs[1].closed_at.is_some() && runs[2].closed_at.is_none(), "{runs:?}");
    let state = trial.workflow(&workflow).await?;
    same("status and run", (state.status, &state.run), (WorkflowStatus::Running, &runs[2]))
}

async fn own_names(trial: &Trial) -> Result<()> {
    let workflow = trial.id("names")?;
    let named = |run: &str| -> Result<NewEvent> {
        let event = trial.started()?;
        let start = event.start.clone().map(|start| WorkflowStart { run_id: RunId::new(run).ok(), ..start });
        Ok(NewEvent { start, ..event })
    };
    let ended = || NewEvent::of(EventKind::WorkflowCompleted);
    let events = vec![named("my first")?, ended(), trial.started()?, ended(), named("my third")?];
    trial.store.append(&workflow, 0, events, Write::default()).await?;
    let runs = trial.store.runs(&workflow, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs;
    let names: Vec<&str> = runs.iter().map(|run| run.run_id.as_str()).collect();
    same("the names", names, vec!["my first", "run-2", "my third"])
}

async fn reopening(trial: &Trial) -> Result<()> {
    let workflow = trial.open("reopened", []).await?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    trial.then(&workflow, &[EventKind::WorkflowReopened]).await?;
    let state = trial.workflow(&workflow).await?;
    same("the status", state.status, WorkflowStatus::Running)?;
    same("run and end", (state.run.number, state.run.closed_at), (1, None))?;
    // It takes work again.
    let commit = Commit::new(workflow.clone(), 3).activity(trial.row(1)?);
    trial.store.commit(commit, Write::default()).await?;
    same("the rows due", keys(&trial.claim(10).await?), vec![row_key(&workflow, 1)])
}

/// Ends the run and opens the next one with row 1.
async fn next_run(trial: &Trial, workflow: &holdfast_machine::WorkflowId) -> Result<bool> {
    let head = trial.head(workflow).await?;
    let mut row = trial.row(1)?;
    row.input = Payload::text("the second run's");
    let commit = Commit::new(workflow.clone(), head)
        .event(NewEvent::of(EventKind::WorkflowContinuedAsNew))
        .event(trial.started()?)
        .activity(row);
    let staged = trial.store.commit(commit, Write::default()).await?.value.staged;
    Ok(staged.iter().all(|staged| staged.written))
}

async fn next_rows(trial: &Trial) -> Result<()> {
    let workflow = trial.open("way", [1]).await?;
    let delivery = trial.claim_one().await?;
    trial.complete(&delivery, "the first run's").await?;
    ensure!(next_run(trial, &workflow).await?, "the row of the first run did not make way");
    let view = trial.view(&delivery.key).await?;
    same("run and status", (view.row.run, view.row.status), (2, RowStatus::Pending))?;
    same("input and outcome", (view.input, view.row.outcome_seq), (Payload::text("the second run's"), None))
}

async fn old_completion(trial: &Trial) -> Result<()> {
    let workflow = trial.open("old", [1]).await?;
    let old = trial.claim_one().await?;
    ensure!(next_run(trial, &workflow).await?, "the row of the first run did not make way");
    let head = trial.head(&workflow).await?;
    let late = trial.complete(&old, "the first run's").await;
    refused_as("a completion of the first run", late, &["claim_lost", "already_terminal"])?;
    let late = trial.fail(&old, false).await;
    refused_as("a failure of the first run", late, &["claim_lost", "already_terminal"])?;
    same("the head", trial.head(&workflow).await?, head)?;
    same("the second run's row", trial.status(&old.key).await?, RowStatus::Pending)?;
    let new = trial.claim_one().await?;
    let seq = trial.complete(&new, "the second run's").await?.value;
    same("the number of its outcome", seq, Some(head + 1))
}

async fn rows_of_runs(trial: &Trial) -> Result<()> {
    let workflow = trial.open("delivered", [1]).await?;
    let first = trial.claim_one().await?;
    trial.complete(&first, "ok").await?;
    next_run(trial, &workflow).await?;
    let second = trial.claim_one().await?;
    same("the runs", (first.run_id.as_str(), second.run_id.as_str()), ("run-1", "run-2"))
}

async fn run_pages(trial: &Trial) -> Result<()> {
    let workflow = trial.open("pages", []).await?;
    for _ in 0..4 {
        let head = trial.head(&workflow).await?;
        let again = vec![NewEvent::of(EventKind::WorkflowContinuedAsNew), trial.started()?];
        trial.store.append(&workflow, head, again, Write::default()).await?;
    }
    for (limit, expected) in [(1, vec![1]), (3, vec![1, 2, 3]), (10, vec![1, 2, 3, 4, 5])] {
        let runs = trial.store.runs(&workflow, &PageCall::first(limit), ReadMode::Linearizable).await?.value.runs;
        let numbers: Vec<u32> = runs.iter().map(|run| run.number).collect();
        same(&format!("at most {limit} runs"), numbers, expected)?;
    }
    Ok(())
}
