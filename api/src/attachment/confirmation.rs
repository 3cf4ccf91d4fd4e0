//! Which messages the worker has not confirmed, and since when.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Messages that are sent within this part of a lease count as one, so that the memory for them is bounded.
const GRAINS_PER_LEASE: u32 = 64;

#[derive(Debug)]
pub(super) struct Unconfirmed {
    lease: Duration,
    /// The last message of a group, and when its first one was sent.
    sent: VecDeque<(u64, Instant)>,
}

impl Unconfirmed {
    pub fn new(lease: Duration) -> Self {
        Self { lease, sent: VecDeque::new() }
    }

    /// A message goes out.
    pub fn sent(&mut self, number: u64, now: Instant) {
        match self.sent.back_mut() {
            Some((last, at)) if now - *at < self.lease / GRAINS_PER_LEASE => *last = number,
            _ => self.sent.push_back((number, now)),
        }
    }

    /// All messages up to this one have arrived.
    pub fn confirm(&mut self, received: u64) {
        while self.sent.front().is_some_and(|(number, _)| *number <= received) {
            self.sent.pop_front();
        }
    }

    /// True if a message should have been confirmed by now.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.sent.front().is_some_and(|(_, at)| now - *at > self.lease / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(8);

    #[test]
    fn a_message_is_overdue_after_half_a_lease_unless_it_is_confirmed() {
        let mut unconfirmed = Unconfirmed::new(LEASE);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        unconfirmed.sent(1, begin);
        unconfirmed.sent(2, at(3));
        assert!(!unconfirmed.is_overdue(at(4)));
        assert!(unconfirmed.is_overdue(at(5)));
        unconfirmed.confirm(1);
        assert!(!unconfirmed.is_overdue(at(5)));
        assert!(unconfirmed.is_overdue(at(8)));
        unconfirmed.confirm(2);
        assert!(!unconfirmed.is_overdue(at(8)));
    }

    #[test]
    fn a_flood_of_messages_is_remembered_in_few_places() {
        let mut unconfirmed = Unconfirmed::new(LEASE);
        let begin = Instant::now();
        for number in 1..=10_000 {
            unconfirmed.sent(number, begin + LEASE / 20_000 * number as u32);
        }
        assert!(unconfirmed.sent.len() <= GRAINS_PER_LEASE as usize, "{}", unconfirmed.sent.len());
        unconfirmed.confirm(9_999);
        assert_eq!(unconfirmed.sent.len(), 1);
        unconfirmed.confirm(10_000);
        assert_eq!(unconfirmed.sent.len(), 0);
    }
}
