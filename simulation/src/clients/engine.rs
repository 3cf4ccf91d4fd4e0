//! An engine from outside: it starts workflows with activities and timers, waits for every outcome, and ends them.

use holdfast_machine::{
    ActivityType, Arming, Command, Commit, EventKind, HistoryEvent, NewEvent, NewRow, RetryPolicy, TimerChange,
    TimerId, WorkflowId, WorkflowType,
};

use super::Caller;
use crate::draw::Draw;

/// Starts workflows and finishes them until the run ends.
pub async fn engine(mut caller: Caller) -> turmoil::Result {
    let mut number = 0;
    while !caller.world.is_ending() {
        number += 1;
        let workflow = WorkflowId::new(format!("{}/{number}", caller.name))?;
        run(&mut caller, &workflow).await?;
        caller.world.record.count("workflow finished");
        caller.pause(0, 300).await;
    }
    caller.world.engine_is_done();
    Ok(())
}

async fn run(caller: &mut Caller, workflow: &WorkflowId) -> turmoil::Result {
    let activities = caller.random.between(1, 5);
    let mut commit = Commit::new(workflow.clone(), 0).event(NewEvent::started(WorkflowType::new("simulated")?));
    for ordinal in 1..=activities {
        commit = commit.activity(row(caller, ordinal)?);
    }
    let started = caller.settle(Command::Commit(commit), None).await;
    if caller.random.chance(30) {
        let fire_at = started.at.plus(caller.random.between(100, 3_000));
        let arming = Arming { timer: TimerId::new("later")?, fire_at, armed_seq: 1 };
        let change = TimerChange::Schedule(arming);
        caller.settle(Command::Timer { workflow: workflow.clone(), change }, None).await;
    }
    let mut shown = caller.history(workflow).await;
    while outcomes(&shown).count() < activities as usize {
        caller.pause(100, 600).await;
        shown = caller.history(workflow).await;
    }
    check(caller, workflow, activities, &shown);
    let commit = Commit::new(workflow.clone(), shown.len() as u64).event(NewEvent::of(EventKind::WorkflowCompleted));
    caller.settle(Command::Commit(commit), None).await;
    Ok(())
}

fn row(caller: &mut Caller, ordinal: u64) -> Result<NewRow, Box<dyn std::error::Error>> {
    // Attempts may be lost to faults as often as it takes.
    let retry = RetryPolicy { initial_ms: 50, maximum_ms: 500, deliveries_max: 100_000, ..RetryPolicy::default() };
    let kind = ActivityType::new(caller.random.pick(&["charge", "ship"]))?;
    Ok(NewRow { retry, ..NewRow::new(ordinal, kind) })
}

fn outcomes(shown: &[HistoryEvent]) -> impl Iterator<Item = &HistoryEvent> {
    shown.iter().filter(|event| event.kind.is_outcome())
}

/// Each activity has one outcome, and no other has one.
fn check(caller: &Caller, workflow: &WorkflowId, activities: u64, shown: &[HistoryEvent]) {
    let mut ordinals: Vec<u64> = outcomes(shown).filter_map(|event| event.ordinal).collect();
    ordinals.sort_unstable();
    if !ordinals.iter().copied().eq(1..=activities) {
        let what = format_args!("{workflow} has {activities} activities, and outcomes of {ordinals:?}");
        caller.world.record.broken(what);
    }
}
