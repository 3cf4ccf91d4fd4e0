//! Every event of the final histories is traced to the one call that wrote it.

use std::collections::BTreeMap;

use holdfast_machine::{Command, Commit, EventKind, HistoryEvent, NewEvent, Reply, RowAction, WorkflowId};

use super::Histories;
use crate::history::{Answer, Asked, Call, Outcome, digest_with};
use crate::{Broken, Check, broken, ensure, ensure_eq};

pub struct Effects {
    pub unknown_found: usize,
    pub events: usize,
}

/// Which call wrote each event, by workflow and number.
pub type Owners<'a> = BTreeMap<(&'a WorkflowId, u64), &'a Call>;

pub fn check(calls: &[Call], histories: &Histories) -> Result<Effects, Broken> {
    let mut owners = all_acknowledged(calls, histories)?;
    let unknown_found = unknown(calls, histories, &mut owners)?;
    for (workflow, events) in histories {
        for event in events {
            let is_known = owners.contains_key(&(workflow, event.seq));
            ensure!(is_known, "nobody wrote event {} of {workflow}, or somebody who was refused: {event:?}", event.seq);
        }
    }
    in_time(&owners)?;
    reads(calls, histories, &owners)?;
    Ok(Effects { unknown_found, events: owners.len() })
}

/// The calls whose acknowledged events stand where their answers said.
pub fn all_acknowledged<'a>(calls: &'a [Call], histories: &'a Histories) -> Result<Owners<'a>, Broken> {
    let mut owners = Owners::new();
    calls.iter().try_for_each(|call| acknowledged(call, histories, &mut owners))?;
    Ok(owners)
}

/// What an answer says was written is there.
fn acknowledged<'a>(call: &'a Call, histories: &'a Histories, owners: &mut Owners<'a>) -> Check {
    let Outcome::Ok { answer: Answer::Reply(reply), .. } = &call.outcome else { return Ok(()) };
    let Asked::Write(request) = &call.asked else { return Ok(()) };
    let (wrote, last) = match (&request.command, reply) {
        (Command::Commit(commit), Reply::Committed(committed)) if !committed.duplicate => {
            let (least, most) = (events(commit, false), events(commit, true));
            let count = committed.head.saturating_sub(commit.expected_seq) as usize;
            let wrote = if count == least.len() { least } else { most };
            ensure_eq!(count, wrote.len(), "events that {commit:?} led to, by its answer {committed:?}");
            (wrote, committed.head)
        }
        (command, Reply::Completed { seq }) => (outcome_of(command).into_iter().collect(), *seq),
        (command, Reply::Returned(returned)) => {
            let Some(seq) = returned.failed_seq else { return Ok(()) };
            (outcome_of(command).into_iter().collect(), seq)
        }
        _ => return Ok(()),
    };
    let Some((workflow, history)) = request.command.workflow().and_then(|workflow| histories.get_key_value(workflow))
    else {
        broken!("{call:?} was acknowledged, and its workflow is not there");
    };
    let first = last + 1 - wrote.len() as u64;
    for (seq, event) in (first..).zip(&wrote) {
        let there = history.get(seq as usize - 1);
        ensure!(there.is_some_and(|there| is(there, event)), "event {seq} of {call:?} is not there, but {there:?}");
        if let Some(other) = owners.insert((workflow, seq), call) {
            broken!("event {seq} of {workflow} was acknowledged twice: {other:?} and {call:?}");
        }
    }
    Ok(())
}

/// Finds what calls of unknown outcome wrote, among the events that nobody else did. Gives their number.
fn unknown<'a>(calls: &'a [Call], histories: &'a Histories, owners: &mut Owners<'a>) -> Result<usize, Broken> {
    let mut found = 0;
    for call in calls.iter().filter(|call| matches!(call.outcome, Outcome::Unknown)) {
        let Asked::Write(request) = &call.asked else { continue };
        let workflow = request.command.workflow().and_then(|workflow| histories.get_key_value(workflow));
        let Some((workflow, history)) = workflow else { continue };
        let place = |wrote: &[NewEvent], first: u64, owners: &Owners<'_>| {
            let fits = (first..).zip(wrote).all(|(seq, event)| {
                let there = history.get(seq as usize - 1);
                there.is_some_and(|there| is(there, event)) && !owners.contains_key(&(workflow, seq))
            });
            (fits && !wrote.is_empty()).then(|| first..first + wrote.len() as u64)
        };
        let written = match &request.command {
            Command::Commit(commit) => {
                let first = commit.expected_seq + 1;
                let most = place(&events(commit, true), first, owners);
                most.or_else(|| place(&events(commit, false), first, owners))
            }
            command => outcome_of(command).and_then(|event| {
                let fitting = history.iter().filter(|there| is(there, &event)).map(|there| there.seq);
                fitting.filter_map(|seq| place(std::slice::from_ref(&event), seq, owners)).next()
            }),
        };
        found += usize::from(written.is_some());
        owners.extend(written.into_iter().flatten().map(|seq| ((workflow, seq), call)));
    }
    Ok(found)
}

