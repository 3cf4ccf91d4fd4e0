//! The entrance: limits and shapes that are checked before a command is proposed, so that a request over
//! a limit costs the cluster nothing.

use crate::attributes::check_update;
use crate::command::{Claim, Command, Commit, NewHolder, RowAction, Transition};
use crate::limits::{DESCRIPTION_BYTES_MAX, Limits, NON_RETRYABLE_MAX, RETENTION_TYPES_MAX, TIMEOUT_MS_MAX};
use crate::namespace::NamespaceSettings;
use crate::outbox::NewRow;
use crate::payload::Payload;
use crate::reject::Reject;
use crate::session::SessionChange;

/// Longest content type, in bytes.
const CONTENT_TYPE_BYTES_MAX: usize = 255;

impl Limits {
    /// Refuses a command that is over a limit or makes no sense.
    ///
    /// # Errors
    /// [`Reject::LimitExceeded`] or [`Reject::InvalidArgument`].
    pub fn check(&self, command: &Command) -> Result<(), Reject> {
        match command {
            Command::Commit(commit) => self.check_commit(commit),
            Command::Claim(claim) => self.check_claim(claim),
            Command::Heartbeat { lease_ms, details, .. } => {
                self.check_lease(*lease_ms)?;
                self.check_payload("details", details)
            }
            Command::Complete { result, .. } => self.check_payload("result", result),
            Command::Fail { error, .. } => self.check_payload("error", error),
            Command::Retry { delay_ms, .. } => self.check_delay(*delay_ms),
            Command::Rearm { rows, .. } => self.check_rows(rows),
            Command::Reconcile { limit, excluded, .. } => {
                self.check_page(*limit)?;
                at_most("the number of excluded rows", excluded.len() as u64, self.batch_max as u64)
            }
            Command::Assign { owners } => at_most("the number of shards", owners.len() as u64, self.batch_max as u64),
            Command::Create { .. }
            | Command::Boot { .. }
            | Command::Adopt { .. }
            | Command::Transfer { .. }
            | Command::Settle { .. }
            | Command::Tick
            | Command::Timer { .. }
            | Command::MarkFailureDelivered { .. }
            | Command::Redrive { .. }
            | Command::Purge { .. }
            | Command::Delete { .. }
            | Command::Checkpoint { .. } => Ok(()),
            Command::Session { change: SessionChange::Attach { worker, .. }, .. } => {
                worker.check()?;
                self.check_lease(worker.lease_ms)
            }
            Command::Session { .. } => Ok(()),
            Command::PutNamespace { settings, .. } => check_settings(settings),
            Command::Stage { rows, .. } => self.check_rows(rows),
        }
    }

    /// Refuses a page of nothing or of too much.
    ///
    /// # Errors
    /// [`Reject::InvalidArgument`] for 0, [`Reject::LimitExceeded`] above the limit.
    pub fn check_page(&self, limit: u32) -> Result<(), Reject> {
        if limit == 0 {
            return Err(Reject::invalid("limit must be at least 1"));
        }
        at_most("limit", u64::from(limit), self.page_max as u64)
    }

