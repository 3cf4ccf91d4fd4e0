//! Opens all parts of a data directory together, and makes the state anew where that is safe.
//!
//! The log is the truth. A state that is damaged, behind the log, or was open when the machine went down is replaced
//! by the newest snapshot on this disk, or by nothing at all if the log still has its first entry: the log then
//! brings it forward. A damaged log is never worked around, nor is a state that is ahead of its log.

use std::path::Path;
use std::sync::Arc;

use crate::data_dir::{DataDir, Expected, check_not_condemned};
use crate::disk::{Disk, RealDisk};
use crate::error::StorageError;
use crate::log::{Log, LogConfig};
use crate::room::{LOG_PART, Room};
use crate::snapshot::{SnapshotFile, Snapshots};
use crate::state::{Misfit, State, StateConfig};

/// What can be set about storage.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where all files are, but for sled's.
    pub disk: Arc<dyn Disk>,
    /// The log.
    pub log: LogConfig,
    /// The state.
    pub state: StateConfig,
    /// Free bytes of the file system below which nothing new should be begun (see [`crate::room`]).
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { disk: Arc::new(RealDisk), log: LogConfig::default(), state: StateConfig::default(), reserve_bytes: 0 }
    }
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
    /// The room that is left on the disk.
    pub room: Room,
    /// The directory, with its identity. Last, so that its lock outlives the parts.
    pub dir: DataDir,
}

/// From what a state can be made anew.
enum Source {
    Snapshot(SnapshotFile),
    Nothing,
}

impl Storage {
    /// Opens the directory at `path`, or makes it. Damage that cannot be mended from this disk is an error; so is, of
    /// kind `StorageFull`, a disk without room, on which opening alone could do harm.
    pub fn open(path: &Path, expected: &Expected, options: &Options) -> Result<Storage, StorageError> {
        let dir = DataDir::open(&options.disk, path, expected)?;
        check_not_condemned(&*options.disk, path)?;
        let room = Room::new(dir.disk(), path, options.reserve_bytes);
        room.check(0).map_err(|error| StorageError::io("opening", path, error))?;
        // There is room for a further segment until the very end.
        let segment_bytes = room.piece(LOG_PART, options.log.segment_bytes);
        let log = LogConfig { segment_bytes, ..options.log.clone() };
        let log = Log::open(dir.disk(), &dir.log_dir(), log, dir.poison())?;
        let snapshots = Snapshots::open(dir.disk(), &dir.snapshot_dir(), dir.poison())?.within(room.clone());
        let config = StateConfig { room: room.clone(), ..options.state.clone() };
        let state = open_state(&dir, &log, &snapshots, &config)?;
        snapshots.set_aside()?;
        Ok(Storage { log: Arc::new(log), state: Arc::new(state), snapshots: Arc::new(snapshots), room, dir })
    }
}

fn open_state(dir: &DataDir, log: &Log, snapshots: &Snapshots, config: &StateConfig) -> Result<State, StorageError> {
    let root = dir.state_dir();
    let mismatch = |misfit: &Misfit| StorageError::Mismatch { dir: root.clone(), what: misfit.to_string() };
    let reason = match State::open(dir.disk(), &root, config.clone(), dir.poison()) {
        Ok(state) => match state.check_against_log(log) {
            Err(misfit @ Misfit::Ahead { .. }) => return Err(mismatch(&misfit)),
            Err(misfit @ Misfit::Behind { .. }) => mismatch(&misfit),
            Ok(()) if !state.was_cut_off() => return Ok(state),
            Ok(()) if source(log, snapshots).is_none() => {
                tracing::warn!(
                    "the machine went down while the state was open, and no snapshot is at hand to check it"
                );
                return Ok(state);
            }
            Ok(()) => StorageError::damaged(&root, 0, "the machine went down while the state was open"),
        },
        Err(error) if error.is_damage() => error,
        Err(error) => return Err(error),
    };
    // A snapshot that turns out to be damaged leaves what there is without it.
    loop {
        let Some(source) = source(log, snapshots) else { return Err(reason) };
        let snapshot = match &source {
            Source::Snapshot(snapshot) => Some(snapshot),
            Source::Nothing => None,
        };
        tracing::warn!(
            reason = reason.without_advice(),
            snapshot = snapshot.map(|snapshot| snapshot.header.applied.to_string()),
            "the state is made anew; the log brings it forward"
        );
        match State::restore(&dir.disk(), &root, snapshot, config) {
            Err(error) if snapshots.has_damaged(&error) => {}
            restored => break restored?,
        }
    }
    let state = State::open(dir.disk(), &root, config.clone(), dir.poison())?;
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

#[cfg(test)]
mod tests;
