use std::time::Duration;

use futures::future::{join_all, try_join_all};
use futures::{FutureExt, select_biased};
use holdfast_machine::{Millis, NewEvent, TimerChange};

use super::*;
use crate::program::WorkflowError;

/// A history that is made as a store makes it: what is decided is appended, and so is what comes from outside.
struct Story {
    programs: Programs,
    history: Vec<HistoryEvent>,
}

impl Story {
    fn of<F, R, O>(function: F) -> Self
    where
        F: Fn(Workflow, u64) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, WorkflowError>> + Send + 'static,
        O: serde::Serialize,
    {
        let mut story = Self { programs: Programs::new().with("order", function).unwrap(), history: Vec::new() };
        let started = NewEvent::started("order".parse().unwrap()).with(Payload::json(&3).unwrap());
        story.append([started]);
        story
    }

    fn append(&mut self, events: impl IntoIterator<Item = NewEvent>) {
        for event in events {
            let seq = self.history.len() as u64 + 1;
            let NewEvent { kind, ordinal, start, search_attributes, payload } = event;
            let at = Millis(1_000 * seq);
            self.history.push(HistoryEvent { seq, at, kind, ordinal, start, search_attributes, payload });
        }
    }

    /// Replays the whole history with a new driver.
    fn replay(&self) -> Result<Replay, Halt> {
        let mut replay = Replay::new(self.programs.clone(), "order-1".parse().unwrap(), 0);
        self.history.iter().try_for_each(|event| replay.feed(event)).map(|()| replay)
    }

    /// What is decided now, which is appended: the kinds of its events.
    fn decide(&mut self) -> Vec<String> {
        let Some(commit) = self.replay().unwrap().decided() else { return Vec::new() };
        assert_eq!(commit.expected_seq, self.history.len() as u64);
        let kinds = commit.events.iter().map(|event| event.kind.to_string()).collect();
        self.append(commit.events);
        kinds
    }

    fn completed(&mut self, ordinal: u64, result: u64) {
        let payload = Payload::json(&result).unwrap();
        self.append([NewEvent::activity(EventKind::ActivityCompleted, ordinal).with(payload)]);
    }

    fn signal(&mut self, signal: &str, input: u64) {
        let signal = SignalBody { signal: signal.to_owned(), id: String::new(), input: input.into() };
        self.append([NewEvent::of(EventKind::SignalReceived).with(body(&signal))]);
    }

    fn fired(&mut self, timer: u64) {
        self.append([NewEvent::of(EventKind::TimerFired).with(body(&TimerBody { timer, fire_at: None }))]);
    }

    /// What the workflow ended with.
    fn result(&self) -> String {
        let last = self.history.last().unwrap();
        format!("{} {}", last.kind, String::from_utf8_lossy(&last.payload.data))
    }
}

const ANNOUNCED: [&str; 2] = ["ActivityScheduled", "ActivityStarted"];

async fn fan_out(workflow: Workflow, width: u64) -> Result<u64, WorkflowError> {
    let prices = (1..=width).map(|item| workflow.activity::<u64>("price", &item));
    let total: u64 = try_join_all(prices).await?.iter().sum();
    Ok(workflow.activity::<u64>("charge", &total).await?)
}

#[test]
fn a_fan_out_is_decided_at_once_and_its_results_come_in_any_order() {
    let mut story = Story::of(fan_out);
    assert_eq!(story.decide(), [ANNOUNCED; 3].concat());
    assert_eq!(story.decide(), [""; 0], "nothing is decided twice");
    for (ordinal, result) in [(3, 30), (1, 10), (2, 20)] {
        story.completed(ordinal, result);
    }
    let commit = story.replay().unwrap().decided().unwrap();
    assert_eq!(commit.rows.len(), 1);
    assert_eq!((commit.rows[0].ordinal, &*commit.rows[0].input.data), (4, b"60".as_slice()));
    assert_eq!(story.decide(), ANNOUNCED);
    story.completed(4, 7);
    assert_eq!(story.decide(), ["WorkflowCompleted"]);
    assert_eq!(story.result(), "WorkflowCompleted 7");
    assert!(story.replay().unwrap().ended());
}

