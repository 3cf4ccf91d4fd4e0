//! Invariant 5: an acknowledged write is in the log for ever, after any loss of a minority, and after power loss of all
//! nodes: what was acknowledged at an index is what every node applied there, and no node that has all there is to have
//! ends before it.

use std::collections::BTreeMap;

use holdfast_machine::{Entry, Request};

use crate::{Check, ensure};

/// The acknowledgements that were given.
#[derive(Debug, Default)]
pub struct AcknowledgedStays {
    requests: BTreeMap<u64, Vec<Request>>,
}

impl AcknowledgedStays {
    /// Takes in a write that was acknowledged at a log index, by itself and not as a retry.
    pub fn acknowledge(&mut self, index: u64, request: Request) {
        self.requests.entry(index).or_default().push(request);
    }

    /// Holds an entry that was applied, on whichever node, against what was acknowledged there.
    ///
    /// # Errors
    /// When an acknowledged write is not in it.
    pub fn applied(&self, index: u64, entry: &Entry) -> Check {
        for request in self.requests.get(&index).into_iter().flatten() {
            ensure!(entry.requests.contains(request), "{request:?} was acknowledged at {index}, which holds {entry:?}");
        }
        Ok(())
    }

    /// Holds the end of the cluster's log, once it is whole, against what was acknowledged.
    ///
    /// # Errors
    /// When it ends before an acknowledged write.
    pub fn ends_at(&self, last: u64) -> Check {
        let acknowledged = self.requests.last_key_value().map_or(0, |(index, _)| *index);
        ensure!(acknowledged <= last, "the log ends at {last}, and a write was acknowledged at {acknowledged}");
        Ok(())
    }

    /// How many acknowledgements there are.
    pub fn count(&self) -> usize {
        self.requests.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_machine::{Command, Millis};

    #[test]
    fn a_write_that_is_elsewhere_or_nowhere_is_noticed() {
        let request = |shard_count| Request::from(Command::Create { shard_count });
        let entry = |counts: &[u32]| Entry { at: Millis(0), requests: counts.iter().map(|n| request(*n)).collect() };
        let mut watch = AcknowledgedStays::default();
        watch.acknowledge(4, request(1));
        watch.acknowledge(4, request(2));
        watch.applied(3, &entry(&[])).unwrap();
        watch.applied(4, &entry(&[2, 3, 1])).unwrap();
        watch.ends_at(4).unwrap();
        assert!(watch.applied(4, &entry(&[1])).is_err());
        assert!(watch.ends_at(3).is_err());
    }
}
