//! Invariant 1: at most one leader in a term, whoever is asked; and a node's term never goes back while it has its disk.

use std::collections::BTreeMap;

use holdfast_machine::NodeName;

use crate::{Check, Observation, ensure, ensure_eq};

/// The leaders that were seen.
#[derive(Debug, Default)]
pub struct OneLeaderPerTerm {
    leaders: BTreeMap<u64, NodeName>,
    /// Disk and term of each node.
    terms: BTreeMap<NodeName, (u64, u64)>,
}

impl OneLeaderPerTerm {
    /// Takes in what was seen of a node.
    ///
    /// # Errors
    /// When two nodes lead one term, or when a vote was forgotten.
    pub fn observe(&mut self, seen: &Observation) -> Check {
        if let Some(leader) = &seen.leader {
            let known = self.leaders.entry(seen.term).or_insert_with(|| leader.clone());
            ensure_eq!(leader, known, "the leader of term {}, says {}", seen.term, seen.node);
        }
        let (disk, term) = self.terms.get(&seen.node).copied().unwrap_or_default();
        ensure!(seen.disk != disk || seen.term >= term, "{} was in term {term} and is in {}", seen.node, seen.term);
        self.terms.insert(seen.node.clone(), (seen.disk, seen.term));
        Ok(())
    }

    /// How many leaders were seen.
    pub fn elections(&self) -> usize {
        self.leaders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::seen;

    #[test]
    fn two_leaders_of_one_term_and_a_forgotten_term_are_noticed() {
        let led = |node: &str, term, leader: &str| Observation { leader: leader.parse().ok(), term, ..seen(node) };
        let mut watch = OneLeaderPerTerm::default();
        for seen in [led("a", 1, "a"), led("b", 1, "a"), led("b", 2, "b"), led("a", 2, "b"), led("a", 3, "a")] {
            watch.observe(&seen).unwrap();
        }
        assert_eq!(watch.elections(), 3);
        assert!(watch.observe(&led("b", 3, "b")).is_err(), "a leads term 3");
        assert!(watch.observe(&led("a", 2, "b")).is_err(), "a has voted in term 3");
        watch.observe(&Observation { disk: 2, ..led("a", 2, "b") }).unwrap();
    }
}
