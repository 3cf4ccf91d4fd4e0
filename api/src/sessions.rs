//! Worker sessions as they are listed; `attachment.rs` is about those that are attached here.

use holdfast_client::wire::{HeldRow, PageCall, SessionFilter, SessionPage, SessionView, SessionWithRows};
use holdfast_machine::{Machine, Reject, Session, SessionId};

use crate::listings::{cut, one_more};
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

impl Store {
    /// Worker sessions, by name; all of them, or those that a filter takes.
    ///
    /// # Errors
    /// A [`crate::StoreError`]; `invalid_argument` for a limit of 0 or a cursor of another listing.
    pub async fn sessions(&self, filter: &SessionFilter, page: &PageCall, mode: ReadMode) -> StoreResult<SessionPage> {
        let query = ("sessions", filter);
        let after: Option<SessionId> = self.place(&query, page)?;
        let look = |machine: &Machine| -> Vec<SessionView> {
            let taken = machine.sessions_after(after.as_ref()).filter(|(_, session)| takes(filter, session));
            taken.take(one_more(page)).map(|(id, session)| view(machine, id, session)).collect()
        };
        let Answer { index, value: mut sessions } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let next_cursor = cut(&query, page, &mut sessions, |view| &view.session);
        Ok(Answer { index, value: SessionPage { sessions, next_cursor } })
    }

    /// One session and the rows that it holds.
    ///
    /// # Errors
    /// `session_not_found`.
    pub async fn session(&self, session: &SessionId, mode: ReadMode) -> StoreResult<SessionWithRows> {
        let look = |machine: &Machine| {
            let found = view(machine, session, machine.session(session)?);
            let held = machine.rows_of_session(session, None);
            let held = held.map(|(token, key)| HeldRow { key: key.clone(), token }).collect();
            Some(SessionWithRows { session: found, held })
        };
        let Answer { index, value } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let value = value.ok_or_else(|| Reject::SessionNotFound { session: session.clone() })?;
        Ok(Answer { index, value })
    }
}

fn takes(filter: &SessionFilter, session: &Session) -> bool {
    let SessionFilter { namespace, task_queue } = filter;
    namespace.as_ref().is_none_or(|namespace| session.worker.namespaces.contains(namespace))
        && task_queue.as_ref().is_none_or(|task_queue| session.worker.task_queue == *task_queue)
}

fn view(machine: &Machine, id: &SessionId, session: &Session) -> SessionView {
    let Session { worker, opened_at, deadline, attachment: _, attached, draining } = session.clone();
    let rows = machine.session_row_count(id);
    SessionView { session: id.clone(), worker, attached, opened_at, deadline, draining, rows }
}
