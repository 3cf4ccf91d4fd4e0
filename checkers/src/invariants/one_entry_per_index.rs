//! Invariant 2: one committed index, one entry, for ever: whichever node applies it, and however often, it is the same.

use std::collections::BTreeMap;

use holdfast_machine::NodeName;

use crate::{Check, ensure, ensure_eq};

/// The entries that were applied: term and digest of each.
#[derive(Debug, Default)]
pub struct OneEntryPerIndex {
    entries: BTreeMap<u64, (u64, u64)>,
}

impl OneEntryPerIndex {
    /// Takes in what a node applied at an index. The digest is any that different entries do not share.
    ///
    /// # Errors
    /// When another entry was applied there.
    pub fn applied(&mut self, node: &NodeName, index: u64, term: u64, digest: u64) -> Check {
        let known = *self.entries.entry(index).or_insert((term, digest));
        ensure_eq!((term, digest), known, "term and digest of entry {index} on {node}");
        let before = self.entries.range(..index).next_back().map_or(0, |(_, (term, _))| *term);
        let behind = self.entries.range(index + 1..).next().map_or(u64::MAX, |(_, (term, _))| *term);
        ensure!((before..=behind).contains(&term), "term {term} of {index} between {before} and {behind}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_entry_and_a_term_out_of_order_are_noticed() {
        let node: NodeName = "a".parse().unwrap();
        let mut watch = OneEntryPerIndex::default();
        for (index, term, digest) in [(1, 1, 11), (2, 1, 12), (5, 3, 15), (1, 1, 11)] {
            watch.applied(&node, index, term, digest).unwrap();
        }
        assert!(watch.applied(&node, 2, 1, 13).is_err(), "another entry");
        assert!(watch.applied(&node, 2, 2, 12).is_err(), "another term");
        assert!(watch.applied(&node, 4, 4, 14).is_err(), "a later term before an earlier one");
    }
}
