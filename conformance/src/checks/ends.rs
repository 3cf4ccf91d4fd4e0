//! What becomes of rows when something ends: their workflow (settle), their holder (re-arm), or nobody knows
//! (stale rows and reconcile).

use anyhow::{Result, ensure};
use holdfast_client::{ClaimCall, ClaimHolder, PageCall, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, NewRow, Payload, Reject, RetryPolicy, RowStatus};

use crate::checks::checks;
use crate::trial::{Skip, Trial, keys, refused, refused_as, row_key, row_keys, same};

checks! {
    "ends":
    settled_with_the_end = "the append that ends a workflow cancels its pending and claimed rows with it",
    stillborn = "a row that is staged in the commit that ends its workflow is never delivered",
    settle = "settling cancels a workflow's live rows and names them; repeating it changes nothing",
    settle_some = "a commit cancels the rows that it names, and no others",
    revived = "re-arming puts a row back to pending whatever its status, and keeps its counts",
    inserted = "re-arming inserts rows that are missing",
    no_second_outcome = "a re-armed row whose activity has its outcome gets no second one, and is finished again",
    not_for_the_ended = "rows of an unknown or a finished workflow are not re-armed",
    after_reopening = "a reopened workflow's cancelled rows are re-armed and delivered",
    stale_order = "stale rows are listed by time of claim, then by key, and reading changes nothing",
    [disturbing]
    running_leases = "reconciling leaves a row alone whose lease runs, however old its claim is",
    reconcile = "reconciling re-arms an engine's old claims, keeps their counts, and spares those excluded",
}

async fn settled_with_the_end(trial: &Trial) -> Result<()> {
    use EventKind::*;
    for (number, kind) in
        [WorkflowFailed, WorkflowCompleted, WorkflowCancelled, WorkflowTimedOut, WorkflowContinuedAsNew]
            .into_iter()
            .enumerate()
    {
        let workflow = trial.open(&format!("end-{number}"), [1, 2, 3]).await?;
        let held = trial.claim(2).await?;
        let ending = vec![NewEvent::of(kind.clone())];
        let committed = trial.store.append(&workflow, 7, ending, Write::default()).await?.value;
        same(&format!("what {kind} settled"), committed.settled, row_keys(&workflow, [1, 2, 3]))?;
        for key in row_keys(&workflow, [1, 2, 3]) {
            same("a row", trial.status(&key).await?, RowStatus::Cancelled)?;
        }
        same("what is due", keys(&trial.claim(10).await?), Vec::new())?;
        for delivery in &held {
            let terminal = || Reject::AlreadyTerminal { key: delivery.key.clone(), status: Some(RowStatus::Cancelled) };
            refused("a late completion", trial.complete(delivery, "late").await, terminal())?;
            refused("a late failure", trial.fail(delivery, true).await, terminal())?;
        }
        same("the head", trial.head(&workflow).await?, 8)?;
    }
    Ok(())
}

async fn stillborn(trial: &Trial) -> Result<()> {
    let workflow = trial.open("stillborn", []).await?;
    let commit = Commit::new(workflow.clone(), 1).activity(trial.row(1)?);
    let commit = commit.event(NewEvent::of(EventKind::WorkflowCompleted));
    let committed = trial.store.commit(commit, Write::default()).await?.value;
    same("what was settled", committed.settled, row_keys(&workflow, [1]))?;
    same("the row", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Cancelled)?;
    same("what is due", keys(&trial.claim(10).await?), Vec::new())
}

async fn settle(trial: &Trial) -> Result<()> {
    let workflow = trial.open("settle", [1, 2, 10, 3]).await?;
    let done = trial.claim_one().await?;
    trial.complete(&done, "ok").await?;
    let held = trial.claim_one().await?;
    let settled = trial.store.settle(&workflow, Write::default()).await?.value;
    same("the keys", settled, row_keys(&workflow, [2, 3, 10]))?;
    same("the row that is done", trial.status(&done.key).await?, RowStatus::Done)?;
    same("the row that was held", trial.status(&held.key).await?, RowStatus::Cancelled)?;
    same("the second time", trial.store.settle(&workflow, Write::default()).await?.value, Vec::new())?;
    let nobody = trial.id("nobody")?;
    same("a workflow of nobody", trial.store.settle(&nobody, Write::default()).await?.value, Vec::new())
}

