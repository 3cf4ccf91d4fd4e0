//! Idempotency keys: a call sent again gets the first answer, and has one effect.

use anyhow::{Result, ensure};
use futures::future::join_all;
use holdfast_client::{ClaimCall, Failure, ReadMode, Write};
use holdfast_machine::{Commit, Fence, NodeName, Payload, Reject, RowStatus};

use crate::checks::checks;
use crate::trial::{LONG_LEASE_MS, Trial, keys, note, refused, refused_as, row_key, row_keys, same};

checks! {
    "idempotency":
    every_call = "every mutating call sent again under its key gets the first answer and changes nothing",
    refusals = "a refusal is remembered like an answer",
    of_the_moment = "a refusal that tells of the moment is not remembered: the same call may be taken later",
    another_call = "another call under the same key is refused, and the first answer stays",
    at_once = "one call sent many times at once has one effect and one answer",
    claims_again = "a claim sent again under its key returns the same rows and tokens",
    empty_claims = "a claim that found nothing is not remembered: it may find something later",
}

async fn every_call(trial: &Trial) -> Result<()> {
    let workflow = trial.id("again")?;
    let store = &trial.store;
    let commit = trial.opening(&workflow, trial.rows([1, 2, 3, 4, 5])?)?;
    let first = store.commit(commit.clone(), trial.keyed("commit")?).await?;
    same("commit", store.commit(commit, trial.keyed("commit")?).await?.value, first.value)?;

    let append = async || {
        store.append(&workflow, 11, vec![note("a")], trial.keyed("append")?).await.map_err(anyhow::Error::from)
    };
    let first = append().await?;
    same("append", append().await?.value, first.value)?;

    let taken = trial.claim(4).await?;
    let beat = async || {
        let details = Payload::text("half way");
        let answer =
            store.heartbeat(&taken[0].key, taken[0].token, LONG_LEASE_MS, details, trial.keyed("beat")?).await?;
        anyhow::Ok(answer.value)
    };
    let first = beat().await?;
    same("heartbeat", beat().await?, first)?;

    let complete = async || {
        let result = Payload::text("ok");
        anyhow::Ok(store.complete(&taken[0].key, Some(taken[0].token), result, trial.keyed("complete")?).await?.value)
    };
    let first = complete().await?;
    same("complete", complete().await?, first)?;

    let fail = async || {
        let error = Payload::text("broken");
        anyhow::Ok(
            store
                .fail(&taken[1].key, Some(taken[1].token), Failure::for_good(error), trial.keyed("fail")?)
                .await?
                .value,
        )
    };
    let first = fail().await?;
    same("fail", fail().await?, first)?;

    let retry = async || {
        let (key, token) = (&taken[2].key, Some(taken[2].token));
        anyhow::Ok(store.retry(key, token, LONG_LEASE_MS, trial.keyed("retry")?).await?.value)
    };
    let first = retry().await?;
    same("retry", retry().await?, first)?;
    same("the count of the row", trial.view(&taken[2].key).await?.row.deliveries, 1)?;

    let rearm = async || anyhow::Ok(store.rearm(&workflow, trial.rows([3])?, trial.keyed("rearm")?).await?.value);
    let first = rearm().await?;
    let again = trial.claim_one().await?;
    same("rearm", rearm().await?, first)?;
    same("the row that was claimed meanwhile", trial.status(&again.key).await?, RowStatus::Claimed)?;

    let settle = async || anyhow::Ok(store.settle(&workflow, trial.keyed("settle")?).await?.value);
    let first = settle().await?;
    ensure!(!first.is_empty(), "there was nothing to settle");
    same("settle", settle().await?, first)?;
    same("the head", trial.head(&workflow).await?, 14)
}

