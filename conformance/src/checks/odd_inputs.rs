//! Odd inputs: each either works and reads back as it was, or is a clear refusal.

use anyhow::Result;
use holdfast_client::{ClaimCall, PageCall, ReadMode, Write};
use holdfast_machine::{
    ActivityType, Commit, EventKind, IdempotencyKey, Millis, NewEvent, NewRow, Payload, RetryPolicy, RowStatus, Scope,
    TaskQueue, WorkflowId, WorkflowStart, WorkflowType,
};

use crate::checks::checks;
use crate::trial::{Trial, keys, note, refused_as, row_key, row_keys, same};

checks! {
    "odd inputs":
    ids = "workflow ids of any characters and of 1 to 255 bytes work and read back as they were",
    ordinals = "ordinals at both ends of their range work in every call",
    times = "visible_after at both ends of its range is kept, and decides when the row is due",
    policies = "retry policies at the ends of their ranges neither overflow nor are lost",
    names = "queues, types and run ids of any characters read back as they were",
    idempotency_keys = "idempotency keys of any characters and of 1 to 255 bytes work",
    numbers = "numbers at the end of their range are answered clearly",
    full_batch = "a full batch of rows is staged, claimed and completed",
}

async fn ids(trial: &Trial) -> Result<()> {
    let tag = trial.name("");
    let texts = [
        format!("with:colon{tag}:9"),
        format!("/with/slash{tag}/"),
        format!("with%2Fescape{tag}%"),
        format!("with space ?&#=+{tag}"),
        format!("🎉🎉{tag}"),
        format!("é\u{301}\u{202e}{tag}"),
        format!("../..{tag}"),
        format!("\"'\\`{tag}"),
        format!("{tag}{}", "x".repeat(255 - tag.len())),
        format!("{tag}{}", "é".repeat((255 - tag.len()) / 2)),
    ];
    for text in texts {
        let workflow = WorkflowId::new(&text)?;
        trial.uses(&workflow);
        trial.open_with(&workflow, trial.rows([1])?).await?;
        let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
        same("its id", view.id.as_str(), &text)?;
        let delivery = trial.claim_one().await?;
        same("its row", &delivery.key, &row_key(&workflow, 1))?;
        same("the row's view", trial.view(&delivery.key).await?.key, delivery.key.clone())?;
        same("its outcome", trial.complete(&delivery, "ok").await?.value, Some(4))?;
        same(
            "its runs",
            trial.store.runs(&workflow, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs.len(),
            1,
        )?;
        same("its history", trial.history(&workflow).await?.len(), 4)?;
    }
    Ok(())
}

async fn ordinals(trial: &Trial) -> Result<()> {
    let both = [0, u64::MAX];
    let workflow = trial.open("ordinals", both).await?;
    let ordinals: Vec<_> = trial.history(&workflow).await?.into_iter().map(|event| event.ordinal).collect();
    same("in the history", ordinals, vec![None, Some(0), Some(0), Some(u64::MAX), Some(u64::MAX)])?;
    let taken = trial.claim(10).await?;
    same("claimed", keys(&taken), row_keys(&workflow, both))?;
    trial.store.rearm(&workflow, trial.rows(both)?, Write::default()).await?;
    for delivery in trial.claim(10).await? {
        trial.complete(&delivery, "ok").await?;
    }
    for key in row_keys(&workflow, both) {
        same("a row", trial.status(&key).await?, RowStatus::Done)?;
    }
    let other = trial.open("settled", both).await?;
    let commit = Commit { settle: both.to_vec(), ..Commit::new(other.clone(), 5) };
    let settled = trial.store.commit(commit, Write::default()).await?.value.settled;
    same("settled", settled, row_keys(&other, both))
}

async fn times(trial: &Trial) -> Result<()> {
    let workflow = trial.id("times")?;
    let at = |ordinal, time| anyhow::Ok(NewRow { visible_after: Millis(time), ..trial.row(ordinal)? });
    let end = u64::MAX;
    trial.open_with(&workflow, vec![at(1, end)?, at(2, end - 1)?, at(3, 1)?, at(4, i64::MAX as u64)?]).await?;
    for (ordinal, time) in [(1, end), (2, end - 1), (3, 1), (4, i64::MAX as u64)] {
        same("a time", trial.view(&row_key(&workflow, ordinal)).await?.row.visible_after, Millis(time))?;
    }
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [3]))?;
    // A claim that waits for a time that never comes ends when its own wait is over.
    let call = ClaimCall { wait_ms: 20, ..trial.claiming(10)? };
    same("what becomes due", trial.store.claim(call, Write::default()).await?.value, Vec::new())
}