/// A call that returned before another was made wrote before it.
fn in_time(owners: &Owners<'_>) -> Check {
    let mut last: Option<(&WorkflowId, u64, &Call)> = None;
    for ((workflow, seq), call) in owners {
        if let Some((_, made, earlier)) = last.filter(|(of, ..)| of == workflow) {
            // `made` is the latest invocation among those who wrote before.
            let is_late = call.returned.is_some_and(|returned| returned < made);
            let is_unknown = matches!(call.outcome, Outcome::Unknown);
            ensure!(!is_late || is_unknown, "event {seq} of {workflow} is by {call:?}, and stands behind {earlier:?}");
        }
        let made = last.filter(|(of, ..)| of == workflow).filter(|(_, made, _)| *made > call.invoked);
        last = made.or(Some((workflow, call.invoked, call)));
    }
    Ok(())
}

/// Every read of a history saw the beginning of what it is at the end, with all that was acknowledged, or read, before the
/// read began.
fn reads(calls: &[Call], histories: &Histories, owners: &Owners<'_>) -> Check {
    let mut prefixes: BTreeMap<&WorkflowId, Vec<u64>> = BTreeMap::new();
    for (workflow, events) in histories {
        let digests = events.iter().scan(0, |digest, event| {
            *digest = digest_with(*digest, event.kind.name(), event.ordinal, &event.payload.data);
            Some(*digest)
        });
        prefixes.insert(workflow, std::iter::once(0).chain(digests).collect());
    }
    // By workflow: when a head was known to somebody, and which.
    let mut known: BTreeMap<&WorkflowId, Vec<(u64, u64)>> = BTreeMap::new();
    for ((workflow, seq), call) in owners.iter().filter(|(_, call)| !matches!(call.outcome, Outcome::Unknown)) {
        known.entry(workflow).or_default().extend(call.returned.map(|returned| (returned, *seq)));
    }
    let read = |call: &Call| match (&call.asked, &call.outcome) {
        (Asked::History(workflow), Outcome::Ok { answer: Answer::History { head, digest }, .. }) => {
            Some((histories.get_key_value(workflow).map(|(workflow, _)| workflow), *head, *digest))
        }
        _ => None,
    };
    for call in calls {
        let Some((workflow, head, digest)) = read(call) else { continue };
        let prefix = workflow.and_then(|workflow| prefixes.get(workflow));
        let there = prefix.map_or((head == 0).then_some(0), |prefix| prefix.get(head as usize).copied());
        ensure_eq!(Some(digest), there, "the digest of {head} events that {call:?} saw");
        if let (Some(workflow), Some(returned)) = (workflow, call.returned) {
            known.entry(workflow).or_default().push((returned, head));
        }
    }
    for of in known.values_mut() {
        of.sort_unstable();
        let mut most = 0;
        of.iter_mut().for_each(|(_, head)| {
            most = most.max(*head);
            *head = most;
        });
    }
    for call in calls {
        let Some((Some(workflow), head, _)) = read(call) else { continue };
        let known = known.get(workflow).map_or(&[][..], Vec::as_slice);
        let before = known.partition_point(|(returned, _)| *returned < call.invoked);
        let least = before.checked_sub(1).map_or(0, |last| known[last].1);
        ensure!(head >= least, "{call:?} saw {head} events, and somebody had been told of {least} before it began");
    }
    Ok(())
}

/// The events of a commit, with those of its transitions; an attempt that may be tried again has one or none.
fn events(commit: &Commit, is_final: bool) -> Vec<NewEvent> {
    let mut events = commit.events.clone();
    for transition in &commit.transitions {
        let (kind, payload) = match &transition.action {
            RowAction::Complete { result } => (EventKind::ActivityCompleted, result),
            RowAction::Fail { error, retryable, .. } if !retryable || is_final => (EventKind::ActivityFailed, error),
            RowAction::Fail { .. } | RowAction::Retry { .. } => continue,
        };
        events.push(NewEvent::activity(kind, transition.ordinal).with(payload.clone()));
    }
    events
}

fn outcome_of(command: &Command) -> Option<NewEvent> {
    match command {
        Command::Complete { key, result, .. } => {
            Some(NewEvent::activity(EventKind::ActivityCompleted, key.ordinal).with(result.clone()))
        }
        Command::Fail { key, error, .. } => {
            Some(NewEvent::activity(EventKind::ActivityFailed, key.ordinal).with(error.clone()))
        }
        _ => None,
    }
}

fn is(there: &HistoryEvent, wrote: &NewEvent) -> bool {
    there.kind == wrote.kind && there.ordinal == wrote.ordinal && there.payload == wrote.payload
}
