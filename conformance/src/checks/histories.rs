//! Histories: appends that take place whole or not at all, and reads of what they left.

use anyhow::{Result, ensure};
use futures::future::join_all;
use holdfast_client::{PageCall, ReadMode, Write};
use holdfast_machine::{Commit, EventKind, NewEvent, Payload, Reject, RowStatus, WorkflowStatus};

use crate::checks::checks;
use crate::trial::{Trial, note, refused, refused_as, row_key, row_keys, same};

checks! {
    "histories":
    creates = "an append at 0 creates the workflow, and its events are numbered from 1",
    dense = "events are numbered 1, 2, 3 … without gaps, and their times never decrease",
    wrong_place = "an append at another place than the head is refused with what was expected and what was found",
    append_again = "an append sent again with the same bytes is a duplicate; with other bytes it is a conflict",
    commit_again = "a commit sent again is a duplicate only if its rows are the same too",
    one_of_many = "of many different appends at one place exactly one takes place",
    nobody = "an unknown workflow reads as an empty history and no error",
    ranges = "a read gives the range that was asked for, and nothing beyond the head",
    pages = "a long history is read in pages, whole and in order",
    own_kinds = "kinds that the store does not know are kept as they are",
    payloads = "payloads are kept to the byte, with their content type",
    all_or_nothing = "a batch with one event that does not fit is refused whole",
    whole_commits = "a commit with a row that its events do not announce is refused whole",
    staging = "a commit writes events and rows together, and a row reads back as it was staged",
    standing_rows = "a dispatch key that exists is left as it is, and the reply says so",
    status_follows = "the status is what the last lifecycle event says, and running without one",
    no_fit = "a lifecycle event that does not fit is refused with the status that it found",
    nothing = "a commit of nothing changes nothing, and cannot create a workflow",
}

async fn creates(trial: &Trial) -> Result<()> {
    let workflow = trial.id("new")?;
    let events = vec![trial.started()?, note("a")];
    let committed = trial.store.append(&workflow, 0, events, Write::default()).await?.value;
    same("head and duplicate", (committed.head, committed.duplicate), (2, false))?;
    let state = trial.workflow(&workflow).await?;
    same("status and head", (state.status, state.head), (WorkflowStatus::Running, 2))?;
    same("its namespace", state.namespace, trial.namespace()?)?;
    same("its kinds", trial.kinds(&workflow).await?, vec![EventKind::WorkflowStarted, note("").kind])
}

async fn dense(trial: &Trial) -> Result<()> {
    let workflow = trial.open("dense", []).await?;
    let mut head = 1;
    for size in [1, 3, 2, 5] {
        let events = (0..size).map(|number| note(&format!("{head}+{number}"))).collect();
        let committed = trial.store.append(&workflow, head, events, Write::default()).await?.value;
        head += size;
        same("the head after an append", committed.head, head)?;
    }
    let history = trial.history(&workflow).await?;
    let numbers: Vec<u64> = history.iter().map(|event| event.seq).collect();
    same("the numbers", numbers, (1..=head).collect())?;
    ensure!(history.is_sorted_by_key(|event| event.at), "times go back: {history:?}");
    Ok(())
}

async fn wrong_place(trial: &Trial) -> Result<()> {
    let workflow = trial.open("place", []).await?;
    for expected in [0, 2, u64::MAX] {
        let result = trial.store.append(&workflow, expected, vec![note("late")], Write::default()).await;
        let conflict = Reject::SequenceConflict { workflow: workflow.clone(), expected, found: 1 };
        refused("an append at another place", result, conflict)?;
    }
    let nobody = trial.id("nobody")?;
    let result = trial.store.append(&nobody, 3, vec![note("early")], Write::default()).await;
    refused("an append to nothing", result, Reject::SequenceConflict { workflow: nobody, expected: 3, found: 0 })?;
    same("the head after all these", trial.head(&workflow).await?, 1)
}

