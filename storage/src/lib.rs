//! Bytes on disk: the Raft log, the replicated state, snapshots, and the directory that holds them.
//!
//! Storage remembers; it decides nothing. It knows Raft only as ids and opaque payloads, and the state only as
//! rows of bytes by key. Everything is synchronous; callers choose the threads. [`Storage::open`] opens it all.
//!
//! ```text
//! <data directory>/identity    whose data this is (see data_dir)
//!                  lock        held while a process uses it
//!                  log/        the Raft log and the vote: the truth, synced before anything is acknowledged
//!                  state/      the rows of the state machine: may fall behind, never ahead
//!                  snapshots/  the newest snapshot, and what has come of a peer's
//! ```
//!
//! # What is assumed of the media
//! A sync that returned success is on the medium. A sector is written whole or not at all. Before a sync, writes may be
//! lost or torn, in any order. Bits may rot at any time. After a failed sync nothing is known about what was not
//! synced before, so storage stops for good (see [`disk::Poison`]).

pub mod backup;
#[cfg(test)]
mod crash;
pub mod data_dir;
pub mod disk;
pub mod error;
#[cfg(any(test, feature = "fault"))]
pub mod fault;
pub mod frame;
pub mod ids;
mod keys;
pub mod log;
mod open;
pub mod room;
mod rows;
pub mod snapshot;
pub mod state;
mod tree;
pub mod verify;

pub use data_dir::{DataDir, Expected, Identity};
pub use error::StorageError;
pub use ids::{FIRST_INDEX, LogId, LogRecord, Vote};
pub use log::{Log, LogConfig, LogStats, LogWriter};
pub use open::{Options, Storage};
pub use room::{Room, RoomLevel};
pub use snapshot::{SnapshotFile, SnapshotHeader, SnapshotId, Snapshots};
pub use state::{State, StateConfig, StateKind};
