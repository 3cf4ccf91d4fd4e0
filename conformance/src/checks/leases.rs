//! Leases and tokens: who holds a row, for how long, and that a claim that is over changes nothing.

use anyhow::{Result, ensure};
use futures::future::join_all;
use holdfast_client::{Failure, Write};
use holdfast_machine::{ClaimToken, EventKind, NewRow, Payload, Reject, RetryPolicy, RowStatus};

use crate::checks::checks;
use crate::trial::{LONG_LEASE_MS, Trial, note, refused, row_key, same};

checks! {
    "leases":
    heartbeats = "a heartbeat extends the lease and replaces the details that are shown",
    heartbeat_over = "a heartbeat under a claim that is over is refused",
    lease_ends = "a lease that ends gives its row back at once, with its counts kept",
    late_token = "a completion under an old token is absorbed: one outcome, the second claimant's",
    made_up_tokens = "a token that was never issued moves nothing",
    completes_once = "an activity has one outcome, however often and by how many it is completed",
    completes = "a completion records its result as the next event and finishes the row",
    fails_for_good = "a failure that is not to be retried is recorded at once",
    backs_off = "a failed attempt comes back after a wait that grows, with its counts one up",
    dead_letter = "a row whose budget is spent is a dead letter, and no outcome is recorded",
    hands_back = "a row that is handed back comes back after the delay, as the same attempt",
    no_row = "a transition under a token of a row that is not there is refused",
}

async fn heartbeats(trial: &Trial) -> Result<()> {
    trial.open("beats", [1]).await?;
    let delivery = trial.claim_one().await?;
    let beat = |lease_ms, details: Payload| {
        trial.store.heartbeat(&delivery.key, delivery.token, lease_ms, details, Write::default())
    };
    let longer = beat(2 * LONG_LEASE_MS, Payload::text("half way")).await?.value;
    ensure!(Some(longer) > delivery.deadline, "the lease was not extended: {longer} after {:?}", delivery.deadline);
    let view = trial.view(&delivery.key).await?;
    same("the details", view.details, Payload::text("half way"))?;
    same("the deadline", view.row.claim.and_then(|claim| claim.deadline), Some(longer))?;
    beat(2 * LONG_LEASE_MS, Payload::text("nearly there")).await?;
    same("the new details", trial.view(&delivery.key).await?.details, Payload::text("nearly there"))?;
    // A lease may be made shorter as well: what counts is the last word.
    let shorter = beat(LONG_LEASE_MS / 2, Payload::default()).await?.value;
    ensure!(shorter < longer, "the lease was not made shorter: {shorter} after {longer}");
    trial.complete(&delivery, "ok").await?;
    Ok(())
}

async fn heartbeat_over(trial: &Trial) -> Result<()> {
    trial.open("over", [1]).await?;
    let old = trial.claim_and_let_go().await?;
    let key = old.key.clone();
    let beat = async |token| trial.store.heartbeat(&key, token, 1_000, Payload::default(), Write::default()).await;
    refused("after the end of the lease", beat(old.token).await, Reject::ClaimLost { key: key.clone() })?;
    let new = trial.claim_one().await?;
    refused("under the old token", beat(old.token).await, Reject::ClaimLost { key: key.clone() })?;
    trial.complete(&new, "ok").await?;
    let finished = Reject::AlreadyTerminal { key: key.clone(), status: Some(RowStatus::Done) };
    refused("after the completion", beat(new.token).await, finished)
}

async fn lease_ends(trial: &Trial) -> Result<()> {
    trial.open("ends", [1]).await?;
    let first = trial.claim_and_let_go().await?;
    let row = trial.view(&first.key).await?.row;
    same("the counts", (row.deliveries, row.attempt, row.claim), (0, 1, None))?;
    let second = trial.claim_one().await?;
    same("the row", &second.key, &first.key)?;
    same("attempt and deliveries", (second.attempt, second.deliveries), (1, 0))?;
    ensure!(second.token != first.token, "two claims under one token");
    Ok(())
}

async fn late_token(trial: &Trial) -> Result<()> {
    let workflow = trial.open("late", [1]).await?;
    let first = trial.claim_and_let_go().await?;
    let second = trial.claim_one().await?;
    let early = trial.complete(&first, "the first claimant's").await;
    refused("while another one holds the row", early, Reject::ClaimLost { key: first.key.clone() })?;
    trial.complete(&second, "the second claimant's").await?;
    let late = trial.complete(&first, "the first claimant's").await;
    let terminal = Reject::AlreadyTerminal { key: first.key.clone(), status: Some(RowStatus::Done) };
    refused("after the outcome", late, terminal.clone())?;
    refused("a failure after the outcome", trial.fail(&first, false).await, terminal)?;
    let history = trial.history(&workflow).await?;
    let outcomes: Vec<_> = history.iter().filter(|event| event.kind.is_outcome()).collect();
    same("the number of outcomes", outcomes.len(), 1)?;
    same("the outcome", &outcomes[0].payload, &Payload::text("the second claimant's"))
}

