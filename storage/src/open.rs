//! Opens all parts of a data directory together, and makes the state anew where that is safe.
//!
//! The log is the truth. A state that is damaged, behind the log, or was open when the machine went down is replaced
//! by the newest snapshot on this disk, or by nothing at all if the log still has its first entry: the log then
//! brings it forward. A damaged log is never worked around, nor is a state that is ahead of its log.

use std::path::Path;
use std::sync::Arc;

use crate::data_dir::{DataDir, Expected};
use crate::error::StorageError;
use crate::log::{Log, LogConfig};
use crate::snapshot::{SnapshotFile, Snapshots};
use crate::state::{Misfit, State, StateConfig};

/// What can be set about storage.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The log.
    pub log: LogConfig,
    /// The state.
    pub state: StateConfig,
}

/// An open data directory with its parts. The directory is locked until this is dropped.
#[derive(Debug)]
pub struct Storage {
    /// The Raft log.
    pub log: Arc<Log>,
    /// The replicated state.
    pub state: Arc<State>,
    /// The snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The directory, with its identity. Last, so that its lock outlives the parts.
    pub dir: DataDir,
}

/// From what a state can be made anew.
enum Source {
    Snapshot(SnapshotFile),
    Nothing,
}

impl Storage {
    /// Opens the directory at `path`, or makes it. Damage that cannot be mended from this disk is an error.
    pub fn open(path: &Path, expected: &Expected, options: &Options) -> Result<Storage, StorageError> {
        let dir = DataDir::open(path, expected)?;
        let log = Log::open(dir.disk(), &dir.log_dir(), options.log.clone(), dir.poison())?;
        let snapshots = Snapshots::open(dir.disk(), &dir.snapshot_dir(), dir.poison())?;
        let state = open_state(&dir, &log, &snapshots, &options.state)?;
        Ok(Storage { log: Arc::new(log), state: Arc::new(state), snapshots: Arc::new(snapshots), dir })
    }
}

fn open_state(
    dir: &DataDir,
    log: &Log,
    snapshots: &Snapshots,
    config: &StateConfig,
) -> Result<State, StorageError> {
    let root = dir.state_dir();
    let mismatch = |misfit: &Misfit| StorageError::Mismatch { dir: root.clone(), what: misfit.to_string() };
    let reason = match State::open(&root, config.clone(), dir.poison()) {
        Ok(state) => match state.check_against_log(log) {
            Err(misfit @ Misfit::Ahead { .. }) => return Err(mismatch(&misfit)),
            Err(misfit @ Misfit::Behind { .. }) => mismatch(&misfit),
            Ok(()) if !state.was_cut_off() => return Ok(state),
            Ok(()) if source(log, snapshots).is_none() => {
                tracing::warn!("the machine went down while the state was open, and no snapshot is at hand to check it");
                return Ok(state);
            }
            Ok(()) => StorageError::damaged(&root, 0, "the machine went down while the state was open"),
        },
        Err(error) if error.is_damage() => error,
        Err(error) => return Err(error),
    };
    let Some(source) = source(log, snapshots) else { return Err(reason) };
    let snapshot = match &source {
        Source::Snapshot(snapshot) => Some(snapshot),
        Source::Nothing => None,
    };
    tracing::warn!(
        reason = %first_sentence(&reason),
        snapshot = snapshot.map(|snapshot| snapshot.header.applied.to_string()),
        "the state is made anew; the log brings it forward"
    );
    State::restore(&root, snapshot, config)?;
    let state = State::open(&root, config.clone(), dir.poison())?;
    match state.check_against_log(log) {
        Ok(()) => Ok(state),
        Err(misfit) => Err(mismatch(&misfit)),
    }
}

/// What the log can bring forward: the newest snapshot if the log goes on where it ends, or nothing if the log
/// begins at its first entry.
fn source(log: &Log, snapshots: &Snapshots) -> Option<Source> {
    let purged = log.purged().map(|purged| purged.index);
    match snapshots.newest() {
        Ok(Some(snapshot)) if Some(snapshot.header.applied.index) >= purged => Some(Source::Snapshot(snapshot)),
        _ if purged.is_none() => Some(Source::Nothing),
        _ => None,
    }
}

/// The error without its advice, which is for the case that nothing can be done here.
fn first_sentence(error: &StorageError) -> String {
    error.to_string().split(crate::error::REBUILD).next().unwrap_or_default().trim_end().to_owned()
}
