//! Agreement: Holdfast's nodes agree on one log, notice who is dead, and tell everybody.
//!
//! This is the only crate that knows openraft. Its users hold a [`Handle`]: they propose requests on any
//! node, read at a freshness of their choice, and follow the cluster's events and this node's effects.
//!
//! # How it works here
//!
//! - A request goes to the leader in one hop (`propose`), into an entry with others (`batcher`), into
//!   the logs of a quorum (`log_store`, `transport`), through the state machine on every node
//!   (`state_machine`), and its reply back the same way.
//! - Every node watches every peer (`peers`, `detector`). The leader commits what it sees as changes
//!   of the peers' records in the membership (`membership`); voters stay as they are.
//! - The leader commits what the state's hash is, and a node that differs stops (`checkpoint`).
//! - A node that starts without data asks the others whether it is a member (`admission`); one that has lost its
//!   data is replaced under a new id (`replacement`). The links follow the membership (`roster`).
//! - When the leader dies, the others agree on that and one of them stands at once (`succession`).
//! - What is stored and sent is ours (`wire`), never openraft's.

#![warn(missing_docs)]

mod admission;
mod backup;
mod batcher;
mod budget;
mod checkpoint;
mod clock;
mod compaction;
mod detector;
mod environment;
mod feed;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod leader;
mod log_store;
mod membership;
mod open;
mod options;
mod peers;
mod progress;
mod propose;
mod replacement;
mod restore;
mod room;
mod roster;
mod snapshot;
mod start;
mod state_machine;
mod status;
mod succession;
mod transfers;
mod transport;
mod types;
mod wire;

pub use backup::{BackupError, BackupFile};
pub use batcher::Committed;
pub use clock::{Clock, SystemClock};
pub use environment::{AppliedEntry, Environment, Observer, PeerListener, PeerNetwork, PeerStream, WritePause};
pub use feed::{Feed, FeedItem, Since, Subscription};
pub use handle::{Handle, TransferError};
pub use holdfast_storage::RoomLevel;
pub use leader::REQUEST_BYTES_MAX;
pub use options::{Batching, Compaction, Detection, InvalidOption, MemberConfig, Options, PeerListen, Timing};
pub use propose::ProposeError;
pub use replacement::{ReplaceError, Replacement, ReplacementStage};
pub use restore::{BackupReport, NewNode, RestoreError, RestoreReport, restore, verify_backup};
pub use start::{Raft, StartError};
pub use status::{MemberStatus, Standing, Status};
