//! How many rows live, by namespace and by workflow: for ceilings, and for whoever looks at the load.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::outbox::Row;

/// Live rows by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RowCounts {
    /// Waiting, due or not, held or not.
    pub pending: u64,
    /// Held by somebody.
    pub claimed: u64,
}

impl RowCounts {
    fn of(&mut self, row: &Row) -> &mut u64 {
        if row.claim.is_some() { &mut self.claimed } else { &mut self.pending }
    }
}

/// Live rows by status and by something that each row has one of. What has no live rows is not in it. Derived from
/// the rows, never stored.
#[derive(Debug)]
pub(crate) struct CountsBy<K>(BTreeMap<K, RowCounts>);

impl<K> Default for CountsBy<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> CountsBy<K> {
    /// Counts a live row.
    pub fn add(&mut self, key: &K, row: &Row) {
        *self.0.entry(key.clone()).or_default().of(row) += 1;
    }

    /// Counts a row no more.
    pub fn remove(&mut self, key: &K, row: &Row) {
        let Some(counts) = self.0.get_mut(key) else { return };
        let count = counts.of(row);
        *count = count.saturating_sub(1);
        if *counts == RowCounts::default() {
            self.0.remove(key);
        }
    }

    /// The rows of one key.
    pub fn get(&self, key: &K) -> RowCounts {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// True if there are no live rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that have live rows, in order, behind `key` if that is given.
    pub fn after(&self, key: Option<&K>) -> impl Iterator<Item = (&K, RowCounts)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range((from, Bound::Unbounded)).map(|(key, counts)| (key, *counts))
    }
}
