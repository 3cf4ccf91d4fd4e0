//! What can be seen of a node from outside at one moment.

use holdfast_machine::NodeName;

/// A node at one moment. Indexes are 0 where there is none yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The node.
    pub node: NodeName,
    /// Which disk it has: grows when it is given an empty one.
    pub disk: u64,
    /// Which process it is: grows with each start.
    pub boot: u64,
    /// Its term.
    pub term: u64,
    /// The leader of that term, as far as the node knows. A node that leads names itself.
    pub leader: Option<NodeName>,
    /// The last entry that is not in its log any more.
    pub purged: u64,
    /// The last entry that its newest snapshot holds.
    pub snapshot: u64,
    /// The last entry that its state holds.
    pub applied: u64,
    /// The last entry that it knows to be committed.
    pub committed: u64,
    /// The last entry of its log.
    pub last: u64,
    /// The hash of its state at `applied`, if it was looked at.
    pub hash: Option<u64>,
}

/// A node of which nothing is known.
#[cfg(test)]
pub(crate) fn seen(node: &str) -> Observation {
    Observation {
        #[allow(clippy::unwrap_used)]
        node: node.parse().unwrap(),
        disk: 1,
        boot: 1,
        term: 0,
        leader: None,
        purged: 0,
        snapshot: 0,
        applied: 0,
        committed: 0,
        last: 0,
        hash: None,
    }
}
