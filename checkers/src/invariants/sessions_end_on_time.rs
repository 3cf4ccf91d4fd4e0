//! No row is held by a session that is not there; a session is there until log time reaches its deadline, unless it is
//! closed, and no longer. (Contract, section 8: one that misses heartbeats loses its rows when its lease ends.)

use holdfast_machine::limits::DEADLINES_PASSED_PER_ENTRY_MAX;
use holdfast_machine::{Command, Holder, Reply, RowStatus, SessionReply};

use crate::{Check, Snapshot, Step, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for (key, row) in state.rows_in(RowStatus::Claimed) {
        let Some(Holder::Session { session }) = row.claim.as_ref().map(|claim| &claim.holder) else { continue };
        ensure!(state.sessions.contains_key(session), "{key} is held by {session}, which is gone");
    }
    let ends = state.sessions.values().map(|session| session.deadline).min();
    ensure_eq!(state.next_session_end, ends, "the next end of a session");
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    let now = step.after.now;
    // More than an entry may let pass go on with the next one.
    let overdue = step.before.sessions.values().filter(|session| session.deadline <= now).count();
    for (id, session) in step.after.sessions.iter().filter(|_| overdue < DEADLINES_PASSED_PER_ENTRY_MAX) {
        ensure!(session.deadline > now, "{id} ended at {} and it is {now}", session.deadline);
    }
    for (id, session) in step.before.sessions.iter().filter(|(_, session)| session.deadline > now) {
        let closed = step.said.iter().any(|(request, reply)| {
            matches!(&request.command, Command::Session { session, .. } if session == id)
                && matches!(reply, Ok(Reply::Session(SessionReply::Closed { .. })))
        });
        ensure!(closed || step.after.sessions.contains_key(id), "{id} ended before {}", session.deadline);
    }
    Ok(())
}
