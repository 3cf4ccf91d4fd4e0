//! The state machine: what Holdfast's nodes agree on, and nothing else.
//!
//! # The rules of determinism
//!
//! Every node applies the same log and must come to the same bytes. So in this crate there is
//!
//! - no clock: time is [`Entry::at`], stamped by the leader, and log time never decreases;
//! - no randomness: claim tokens come from the log index, backoff jitter from the row's key;
//! - no I/O and no threads: cold state is read through [`Archive`], and writes are handed out by
//!   [`Machine::take_writes`];
//! - no hash map and no floating point: iteration has one order, arithmetic one result;
//! - no failure on input: a bad command is refused with a [`Reject`], and a refused command changes
//!   nothing. Each command checks all it needs before its first write.
//!
//! The first four are compile errors here (`clippy.toml`, the `deny` below); the rolling hash of
//! [`Machine::state_hash`] shows a breach of any of them on running nodes.
//!
//! # Where to start reading
//!
//! [`Command`] lists what can be asked, `apply.rs` is the way in, and one file each holds what the
//! commands do: `commit.rs` (with `projection.rs`: what events make of a workflow, and `staging.rs`), `claim.rs`,
//! `transition.rs`, `attachment.rs`, `timer.rs`, `recovery.rs`, `removal.rs`, `dead_letter.rs`, `shard.rs`, `dedup.rs`,
//! `restore.rs`.
//! `dispatch.rs` gives due rows to worker sessions at the end of each entry (`session_index.rs`: which has room).
//! `row_index.rs` keeps live rows in the order of claims, `timer_index.rs` timers in the order of firing,
//! `visibility.rs` finds workflows by what they are, `explain.rs` says why something does not move, `deadline.rs` ends
//! what takes too long, and `keys.rs` is the layout of the state on disk.
//! `tests/scripts` shows all of it at work: commands, and what follows from them.

#![deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::float_arithmetic)]
#![warn(missing_docs)]

mod apply;
mod archive;
mod attachment;
mod attributes;
mod claim;
mod command;
mod commit;
mod cursor;
mod dead_letter;
mod deadline;
mod dedup;
mod dispatch;
mod event;
mod explain;
mod history;
mod id;
mod keys;
pub mod limits;
mod listing;
mod load;
mod member;
mod merge;
mod namespace;
mod need;
mod open_workflows;
mod outbox;
mod payload;
mod planted;
mod projection;
mod query;
mod recovery;
mod reject;
mod removal;
pub mod rendezvous;
mod reply;
mod restore;
mod row_counts;
mod row_index;
#[cfg(feature = "openapi")]
mod schema;
mod session;
mod session_index;
mod shard;
mod staging;
mod standalone;
mod state;
mod timer;
mod timer_index;
mod transition;
#[cfg(test)]
mod trial;
mod upcoming;
mod validate;
mod visibility;

pub use apply::Applied;
pub use archive::{Archive, ArchiveError, ArchiveResult, MemoryArchive, Pair, Writes};
pub use attributes::{AttributeValue, Attributes, AttributesUpdate};
pub use command::{Claim, Command, Commit, Entry, Fence, NewHolder, Request, RowAction, Scope, Transition};
pub use cursor::{read_cursor, write_cursor};
pub use deadline::Deadline;
pub use event::{ClusterEvent, Effect, Parked};
pub use explain::{
    Census, CensusSession, NextTimeout, NoQuorum, OVERDUE_GRACE_MS, Outlook, ParkedRoute, Poll, QueueCensus, RowReason,
    ShardReason, Vantage, WorkflowReason,
};
pub use history::{EventKind, HistoryEvent, NewEvent, Run, Workflow, WorkflowStart, WorkflowStatus};
pub use id::{
    ActivityType, AttributeName, BootId, ClaimToken, Claimant, DispatchKey, Epoch, ErrorType, EventId, IdempotencyKey,
    InvalidId, Millis, Namespace, NodeName, RunId, SessionId, ShardId, TaskQueue, TimerId, WorkflowId, WorkflowType,
};
pub use keys::{BUNDLED_BITS, STATE_VERSION, bundle_key};
pub use limits::Limits;
pub use listing::{DeadLetters, Heads};
pub use member::{Evidence, Liveness, Member, MemberState};
pub use namespace::{NamespaceSettings, NamespaceState, RETENTION_MS_DEFAULT};
pub use need::Need;
pub use outbox::{Holder, NewRow, RetryPolicy, Row, RowClaim, RowStatus, Timeouts};
pub use payload::{JSON, OCTETS, Payload};
pub use planted::is_planted;
pub use query::ReadMode;
pub use reject::Reject;
pub use removal::DuePurge;
pub use reply::{Claimed, Committed, Moved, Reply, Returned, Staged};
pub use restore::{EPOCHS_LEFT, INDEXES_LEFT, Restored};
pub use row_counts::RowCounts;
pub use row_index::{PendingRoute, Route};
pub use session::{Attached, Disconnected, Session, SessionChange, SessionReply, Worker};
pub use shard::ShardEntry;
pub use state::{Machine, Meta};
pub use timer::{Arming, Retirement, TimerChange};
pub use visibility::{
    AttributeFilter, AttributeRange, ListedWorkflow, Position, SortOrder, TimeRange, WorkflowCount, WorkflowFilter,
    WorkflowPage, WorkflowQuery, WorkflowSort,
};