    fn check_commit(&self, commit: &Commit) -> Result<(), Reject> {
        let batch_max = self.batch_max as u64;
        let recorded = self.check_transitions(&commit.transitions)?;
        at_most("the number of events", commit.events.len() as u64 + recorded, batch_max)?;
        at_most("the number of settled rows", commit.settle.len() as u64, batch_max)?;
        at_most("the number of timers", commit.timers.len() as u64, batch_max)?;
        for (position, event) in commit.events.iter().enumerate() {
            self.check_payload(&format!("events[{position}].payload"), &event.payload)?;
            let name = event.kind.name();
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(Reject::invalid(format!(
                    "events[{position}].kind must be a name without control characters"
                )));
            }
            at_most("the length of an event's kind", name.len() as u64, crate::limits::ID_BYTES_MAX as u64)?;
            event.search_attributes.as_ref().map_or(Ok(()), check_update)?;
        }
        self.check_rows(&commit.rows)
    }

    /// The most events that the transitions record.
    fn check_transitions(&self, transitions: &[Transition]) -> Result<u64, Reject> {
        at_most("the number of transitions", transitions.len() as u64, self.batch_max as u64)?;
        let mut recorded = 0;
        for (position, Transition { action, .. }) in transitions.iter().enumerate() {
            match action {
                RowAction::Complete { result } => {
                    self.check_payload(&format!("transitions[{position}].result"), result)?
                }
                RowAction::Fail { error, .. } => {
                    self.check_payload(&format!("transitions[{position}].error"), error)?
                }
                RowAction::Retry { delay_ms } => self.check_delay(*delay_ms)?,
            }
            recorded += u64::from(action.may_record());
        }
        Ok(recorded)
    }

    fn check_delay(&self, delay_ms: u64) -> Result<(), Reject> {
        at_most("delay_ms", delay_ms, self.lease_ms_max)
    }

    fn check_rows(&self, rows: &[NewRow]) -> Result<(), Reject> {
        at_most("the number of rows", rows.len() as u64, self.batch_max as u64)?;
        for (position, row) in rows.iter().enumerate() {
            self.check_payload(&format!("rows[{position}].input"), &row.input)?;
            if row.retry.deliveries_max == 0 {
                return Err(Reject::invalid(format!("rows[{position}].retry.deliveries_max must be at least 1")));
            }
            let types = row.retry.non_retryable.len() as u64;
            at_most(
                &format!("the number of types in rows[{position}].retry.non_retryable"),
                types,
                NON_RETRYABLE_MAX as u64,
            )?;
            for (timeout, ms) in row.timeouts.named() {
                if ms == 0 {
                    return Err(Reject::invalid(format!("rows[{position}].timeouts.{timeout} must be at least 1")));
                }
                at_most(&format!("rows[{position}].timeouts.{timeout}"), ms, TIMEOUT_MS_MAX)?;
            }
        }
        Ok(())
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Reject> {
        self.check_page(claim.limit)?;
        at_most("the number of activity types", claim.scope.activity_types.len() as u64, self.batch_max as u64)?;
        at_most("the number of held workflows", claim.hold.len() as u64, self.batch_max as u64)?;
        match &claim.holder {
            NewHolder::Lease { lease_ms, .. } => self.check_lease(*lease_ms),
            NewHolder::Node { .. } => Ok(()),
        }
    }

    fn check_lease(&self, lease_ms: u64) -> Result<(), Reject> {
        if lease_ms == 0 {
            return Err(Reject::invalid("lease_ms must be at least 1"));
        }
        at_most("lease_ms", lease_ms, self.lease_ms_max)
    }

    fn check_payload(&self, what: &str, payload: &Payload) -> Result<(), Reject> {
        let limit = self.payload_bytes_max as u64;
        at_most(&format!("the size of {what}"), payload.data.len() as u64, limit)?;
        let length = payload.content_type.len() as u64;
        at_most(&format!("the length of {what}'s content type"), length, CONTENT_TYPE_BYTES_MAX as u64)
    }
}

fn check_settings(settings: &NamespaceSettings) -> Result<(), Reject> {
    let description = settings.description.len() as u64;
    at_most("the length of description", description, DESCRIPTION_BYTES_MAX as u64)?;
    let types = settings.retention_ms_by_type.len() as u64;
    at_most("the number of workflow types in retention_ms_by_type", types, RETENTION_TYPES_MAX as u64)
}

