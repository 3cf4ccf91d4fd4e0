//! Why something does not move: one reason, the first that holds, with its figures, a sentence and what to do.
//!
//! Pure like the rest: reasons are derived from the state at a time, and from what the node that answers knows besides
//! it ([`Vantage`]: whether it reaches a majority, who waits on it). The orders in which reasons are looked for stand in
//! `row.rs`, `workflow.rs` and `shard.rs`; `route.rs` is about rows that are due and whom they wait for, and is what
//! parked dispatches are told by as well; `census.rs` lists the workers that there are; `words.rs` is for people.
//!
//! The types are written as JSON only, where a reason is its `code` beside its figures. Times are log time in unix
//! milliseconds; what ends in `_ms` is a length.

mod census;
mod held;
mod route;
mod row;
mod shard;
#[cfg(test)]
mod tests;
mod words;
mod workflow;

use serde::{Deserialize, Serialize};

use crate::command::Scope;
use crate::id::{Millis, NodeName, WorkflowId};

pub use census::{Census, CensusSession, QueueCensus};
pub use held::NextTimeout;
pub use route::ParkedRoute;
pub use row::RowReason;
pub use shard::ShardReason;
pub use workflow::WorkflowReason;

/// If nothing has come of a deadline for this long, in milliseconds, nothing is on its way: log time stands still.
pub const OVERDUE_GRACE_MS: u64 = 5_000;

/// Whether somebody has to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outlook {
    /// It moves, or goes on by itself at a known time.
    Moving,
    /// It has ended in good order.
    Finished,
    /// It goes on only if somebody does something.
    HeldUp,
    /// There is no such thing.
    Unknown,
}

/// What the node that answers knows besides the state.
#[derive(Debug, Clone, Default)]
pub struct Vantage {
    /// Log time as the node estimates it; at least that of the state.
    pub now: Millis,
    /// Set if the node does not reach a majority. The state may then be old.
    pub no_quorum: Option<NoQuorum>,
    /// A node whose disk is full, so that nothing can be written.
    pub storage_full: Option<NodeName>,
    /// The claims that wait for work on this node; those with the same wish once.
    pub polls: Vec<Poll>,
}

/// A node without a majority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NoQuorum {
    /// The node.
    pub node: NodeName,
    /// The leader that it knows, which does not answer or cannot lead.
    pub leader: Option<NodeName>,
    /// How many voters it is connected to, itself counted.
    pub linked: u32,
    /// How many voters there are.
    pub voters: u32,
    /// For how long it has had too few connections, in milliseconds; none if they are there.
    pub for_ms: Option<u64>,
}

/// Claims that wait for the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    /// Which rows they take.
    pub scope: Scope,
    /// Only rows of shards that this node owns.
    pub owner: Option<NodeName>,
    /// Workflows whose rows they pass over.
    pub hold: Vec<WorkflowId>,
    /// How many such claims there are.
    pub count: u64,
}

/// How long ago something was.
fn since(now: Millis, at: Millis) -> u64 {
    now.0.saturating_sub(at.0)
}

/// How long it is until something.
fn until(now: Millis, at: Millis) -> u64 {
    at.0.saturating_sub(now.0)
}