async fn append_again(trial: &Trial) -> Result<()> {
    let workflow = trial.open("again", []).await?;
    let events = || vec![note("a"), note("b")];
    let first = trial.store.append(&workflow, 1, events(), Write::default()).await?.value;
    let second = trial.store.append(&workflow, 1, events(), Write::default()).await?.value;
    same("the first one", (first.head, first.duplicate), (3, false))?;
    same("the second one", (second.head, second.duplicate), (3, true))?;
    for other in [vec![note("a"), note("c")], vec![note("a")], vec![note("a"), note("b"), note("c")]] {
        let conflict = Reject::SequenceConflict { workflow: workflow.clone(), expected: 1, found: 3 };
        refused("other bytes", trial.store.append(&workflow, 1, other, Write::default()).await, conflict)?;
    }
    trial.store.append(&workflow, 3, vec![note("d")], Write::default()).await?;
    let late = trial.store.append(&workflow, 1, events(), Write::default()).await?.value;
    ensure!(late.duplicate, "a retry behind later events is a duplicate as well: {late:?}");
    same("the head", trial.head(&workflow).await?, 4)
}

async fn commit_again(trial: &Trial) -> Result<()> {
    let workflow = trial.id("again")?;
    let commit = trial.opening(&workflow, trial.rows([1, 2])?)?;
    let first = trial.store.commit(commit.clone(), Write::default()).await?.value;
    ensure!(!first.duplicate && first.staged.iter().all(|staged| staged.written), "the first commit: {first:?}");
    let second = trial.store.commit(commit.clone(), Write::default()).await?.value;
    same("the second one", (second.head, second.duplicate), (5, true))?;
    let mut other = commit;
    other.rows[1].input = Payload::text("another input");
    let conflict = Reject::SequenceConflict { workflow: workflow.clone(), expected: 0, found: 5 };
    refused("the same events with another row", trial.store.commit(other, Write::default()).await, conflict)?;
    same("the row", trial.view(&row_key(&workflow, 2)).await?.input, Payload::text("input 2"))
}

async fn one_of_many(trial: &Trial) -> Result<()> {
    const WRITERS: usize = 8;
    let workflow = trial.open("race", []).await?;
    for round in 0..5 {
        let head = 1 + round;
        let append = |number: usize| {
            let event = note(&format!("writer {number}"));
            let store = &trial.store;
            let workflow = &workflow;
            async move { store.append(workflow, head, vec![event], Write::default()).await }
        };
        let mut landed = 0;
        for result in join_all((0..WRITERS).map(append)).await {
            match result {
                Ok(answer) => {
                    ensure!(!answer.value.duplicate, "another writer's append was taken for this one's");
                    landed += 1;
                }
                Err(failure) if failure.is_retryable() => return Err(failure.into()),
                refusal => {
                    let found = head + 1;
                    let conflict = Reject::SequenceConflict { workflow: workflow.clone(), expected: head, found };
                    refused("a late writer", refusal, conflict)?;
                }
            }
        }
        same("the appends that took place", landed, 1)?;
    }
    same("the events", trial.history(&workflow).await?.len(), 6)
}

async fn nobody(trial: &Trial) -> Result<()> {
    let workflow = trial.id("nobody")?;
    for from in [0, 1, 7, u64::MAX] {
        let history = trial.store.history(&workflow, from, 10, ReadMode::Linearizable).await?.value;
        same("its history", history, Vec::new())?;
    }
    same(
        "its runs",
        trial.store.runs(&workflow, &PageCall::first(10), ReadMode::Linearizable).await?.value.runs,
        Vec::new(),
    )?;
    let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
    same("its id and projection", (view.id, view.workflow), (workflow, None))
}

