//! Commits that move rows and timers: what becomes of a piece of work, and what the engine makes of it, in one step.

use anyhow::Result;
use holdfast_client::{ReadMode, Write};
use holdfast_machine::{
    Arming, ClaimToken, Commit, EventKind, Millis, NewEvent, Payload, Reject, Retirement, RowAction, RowStatus,
    TimerChange, TimerId, Transition, WorkflowStatus,
};

use crate::checks::checks;
use crate::trial::{Trial, keys, note, refused, refused_as, row_key, row_keys, same};

checks! {
    "commits":
    moves = "a commit completes, fails and hands back rows together with its events, and says where it left them",
    behind = "the outcomes that a commit records stand behind its events, in order",
    whole = "a transition that is refused takes the whole commit with it",
    unknown = "a transition of a row that is not there is refused with its key, by key as well",
    twice = "a row is moved once in a commit",
    again = "a commit with transitions that is sent again is a duplicate and moves nothing twice",
    last_word = "a commit may record the last outcome and end its workflow: the row is done, the others cancelled",
    next_step = "a commit may record an outcome and stage the row that follows from it",
    timers = "a commit arms and retires timers, and says what came of each retirement",
    timers_whole = "a refused commit leaves timers as they were",
}

fn transition(ordinal: u64, token: Option<ClaimToken>, action: RowAction) -> Transition {
    Transition { ordinal, token, action }
}

fn complete(text: &str) -> RowAction {
    RowAction::Complete { result: Payload::text(text) }
}

fn fail(text: &str, retryable: bool) -> RowAction {
    RowAction::Fail { error: Payload::text(text), error_type: None, retryable }
}

async fn moves(trial: &Trial) -> Result<()> {
    let workflow = trial.open("moves", 1..=5).await?;
    let held = trial.claim(4).await?;
    let token = |place: usize| Some(held[place].token);
    let transitions = vec![
        transition(1, token(0), complete("ok")),
        transition(2, token(1), fail("broken", false)),
        transition(3, token(2), RowAction::Retry { delay_ms: 3_600_000 }),
        transition(4, token(3), fail("broken", true)),
        transition(5, None, complete("by key")),
    ];
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 11).event(note("heard")) };
    let committed = trial.store.commit(commit, Write::default()).await?.value;
    use RowStatus::*;
    same("where the rows were left", committed.transitions, vec![Done, Failed, Pending, Pending, Done])?;
    same("the head", committed.head, 15)?;
    for (ordinal, status, deliveries, outcome) in [
        (1, Done, 0, Some(13)),
        (2, Failed, 1, Some(14)),
        (3, Pending, 1, None),
        (4, Pending, 1, None),
        (5, Done, 0, Some(15)),
    ] {
        let row = trial.view(&row_key(&workflow, ordinal)).await?.row;
        let found = (row.status, row.deliveries, row.outcome_seq);
        same(&format!("row {ordinal}"), found, (status, deliveries, outcome))?;
        same("its claim", row.claim, None)?;
    }
    for delivery in &held {
        let late = trial.complete(delivery, "late").await;
        refused_as("a late completion", late, &["claim_lost", "already_terminal"])?;
    }
    Ok(())
}

async fn behind(trial: &Trial) -> Result<()> {
    let workflow = trial.open("behind", [1, 2, 3]).await?;
    let transitions = vec![
        transition(3, None, complete("third")),
        transition(1, None, fail("first", false)),
        transition(2, None, complete("second")),
    ];
    let commit = Commit::new(workflow.clone(), 7).event(note("a")).event(note("b"));
    trial.store.commit(Commit { transitions, ..commit }, Write::default()).await?;
    let history = trial.store.history(&workflow, 8, 10, ReadMode::Linearizable).await?.value;
    let found: Vec<_> = history.into_iter().map(|event| (event.kind, event.ordinal, event.payload)).collect();
    let expected = vec![
        (note("").kind, None, Payload::text("a")),
        (note("").kind, None, Payload::text("b")),
        (EventKind::ActivityCompleted, Some(3), Payload::text("third")),
        (EventKind::ActivityFailed, Some(1), Payload::text("first")),
        (EventKind::ActivityCompleted, Some(2), Payload::text("second")),
    ];
    same("the events", found, expected)
}

