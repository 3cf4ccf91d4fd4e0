//! Bytes on disk: the Raft log, the replicated state, snapshots, and the directory that holds them.
//!
//! Storage remembers; it decides nothing. It knows Raft only as ids and opaque payloads, and the state only as
//! rows of bytes by key. Everything is synchronous; callers choose the threads.

pub mod disk;
pub mod error;
pub mod frame;
pub mod ids;
pub mod log;

pub use error::StorageError;
pub use ids::{FIRST_INDEX, LogId, LogRecord, Vote};
pub use log::Log;
