//! After each entry no due row waits that a session with room could take, and the machine knows when the next one will be
//! there. (Contract, section 8: a wake follows staging, capacity, adoption, due times, resume and quota.)

use holdfast_machine::{Millis, Row, RowStatus, Session, SessionId, WorkflowStatus};

use super::{Snapshot, Step};

pub fn check(step: &Step<'_>) {
    let after = step.after;
    let mut next: Option<Millis> = None;
    for (key, row) in after.rows_in(RowStatus::Pending) {
        if after.status(&key.workflow) == WorkflowStatus::Paused || is_full(after, row) {
            continue;
        }
        for (id, session) in after.sessions.iter().filter(|(id, session)| could_take(after, id, session, row)) {
            assert!(row.visible_after > after.now, "{key} waits, and {id} is free: {row:?} {session:?}");
            next = next.into_iter().chain([row.visible_after]).min();
        }
    }
    assert_eq!(after.next_dispatch_due, next, "when the next row can be given");
}

fn could_take(snapshot: &Snapshot, id: &SessionId, session: &Session, row: &Row) -> bool {
    let worker = &session.worker;
    session.attached.is_some()
        && !session.draining
        && snapshot.session_rows[id].len() < worker.max_concurrency as usize
        && worker.namespaces.contains(&row.namespace)
        && worker.task_queue == row.task_queue
        && (worker.activity_types.is_empty() || worker.activity_types.contains(&row.activity_type))
        && (row.node.is_none() || row.node == worker.node)
}

fn is_full(snapshot: &Snapshot, row: &Row) -> bool {
    let ceiling = snapshot.namespaces.get(&row.namespace).and_then(|state| state.settings.claimed_max);
    let claimed = snapshot.rows_in(RowStatus::Claimed).filter(|(_, other)| other.namespace == row.namespace).count();
    ceiling.is_some_and(|ceiling| claimed >= ceiling as usize)
}
