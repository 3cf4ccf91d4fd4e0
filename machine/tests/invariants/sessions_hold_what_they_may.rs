//! A session never holds more rows than it said, and is given only what it takes, while it is attached and takes work. It
//! is told of what others take from it. (Contract, section 8: a worker is pushed work within its capacity.)

use holdfast_machine::{ClaimToken, Command, DispatchKey, Effect, Holder, Row, SessionId};

use super::Step;

pub fn check(step: &Step<'_>) {
    for (id, session) in &step.after.sessions {
        let mut expected: Vec<(ClaimToken, DispatchKey)> = Vec::new();
        for (key, row) in &step.after.rows {
            let Some((holder, token)) = held(row) else { continue };
            if holder != id {
                continue;
            }
            expected.push((token, key.clone()));
            if token.index != step.index {
                continue;
            }
            let worker = &session.worker;
            assert!(session.attached.is_some() && !session.draining, "{id} was given {key} and could not take it");
            assert!(worker.namespaces.contains(&row.namespace) && worker.task_queue == row.task_queue, "{key}");
            assert!(row.node.is_none() || row.node == worker.node, "{id} was given {key}, which is for {:?}", row.node);
            let types = &worker.activity_types;
            assert!(types.is_empty() || types.contains(&row.activity_type), "{id} was given {key}: {row:?}");
            assert!(row.visible_after <= step.after.now, "{key} was given before its time");
            let told = step.effects.contains(&Effect::RowsGiven { session: id.clone() });
            assert!(told, "{id} was given {key} and is not told");
        }
        expected.sort();
        assert_eq!(step.after.session_rows[id], expected, "what {id} holds");
        let before = step.before.session_rows.get(id).map_or(0, Vec::len);
        let most = before.max(session.worker.max_concurrency as usize);
        assert!(expected.len() <= most, "{id} holds {} rows; it held {before} and may {most}", expected.len());
    }
    for (id, rows) in &step.before.session_rows {
        for (token, key) in rows.iter().filter(|(token, key)| !still_holds(step, id, *token, key)) {
            let told = step.effects.contains(&Effect::SessionChanged { session: id.clone() });
            assert!(told || by_its_token(step, *token), "{key} was taken from {id}, and nobody told it");
        }
    }
}

fn held(row: &Row) -> Option<(&SessionId, ClaimToken)> {
    match row.claim.as_ref().map(|claim| (&claim.holder, claim.token)) {
        Some((Holder::Session { session }, token)) => Some((session, token)),
        _ => None,
    }
}

fn still_holds(step: &Step<'_>, id: &SessionId, token: ClaimToken, key: &DispatchKey) -> bool {
    step.after.rows.get(key).and_then(held) == Some((id, token))
}

fn by_its_token(step: &Step<'_>, token: ClaimToken) -> bool {
    step.said.iter().any(|(request, _)| match &request.command {
        Command::Complete { token: said, .. }
        | Command::Fail { token: said, .. }
        | Command::Retry { token: said, .. } => *said == Some(token),
        Command::Commit(commit) => commit.transitions.iter().any(|transition| transition.token == Some(token)),
        _ => false,
    })
}
