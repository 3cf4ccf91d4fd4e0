//! Invariant 3: purged <= snapshot <= applied <= committed <= last, and none of them moves back on a node. The end of
//! the log may: what is not committed can be cut off. What a node has in memory alone (how far it has applied, what it
//! knows to be committed) is found again after a start; what is on disk is there at once.

use std::collections::BTreeMap;

use holdfast_machine::NodeName;

use crate::{Check, Observation, ensure};

/// The last observation of each node.
#[derive(Debug, Default)]
pub struct PositionsOnlyGrow {
    nodes: BTreeMap<NodeName, Observation>,
}

impl PositionsOnlyGrow {
    /// Takes in what was seen of a node.
    ///
    /// # Errors
    /// When a position is out of order or has moved back.
    pub fn observe(&mut self, seen: &Observation) -> Check {
        let Observation { node, disk, boot, purged, snapshot, applied, committed, last, .. } = seen;
        let ordered = [purged, snapshot, applied, committed, last].is_sorted();
        ensure!(ordered, "purged, snapshot, applied, committed, last of {node} are out of order: {seen:?}");
        if let Some(before) = self.nodes.get(node).filter(|before| before.disk == *disk) {
            ensure!(*boot >= before.boot, "process {boot} of {node} was seen after {}", before.boot);
            ensure!(*purged >= before.purged, "{node} had purged up to {} and now {purged}", before.purged);
            ensure!(*snapshot >= before.snapshot, "{node} had a snapshot of {}, now of {snapshot}", before.snapshot);
            if *boot == before.boot {
                ensure!(*applied >= before.applied, "{node} had applied {} and now {applied}", before.applied);
                let was = before.committed;
                ensure!(*committed >= was, "{node} knew {was} to be committed and now {committed}");
                ensure!(*last >= was, "the log of {node} ends at {last}, and {was} was committed");
            }
        }
        self.nodes.insert(node.clone(), seen.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::seen;

    fn at(positions: [u64; 5]) -> Observation {
        let [purged, snapshot, applied, committed, last] = positions;
        Observation { purged, snapshot, applied, committed, last, ..seen("a") }
    }

    #[test]
    fn positions_out_of_order_and_those_that_move_back_are_noticed() {
        let fails = |before: Observation, after: Observation| {
            let mut watch = PositionsOnlyGrow::default();
            watch.observe(&before).unwrap();
            watch.observe(&after).is_err()
        };
        let good = at([1, 2, 3, 4, 9]);
        for odd in [[2, 1, 3, 4, 9], [1, 4, 3, 4, 9], [1, 2, 5, 4, 9], [1, 2, 3, 10, 9]] {
            assert!(PositionsOnlyGrow::default().observe(&at(odd)).is_err(), "{odd:?}");
        }
        for back in [[0, 2, 3, 4, 9], [1, 1, 3, 4, 9], [1, 2, 2, 4, 9], [1, 2, 3, 3, 9]] {
            assert!(fails(good.clone(), at(back)), "{back:?}");
        }
        assert!(!fails(good.clone(), at([1, 2, 3, 4, 5])), "what is not committed may be cut off");
        let started = |positions| Observation { boot: 2, ..at(positions) };
        assert!(!fails(good.clone(), started([1, 2, 2, 2, 9])), "it applies what it had applied once more");
        assert!(fails(good.clone(), started([1, 1, 2, 2, 9])), "a snapshot is on disk");
        assert!(fails(started([1, 2, 3, 4, 9]), good.clone()), "a process that has ended");
        assert!(!fails(good, Observation { disk: 2, ..at([0; 5]) }), "an empty disk");
    }
}
