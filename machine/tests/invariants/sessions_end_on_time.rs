//! No row is held by a session that is not there; a session is there until log time reaches its deadline, unless it is
//! closed, and no longer. (Contract, section 8: one that misses heartbeats loses its rows when its lease ends.)

use holdfast_machine::{Command, Holder, Reply, RowStatus, SessionReply};

use super::Step;

pub fn check(step: &Step<'_>) {
    for (key, row) in step.after.rows_in(RowStatus::Claimed) {
        let Some(Holder::Session { session }) = row.claim.as_ref().map(|claim| &claim.holder) else { continue };
        assert!(step.after.sessions.contains_key(session), "{key} is held by {session}, which is gone");
    }
    let now = step.after.now;
    for (id, session) in &step.after.sessions {
        assert!(session.deadline > now, "{id} ended at {} and it is {now}", session.deadline);
    }
    let ends = step.after.sessions.values().map(|session| session.deadline).min();
    assert_eq!(step.after.next_session_end, ends, "the next end of a session is another");
    for (id, session) in step.before.sessions.iter().filter(|(_, session)| session.deadline > now) {
        let closed = step.said.iter().any(|(request, reply)| {
            matches!(&request.command, Command::Session { session, .. } if session == id)
                && matches!(reply, Ok(Reply::Session(SessionReply::Closed { .. })))
        });
        assert!(closed || step.after.sessions.contains_key(id), "{id} ended before {}", session.deadline);
    }
}