async fn ranges(trial: &Trial) -> Result<()> {
    let workflow = trial.open("ranges", []).await?;
    let events = (2..=9).map(|number| note(&number.to_string())).collect();
    trial.store.append(&workflow, 1, events, Write::default()).await?;
    let cases: [(u64, u32, Vec<u64>); 8] = [
        (1, 3, vec![1, 2, 3]),
        (0, 2, vec![1, 2]),
        (4, 2, vec![4, 5]),
        (8, 10, vec![8, 9]),
        (9, 1, vec![9]),
        (10, 10, vec![]),
        (11, 10, vec![]),
        (u64::MAX, 10, vec![]),
    ];
    for (from, limit, expected) in cases {
        let page = trial.store.history(&workflow, from, limit, ReadMode::Linearizable).await?.value;
        let numbers: Vec<u64> = page.iter().map(|event| event.seq).collect();
        same(&format!("from {from}, at most {limit}"), numbers, expected)?;
    }
    Ok(())
}

async fn pages(trial: &Trial) -> Result<()> {
    const EVENTS: u64 = 700;
    let workflow = trial.id("long")?;
    let events = (1..=EVENTS).map(|number| note(&number.to_string())).collect();
    trial.store.append(&workflow, 0, events, Write::default()).await?;
    let mut read = Vec::new();
    loop {
        let page = trial.store.history(&workflow, read.len() as u64 + 1, 150, ReadMode::Linearizable).await?.value;
        ensure!(page.len() <= 150, "a page of {} events where 150 were asked for", page.len());
        if page.is_empty() {
            break;
        }
        read.extend(page.into_iter().map(|event| event.payload));
    }
    same("the events", read, (1..=EVENTS).map(|number| Payload::text(number.to_string())).collect())
}

async fn own_kinds(trial: &Trial) -> Result<()> {
    let workflow = trial.id("kinds")?;
    let mut kinds: Vec<EventKind> = ["my.own kind", "workflowcompleted", "WorkflowStarted2", "🎉", "WorkflowHeld"]
        .map(|name| EventKind::Other(name.to_owned()))
        .into();
    kinds.extend([EventKind::TimerStarted, EventKind::TimerFired, EventKind::TimerCancelled]);
    kinds.push(EventKind::SignalReceived);
    kinds.push(EventKind::from_name("ChildWorkflowStarted"));
    let events = kinds.iter().cloned().map(NewEvent::of).collect();
    trial.store.append(&workflow, 0, events, Write::default()).await?;
    same("the kinds", trial.kinds(&workflow).await?, kinds)?;
    same("the status", trial.workflow(&workflow).await?.status, WorkflowStatus::Running)
}

