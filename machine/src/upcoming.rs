//! Which pools have rows that are not due yet, by the time at which they will be. So an entry sees at once whether log
//! time has reached any of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::Millis;
use crate::row_index::Pool;

/// Derived from the rows and from log time, never stored.
#[derive(Debug, Default)]
pub(crate) struct Upcoming {
    now: Millis,
    /// How many rows of each pool are due at a time after `now`.
    times: BTreeMap<Millis, BTreeMap<Pool, u64>>,
}

impl Upcoming {
    /// Counts a row that is due at `at`, if that is yet to come.
    pub fn add(&mut self, pool: &Pool, at: Millis) {
        if at > self.now {
            *self.times.entry(at).or_default().entry(pool.clone()).or_default() += 1;
        }
    }

    /// Counts a row no more.
    pub fn remove(&mut self, pool: &Pool, at: Millis) {
        let Some(pools) = self.times.get_mut(&at) else { return };
        let Some(count) = pools.get_mut(pool) else { return };
        *count -= 1;
        if *count == 0 {
            pools.remove(pool);
            if pools.is_empty() {
                self.times.remove(&at);
            }
        }
    }

    /// Log time is `now`. Returns the pools whose rows fell due with it.
    pub fn pass(&mut self, now: Millis) -> BTreeSet<Pool> {
        self.now = now;
        let mut passed = BTreeSet::new();
        while let Some(first) = self.times.first_entry().filter(|first| *first.key() <= now) {
            passed.extend(first.remove().into_keys());
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::id;

    #[test]
    fn rows_fall_due_once_and_leave_nothing() {
        let mut upcoming = Upcoming::default();
        let pool = |queue: &str| (id("n"), id(queue));
        assert!(upcoming.pass(Millis(5)).is_empty());
        for (queue, at) in [("q", 5), ("q", 6), ("q", 6), ("r", 6), ("s", 7)] {
            upcoming.add(&pool(queue), Millis(at));
        }
        upcoming.remove(&pool("q"), Millis(5));
        upcoming.remove(&pool("q"), Millis(6));
        upcoming.remove(&pool("r"), Millis(6));
        assert_eq!(upcoming.pass(Millis(6)), BTreeSet::from([pool("q")]));
        upcoming.remove(&pool("q"), Millis(6));
        assert_eq!(upcoming.pass(Millis(7)), BTreeSet::from([pool("s")]));
        assert!(upcoming.times.is_empty());
    }
}