#[test]
fn an_outcome_that_lands_between_a_decision_and_its_commit_changes_nothing_of_it() {
    // Both rest in the history, and the decision that the first of them led to comes after the second.
    let mut story = Story::of(|workflow: Workflow, _: u64| async move {
        let pair = |first: &'static str, then: &'static str| {
            let workflow = workflow.clone();
            async move {
                workflow.activity::<u64>(first, &()).await?;
                workflow.activity::<u64>(then, &()).await
            }
        };
        let results = join_all([pair("a", "b").boxed(), pair("c", "d").boxed()]).await;
        Ok(results.into_iter().filter_map(Result::ok).sum::<u64>())
    });
    story.decide();
    story.completed(2, 0);
    let decided = story.replay().unwrap().decided().unwrap();
    assert_eq!(decided.rows[0].activity_type.as_str(), "d");
    story.completed(1, 0);
    let commit = story.replay().unwrap().decided().unwrap();
    let types: Vec<&str> = commit.rows.iter().map(|row| row.activity_type.as_str()).collect();
    assert_eq!(types, ["d", "b"], "in the order of what led to them");
    story.decide();
    story.completed(3, 4);
    story.completed(4, 5);
    story.decide();
    assert_eq!(story.result(), "WorkflowCompleted 9");
}

#[test]
fn a_function_that_wants_something_else_is_stopped() {
    let mut story = Story::of(fan_out);
    story.decide();
    let halted = |story: &Story| story.replay().map(drop).unwrap_err().to_string();
    story.programs = Programs::new()
        .with("order", |workflow: Workflow, _: u64| async move {
            workflow.sleep(Duration::from_secs(1)).await;
            Ok(())
        })
        .unwrap();
    assert!(halted(&story).starts_with("event 2 is ActivityScheduled of activity 1, but the function wants timer 1"));
    story.programs = Programs::new()
        .with("order", |workflow: Workflow, _: u64| async move { Ok(workflow.activity::<u64>("weigh", &1).await?) })
        .unwrap();
    assert!(halted(&story).contains("wants activity 1 (weigh)"), "{}", halted(&story));
    story.programs = Programs::new().with("order", |_: Workflow, _: u64| async { Ok(()) }).unwrap();
    assert!(halted(&story).contains("wants the end (WorkflowCompleted)"), "{}", halted(&story));
    story.programs = Programs::new();
    assert_eq!(halted(&story), "there is no function for workflow type order");
}

#[test]
fn a_panic_is_an_answer() {
    let story =
        Story::of(|_: Workflow, left: u64| async move { if left > 0 { panic!("{left} left") } else { Ok(()) } });
    assert_eq!(story.replay().map(drop).unwrap_err().to_string(), "the function panicked: 3 left");
}

#[test]
fn signals_wait_until_they_are_asked_for() {
    let mut story = Story::of(|workflow: Workflow, _: u64| async move {
        workflow.activity::<u64>("prepare", &()).await?;
        let (a, b) = (workflow.signal::<u64>("add").await?, workflow.signal::<u64>("add").await?);
        Ok(10 * a + b)
    });
    story.signal("add", 4);
    story.decide();
    story.signal("other", 9);
    story.append([NewEvent::of(EventKind::SignalReceived).with(Payload::text("of another engine"))]);
    story.completed(1, 0);
    assert_eq!(story.decide(), [""; 0]);
    story.signal("add", 2);
    assert_eq!(story.decide(), ["WorkflowCompleted"]);
    assert_eq!(story.result(), "WorkflowCompleted 42");
}

async fn in_time(workflow: Workflow, _: u64) -> Result<String, WorkflowError> {
    let mut work = workflow.activity::<u64>("work", &()).fuse();
    let mut late = workflow.sleep(Duration::from_secs(60)).fuse();
    let word = select_biased! {
        _ = work => "done",
        () = late => "late",
    };
    drop((work, late));
    workflow.sleep(Duration::from_secs(1)).await;
    Ok(word.to_owned())
}

#[test]
fn a_timer_that_is_not_needed_is_cancelled() {
    let mut story = Story::of(in_time);
    let commit = story.replay().unwrap().decided().unwrap();
    let armed = arming(1, Millis(61_000), 4).unwrap();
    assert_eq!(commit.timers, [TimerChange::Schedule(armed.clone())], "a minute after the start, by its event 4");
    story.decide();
    assert_eq!(story.replay().unwrap().armed(&armed), Some(1));
    story.completed(1, 0);
    let commit = story.replay().unwrap().decided().unwrap();
    assert_eq!(commit.timers[0], TimerChange::Retire(armed.clone()));
    assert_eq!(story.decide(), ["TimerCancelled", "TimerStarted"]);
    assert_eq!(story.replay().unwrap().armed(&armed), None);
    // It was due already and its event came in before that of its cancellation could have been seen.
    story.fired(1);
    story.fired(2);
    assert_eq!(story.decide(), ["WorkflowCompleted"]);
    assert_eq!(story.result(), "WorkflowCompleted \"done\"");
}

