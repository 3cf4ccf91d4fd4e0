//! Checks a whole data directory while no node runs on it: every record, row and snapshot.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data_dir::{Identity, check_not_condemned, log_dir, snapshot_dir, state_dir, take_lock_if_any};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::ids::LogId;
use crate::log::{Log, LogSummary};
use crate::open::Options;
use crate::snapshot::SnapshotFile;
use crate::state::{self, StateSummary};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Whose data it is.
    pub identity: Option<Identity>,
    /// The log, if it is sound.
    pub log: Option<LogSummary>,
    /// The state, if it is sound.
    pub state: Option<StateSummary>,
    /// The sound snapshots, oldest first.
    pub snapshots: Vec<SnapshotSummary>,
    /// What is wrong, each with what to do about it.
    pub problems: Vec<String>,
}

/// A sound snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Where it is.
    pub path: PathBuf,
    /// The last entry that is in it.
    pub applied: LogId,
    /// Number of rows.
    pub rows: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// Checks the data directory at `path`. An error means that it could not be checked (in use, or not one at all). Nothing in
/// it is changed: sled, which writes whenever it is opened, is opened in a copy among the temporary files.
pub fn verify(path: &Path) -> Result<Report, StorageError> {
    verify_on(&Options::default(), path)
}

/// The same, on another disk or with another kind of state.
pub fn verify_on(options: &Options, path: &Path) -> Result<Report, StorageError> {
    let disk = &options.disk;
    let mut report = Report::default();
    match Identity::read(&**disk, path) {
        Ok(Some(identity)) => report.identity = Some(identity),
        Ok(None) => {
            let (dir, example) = (path.to_path_buf(), "no file `identity`".to_owned());
            return Err(StorageError::NotADataDirectory { dir, example });
        }
        Err(error @ (StorageError::Io { .. } | StorageError::NewerFormat { .. })) => return Err(error),
        Err(error) => report.problems.push(error.to_string()),
    }
    let _lock = take_lock_if_any(&**disk, path)?;
    report.note(check_not_condemned(&**disk, path));
    report.log = report.note(Log::check(&**disk, &log_dir(path)));
    report.state = report.note(state::check(disk, &state_dir(path), &options.state));
    report.check_fit(path);
    match disk.list(&snapshot_dir(path)) {
        Err(error) => report.problems.push(StorageError::io("listing", &snapshot_dir(path), error).to_string()),
        Ok(names) => {
            for name in names.iter().filter(|name| name.ends_with(crate::snapshot::SNAPSHOT_SUFFIX)) {
                let checked = check_snapshot(disk, &snapshot_dir(path).join(name));
                let summary = report.note(checked);
                report.snapshots.extend(summary);
            }
        }
    }
    Ok(report)
}

fn check_snapshot(disk: &Arc<dyn Disk>, path: &Path) -> Result<SnapshotSummary, StorageError> {
    let file = SnapshotFile::open(&**disk, path)?;
    let rows = file.verify()?.rows;
    Ok(SnapshotSummary { path: file.path, applied: file.header.applied, rows, bytes: file.length })
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn note<T>(&mut self, result: Result<T, StorageError>) -> Option<T> {
        result.map_err(|error| self.problems.push(error.to_string())).ok()
    }

    fn check_fit(&mut self, path: &Path) {
        let (Some(log), Some(state)) = (&self.log, &self.state) else { return };
        let fit = state::check_against_log(state.applied, state.installed, log.purged, log.last);
        if let Err(misfit) = fit {
            let (dir, what) = (state_dir(path), misfit.to_string());
            self.problems.push(StorageError::Mismatch { dir, what }.to_string());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |id: Option<LogId>| id.map_or("none".to_owned(), |id| id.to_string());
        if let Some(identity) = &self.identity {
            let node = identity.node.map_or_else(|| "none yet".to_owned(), |node| node.to_string());
            writeln!(
                f,
                "cluster {}, node {}, Raft id {node}, disk {}",
                identity.cluster, identity.name, identity.incarnation
            )?;
        }
        if let Some(log) = &self.log {
            let (purged, last) = (show(log.purged), show(log.last));
            writeln!(f, "log: {} segments, purged up to {purged}, last entry {last}", log.segments)?;
            if log.torn_bytes > 0 {
                writeln!(f, "log: {} bytes of an unfinished write at the end, harmless", log.torn_bytes)?;
            }
        }
        if let Some(state) = &self.state {
            writeln!(f, "state: {} rows, applied up to {}", state.rows, show(state.applied))?;
        }
        for snapshot in &self.snapshots {
            let name = snapshot.path.file_name().unwrap_or_default().to_string_lossy();
            writeln!(f, "snapshot {name}: {} rows, {} bytes", snapshot.rows, snapshot.bytes)?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        write!(f, "{}", if self.is_sound() { "all sound" } else { "not sound" })
    }
}
