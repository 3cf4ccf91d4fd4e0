//! Section 5: histories over HTTP. Cases 3, 11 and 12.

use anyhow::{Context, Result, ensure};
use holdfast_client::{ClaimCall, PageCall, ReadMode, Write};
use holdfast_machine::{EventKind, NewEvent, Payload, Reject, RowStatus, WorkflowStatus};
use holdfast_tests::cluster::Setup;
use holdfast_tests::{check, work};

#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_landed_is_answered_again_and_another_is_a_conflict() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 0, "work", "default").await?;
    let batch = |text: &str| vec![work::note("one"), work::note(text), work::note("three")];

    let first = client.append(&id, 1, batch("two"), Write::default()).await?.value;
    ensure!(first.head == 4 && !first.duplicate, "{first:?}");

    // The same bytes, by a caller that lost the answer and made up a new key.
    let again = client.append(&id, 1, batch("two"), Write::default()).await?.value;
    ensure!(again.head == 4 && again.duplicate, "{again:?}");

    // Other bytes.
    let error = work::refusal(client.append(&id, 1, batch("other"), Write::default()).await)?;
    let conflict = Reject::SequenceConflict { workflow: id.clone(), expected: 1, found: 4 };
    ensure!(error.reject() == Some(&conflict), "{error:?}");

    // A head that is not there yet.
    let error = work::refusal(client.append(&id, 9, batch("two"), Write::default()).await)?;
    ensure!(error.code() == "sequence_conflict", "{error:?}");
    ensure!(check::workflow(&client, &id).await?.len() == 4, "something else was written");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_over_a_limit_changes_nothing_and_proposes_nothing() -> Result<()> {
    let cluster = Setup::plain().set("HOLDFAST_LIMITS_PAYLOAD_BYTES_MAX", 1_000).start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 0, "work", "default").await?;
    let batch = |last: usize| {
        let mut events: Vec<NewEvent> = (1..1_000).map(|number| work::note(&number.to_string())).collect();
        events.push(work::note("x").with(Payload::octets(vec![7; last])));
        events
    };

    let error = work::refusal(client.append(&id, 1, batch(1_001), Write::default()).await)?;
    let Some(Reject::LimitExceeded { what, limit: 1_000, actual: 1_001 }) = error.reject() else {
        anyhow::bail!("{error:?}")
    };
    ensure!(what.contains("999"), "the event is not named: {what}");
    ensure!(check::workflow(&client, &id).await?.len() == 1, "the history has changed");

    // The status on the wire, and an event too many.
    let url = format!("{}/v1/workflows/order-1/append", cluster.nodes[0].url);
    let mut events = batch(1);
    events.push(work::note("one too many"));
    let body = serde_json::json!({ "expected_seq": 1, "events": events });
    let answer = cluster.http().post(url).json(&body).send().await?;
    ensure!(answer.status().as_u16() == 413, "{}", answer.status());
    let problem: serde_json::Value = answer.json().await?;
    ensure!(problem["code"] == "limit_exceeded", "{problem}");
    ensure!(problem["details"]["limit"] == 1_000 && problem["details"]["actual"] == 1_001, "{problem}");

    // At the limit it fits.
    let written = client.append(&id, 1, batch(1_000), Write::default()).await?.value;
    ensure!(written.head == 1_001, "{written:?}");
    check::workflow(&client, &id).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_workflow_settles_its_rows_in_the_same_entry() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 3, "work", "orders").await?;
    let claimed = work::claim(&client, "orders", 2, "a worker").await?;

    let end = client.append(&id, 7, vec![NewEvent::of(EventKind::WorkflowFailed)], Write::default()).await?;
    ensure!(end.value.settled.len() == 3, "{end:?}");

    // At that very index nothing of it is live, whichever node is asked.
    for node in cluster.running() {
        for ordinal in 1..=3 {
            let row = cluster.client(node).row(&work::key(&id, ordinal), ReadMode::AtLeast(end.index)).await?.value;
            ensure!(row.row.status == RowStatus::Cancelled && row.row.claim.is_none(), "{row:?}");
        }
    }

    // Nothing claims, re-arms or completes them any more.
    let nothing = client.claim(work::lease("orders", 10, "another", 1_000)?, Write::default()).await?.value;
    ensure!(nothing.is_empty(), "{nothing:?}");
    let reconciled = client.reconcile(0, 100, Vec::new(), Write::default()).await?.value;
    ensure!(reconciled.rearmed.is_empty() && reconciled.settled.is_empty(), "{reconciled:?}");
    let late = work::refusal(
        client.complete(&claimed[0].key, Some(claimed[0].token), Payload::text("late"), Write::default()).await,
    )?;
    ensure!(late.code() == "already_terminal", "{late:?}");
    ensure!(check::workflow(&client, &id).await?.len() == 8, "something was recorded after the end");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_runs_are_a_projection_of_the_history() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    let status = async || -> Result<WorkflowStatus> {
        let view = client.workflow(&id, ReadMode::Linearizable).await?.value;
        Ok(view.workflow.context("the workflow")?.status)
    };

    // Unknown and empty are the same.
    ensure!(client.history(&id, 1, 10, ReadMode::Linearizable).await?.value.is_empty(), "events of nothing");
    ensure!(client.workflow(&id, ReadMode::Linearizable).await?.value.workflow.is_none(), "a workflow of nothing");

    let story = [
        (work::started()?, WorkflowStatus::Running),
        (NewEvent::of(EventKind::WorkflowPaused), WorkflowStatus::Paused),
        (NewEvent::of(EventKind::WorkflowResumed), WorkflowStatus::Running),
        (work::note("between"), WorkflowStatus::Running),
        (NewEvent::of(EventKind::WorkflowContinuedAsNew), WorkflowStatus::ContinuedAsNew),
        (work::started()?, WorkflowStatus::Running),
        (NewEvent::of(EventKind::WorkflowCompleted), WorkflowStatus::Completed),
        (NewEvent::of(EventKind::WorkflowReopened), WorkflowStatus::Running),
        (NewEvent::of(EventKind::WorkflowTimedOut), WorkflowStatus::TimedOut),
    ];
    for (head, (event, leads_to)) in story.into_iter().enumerate() {
        client.append(&id, head as u64, vec![event], Write::default()).await?;
        ensure!(status().await? == leads_to, "after event {}", head + 1);
    }
    let runs = client.runs(&id, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs;
    let chain: Vec<_> = runs.iter().map(|run| (run.started_seq, run.status, run.parent.is_some())).collect();
    let wanted = [(1, WorkflowStatus::ContinuedAsNew, false), (6, WorkflowStatus::TimedOut, true)];
    ensure!(chain == wanted, "{chain:?}");

    // A range read gives the range, and nothing beyond the head.
    let middle = client.history(&id, 4, 2, ReadMode::Linearizable).await?.value;
    ensure!(middle.iter().map(|event| event.seq).eq([4, 5]), "{middle:?}");
    ensure!(client.history(&id, 10, 5, ReadMode::Linearizable).await?.value.is_empty(), "events beyond the head");
    check::workflow(&client, &id).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_workflow_keeps_its_rows_to_itself() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let client = cluster.any()?;
    let id = work::id("order-1")?;
    work::open(&client, &id, 5, "work", "orders").await?;
    client.append(&id, 11, vec![NewEvent::of(EventKind::WorkflowPaused)], Write::default()).await?;

    let ten: ClaimCall = work::lease("orders", 10, "a worker", work::LONG_LEASE_MS)?;
    let paused = client.claim(ten.clone(), Write::default()).await?.value;
    ensure!(paused.is_empty(), "{paused:?}");
    for ordinal in 1..=5 {
        ensure!(work::status(&client, &work::key(&id, ordinal)).await? == RowStatus::Pending, "row {ordinal}");
    }

    // A claim that waits is woken by the resumption.
    let waiting = ClaimCall { wait_ms: 20_000, ..ten };
    let woken = tokio::spawn({
        let client = cluster.client(1).clone();
        async move { client.claim(waiting, Write::default()).await }
    });
    client.append(&id, 12, vec![NewEvent::of(EventKind::WorkflowResumed)], Write::default()).await?;
    let all = woken.await??.value;
    ensure!(all.len() == 5, "{} rows", all.len());
    check::workflow(&client, &id).await?;
    cluster.finish().await
}