#[test]
fn a_timer_that_fires_first_wins_and_the_late_outcome_is_passed_over() {
    let mut story = Story::of(in_time);
    story.decide();
    story.fired(1);
    story.completed(1, 0);
    assert_eq!(story.decide(), ["TimerStarted"]);
    story.fired(2);
    story.decide();
    assert_eq!(story.result(), "WorkflowCompleted \"late\"");
}

#[test]
fn the_next_run_begins_with_nothing_of_the_last() {
    let mut story = Story::of(|workflow: Workflow, left: u64| async move {
        let left = workflow.activity::<u64>("step", &left).await?;
        if left > 0 { Err(workflow.continue_as_new(&left)) } else { Ok(workflow.now()) }
    });
    story.decide();
    story.completed(1, 1);
    assert_eq!(story.decide(), ["WorkflowContinuedAsNew", "WorkflowStarted"]);
    assert_eq!(story.replay().unwrap().run(), 6);
    assert_eq!(story.decide(), ANNOUNCED, "activity 1 of the second run");
    assert!(story.replay().unwrap().awaits_activity(1));
    story.completed(1, 0);
    story.decide();
    assert_eq!(story.result(), "WorkflowCompleted 9000", "the time of the last outcome");
}

#[test]
fn children_end_once_and_their_failures_are_errors() {
    let mut story = Story::of(|workflow: Workflow, _: u64| async move {
        match workflow.child::<u64>("parcel", "parcel-1", &7).await {
            Ok(result) => Ok(result),
            Err(error) => Err(WorkflowError::failed(error.to_string())),
        }
    });
    assert_eq!(story.decide(), [CHILD_SCHEDULED]);
    let replay = story.replay().unwrap();
    let (start, parent) = replay.children().next().unwrap();
    assert_eq!((start.workflow.as_str(), &start.input), ("parcel-1", &7.into()));
    assert_eq!(parent.workflow_type.as_str(), "order");
    let failed = holdfast_machine::WorkflowStatus::Failed;
    let end = |status, result: &str| child::ended(&ChildEnd { child: 1, status, result: result.into() });
    story.append([end(failed, "lost"), end(holdfast_machine::WorkflowStatus::Completed, "found")]);
    assert!(!story.replay().unwrap().awaits_child(1));
    story.decide();
    assert_eq!(story.result(), "WorkflowFailed child parcel-1 is failed: lost");
}

#[test]
fn a_wide_fan_out_is_decided_in_several_commits() {
    let mut story = Story::of(|workflow: Workflow, _: u64| async move {
        let all = join_all((0..1_000).map(|item| workflow.activity::<u64>("price", &item))).await;
        Ok(all.len())
    });
    let sizes: Vec<usize> = (0..4).map(|_| story.decide().len()).collect();
    assert_eq!(sizes, [900, 900, 200, 0]);
    (1..=1_000).for_each(|ordinal| story.completed(ordinal, 1));
    story.decide();
    assert_eq!(story.result(), "WorkflowCompleted 1000");
}

#[test]
fn an_end_from_outside_ends_it_and_only_a_function_that_waits_can_be_reopened() {
    let mut story = Story::of(|workflow: Workflow, _: u64| async move { workflow.signal::<u64>("go").await });
    story.append([NewEvent::of(EventKind::WorkflowPaused)]);
    assert!(story.replay().unwrap().paused());
    story.append([EventKind::WorkflowResumed, EventKind::WorkflowCancelled].map(NewEvent::of));
    assert!(story.replay().unwrap().ended());
    story.append([NewEvent::of(EventKind::WorkflowReopened)]);
    assert!(!story.replay().unwrap().ended());
    story.signal("go", 1);
    assert_eq!(story.decide(), ["WorkflowCompleted"]);
    story.append([NewEvent::of(EventKind::WorkflowReopened)]);
    assert!(matches!(story.replay(), Err(Halt::Reopened)));
}

#[test]
fn randomness_is_the_same_in_each_replay() {
    let mut story = Story::of(|workflow: Workflow, _: u64| async move {
        let (a, b) = (workflow.random(), workflow.random());
        workflow.activity::<u64>("use", &a).await?;
        Ok(a != b && workflow.random() != b)
    });
    let input = |story: &Story| story.replay().unwrap().decided().unwrap().rows[0].input.clone();
    assert_eq!(input(&story), input(&story));
    story.decide();
    story.completed(1, 0);
    story.decide();
    assert_eq!(story.result(), "WorkflowCompleted true");
}