async fn settle_some(trial: &Trial) -> Result<()> {
    let workflow = trial.open("some", [1, 2, 3]).await?;
    let commit = Commit { settle: vec![3, 1, 9], ..Commit::new(workflow.clone(), 7) };
    let settled = trial.store.commit(commit, Write::default()).await?.value.settled;
    same("the keys", settled, row_keys(&workflow, [1, 3]))?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [2]))
}

async fn revived(trial: &Trial) -> Result<()> {
    let workflow = trial.id("revived")?;
    let dying = RetryPolicy { initial_ms: 0, deliveries_max: 1, ..RetryPolicy::default() };
    let mut rows = trial.rows([1, 2, 3, 4])?;
    rows[0].retry = dying;
    trial.open_with(&workflow, rows.clone()).await?;
    let dead = trial.claim_one().await?;
    trial.fail(&dead, true).await?;
    let held = trial.claim_one().await?;
    let back = trial.claim_one().await?;
    trial.store.retry(&back.key, Some(back.token), 3_600_000, Write::default()).await?;
    let cancel = Commit { settle: vec![4], ..Commit::new(workflow.clone(), 9) };
    trial.store.commit(cancel, Write::default()).await?;

    let keys_now = trial.store.rearm(&workflow, rows, Write::default()).await?.value;
    same("the keys", keys_now, row_keys(&workflow, [1, 2, 3, 4]))?;
    for (ordinal, deliveries) in [(1, 1), (2, 0), (3, 1), (4, 0)] {
        let row = trial.view(&row_key(&workflow, ordinal)).await?.row;
        same(&format!("row {ordinal}"), (row.status, row.deliveries), (RowStatus::Pending, deliveries))?;
    }
    refused("the old claimant", trial.complete(&held, "late").await, Reject::ClaimLost { key: held.key.clone() })?;
    same("what is due at once", keys(&trial.claim(10).await?), row_keys(&workflow, [1, 2, 3, 4]))
}

async fn inserted(trial: &Trial) -> Result<()> {
    let workflow = trial.open("inserted", [1]).await?;
    let rows = vec![NewRow { input: Payload::text("other"), ..trial.row(1)? }, trial.row(5)?];
    let keys_now = trial.store.rearm(&workflow, rows, Write::default()).await?.value;
    same("the keys", keys_now, row_keys(&workflow, [1, 5]))?;
    same("the row that was there", trial.view(&row_key(&workflow, 1)).await?.input, Payload::text("input 1"))?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [1, 5]))?;
    same("the head", trial.head(&workflow).await?, 3)
}

async fn no_second_outcome(trial: &Trial) -> Result<()> {
    let workflow = trial.open("second", [1]).await?;
    let first = trial.claim_one().await?;
    trial.complete(&first, "the first").await?;
    trial.store.rearm(&workflow, trial.rows([1])?, Write::default()).await?;
    let second = trial.claim_one().await?;
    let terminal = Reject::AlreadyTerminal { key: first.key.clone(), status: Some(RowStatus::Done) };
    refused("a second completion", trial.complete(&second, "the second").await, terminal)?;
    same("the row", trial.status(&first.key).await?, RowStatus::Done)?;
    same("the head", trial.head(&workflow).await?, 4)
}

async fn not_for_the_ended(trial: &Trial) -> Result<()> {
    let ended = trial.open("ended", [1]).await?;
    trial.then(&ended, &[EventKind::WorkflowCompleted]).await?;
    let result = trial.store.rearm(&ended, trial.rows([1])?, Write::default()).await;
    refused_as("a finished workflow", result, &["invalid_argument", "workflow_ended"])?;
    let nobody = trial.id("nobody")?;
    let result = trial.store.rearm(&nobody, trial.rows([1])?, Write::default()).await;
    refused_as("a workflow of nobody", result, &["invalid_argument", "workflow_not_found"])?;
    same("what is due", keys(&trial.claim(10).await?), Vec::new())
}

