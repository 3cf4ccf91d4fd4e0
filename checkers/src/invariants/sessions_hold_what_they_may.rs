//! A session never holds more rows than it said, and is given only what it takes, while it is attached and takes work. It
//! is told of what others take from it. (Contract, section 8: a worker is pushed work within its capacity.)

use std::collections::BTreeMap;

use holdfast_machine::{ClaimToken, Command, DispatchKey, Effect, Holder, Row, SessionId};

use crate::{Check, Snapshot, Step, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let mut expected: BTreeMap<&SessionId, Vec<(ClaimToken, DispatchKey)>> = BTreeMap::new();
    for (key, row) in &state.rows {
        if let Some((holder, token)) = held(row) {
            expected.entry(holder).or_default().push((token, key.clone()));
        }
    }
    for (id, holds) in &state.session_rows {
        let mut expected = expected.remove(id).unwrap_or_default();
        expected.sort();
        ensure_eq!(*holds, expected, "what {id} holds");
        ensure_eq!(state.session_row_counts.get(id), Some(&(holds.len() as u64)), "how many rows {id} holds");
    }
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    for (id, session) in &step.after.sessions {
        let held_by_it = step.after.rows.iter().filter_map(|(key, row)| Some((key, row, held(row)?)));
        let mut holds = 0;
        for (key, row, (_, token)) in held_by_it.filter(|(_, _, (holder, _))| *holder == id) {
            holds += 1;
            if token.index != step.index {
                continue;
            }
            let worker = &session.worker;
            ensure!(session.attached.is_some() && !session.draining, "{id} was given {key} and could not take it");
            ensure!(worker.namespaces.contains(&row.namespace) && worker.task_queue == row.task_queue, "{key}");
            ensure!(row.node.is_none() || row.node == worker.node, "{id} was given {key}, which is for {:?}", row.node);
            let types = &worker.activity_types;
            ensure!(types.is_empty() || types.contains(&row.activity_type), "{id} was given {key}: {row:?}");
            ensure!(row.visible_after <= step.after.now, "{key} was given before its time");
            let told = step.effects.contains(&Effect::RowsGiven { session: id.clone() });
            ensure!(told, "{id} was given {key} and is not told");
        }
        let before = step.before.session_rows.get(id).map_or(0, Vec::len);
        let most = before.max(session.worker.max_concurrency as usize);
        ensure!(holds <= most, "{id} holds {holds} rows; it held {before} and may {most}");
    }
    for (id, rows) in &step.before.session_rows {
        for (token, key) in rows.iter().filter(|(token, key)| !still_holds(step, id, *token, key)) {
            let told = step.effects.contains(&Effect::SessionChanged { session: id.clone() });
            ensure!(told || by_its_token(step, *token), "{key} was taken from {id}, and nobody told it");
        }
    }
    Ok(())
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