async fn made_up_tokens(trial: &Trial) -> Result<()> {
    let workflow = trial.open("made-up", [1, 2]).await?;
    let held = trial.claim_one().await?;
    let head = trial.head(&workflow).await?;
    let ClaimToken { index, number } = held.token;
    for token in [
        ClaimToken { index, number: number + 1 },
        ClaimToken { index: index + 1, number },
        ClaimToken { index: u64::MAX, number: u32::MAX },
        ClaimToken { index: 0, number: 0 },
    ] {
        for key in [row_key(&workflow, 1), row_key(&workflow, 2)] {
            let lost = || Reject::ClaimLost { key: key.clone() };
            let result = Payload::text("made up");
            let write = Write::default;
            refused("complete", trial.store.complete(&key, Some(token), result.clone(), write()).await, lost())?;
            refused(
                "fail",
                trial.store.fail(&key, Some(token), Failure::for_good(result.clone()), write()).await,
                lost(),
            )?;
            refused("retry", trial.store.retry(&key, Some(token), 0, write()).await, lost())?;
            refused("heartbeat", trial.store.heartbeat(&key, token, 1_000, result, write()).await, lost())?;
        }
    }
    same("the head", trial.head(&workflow).await?, head)?;
    trial.complete(&held, "ok").await?;
    Ok(())
}

async fn completes_once(trial: &Trial) -> Result<()> {
    let workflow = trial.open("once", [1]).await?;
    let delivery = trial.claim_one().await?;
    let results = ["a", "b", "c", "d", "e", "f"];
    let mut recorded = 0;
    for (result, answer) in results.iter().zip(join_all(results.map(|text| trial.complete(&delivery, text))).await) {
        match answer {
            Ok(answer) => {
                recorded += 1;
                same("the number of the outcome", answer.value, Some(4))?;
                let outcome = trial.history(&workflow).await?.remove(3);
                same("the outcome", outcome.payload, Payload::text(*result))?;
            }
            Err(failure) if failure.is_retryable() => return Err(failure.into()),
            refusal => {
                let terminal = Reject::AlreadyTerminal { key: delivery.key.clone(), status: Some(RowStatus::Done) };
                refused("a second completion", refusal, terminal)?;
            }
        }
    }
    same("the completions that were recorded", recorded, 1)?;
    same("the head", trial.head(&workflow).await?, 4)
}

async fn completes(trial: &Trial) -> Result<()> {
    let workflow = trial.open("completes", [1, 2]).await?;
    let delivery = trial.claim_one().await?;
    trial.store.append(&workflow, 5, vec![note("in between")], Write::default()).await?;
    same("its number", trial.complete(&delivery, "ok").await?.value, Some(7))?;
    let event = trial.history(&workflow).await?.remove(6);
    same("kind and activity", (event.kind, event.ordinal), (EventKind::ActivityCompleted, Some(1)))?;
    same("its payload", event.payload, Payload::text("ok"))?;
    let row = trial.view(&delivery.key).await?.row;
    same("the row", (row.status, row.outcome_seq, row.claim), (RowStatus::Done, Some(7), None))
}

async fn fails_for_good(trial: &Trial) -> Result<()> {
    let workflow = trial.open("fails", [1]).await?;
    let delivery = trial.claim_one().await?;
    let Some(returned) = trial.fail(&delivery, false).await?.value else { anyhow::bail!("the row was not found") };
    same("what came of it", (returned.status, returned.failed_seq), (RowStatus::Failed, Some(4)))?;
    let event = trial.history(&workflow).await?.remove(3);
    same("kind and activity", (event.kind, event.ordinal), (EventKind::ActivityFailed, Some(1)))?;
    same("its payload", event.payload, Payload::text("broken"))?;
    let row = trial.view(&delivery.key).await?.row;
    same("status and mark", (row.status, row.failure_delivered), (RowStatus::Failed, true))?;
    let terminal = Reject::AlreadyTerminal { key: delivery.key.clone(), status: Some(RowStatus::Failed) };
    refused("a completion afterwards", trial.complete(&delivery, "late").await, terminal)
}

