//! One look at the state: what it says that the session holds, against what the worker has.

use holdfast_client::wire::{Ended, HeldRow, NodeMessage, WithdrawnRow};
use holdfast_machine::{Archive, ArchiveResult, ClaimToken, Claimed, Machine, SessionId};

use super::{Attachment, Sent, State};
use crate::deliveries::Portion;
use crate::error::StoreError;

/// What is delivered with one message.
const PORTION: Portion = Portion { rows: 64, input_bytes: 1024 * 1024 };
/// Rows in one message of another kind. Those that are gone may have to be read from the disk.
const GONE_ROWS_MAX: usize = 64;
const HELD_UP_ROWS_MAX: usize = 512;
/// Rows whose end is not told at once are found when there are more of them than the session holds, and than this.
const FINISHED_ROWS_MIN: u64 = 64;

impl Attachment {
    /// Makes messages of what is to be told now. Leaves none if there is nothing.
    pub(super) fn look(&self, state: &mut State) {
        state.compare |= self.wake.take_changed();
        let raft = &self.store.shared.raft;
        while state.ended.is_none() && state.ready.is_empty() {
            let before = state.looked;
            let looked = raft.view(|machine, archive| {
                if let Some(reason) = self.over(machine) {
                    return Ok(Some(reason));
                }
                let held = machine.session_row_count(&self.session);
                state.compare |= state.sent.len() as u64 > 2 * held + FINISHED_ROWS_MIN;
                if state.compare {
                    state.compare_with(&self.session, machine, archive)?;
                }
                if !state.compare && state.ready.is_empty() {
                    state.deliver(&self.session, machine, archive)?;
                }
                Ok(None)
            });
            match looked {
                Ok(Some(reason)) => self.end(state, reason, None),
                Ok(None) => {}
                Err(error) => {
                    let error = StoreError::Read(error);
                    tracing::error!(%error, session = %self.session, "a session's rows cannot be read");
                    self.end(state, Ended::NodeStopping, Some(error.problem()));
                }
            }
            // Neither told anything nor got any further: there is nothing more.
            if !state.compare && state.looked == before {
                return;
            }
        }
    }

    /// Why the session is not this attachment's any more, if it is not.
    fn over(&self, machine: &Machine) -> Option<Ended> {
        match machine.session(&self.session) {
            None => Some(Ended::SessionOver),
            Some(session) if session.attachment != self.number => Some(Ended::Moved),
            // The cluster took this node for dead.
            Some(session) if session.attached.is_none() => Some(Ended::NodeStopping),
            Some(_) => None,
        }
    }
}

impl State {
    /// Finds rows that the worker has and the session does not hold, and those whose workflow was paused or goes on.
    /// As many as fit in a message; `compare` stays set if there may be more.
    fn compare_with(&mut self, session: &SessionId, machine: &Machine, archive: &dyn Archive) -> ArchiveResult<()> {
        let (mut gone, mut paused, mut resumed) = (Vec::new(), Vec::new(), Vec::new());
        let mut more = false;
        let mut held = machine.rows_of_session(session, None).peekable();
        for (token, sent) in &mut self.sent {
            while held.next_if(|(other, _)| other < token).is_some() {}
            if held.peek().is_none_or(|(other, key)| other != token || **key != sent.key) {
                match gone.len() < GONE_ROWS_MAX {
                    true => gone.push(*token),
                    false => more = true,
                }
                continue;
            }
            let is_paused = machine.is_held(&sent.key.workflow);
            if is_paused != sent.paused {
                let rows = if is_paused { &mut paused } else { &mut resumed };
                if rows.len() < HELD_UP_ROWS_MAX {
                    rows.push(HeldRow { key: sent.key.clone(), token: *token });
                    sent.paused = is_paused;
                } else {
                    more = true;
                }
            }
        }
        self.compare = more;
        let mut withdrawn = Vec::with_capacity(gone.len());
        for token in gone {
            let Some(Sent { key, .. }) = self.sent.remove(&token) else { continue };
            let status = machine.row(archive, &key)?.map(|row| row.status);
            withdrawn.push(WithdrawnRow { key, token, status });
        }
        if !withdrawn.is_empty() {
            let number = self.number();
            self.ready.push_back(NodeMessage::Withdrawn { number, rows: withdrawn });
        }
        if !paused.is_empty() {
            let number = self.number();
            self.ready.push_back(NodeMessage::Paused { number, rows: paused });
        }
        if !resumed.is_empty() {
            let number = self.number();
            self.ready.push_back(NodeMessage::Resumed { number, rows: resumed });
        }
        Ok(())
    }

    /// Reads the next rows that the session holds and the worker does not have.
    fn deliver(&mut self, session: &SessionId, machine: &Machine, archive: &dyn Archive) -> ArchiveResult<()> {
        let Self { sent, looked, .. } = self;
        let behind: Option<ClaimToken> = *looked;
        let mut rows = machine.rows_of_session(session, behind).filter_map(|(token, key)| {
            *looked = Some(token);
            let is_known = sent.contains_key(&token);
            (!is_known).then(|| Claimed { key: key.clone(), token, deadline: None })
        });
        let deliveries = PORTION.of(&mut rows, machine, archive)?;
        drop(rows);
        if deliveries.is_empty() {
            return Ok(());
        }
        for delivery in &deliveries {
            // Told behind the delivery, by the compare that follows.
            self.compare |= machine.is_held(&delivery.key.workflow);
            self.sent.insert(delivery.token, Sent { key: delivery.key.clone(), paused: false });
        }
        let number = self.number();
        self.ready.push_back(NodeMessage::Deliveries { number, deliveries });
        Ok(())
    }
}