async fn payloads(trial: &Trial) -> Result<()> {
    let workflow = trial.id("payloads")?;
    let all = vec![
        Payload::default(),
        Payload::text("plain é 🎉"),
        Payload::text(""),
        Payload::octets((0..=255u8).collect::<Vec<u8>>()),
        Payload::json(&serde_json::json!({"a": [1, 2.5, null, "é"]}))?,
        Payload { content_type: "application/json".into(), data: r#"{"n": 12345678901234567890.10}"#.into() },
        Payload { content_type: "application/json".into(), data: " not json".into() },
        Payload { content_type: "text/csv".into(), data: vec![0xff, 0xfe].into() },
        Payload { content_type: "application/x-protobuf".into(), data: vec![0, 1, 2].into() },
        Payload { content_type: String::new(), data: vec![7].into() },
    ];
    let events = all.iter().map(|payload| note("").with(payload.clone())).collect();
    trial.store.append(&workflow, 0, events, Write::default()).await?;
    let read: Vec<Payload> = trial.history(&workflow).await?.into_iter().map(|event| event.payload).collect();
    same("the payloads", read, all)
}

async fn all_or_nothing(trial: &Trial) -> Result<()> {
    let workflow = trial.open("whole", []).await?;
    let batch = |last| vec![note("a"), note("b"), last];
    let without_ordinal = batch(NewEvent::of(EventKind::ActivityCompleted));
    let result = trial.store.append(&workflow, 1, without_ordinal, Write::default()).await;
    refused_as("an outcome without its activity", result, &["invalid_argument"])?;
    let without_start = vec![NewEvent::of(EventKind::WorkflowCompleted), NewEvent::of(EventKind::WorkflowStarted)];
    let result = trial.store.append(&workflow, 1, without_start, Write::default()).await;
    refused_as("a start without particulars", result, &["invalid_argument"])?;
    let state = trial.workflow(&workflow).await?;
    same("status and head", (state.status, state.head), (WorkflowStatus::Running, 1))
}

async fn whole_commits(trial: &Trial) -> Result<()> {
    let workflow = trial.open("whole", []).await?;
    let scheduled = NewEvent::activity(EventKind::ActivityScheduled, 2);
    let unannounced = Commit::new(workflow.clone(), 1).activity(trial.row(1)?).event(scheduled);
    let unannounced = Commit { rows: trial.rows([1, 2])?, ..unannounced };
    let result = trial.store.commit(unannounced, Write::default()).await;
    refused_as("a row without its ActivityStarted", result, &["invalid_argument"])?;
    let twice = Commit::new(workflow.clone(), 1).activity(trial.row(1)?);
    let twice = Commit { rows: trial.rows([1, 1])?, ..twice };
    refused_as("one row twice", trial.store.commit(twice, Write::default()).await, &["invalid_argument"])?;
    same("the head", trial.head(&workflow).await?, 1)?;
    let key = row_key(&workflow, 1);
    let row = trial.store.row(&key, ReadMode::Linearizable).await;
    refused("the row of a refused commit", row, Reject::RowNotFound { key })
}

async fn staging(trial: &Trial) -> Result<()> {
    let workflow = trial.id("staged")?;
    let (one, two) = (trial.row(1)?, trial.row(2)?);
    let commit = trial.opening(&workflow, vec![one.clone(), two])?;
    let committed = trial.store.commit(commit, Write::default()).await?.value;
    let staged: Vec<_> = committed.staged.iter().map(|staged| (staged.key.clone(), staged.written)).collect();
    same("what was staged", staged, vec![(row_key(&workflow, 1), true), (row_key(&workflow, 2), true)])?;
    let view = trial.view(&row_key(&workflow, 1)).await?;
    same("its key and input", (view.key, view.input), (row_key(&workflow, 1), one.input))?;
    let row = view.row;
    same("its pool", (row.namespace, row.task_queue), (trial.namespace()?, one.task_queue))?;
    same("its node and type", (row.node, row.activity_type), (None, one.activity_type))?;
    same("its standing", (row.status, row.deliveries, row.attempt), (RowStatus::Pending, 0, 1))?;
    same(
        "its policy, claim, outcome and run",
        (row.retry, row.claim, row.outcome_seq, row.run),
        (one.retry, None, None, 1),
    )?;
    ensure!(!row.failure_delivered, "a fresh row says that its failure was delivered");
    let at = trial.history(&workflow).await?[1].at;
    same("the time from which it is due", row.visible_after, at)
}

async fn standing_rows(trial: &Trial) -> Result<()> {
    let workflow = trial.open("standing", [1, 2]).await?;
    let done = trial.claim_one().await?;
    trial.complete(&done, "ok").await?;
    let mut rows = trial.rows([1, 2, 3])?;
    for row in &mut rows {
        row.input = Payload::text("another input");
    }
    let head = trial.head(&workflow).await?;
    let commit = rows.into_iter().fold(Commit::new(workflow.clone(), head), Commit::activity);
    let staged = trial.store.commit(commit, Write::default()).await?.value.staged;
    let written: Vec<bool> = staged.iter().map(|staged| staged.written).collect();
    same("what was written", written, vec![false, false, true])?;
    for key in row_keys(&workflow, [1, 2]) {
        let view = trial.view(&key).await?;
        let status = if key == done.key { RowStatus::Done } else { RowStatus::Pending };
        same(
            "a row that stood there",
            (view.row.status, view.input),
            (status, Payload::text(format!("input {}", key.ordinal))),
        )?;
    }
    Ok(())
}

async fn status_follows(trial: &Trial) -> Result<()> {
    use EventKind::*;
    let cases = [
        (vec![], WorkflowStatus::Running),
        (vec![WorkflowPaused], WorkflowStatus::Paused),
        (vec![WorkflowPaused, SignalReceived, WorkflowResumed], WorkflowStatus::Running),
        (vec![WorkflowPaused, WorkflowCompleted], WorkflowStatus::Completed),
        (vec![WorkflowCompleted, SignalReceived], WorkflowStatus::Completed),
        (vec![WorkflowFailed], WorkflowStatus::Failed),
        (vec![WorkflowCancelled], WorkflowStatus::Cancelled),
        (vec![WorkflowTimedOut], WorkflowStatus::TimedOut),
        (vec![WorkflowContinuedAsNew], WorkflowStatus::ContinuedAsNew),
        (vec![WorkflowFailed, WorkflowReopened], WorkflowStatus::Running),
        (vec![WorkflowTimedOut, WorkflowReopened, WorkflowPaused], WorkflowStatus::Paused),
    ];
    for (number, (kinds, status)) in cases.into_iter().enumerate() {
        let workflow = trial.open(&format!("status-{number}"), []).await?;
        // One event at a time, then the same in one batch: the projection must not care.
        for kind in &kinds {
            trial.then(&workflow, std::slice::from_ref(kind)).await?;
        }
        same(&format!("the status after {kinds:?}"), trial.workflow(&workflow).await?.status, status)?;
        let at_once = trial.open(&format!("at-once-{number}"), []).await?;
        trial.then(&at_once, &kinds).await?;
        let state = trial.workflow(&at_once).await?;
        same(&format!("the status after {kinds:?} at once"), state.status, status)?;
        same("whether the run is closed", state.run.closed_at.is_some(), status.is_terminal())?;
    }
    let bare = trial.id("bare")?;
    trial.store.append(&bare, 0, vec![note("no start")], Write::default()).await?;
    same("the status without any lifecycle event", trial.workflow(&bare).await?.status, WorkflowStatus::Running)
}

async fn no_fit(trial: &Trial) -> Result<()> {
    use EventKind::*;
    let workflow = trial.open("fit", []).await?;
    let refuse = async |kind: EventKind, status: WorkflowStatus| -> Result<()> {
        let head = trial.head(&workflow).await?;
        let event = if kind == WorkflowStarted { trial.started()? } else { NewEvent::of(kind.clone()) };
        let result = trial.store.append(&workflow, head, vec![event], Write::default()).await;
        refused("an event that does not fit", result, Reject::WorkflowStatus { kind, status })?;
        same("the head", trial.head(&workflow).await?, head)
    };
    refuse(WorkflowStarted, WorkflowStatus::Running).await?;
    refuse(WorkflowReopened, WorkflowStatus::Running).await?;
    trial.then(&workflow, &[WorkflowCompleted]).await?;
    for kind in [WorkflowPaused, WorkflowResumed, WorkflowCompleted, WorkflowFailed, WorkflowCancelled] {
        refuse(kind, WorkflowStatus::Completed).await?;
    }
    Ok(())
}

async fn nothing(trial: &Trial) -> Result<()> {
    let workflow = trial.open("nothing", []).await?;
    let committed = trial.store.commit(Commit::new(workflow.clone(), 1), Write::default()).await?.value;
    same("the head", committed.head, 1)?;
    let nobody = trial.id("nobody")?;
    let result = trial.store.commit(Commit::new(nobody.clone(), 0), Write::default()).await;
    refused_as("a new workflow without events", result, &["invalid_argument"])?;
    same("the head of nothing", trial.head(&nobody).await?, 0)
}
