//! The wall clock, as a seam: it is read in one place only, when the leader stamps an entry.

use std::time::{SystemTime, UNIX_EPOCH};

/// Gives the time that a leader stamps on log entries.
pub trait Clock: Send + Sync + 'static {
    /// Unix time in milliseconds. It may jump; the state machine keeps log time from moving back.
    fn now_ms(&self) -> u64;
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        // A clock before 1970 counts as 1970.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