async fn whole(trial: &Trial) -> Result<()> {
    let workflow = trial.open("whole", [1, 2]).await?;
    let lost = trial.claim_and_let_go().await?;
    let transitions = vec![transition(2, None, complete("ok")), transition(1, Some(lost.token), complete("late"))];
    let commit = Commit { transitions, settle: vec![2], ..Commit::new(workflow.clone(), 5) };
    let commit = commit.event(note("never")).activity(trial.row(3)?);
    let result = trial.store.commit(commit, Write::default()).await;
    refused("a commit with a claim that is over", result, Reject::ClaimLost { key: lost.key })?;
    same("the head", trial.head(&workflow).await?, 5)?;
    for key in row_keys(&workflow, [1, 2]) {
        same("a row", trial.status(&key).await?, RowStatus::Pending)?;
    }
    let key = row_key(&workflow, 3);
    let staged = trial.store.row(&key, ReadMode::Linearizable).await;
    refused("the row that it would have staged", staged, Reject::RowNotFound { key })
}

async fn unknown(trial: &Trial) -> Result<()> {
    let workflow = trial.open("unknown", [1]).await?;
    let held = trial.claim_one().await?;
    for token in [None, Some(held.token)] {
        let transitions = vec![transition(9, token, complete("x"))];
        let commit = Commit { transitions, ..Commit::new(workflow.clone(), 3).event(note("never")) };
        let result = trial.store.commit(commit, Write::default()).await;
        refused("a row that is not there", result, Reject::RowNotFound { key: row_key(&workflow, 9) })?;
    }
    same("the head", trial.head(&workflow).await?, 3)
}

async fn twice(trial: &Trial) -> Result<()> {
    let workflow = trial.open("twice", [1]).await?;
    let transitions = vec![transition(1, None, complete("a")), transition(1, None, complete("b"))];
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 3) };
    refused_as("one row twice", trial.store.commit(commit, Write::default()).await, &["invalid_argument"])?;
    let outcome = NewEvent::activity(EventKind::ActivityCompleted, 1);
    let transitions = vec![transition(1, None, complete("a"))];
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 3).event(outcome) };
    let both = trial.store.commit(commit, Write::default()).await;
    refused_as("an outcome as event and as transition", both, &["invalid_argument", "already_terminal"])?;
    same("the head", trial.head(&workflow).await?, 3)
}

async fn again(trial: &Trial) -> Result<()> {
    let workflow = trial.open("again", [1, 2]).await?;
    let held = trial.claim_one().await?;
    let transitions = vec![transition(1, Some(held.token), complete("ok")), transition(2, None, fail("broken", false))];
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 5).event(note("heard")) };
    let first = trial.store.commit(commit.clone(), Write::default()).await?.value;
    same("the first one", (first.head, first.duplicate), (8, false))?;
    let second = trial.store.commit(commit.clone(), Write::default()).await?.value;
    same("the second one", (second.head, second.duplicate), (8, true))?;
    let mut other = commit;
    other.transitions[1].action = fail("in another way", false);
    let conflict = Reject::SequenceConflict { workflow: workflow.clone(), expected: 5, found: 8 };
    refused("another one at its place", trial.store.commit(other, Write::default()).await, conflict)?;
    same("the head", trial.head(&workflow).await?, 8)
}

