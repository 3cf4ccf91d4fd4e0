//! Whether a state and a log belong together.

use crate::ids::{FIRST_INDEX, LogId};

/// Why a log cannot bring a state forward.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Entries that the state lacks are gone from the log: a snapshot can help.
    #[error("the next entry to apply is {next}, but the log was purged up to {purged}: rows were lost")]
    Behind {
        /// The first entry that the state lacks.
        next: u64,
        /// Where the log begins.
        purged: LogId,
    },
    /// The log has lost entries: this node may have forgotten what it has acknowledged.
    #[error("entry {applied} was applied, but the log ends before it: entries were lost")]
    Ahead {
        /// The last entry in the state.
        applied: LogId,
    },
}

/// Whether a state with this applied id can be brought forward by a log with these ends.
///
/// The state may be ahead of the log only if it was installed from a snapshot and nothing was applied since: the
/// process then died before the log was purged to it.
pub fn check_against_log(
    applied: Option<LogId>,
    installed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
) -> Result<(), Misfit> {
    let next = applied.map_or(FIRST_INDEX, |applied| applied.index + 1);
    if let Some(purged) = purged.filter(|purged| purged.index >= next) {
        return Err(Misfit::Behind { next, purged });
    }
    match applied {
        Some(applied) if last.is_none_or(|last| last.index < applied.index) && installed != Some(applied) => {
            Err(Misfit::Ahead { applied })
        }
        _ => Ok(()),
    }
}