async fn refusals(trial: &Trial) -> Result<()> {
    let workflow = trial.open("refused", []).await?;
    let ahead = async || {
        trial.store.append(&workflow, 2, vec![note("b")], trial.keyed("ahead")?).await.map_err(anyhow::Error::from)
    };
    let conflict = || Reject::SequenceConflict { workflow: workflow.clone(), expected: 2, found: 1 };
    let again = async |what: &str| -> Result<()> {
        match ahead().await {
            Ok(answer) => anyhow::bail!("{what} was not refused: {answer:?}"),
            Err(error) => refused::<()>(what, Err(error.downcast()?), conflict()),
        }
    };
    again("an append beyond the head").await?;
    trial.store.append(&workflow, 1, vec![note("a")], Write::default()).await?;
    again("the same one, which would fit by now").await?;
    same("the head", trial.head(&workflow).await?, 2)
}

async fn of_the_moment(trial: &Trial) -> Result<()> {
    let workflow = trial.open("moment", []).await?;
    let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
    let Some(right) = view.fence else { anyhow::bail!("shard {} has no owner", view.shard) };
    let wrong = Fence { owner: NodeName::new(trial.name("stranger"))?, ..right.clone() };
    let append = async |fence| {
        let write = Write { fence: Some(fence), ..trial.keyed("moment")? };
        anyhow::Ok(trial.store.append(&workflow, 1, vec![note("x")], write).await)
    };
    refused_as("under another fence", append(wrong.clone()).await?, &["not_owner"])?;
    refused_as("once more", append(wrong).await?, &["not_owner"])?;
    same("under the right one", append(right).await??.value.head, 2)
}

async fn another_call(trial: &Trial) -> Result<()> {
    let workflow = trial.open("another", []).await?;
    let append = |text: &str| {
        let write = trial.keyed("key");
        let event = note(text);
        let workflow = &workflow;
        async move { anyhow::Ok(trial.store.append(workflow, 1, vec![event], write?).await) }
    };
    let first = append("a").await??;
    refused("another event", append("b").await?, Reject::IdempotencyConflict)?;
    let commit = Commit { settle: vec![1], ..Commit::new(workflow.clone(), 1) }.event(note("a"));
    let other = trial.store.commit(commit, trial.keyed("key")?).await;
    refused("another commit", other, Reject::IdempotencyConflict)?;
    let other = trial.store.settle(&workflow, trial.keyed("key")?).await;
    refused("another kind of call", other, Reject::IdempotencyConflict)?;
    same("the first one again", append("a").await??.value, first.value)?;
    same("the head", trial.head(&workflow).await?, 2)
}

async fn at_once(trial: &Trial) -> Result<()> {
    let workflow = trial.open("at-once", [1]).await?;
    let delivery = trial.claim_one().await?;
    let retry = || async {
        let write = trial.keyed("retry")?;
        anyhow::Ok(trial.store.retry(&delivery.key, Some(delivery.token), 0, write).await?.value)
    };
    let answers = join_all((0..8).map(|_| retry())).await.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(answers.iter().all(|answer| *answer == answers[0]), "different answers: {answers:?}");
    same("the count of the row", trial.view(&row_key(&workflow, 1)).await?.row.deliveries, 1)
}

async fn claims_again(trial: &Trial) -> Result<()> {
    let workflow = trial.open("claims", [1, 2, 3]).await?;
    let claim = async || {
        // It may wait, and must not where there is an answer already.
        let call = ClaimCall { wait_ms: 30_000, ..trial.claiming(2)? };
        anyhow::Ok(trial.store.claim(call, trial.keyed("claim")?).await?.value)
    };
    let first = claim().await?;
    same("the first time", keys(&first), row_keys(&workflow, [1, 2]))?;
    same("the second time", claim().await?, first)?;
    same("what is left", keys(&trial.claim(10).await?), row_keys(&workflow, [3]))
}

async fn empty_claims(trial: &Trial) -> Result<()> {
    let claim = async || anyhow::Ok(trial.store.claim(trial.claiming(1)?, trial.keyed("claim")?).await?.value);
    same("nothing", claim().await?, Vec::new())?;
    let workflow = trial.open("found", [1]).await?;
    same("the same claim later", keys(&claim().await?), row_keys(&workflow, [1]))
}
