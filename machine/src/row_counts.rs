//! How many rows of each namespace live: for ceilings, and for whoever looks at the load.

use std::collections::BTreeMap;

use crate::id::Namespace;
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

/// Live rows by namespace and status. A namespace without live rows is not in it. Derived from the rows, never
/// stored.
#[derive(Debug, Default)]
pub(crate) struct NamespaceCounts(BTreeMap<Namespace, RowCounts>);

impl NamespaceCounts {
    /// Counts a live row.
    pub fn add(&mut self, row: &Row) {
        *self.0.entry(row.namespace.clone()).or_default().of(row) += 1;
    }

    /// Counts a row no more.
    pub fn remove(&mut self, row: &Row) {
        let Some(counts) = self.0.get_mut(&row.namespace) else { return };
        let count = counts.of(row);
        *count = count.saturating_sub(1);
        if *counts == RowCounts::default() {
            self.0.remove(&row.namespace);
        }
    }

    /// The rows of one namespace.
    pub fn get(&self, namespace: &Namespace) -> RowCounts {
        self.0.get(namespace).copied().unwrap_or_default()
    }

    /// Namespaces with live rows, by name.
    pub fn all(&self) -> impl Iterator<Item = (&Namespace, RowCounts)> {
        self.0.iter().map(|(namespace, counts)| (namespace, *counts))
    }
}