async fn after_reopening(trial: &Trial) -> Result<()> {
    let workflow = trial.open("reopened", [1, 2]).await?;
    let done = trial.claim_one().await?;
    trial.complete(&done, "ok").await?;
    trial.then(&workflow, &[EventKind::WorkflowFailed]).await?;
    trial.then(&workflow, &[EventKind::WorkflowReopened]).await?;
    same("what is due before", keys(&trial.claim(10).await?), Vec::new())?;
    trial.store.rearm(&workflow, trial.rows([2])?, Write::default()).await?;
    let again = trial.claim_one().await?;
    same("the row", &again.key, &row_key(&workflow, 2))?;
    same("its number", trial.complete(&again, "ok").await?.value, Some(9))
}

async fn stale_order(trial: &Trial) -> Result<()> {
    let workflow = trial.open("stale", [3, 1, 2, 4]).await?;
    trial.claim(1).await?;
    trial.claim(3).await?;
    let look = async || trial.store.stale(0, &PageCall::first(1_000), ReadMode::Linearizable).await;
    let rows = look().await?.value.rows;
    let place = |stale: &holdfast_client::ListedRow| {
        (stale.row.claim.as_ref().map(|claim| claim.claimed_at).unwrap_or_default(), stale.key.clone())
    };
    ensure!(rows.is_sorted_by_key(place), "not by time of claim and key: {rows:?}");
    ensure!(rows.iter().all(|stale| stale.row.status == RowStatus::Claimed), "a row that is not claimed: {rows:?}");
    // Where more claims are held than a page shows, the youngest are not on it.
    if rows.len() < 1_000 {
        let own = rows.iter().filter(|stale| stale.key.workflow == workflow).map(|stale| stale.key.clone()).collect();
        same("the rows of this check", own, row_keys(&workflow, [1, 2, 3, 4]))?;
    }
    for key in row_keys(&workflow, [1, 2, 3, 4]) {
        same("a row afterwards", trial.status(&key).await?, RowStatus::Claimed)?;
    }
    same(
        "rows older than time",
        trial.store.stale(u64::MAX, &PageCall::first(10), ReadMode::Linearizable).await?.value.rows,
        Vec::new(),
    )
}

async fn running_leases(trial: &Trial) -> Result<()> {
    trial.open("running", [1]).await?;
    let delivery = trial.claim_one().await?;
    for _ in 0..3 {
        let reconciled = trial.store.reconcile(0, 1_000, Vec::new(), Write::default()).await?.value;
        let touched = [reconciled.rearmed, reconciled.settled, reconciled.unknown].concat();
        ensure!(!touched.contains(&delivery.key), "a row with a running lease was touched");
    }
    trial.complete(&delivery, "ok").await?;
    Ok(())
}

async fn reconcile(trial: &Trial) -> Result<()> {
    if !trial.store.is_embedded() {
        return Err(Skip("only claims without a deadline grow old, and nobody makes them over HTTP").into());
    }
    let (workflow, _) = trial.own_and_foreign().await?;
    trial.open_with(&workflow, trial.rows([1, 2])?).await?;
    let call = ClaimCall { holder: ClaimHolder::Node, ..trial.claiming(10)? };
    let first = trial.store.claim(call.clone(), Write::default()).await?.value;
    let back = &first[0];
    trial.store.retry(&back.key, Some(back.token), 0, Write::default()).await?;
    let again = trial.store.claim(call, Write::default()).await?.value;
    same("the row that came back", keys(&again), row_keys(&workflow, [1]))?;

    let not_old = trial.store.reconcile(3_600_000, 1_000, Vec::new(), Write::default()).await?.value;
    ensure!(not_old.rearmed.iter().all(|key| key.workflow != workflow), "a young claim was taken for an old one");
    let excluded = row_keys(&workflow, [2]);
    let done = trial.store.reconcile(0, 1_000, excluded, Write::default()).await?.value;
    let own: Vec<_> = done.rearmed.into_iter().filter(|key| key.workflow == workflow).collect();
    same("what was re-armed", own, row_keys(&workflow, [1]))?;
    let row = trial.view(&row_key(&workflow, 1)).await?.row;
    same("its status and count", (row.status, row.deliveries), (RowStatus::Pending, 1))?;
    same("the row that was excluded", trial.status(&row_key(&workflow, 2)).await?, RowStatus::Claimed)?;
    let late = trial.complete(&again[0], "late").await;
    refused("the old claim", late, Reject::ClaimLost { key: row_key(&workflow, 1) })
}