async fn backs_off(trial: &Trial) -> Result<()> {
    let workflow = trial.id("backs-off")?;
    let retry =
        RetryPolicy { initial_ms: 600_000, multiplier_percent: 300, maximum_ms: 4_000_000, ..RetryPolicy::default() };
    let row = NewRow { retry, ..trial.row(1)? };
    trial.open_with(&workflow, vec![row.clone()]).await?;
    for (deliveries, wait) in [(1, 600_000), (2, 1_800_000), (3, 4_000_000), (4, 4_000_000)] {
        let delivery = trial.claim_one().await?;
        same("attempt and deliveries", (delivery.attempt, delivery.deliveries), (deliveries, deliveries - 1))?;
        let claimed_at = trial.view(&delivery.key).await?.row.claim.map(|claim| claim.claimed_at).unwrap_or_default();
        let Some(returned) = trial.fail(&delivery, true).await?.value else { anyhow::bail!("the row was not found") };
        same("what came of it", (returned.status, returned.deliveries), (RowStatus::Pending, deliveries))?;
        same("its event", returned.failed_seq, None)?;
        same("what is due meanwhile", trial.claim(10).await?, Vec::new())?;
        // Re-arming makes the row due at once, so that nobody has to wait for it here.
        trial.store.rearm(&workflow, vec![row.clone()], Write::default()).await?;
        let rearmed_at = trial.view(&delivery.key).await?.row.visible_after;
        let (least, most) = (claimed_at.plus(wait), rearmed_at.plus(wait + wait / 10));
        ensure!(
            (least..=most).contains(&returned.visible_after),
            "attempt {deliveries} is due at {}, not within {least} and {most}",
            returned.visible_after
        );
    }
    same("the head", trial.head(&workflow).await?, 3)
}

async fn dead_letter(trial: &Trial) -> Result<()> {
    let workflow = trial.id("dead")?;
    let retry = RetryPolicy { initial_ms: 0, deliveries_max: 2, ..RetryPolicy::default() };
    trial.open_with(&workflow, vec![NewRow { retry, ..trial.row(1)? }]).await?;
    let first = trial.claim_one().await?;
    trial.fail(&first, true).await?;
    let second = trial.claim_one().await?;
    let Some(returned) = trial.fail(&second, true).await?.value else { anyhow::bail!("the row was not found") };
    same("what came of it", (returned.status, returned.deliveries), (RowStatus::Failed, 2))?;
    same("its event", returned.failed_seq, None)?;
    same("the head", trial.head(&workflow).await?, 3)?;
    let row = trial.view(&second.key).await?.row;
    same("status and mark", (row.status, row.failure_delivered), (RowStatus::Failed, false))?;
    same("what is due", trial.claim(10).await?, Vec::new())
}

async fn hands_back(trial: &Trial) -> Result<()> {
    let workflow = trial.open("back", [1]).await?;
    let first = trial.claim_one().await?;
    let back = trial.store.retry(&first.key, Some(first.token), 0, Write::default()).await?.value;
    let Some(back) = back else { anyhow::bail!("the row was not found") };
    same("what came of it", (back.status, back.deliveries, back.failed_seq), (RowStatus::Pending, 1, None))?;
    let second = trial.claim_one().await?;
    same("attempt and deliveries", (second.attempt, second.deliveries), (1, 1))?;
    let claimed_at = trial.view(&second.key).await?.row.claim.map(|claim| claim.claimed_at).unwrap_or_default();
    let back = trial.store.retry(&second.key, Some(second.token), LONG_LEASE_MS, Write::default()).await?.value;
    let Some(back) = back else { anyhow::bail!("the row was not found") };
    ensure!(back.visible_after >= claimed_at.plus(LONG_LEASE_MS), "{back:?} is due before its delay is over");
    same("what is due", trial.claim(10).await?, Vec::new())?;
    same("the head", trial.head(&workflow).await?, 3)
}

async fn no_row(trial: &Trial) -> Result<()> {
    let workflow = trial.open("no-row", [1]).await?;
    let delivery = trial.claim_one().await?;
    let key = row_key(&workflow, 2);
    let missing = || Reject::RowNotFound { key: key.clone() };
    let (token, write) = (delivery.token, Write::default);
    refused("complete", trial.store.complete(&key, Some(token), Payload::default(), write()).await, missing())?;
    refused(
        "fail",
        trial.store.fail(&key, Some(token), Failure::retryable(Payload::default()), write()).await,
        missing(),
    )?;
    refused("retry", trial.store.retry(&key, Some(token), 0, write()).await, missing())?;
    refused("heartbeat", trial.store.heartbeat(&key, token, 1, Payload::default(), write()).await, missing())
}
