//! Invariant 12: a transition under an old claim token changes nothing. (Contract, section 6: the first outcome
//! wins; section 4: row transitions are fenced by their claim token.)

use holdfast_machine::Command;

use super::Step;

pub fn check(step: &Step<'_>) {
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
        let held = step.before.rows.get(key).and_then(|row| row.claim.as_ref());
        let is_current = held.is_some_and(|claim| claim.token == token) && !step.lease_ended(key);
        if is_current {
            continue;
        }
        assert!(reply.is_err(), "an old token moved {key}: {reply:?}");
        if step.touching(&key.workflow).count() == 1 && !step.lease_ended(key) {
            assert_eq!(step.before.rows.get(key), step.after.rows.get(key), "an old token changed {key}");
            let head = |told: Option<&super::Told>| told.map_or(0, |told| told.workflow.head);
            let (before, after) = (&step.before.workflows, &step.after.workflows);
            assert_eq!(head(before.get(&key.workflow)), head(after.get(&key.workflow)));
        }
    }
}
