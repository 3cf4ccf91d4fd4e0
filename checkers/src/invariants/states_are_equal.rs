//! Invariant 4: all nodes have the same state at the same applied index, also after a snapshot was restored and after
//! entries were applied once more.

use std::collections::BTreeMap;

use holdfast_machine::NodeName;

use crate::{Check, Observation, ensure_eq};

/// The hashes that were seen, by index, with the first node that had each.
#[derive(Debug, Default)]
pub struct StatesAreEqual {
    hashes: BTreeMap<u64, (u64, NodeName)>,
    compared: u64,
}

impl StatesAreEqual {
    /// Takes in what was seen of a node.
    ///
    /// # Errors
    /// When another state was seen at the same index.
    pub fn observe(&mut self, seen: &Observation) -> Check {
        let Some(hash) = seen.hash else { return Ok(()) };
        let (known, first) = self.hashes.entry(seen.applied).or_insert_with(|| (hash, seen.node.clone()));
        ensure_eq!(hash, *known, "the states at {} of {} and of {first} differ: the hash", seen.applied, seen.node);
        self.compared += u64::from(*first != seen.node);
        Ok(())
    }

    /// How often the states of two nodes were held against each other.
    pub fn compared(&self) -> u64 {
        self.compared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::seen;

    #[test]
    fn another_state_at_the_same_index_is_noticed() {
        let hashed = |node: &str, applied, hash| Observation { applied, hash, ..seen(node) };
        let mut watch = StatesAreEqual::default();
        for seen in [hashed("a", 3, Some(30)), hashed("b", 3, Some(30)), hashed("b", 4, Some(40)), hashed("a", 4, None)]
        {
            watch.observe(&seen).unwrap();
        }
        assert_eq!(watch.compared(), 1);
        assert!(watch.observe(&hashed("c", 4, Some(41))).is_err());
    }
}
