//! Checks a whole data directory while no node runs on it: every record, row and snapshot.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data_dir::{Identity, check_not_condemned, log_dir, snapshot_dir, state_dir, take_lock_if_any};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::ids::LogId;
use crate::log::{COMMITTED_FILE, Log, LogSummary};
use crate::open::Options;
use crate::snapshot::{DAMAGED_SUFFIX, SNAPSHOT_SUFFIX, SnapshotFile};
use crate::state::{self, Misfit, StateSummary};

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
    /// What is wrong, each with what follows from it.
    pub problems: Vec<String>,
    /// What is not as it could be, to no harm.
    pub notes: Vec<String>,
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
        Ok(None) => return Err(no_identity(&**disk, path)),
        Err(error @ (StorageError::Io { .. } | StorageError::NewerFormat { .. })) => return Err(error),
        Err(error) => report.problems.push(error.to_string()),
    }
    let _lock = take_lock_if_any(&**disk, path)?;
    report.note(check_not_condemned(&**disk, path));
    report.log = report.note(Log::check(&**disk, &log_dir(path)));
    let damaged = report.check_snapshots(disk, &snapshot_dir(path));
    report.judge_state(path, state::check(disk, &state_dir(path), &options.state));
    report.judge_snapshots(path, &damaged);
    report.look_for_trifles(path);
    Ok(report)
}

/// There is nothing to be checked.
fn no_identity(disk: &dyn Disk, path: &Path) -> StorageError {
    let dir = path.to_path_buf();
    match disk.list(path).map(|names| names.into_iter().next()) {
        Ok(Some(example)) => StorageError::NotADataDirectory { dir, example },
        Ok(None) => StorageError::NoDataDirectory { dir, what: "the directory is empty" },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            StorageError::NoDataDirectory { dir, what: "nothing is there" }
        }
        Err(error) => StorageError::io("listing", path, error),
    }
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

    /// Gives what is wrong with the snapshots.
    fn check_snapshots(&mut self, disk: &Arc<dyn Disk>, dir: &Path) -> Vec<StorageError> {
        let names = match disk.list(dir) {
            Ok(names) => names,
            Err(error) => return vec![StorageError::io("listing", dir, error)],
        };
        let mut wrong = Vec::new();
        for path in names.iter().filter(|name| name.ends_with(SNAPSHOT_SUFFIX)).map(|name| dir.join(name)) {
            match check_snapshot(disk, &path) {
                Ok(summary) => self.snapshots.push(summary),
                Err(error) => wrong.push(error),
            }
        }
        for name in names.iter().filter(|name| name.ends_with(DAMAGED_SUFFIX)) {
            self.notes
                .push(format!("{} was set aside because it is damaged; it can be removed", dir.join(name).display()));
        }
        wrong
    }

    /// Up to where the log was purged, if no sound snapshot has all of that.
    fn uncovered(&self) -> Option<LogId> {
        let purged = self.log.as_ref()?.purged?;
        let is_covered = self.snapshots.iter().any(|snapshot| snapshot.applied.index >= purged.index);
        (!is_covered).then_some(purged)
    }

    /// What a start would make the state anew from, if it starts at all.
    fn source(&self) -> Option<String> {
        let log = self.log.as_ref().filter(|_| self.problems.is_empty() && self.uncovered().is_none())?;
        match (self.snapshots.last(), log.purged) {
            (Some(snapshot), _) => Some(format!("{} and the log", snapshot.path.display())),
            (None, _) => Some("the log".to_owned()),
        }
    }

    fn judge_state(&mut self, path: &Path, checked: Result<StateSummary, StorageError>) {
        let fit = |state: &StateSummary| match &self.log {
            Some(log) => state::check_against_log(state.applied, state.installed, log.purged, log.last),
            None => Ok(()),
        };
        // A start never makes a state anew that is ahead of its log: the log is what has lost something.
        let (error, is_mended) = match checked.map(|state| (fit(&state), state)) {
            Ok((Ok(()), state)) => return self.state = Some(state),
            Ok((Err(misfit), _)) => {
                let (dir, what) = (state_dir(path), misfit.to_string());
                (StorageError::Mismatch { dir, what }, matches!(misfit, Misfit::Behind { .. }))
            }
            Err(error) => {
                let is_damage = error.is_damage();
                (error, is_damage)
            }
        };
        self.problems.push(match self.source().filter(|_| is_mended) {
            Some(source) => {
                let what = error.without_advice();
                format!("{what} The next start makes the state anew from {source}: nothing else has to be done.")
            }
            None => error.to_string(),
        });
    }

    fn judge_snapshots(&mut self, path: &Path, damaged: &[StorageError]) {
        for error in damaged {
            self.problems.push(match &self.state {
                _ if !error.is_damage() => error.to_string(),
                Some(_) => format!(
                    "{} The state does not need it, but a peer that is sent it would not take it: remove the file while no \
                     node runs here.",
                    error.without_advice()
                ),
                None => format!("{} So the state cannot be made anew from it.", error.without_advice()),
            });
        }
        if let Some(purged) = self.uncovered() {
            let dir = snapshot_dir(path);
            let follows = match &self.state {
                Some(_) => "the state alone has them on this disk. The next start writes a new snapshot of it",
                None => "with the state damaged as well, this disk has them no more",
            };
            let dir = dir.display();
            self.problems.push(format!(
                "no sound snapshot in {dir} has the entries up to {purged}, which the log was purged of: {follows}."
            ));
        }
    }

    fn look_for_trifles(&mut self, path: &Path) {
        if self.log.as_ref().is_some_and(|log| !log.has_committed) {
            let file = log_dir(path).join(COMMITTED_FILE);
            self.notes.push(format!(
                "{} is missing or damaged; the node hears from the others what is committed, and writes it again",
                file.display()
            ));
        }
        if let Some(file) = self.state.as_ref().and_then(|state| state.lacks.as_ref()) {
            self.notes.push(format!("{} is missing; the next start makes it again", file.display()));
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
            if let Some(base) = identity.base {
                writeln!(f, "restored: begins with {base:032x}")?;
            }
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
        for note in &self.notes {
            writeln!(f, "harmless: {note}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        write!(f, "{}", if self.is_sound() { "all sound" } else { "not sound" })
    }
}
