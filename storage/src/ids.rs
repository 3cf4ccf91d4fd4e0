//! The few values that storage knows of Raft: it stores them and compares indexes, and decides nothing.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The index that the first log entry of a cluster has.
pub const FIRST_INDEX: u64 = 0;

/// The place of an entry in the Raft log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// Position in the log, from [`FIRST_INDEX`].
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index, self.term)
    }
}

/// One log entry; storage does not look into the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where the entry is.
    pub id: LogId,
    /// What it says.
    pub payload: Bytes,
}

/// For whom this node has voted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The term voted in.
    pub term: u64,
    /// The candidate.
    pub node: u64,
    /// Whether a quorum has accepted that candidate.
    pub committed: bool,
}