async fn policies(trial: &Trial) -> Result<()> {
    let workflow = trial.id("policies")?;
    let far = RetryPolicy {
        initial_ms: u64::MAX,
        multiplier_percent: u32::MAX,
        maximum_ms: u64::MAX,
        deliveries_max: u32::MAX,
        ..RetryPolicy::default()
    };
    let near = RetryPolicy {
        initial_ms: 0,
        multiplier_percent: 0,
        maximum_ms: 0,
        deliveries_max: 2,
        ..RetryPolicy::default()
    };
    let rows = vec![NewRow { retry: far.clone(), ..trial.row(1)? }, NewRow { retry: near.clone(), ..trial.row(2)? }];
    trial.open_with(&workflow, rows).await?;
    let taken = trial.claim(2).await?;
    for (delivery, retry) in taken.iter().zip([far, near]) {
        let returned = trial.fail(delivery, true).await?.value;
        same("what came of it", returned.map(|returned| returned.status), Some(RowStatus::Pending))?;
        same("its policy", trial.view(&delivery.key).await?.row.retry, retry)?;
    }
    same("the one without a wait", keys(&trial.claim(10).await?), row_keys(&workflow, [2]))
}

async fn names(trial: &Trial) -> Result<()> {
    let tag = trial.name("");
    for text in [format!("/a b%2F:?{tag}"), format!("🎉{tag}"), format!("{tag}{}", "x".repeat(255 - tag.len()))] {
        let workflow = trial.id(&format!("names-{}", text.len()))?;
        let (queue, kind) = (TaskQueue::new(&text)?, ActivityType::new(&text)?);
        let started = trial.started()?;
        let start = WorkflowStart {
            namespace: trial.namespace()?,
            workflow_type: WorkflowType::new(&text)?,
            run_id: Some(text.parse()?),
        };
        let started = NewEvent { start: Some(start), ..started };
        let row = NewRow { task_queue: queue.clone(), activity_type: kind.clone(), ..trial.row(1)? };
        let commit = Commit::new(workflow.clone(), 0).event(started).activity(row);
        trial.store.commit(commit, Write::default()).await?;
        let scope = Scope { task_queue: queue.clone(), activity_types: vec![kind.clone()], ..trial.claiming(1)?.scope };
        let taken = trial.store.claim(ClaimCall { scope, ..trial.claiming(10)? }, Write::default()).await?.value;
        let found: Vec<_> =
            taken.iter().map(|d| (d.task_queue.clone(), d.activity_type.clone(), d.run_id.as_str())).collect();
        same("the delivery", found, vec![(queue, kind, text.as_str())])?;
        let run = trial.workflow(&workflow).await?.run;
        same("its type", run.workflow_type.map(|kind| kind.to_string()), Some(text.clone()))?;
    }
    Ok(())
}

async fn idempotency_keys(trial: &Trial) -> Result<()> {
    let workflow = trial.open("keys", []).await?;
    let tag = trial.name("");
    let texts = [format!("🎉é{tag}"), format!(" \"quoted\", {tag}x"), format!("{tag}{}", "k".repeat(255 - tag.len()))];
    for (text, head) in texts.iter().zip(1..) {
        for _ in 0..2 {
            let write = Write::keyed(IdempotencyKey::new(text)?);
            let answer = trial.store.append(&workflow, head, vec![note(text)], write).await?.value;
            same("head and duplicate", (answer.head, answer.duplicate), (head + 1, false))?;
        }
    }
    Ok(())
}

async fn numbers(trial: &Trial) -> Result<()> {
    let workflow = trial.open("numbers", [1]).await?;
    let far = trial.store.append(&workflow, u64::MAX, vec![note("x")], Write::default()).await;
    refused_as("an append at the end of all numbers", far, &["sequence_conflict"])?;
    let far = trial.store.history(&workflow, u64::MAX, 1_000, ReadMode::Linearizable).await?.value;
    same("events at the end of all numbers", far, Vec::new())?;
    let call = ClaimCall { wait_ms: u64::MAX, ..trial.claiming(1)? };
    // Its row is there, so it has nothing to wait for.
    same("a claim that may wait for ever", trial.store.claim(call, Write::default()).await?.value.len(), 1)?;
    same("the head", trial.head(&workflow).await?, 3)
}

async fn full_batch(trial: &Trial) -> Result<()> {
    // Each activity takes two events, so half as many rows as events fit into a commit.
    let rows = trial.limits.batch_max as u64 / 2 - 1;
    let workflow = trial.open("full", 1..=rows).await?;
    let taken = trial.claim(trial.limits.page_max as u32).await?;
    same("the rows taken", keys(&taken), row_keys(&workflow, 1..=rows))?;
    let head = trial.head(&workflow).await?;
    let outcome = |ordinal| NewEvent::activity(EventKind::ActivityCompleted, ordinal).with(Payload::text("ok"));
    trial.store.append(&workflow, head, (1..=rows).map(outcome).collect(), Write::default()).await?;
    same("the first and the last", trial.status(&row_key(&workflow, 1)).await?, RowStatus::Done)?;
    same("the head", trial.head(&workflow).await?, 1 + 3 * rows)?;
    same("the last", trial.status(&row_key(&workflow, rows)).await?, RowStatus::Done)
}
