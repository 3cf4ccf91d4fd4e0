//! Invariant 12: a transition under an old claim token changes nothing. (Contract, section 6: the first outcome
//! wins; section 4: row transitions are fenced by their claim token.)

use holdfast_machine::{ClaimToken, Command, DispatchKey, Reply};

use crate::{Check, Step, Told, ensure, ensure_eq};

pub fn of_step(step: &Step<'_>) -> Check {
    commits(step)?;
    for (request, reply) in step.said {
        let (key, token) = match &request.command {
            Command::Heartbeat { key, token, .. } => (key, *token),
            Command::Complete { key, token: Some(token), .. }
            | Command::Fail { key, token: Some(token), .. }
            | Command::Retry { key, token: Some(token), .. } => (key, *token),
            _ => continue,
        };
        if token.index == step.index || request.idempotency_key.is_some() {
            continue; // given out in this very entry, or the reply of another time
        }
        if is_current(step, key, token) {
            continue;
        }
        ensure!(reply.is_err(), "an old token moved {key}: {reply:?}");
        if step.touching(&key.workflow).count() == 1 && !step.deadline_passed(key) && !step.was_given(key) {
            ensure_eq!(step.before.rows.get(key), step.after.rows.get(key), "an old token changed {key}");
            // Nor did it add an event, if none of the workflow's rows could have done so by itself.
            let mut others = step.before.rows.keys().filter(|other| other.workflow == key.workflow);
            if !others.any(|other| step.deadline_passed(other)) {
                let head = |told: Option<&Told>| told.map_or(0, |told| told.workflow.head);
                let (before, after) = (&step.before.workflows, &step.after.workflows);
                let (before, after) = (head(before.get(&key.workflow)), head(after.get(&key.workflow)));
                ensure_eq!(after, before, "an old token changed the head of {}", key.workflow);
            }
        }
    }
    Ok(())
}

fn is_current(step: &Step<'_>, key: &DispatchKey, token: ClaimToken) -> bool {
    let held = step.before.rows.get(key).and_then(|row| row.claim.as_ref());
    held.is_some_and(|claim| claim.token == token) && !step.deadline_passed(key)
}

/// A commit with a transition under an old token does not land.
fn commits(step: &Step<'_>) -> Check {
    for (request, reply) in step.said {
        let (Command::Commit(commit), Ok(Reply::Committed(committed))) = (&request.command, reply) else { continue };
        if committed.duplicate || request.idempotency_key.is_some() {
            continue;
        }
        for transition in &commit.transitions {
            let key = DispatchKey { workflow: commit.workflow.clone(), ordinal: transition.ordinal };
            let Some(token) = transition.token.filter(|token| token.index != step.index) else { continue };
            ensure!(is_current(step, &key, token), "an old token moved {key} in a commit: {reply:?}");
        }
    }
    Ok(())
}
