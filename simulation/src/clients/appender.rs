//! A client that alone appends to one history, and so knows at each moment what a strong read must show.

use holdfast_machine::{Command, Commit, EventKind, NewEvent, Payload, Reject, Reply, WorkflowId, WorkflowType};

use super::Caller;
use crate::draw::Draw;

/// Events after which a new history is begun.
const LENGTH: usize = 200;

/// Appends until the run ends.
pub async fn appender(mut caller: Caller) -> turmoil::Result {
    let mut number = 0;
    while !caller.world.is_ending() {
        number += 1;
        let workflow = WorkflowId::new(format!("{}/{number}", caller.name))?;
        fill(&mut caller, &workflow).await?;
    }
    Ok(())
}

async fn fill(caller: &mut Caller, workflow: &WorkflowId) -> turmoil::Result {
    let mut known: Vec<NewEvent> = Vec::new();
    while known.len() < LENGTH && !caller.world.is_ending() {
        let events = events(caller, &known)?;
        let commit = Commit { events: events.clone(), ..Commit::new(workflow.clone(), known.len() as u64) };
        let fence = caller.fence(workflow);
        let settled = caller.settle(Command::Commit(commit), fence).await;
        if let Err(Reject::NotOwner { .. }) = settled.reply {
            caller.world.record.count("fence refused");
            continue;
        }
        known.extend(events);
        match settled.reply {
            Ok(Reply::Committed(committed)) if committed.head == known.len() as u64 => {}
            // The first try got through, and its key was forgotten when log time leapt ahead.
            Err(Reject::SequenceConflict { found, .. }) if settled.retried && found == known.len() as u64 => {}
            other => {
                let length = known.len();
                caller
                    .world
                    .record
                    .broken(format_args!("{workflow} has {length} events; an append was told {other:?}"));
            }
        }
        if caller.random.chance(25) {
            compare(caller, workflow, &known).await;
        }
        caller.pause(5, 120).await;
    }
    compare(caller, workflow, &known).await;
    let end = NewEvent::of(EventKind::WorkflowCompleted);
    let commit = Commit { events: vec![end], ..Commit::new(workflow.clone(), known.len() as u64) };
    caller.settle(Command::Commit(commit), None).await;
    Ok(())
}

fn events(caller: &mut Caller, known: &[NewEvent]) -> Result<Vec<NewEvent>, Box<dyn std::error::Error>> {
    if known.is_empty() {
        return Ok(vec![NewEvent::started(WorkflowType::new("appended")?)]);
    }
    let count = caller.random.between(1, 3);
    let event = |n| {
        let payload = Payload::text(format!("{}-{n}", known.len()));
        NewEvent { payload, ..NewEvent::of(EventKind::SignalReceived) }
    };
    Ok((0..count).map(event).collect())
}

/// A strong read shows all that was acknowledged, and nothing else.
async fn compare(caller: &mut Caller, workflow: &WorkflowId, known: &[NewEvent]) {
    let shown = caller.history(workflow).await;
    let same = shown.len() == known.len()
        && shown.iter().zip(known).all(|(shown, known)| shown.kind == known.kind && shown.payload == known.payload);
    if !same {
        let (shown, known) = (shown.len(), known.len());
        caller.world.record.broken(format_args!("{workflow}: {known} events were acknowledged, a read shows {shown}"));
    }
}
