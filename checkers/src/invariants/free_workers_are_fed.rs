//! After each entry no due row waits that a session with room could take, and the machine knows when the next one will be
//! there. (Contract, section 8: a wake follows staging, capacity, adoption, due times, resume and quota.)

use holdfast_machine::{Millis, Row, RowStatus, Session, SessionId, WorkflowStatus};

use crate::{Check, Snapshot, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let mut next: Option<Millis> = None;
    // An entry that had more to give than it may goes on with the next one, which is due at once.
    let is_cut = state.next_dispatch_due.is_some_and(|due| due <= state.now);
    for (key, row) in state.rows_in(RowStatus::Pending) {
        if state.status(&key.workflow) == WorkflowStatus::Paused || is_full(state, row) {
            continue;
        }
        for (id, session) in state.sessions.iter().filter(|(id, session)| could_take(state, id, session, row)) {
            let waits = row.visible_after > state.now;
            ensure!(waits || is_cut, "{key} waits, and {id} is free: {row:?} {session:?}");
            next = next.into_iter().chain([row.visible_after.max(state.now)]).min();
        }
    }
    ensure_eq!(state.next_dispatch_due, next, "when the next row can be given");
    Ok(())
}

fn could_take(state: &Snapshot, id: &SessionId, session: &Session, row: &Row) -> bool {
    let worker = &session.worker;
    session.attached.is_some()
        && !session.draining
        && state.session_rows.get(id).map_or(0, Vec::len) < worker.max_concurrency as usize
        && worker.namespaces.contains(&row.namespace)
        && worker.task_queue == row.task_queue
        && (worker.activity_types.is_empty() || worker.activity_types.contains(&row.activity_type))
        && (row.node.is_none() || row.node == worker.node)
}

fn is_full(state: &Snapshot, row: &Row) -> bool {
    let ceiling = state.namespaces.get(&row.namespace).and_then(|known| known.settings.claimed_max);
    let claimed = || state.rows_in(RowStatus::Claimed).filter(|(_, other)| other.namespace == row.namespace).count();
    ceiling.is_some_and(|ceiling| claimed() >= ceiling as usize)
}