/// Refuses what is over a limit.
pub(crate) fn at_most(what: &str, actual: u64, limit: u64) -> Result<(), Reject> {
    if actual <= limit {
        return Ok(());
    }
    Err(Reject::LimitExceeded { what: what.to_owned(), limit, actual })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{EventKind, NewEvent};
    use crate::trial::{activities, id, new_row};

    fn commit(events: Vec<NewEvent>, rows: Vec<NewRow>) -> Command {
        Command::Commit(Commit { events, rows, ..Commit::new(id("w"), 0) })
    }

    fn over(limit: u64, actual: u64, command: &Command) {
        match Limits::default().check(command) {
            Err(Reject::LimitExceeded { limit: l, actual: a, .. }) => assert_eq!((l, a), (limit, actual)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_batch_with_its_last_event_over_the_limit_is_refused() {
        let most = 2 * 1024 * 1024;
        let mut events = vec![NewEvent::of(EventKind::SignalReceived); 1_000];
        assert_eq!(Limits::default().check(&commit(events.clone(), Vec::new())), Ok(()));
        events[999].payload = Payload::octets(vec![0; most + 1]);
        over(most as u64, most as u64 + 1, &commit(events.clone(), Vec::new()));
        events[999].payload = Payload::octets(vec![0; most]);
        assert_eq!(Limits::default().check(&commit(events.clone(), Vec::new())), Ok(()));
        events.push(events[0].clone());
        over(1_000, 1_001, &commit(events, Vec::new()));
    }

    #[test]
    fn recorded_outcomes_count_as_events() {
        let complete = |data: usize| RowAction::Complete { result: Payload::octets(vec![0; data]) };
        let commit = |events, actions: Vec<RowAction>| {
            let transition = |(ordinal, action)| Transition { ordinal, token: None, action };
            let transitions = (0..).zip(actions).map(transition).collect();
            let events = vec![NewEvent::of(EventKind::SignalReceived); events];
            Command::Commit(Commit { events, transitions, ..Commit::new(id("w"), 0) })
        };
        assert_eq!(Limits::default().check(&commit(999, vec![complete(0)])), Ok(()));
        over(1_000, 1_001, &commit(999, vec![complete(0), complete(0)]));
        let retry = |delay_ms| RowAction::Retry { delay_ms };
        assert_eq!(Limits::default().check(&commit(1_000, vec![retry(86_400_000)])), Ok(()));
        over(86_400_000, 86_400_001, &commit(0, vec![retry(86_400_001)]));
        over(1_000, 1_001, &commit(0, vec![retry(1); 1_001]));
        over(2 * 1024 * 1024, 2 * 1024 * 1024 + 1, &commit(0, vec![complete(2 * 1024 * 1024 + 1)]));
    }

    #[test]
    fn names_and_numbers_are_checked() {
        let invalid = |command: Command| {
            let refused = Limits::default().check(&command);
            assert!(matches!(refused, Err(Reject::InvalidArgument { .. })), "{command:?}: {refused:?}");
        };
        invalid(commit(vec![NewEvent::of(EventKind::Other(String::new()))], Vec::new()));
        invalid(commit(vec![NewEvent::of(EventKind::Other("a\nb".into()))], Vec::new()));
        over(255, 256, &commit(vec![NewEvent::of(EventKind::Other("a".repeat(256)))], Vec::new()));
        let mut row = new_row(1);
        row.retry.deliveries_max = 0;
        invalid(commit(activities([1]).0, vec![row]));
        let claim = |limit, lease_ms| {
            let holder = NewHolder::Lease { claimant: id("bob"), lease_ms };
            Command::Claim(Claim { scope: Default::default(), limit, holder, hold: Vec::new() })
        };
        invalid(claim(0, 1));
        invalid(claim(1, 0));
        over(1_000, u64::from(u32::MAX), &claim(u32::MAX, 1));
        over(86_400_000, 86_400_001, &claim(1, 86_400_001));
        let heartbeat =
            |lease_ms| Command::Heartbeat { key: id("w:1"), token: id("1-1"), lease_ms, details: Payload::default() };
        invalid(heartbeat(0));
        assert_eq!(Limits::default().check(&heartbeat(1)), Ok(()));
    }
}