async fn last_word(trial: &Trial) -> Result<()> {
    let workflow = trial.open("last", [1, 2]).await?;
    let held = trial.claim_one().await?;
    let transitions = vec![transition(1, Some(held.token), complete("ok"))];
    let ended = NewEvent::of(EventKind::WorkflowCompleted);
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 5).event(ended) };
    let committed = trial.store.commit(commit, Write::default()).await?.value;
    same("where the row was left", committed.transitions, vec![RowStatus::Done])?;
    same("what was settled", committed.settled, row_keys(&workflow, [2]))?;
    same("the status", trial.workflow(&workflow).await?.status, WorkflowStatus::Completed)?;
    same("the row", trial.status(&held.key).await?, RowStatus::Done)
}

async fn next_step(trial: &Trial) -> Result<()> {
    let workflow = trial.open("next", [1]).await?;
    let held = trial.claim_one().await?;
    let transitions = vec![transition(1, Some(held.token), complete("ok"))];
    let commit = Commit { transitions, ..Commit::new(workflow.clone(), 3).activity(trial.row(2)?) };
    trial.store.commit(commit, Write::default()).await?;
    use EventKind::*;
    let kinds = trial.kinds(&workflow).await?.split_off(3);
    same("the events", kinds, vec![ActivityScheduled, ActivityStarted, ActivityCompleted])?;
    same("what is due", keys(&trial.claim(10).await?), row_keys(&workflow, [2]))
}

fn arming(timer: &str, fire_at: u64, armed_seq: u64) -> Result<Arming> {
    Ok(Arming { timer: TimerId::new(timer)?, fire_at: Millis(fire_at), armed_seq })
}

async fn timers(trial: &Trial) -> Result<()> {
    let workflow = trial.open("timers", []).await?;
    let far = u64::MAX - 1;
    let commit = async |seq: u64, timers: Vec<TimerChange>| -> Result<Vec<Retirement>> {
        let commit =
            Commit { timers, ..Commit::new(workflow.clone(), seq).event(NewEvent::of(EventKind::TimerStarted)) };
        Ok(trial.store.commit(commit, Write::default()).await?.value.retirements)
    };
    let (first, second, other) = (arming("t", far, 2)?, arming("t", far, 3)?, arming("u", far, 2)?);
    let schedule = |arming: &Arming| TimerChange::Schedule(arming.clone());
    let retire = |arming: &Arming| TimerChange::Retire(arming.clone());
    same("nothing is retired", commit(1, vec![schedule(&first), schedule(&other)]).await?, vec![])?;
    same("armed again", commit(2, vec![schedule(&second)]).await?, vec![])?;
    let retired = commit(3, vec![retire(&first), retire(&other), retire(&arming("nobody", far, 1)?)]).await?;
    same("retirements", retired, vec![Retirement::Superseded, Retirement::Retired, Retirement::Retired])?;
    same("the second arming", commit(4, vec![retire(&second)]).await?, vec![Retirement::Retired])?;
    same("once more", commit(5, vec![retire(&second)]).await?, vec![Retirement::Retired])
}

async fn timers_whole(trial: &Trial) -> Result<()> {
    let workflow = trial.open("timers", []).await?;
    let (old, new) = (arming("t", u64::MAX, 2)?, arming("t", u64::MAX, 9)?);
    let arm = Commit { timers: vec![TimerChange::Schedule(old.clone())], ..Commit::new(workflow.clone(), 1) };
    trial.store.commit(arm.event(note("armed")), Write::default()).await?;
    let late = Commit { timers: vec![TimerChange::Schedule(new.clone())], ..Commit::new(workflow.clone(), 1) };
    let result = trial.store.commit(late.event(note("late")), Write::default()).await;
    refused("a late commit", result, Reject::SequenceConflict { workflow: workflow.clone(), expected: 1, found: 2 })?;
    let timers = vec![TimerChange::Retire(new), TimerChange::Retire(old)];
    let retire = Commit { timers, ..Commit::new(workflow.clone(), 2) }.event(note("retired"));
    let retired = trial.store.commit(retire, Write::default()).await?.value.retirements;
    same("the arming that stands", retired, vec![Retirement::Superseded, Retirement::Retired])
}
