//! The replicated state as rows in sled: what the state machine last committed.
//!
//! ```text
//! state/current       which generation counts, replaced atomically
//! state/0000000001/   a generation: one sled database
//! ```
//! The log is the truth, so commits are not synced; the applied id is in the same batch as the rows, so after a
//! crash the state is as of some earlier entry and the log brings it forward. [`State::sync`] says how far the
//! state is durable: the log must not be purged beyond that.
//!
//! Installing a snapshot fills a new generation beside the current one and then switches, so that a crash
//! leaves one or the other. Only rows' own bytes are checked by us; that sled has lost none is checked against the
//! log by [`State::check_against_log`].

mod cursor;
mod generation;
mod open_mark;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use holdfast_machine::{Archive, ArchiveError, ArchiveResult, Pair, Writes};
use sled::Batch;

use crate::disk::{Poison, RealDisk, read_file, replace_file, temporary_name};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::ids::{FIRST_INDEX, LogId};
use crate::snapshot::{SnapshotFile, SnapshotHeader};
use crate::{keys, rows};
pub(crate) use cursor::Cursor;
pub(crate) use generation::Generation;
use open_mark::OpenMark;
use rows::LargeRows;

const CURRENT_FILE: &str = "current";

/// Bytes of rows that are put into one batch while a snapshot is installed.
const INSTALL_BATCH_BYTES: usize = 1 << 20;

/// What can be set about the state.
#[derive(Debug, Clone)]
pub struct StateConfig {
    /// Memory for sled's page cache, in bytes.
    pub cache_bytes: u64,
    /// Version of the state machine's rows: written into snapshots, and newer ones are not installed.
    pub machine_version: u32,
}

impl Default for StateConfig {
    fn default() -> StateConfig {
        StateConfig { cache_bytes: 64 << 20, machine_version: 1 }
    }
}

/// The open state; reads are concurrent, commits one at a time.
#[derive(Debug)]
pub struct State {
    root: PathBuf,
    config: StateConfig,
    poison: Poison,
    current: RwLock<Arc<Generation>>,
    progress: Mutex<Progress>,
    cut_off: bool,
}

/// What changes with each commit.
#[derive(Debug, Default)]
struct Progress {
    applied: Option<LogId>,
    installed: Option<LogId>,
    membership: Option<Vec<u8>>,
    large: LargeRows,
    cursor: Option<Arc<Mutex<Cursor>>>,
}

impl State {
    /// Makes an empty state in `root`; durable on return. For a new data directory only.
    pub fn create(root: &Path) -> Result<(), StorageError> {
        let creating = |error| StorageError::io("creating the state in", root, error);
        fs::create_dir_all(root).map_err(creating)?;
        set_current(root, 1).map_err(creating)
    }

    /// Opens the state in `root`, and removes what an interrupted install left there.
    pub fn open(root: &Path, config: StateConfig, poison: Poison) -> Result<State, StorageError> {
        let number = read_current(root)?;
        let generation = Generation::open(root, number, config.cache_bytes)?;
        let progress = Progress::load(&generation)
            .map_err(|error| StorageError::damaged(&Generation::dir(root, number), 0, error.0))?;
        let opening = |error| StorageError::io("opening the state in", root, error);
        remove_others(root, number).map_err(opening)?;
        let cut_off = OpenMark::set(root).map_err(opening)?;
        Ok(State {
            root: root.to_path_buf(),
            config,
            poison,
            current: RwLock::new(Arc::new(generation)),
            progress: Mutex::new(progress),
            cut_off,
        })
    }

    /// Id of the last entry whose rows are committed.
    pub fn applied(&self) -> Option<LogId> {
        self.progress().applied
    }

    /// The membership as of the last commit that had one; opaque.
    pub fn membership(&self) -> Option<Vec<u8>> {
        self.progress().membership.clone()
    }

    /// Bytes that the state takes on disk.
    pub fn size_on_disk(&self) -> io::Result<u64> {
        self.current().db.size_on_disk().map_err(io::Error::other)
    }

    /// Commits rows (`None` removes one), the applied id and, if given, the membership: all or nothing after a
    /// crash. Not durable before [`State::sync`].
    pub fn commit(&self, writes: &Writes, applied: LogId, membership: Option<&[u8]>) -> Result<(), StorageError> {
        self.poison.check().map_err(|error| StorageError::io("committing to", &self.root, error))?;
        let generation = self.current();
        let mut progress = self.progress();
        let result = progress.commit(&generation, writes, applied, membership);
        if let Err(error) = &result {
            self.poison.strike("committing rows", error);
        }
        result.map_err(|error| StorageError::io("committing to", &self.root, error))
    }

    /// Makes the state durable; returns the applied id up to which it is.
    pub fn sync(&self) -> Result<Option<LogId>, StorageError> {
        self.poison.check().map_err(|error| StorageError::io("syncing", &self.root, error))?;
        let applied = self.applied();
        self.current().sync().map_err(|error| {
            self.poison.strike("syncing the state", &error);
            StorageError::io("syncing", &self.root, error)
        })?;
        Ok(applied)
    }

    /// Checks that the log goes on where this state ends; see [`check_against_log`].
    pub fn check_against_log(&self, log: &crate::Log) -> Result<(), Misfit> {
        let (applied, installed) = {
            let progress = self.progress();
            (progress.applied, progress.installed)
        };
        check_against_log(applied, installed, log.purged(), log.last())
    }

    /// Whether the machine went down while this state was open. sled then may have lost rows in the middle without
    /// noticing, so the state should be made anew from a snapshot or from the log (see [`State::restore`]).
    pub fn was_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Starts a snapshot of the state as it is now; commits may go on while it is written.
    pub fn snapshot_builder(&self) -> Result<SnapshotBuilder, StorageError> {
        let mut progress = self.progress();
        if progress.cursor.as_ref().is_some_and(|cursor| Arc::strong_count(cursor) > 1) {
            return Err(StorageError::SnapshotInProgress);
        }
        let applied = progress.applied.ok_or(StorageError::NothingApplied)?;
        let cursor = Arc::new(Mutex::new(Cursor::new(applied.index)));
        progress.cursor = Some(Arc::clone(&cursor));
        let header =
            SnapshotHeader { machine: self.config.machine_version, applied, membership: progress.membership.clone() };
        Ok(SnapshotBuilder { generation: self.current(), cursor, header })
    }

    /// Replaces the whole state by a snapshot's; durable on return. The file is checked completely before the switch,
    /// and after an error or a crash the state is what it was before. No commit may happen meanwhile.
    pub fn install(&self, snapshot: &SnapshotFile) -> Result<(), StorageError> {
        self.poison.check().map_err(|error| StorageError::io("installing in", &self.root, error))?;
        let number = self.current().number + 1;
        let (generation, progress) = switch(&self.root, number, Some(snapshot), &self.config)?;
        let mut old_progress = self.progress();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, Arc::new(generation)).retire();
        *old_progress = progress;
        Ok(())
    }

    /// Makes the state in `root` anew, from a snapshot or (`None`) empty, whatever is there; durable on return.
    /// Open it afterwards. Correct only when the log has every entry after the snapshot's.
    pub fn restore(root: &Path, snapshot: Option<&SnapshotFile>, config: &StateConfig) -> Result<(), StorageError> {
        let restoring = |error| StorageError::io("restoring", root, error);
        fs::create_dir_all(root).map_err(restoring)?;
        let mut newest = 0;
        for entry in fs::read_dir(root).map_err(restoring)? {
            let name = entry.map_err(restoring)?.file_name();
            newest = newest.max(name.to_string_lossy().parse().unwrap_or(0));
        }
        switch(root, newest + 1, snapshot, config)?;
        OpenMark::remove(root).map_err(restoring)
    }

    fn current(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for State {
    /// Makes the state durable, and notes that it was closed in good order.
    fn drop(&mut self) {
        // A cut-off state stays marked: it is as doubtful at the next start, when there may be a snapshot.
        if self.sync().is_ok()
            && !self.cut_off
            && let Err(error) = OpenMark::remove(&self.root)
        {
            tracing::warn!(dir = %self.root.display(), %error, "the state was closed, but that could not be noted");
        }
    }
}

/// What an offline check of a state found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSummary {
    /// Id of the last entry whose rows are committed.
    pub applied: Option<LogId>,
    /// The snapshot that the state began with.
    pub installed: Option<LogId>,
    /// Number of rows.
    pub rows: u64,
}

/// Reads every row of the state in `root` and checks it. (sled writes to its own files when it is opened.)
pub(crate) fn check(root: &Path, config: &StateConfig) -> Result<StateSummary, StorageError> {
    let number = read_current(root)?;
    let generation = Generation::open(root, number, config.cache_bytes)?;
    let damaged = |error: ArchiveError| StorageError::damaged(&Generation::dir(root, number), 0, error.0);
    let progress = Progress::load(&generation).map_err(damaged)?;
    let mut cursor = Cursor::new(u64::MAX);
    let mut rows = 0;
    while let Some(step) = cursor.step(&generation.db).map_err(damaged)? {
        rows += step.len() as u64;
    }
    Ok(StateSummary { applied: progress.applied, installed: progress.installed, rows })
}

impl Archive for State {
    fn get(&self, key: &[u8]) -> ArchiveResult<Option<Vec<u8>>> {
        Ok(rows::get(&self.current().db, key)?.map(|row| row.value))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let generation = self.current();
        let range = generation.db.range(keys::row(from)..keys::row(to));
        range
            .take(limit)
            .map(|pair| {
                let (stored_key, stored) = pair.map_err(|error| rows::unreadable(&error))?;
                let key = keys::row_key(&stored_key);
                Ok((key.to_vec(), rows::resolve(&generation.db, key, &stored)?.value))
            })
            .collect()
    }
}

impl Progress {
    fn load(generation: &Generation) -> ArchiveResult<Progress> {
        let id = |key| read_meta(generation, key, |bytes| frame::decode_value::<LogId>(FrameKind::Applied, bytes));
        Ok(Progress {
            applied: id(keys::APPLIED)?,
            installed: id(keys::INSTALLED)?,
            membership: read_meta(generation, keys::MEMBERSHIP, |bytes| {
                frame::decode(FrameKind::Membership, bytes).map(<[u8]>::to_vec)
            })?,
            large: LargeRows::load(&generation.db)?,
            cursor: None,
        })
    }

    fn commit(
        &mut self,
        generation: &Generation,
        writes: &Writes,
        applied: LogId,
        membership: Option<&[u8]>,
    ) -> io::Result<()> {
        if self.applied.is_some_and(|last| applied.index < last.index) {
            return Err(io::Error::other(format!("{applied} was committed after a later entry")));
        }
        let mut batch = Batch::default();
        for (key, value) in writes {
            rows::stage(&generation.db, &mut self.large, &mut batch, applied.index, key, value.as_deref())
                .map_err(io::Error::other)?;
        }
        batch.insert(keys::APPLIED, frame::encode_value(FrameKind::Applied, &applied));
        if let Some(membership) = membership {
            batch.insert(keys::MEMBERSHIP, frame::encode(FrameKind::Membership, membership));
        }
        // A builder that was dropped leaves a cursor that nobody moves any more.
        if self.cursor.as_ref().is_some_and(|cursor| Arc::strong_count(cursor) == 1) {
            self.cursor = None;
        }
        // Held until the batch is applied: the cursor must not move between the saving and the change.
        let mut cursor = self.cursor.as_ref().map(|cursor| cursor.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(cursor) = &mut cursor {
            cursor.save(&generation.db, writes.keys()).map_err(io::Error::other)?;
        }
        generation.db.apply_batch(batch).map_err(io::Error::other)?;
        self.applied = Some(applied);
        if let Some(membership) = membership {
            self.membership = Some(membership.to_vec());
        }
        Ok(())
    }
}

/// A snapshot that has been started: the state as it was then, however long the writing takes.
#[derive(Debug)]
pub struct SnapshotBuilder {
    generation: Arc<Generation>,
    cursor: Arc<Mutex<Cursor>>,
    header: SnapshotHeader,
}

impl SnapshotBuilder {
    /// What the snapshot is of.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The next rows, ascending; `None` at the end.
    pub(crate) fn step(&self) -> ArchiveResult<cursor::Step> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner).step(&self.generation.db)
    }
}

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

/// Makes generation `number` from a snapshot, or empty, and lets it count.
fn switch(
    root: &Path,
    number: u64,
    snapshot: Option<&SnapshotFile>,
    config: &StateConfig,
) -> Result<(Generation, Progress), StorageError> {
    let switching = |error| StorageError::io("installing in", root, error);
    let dir = Generation::dir(root, number);
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(switching)?;
    }
    let generation = Generation::open(root, number, config.cache_bytes)?;
    let filled = match snapshot {
        Some(snapshot) => fill(&generation, snapshot, config.machine_version),
        None => Ok(Progress::default()),
    };
    let switched = filled.and_then(|progress| {
        generation.sync().map_err(switching)?;
        fs::File::open(root).and_then(|root| root.sync_all()).map_err(switching)?;
        set_current(root, number).map_err(switching)?;
        Ok(progress)
    });
    match switched {
        Ok(progress) => Ok((generation, progress)),
        Err(error) => {
            generation.retire();
            Err(error)
        }
    }
}

/// Writes a snapshot's rows into an empty generation.
fn fill(generation: &Generation, snapshot: &SnapshotFile, machine_version: u32) -> Result<Progress, StorageError> {
    let mut reader = snapshot.reader()?;
    let header = reader.header().clone();
    if header.machine > machine_version {
        let (file, found) = (snapshot.path.clone(), header.machine);
        return Err(StorageError::NewerFormat { file, found, supported: machine_version });
    }
    let mut progress = Progress::default();
    let mut pending: Writes = BTreeMap::new();
    let mut bytes = 0;
    let failed = |error| StorageError::io("installing", &snapshot.path, error);
    while let Some(rows) = reader.next_rows()? {
        for (key, value) in rows {
            bytes += key.len() + value.len();
            pending.insert(key, Some(value));
        }
        if bytes >= INSTALL_BATCH_BYTES {
            progress.commit(generation, &pending, header.applied, None).map_err(failed)?;
            pending.clear();
            bytes = 0;
        }
    }
    progress.commit(generation, &pending, header.applied, header.membership.as_deref()).map_err(failed)?;
    let installed = frame::encode_value(FrameKind::Applied, &header.applied);
    generation.db.insert(keys::INSTALLED, installed).map_err(|error| failed(io::Error::other(error)))?;
    progress.installed = Some(header.applied);
    Ok(progress)
}

fn read_meta<T>(
    generation: &Generation,
    key: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, frame::FrameError>,
) -> ArchiveResult<Option<T>> {
    let bytes = generation.db.get(key).map_err(|error| rows::unreadable(&error))?;
    let value = bytes.map(|bytes| decode(&bytes)).transpose();
    value.map_err(|flaw| ArchiveError(format!("{} is damaged: {flaw}", key.escape_ascii())))
}

fn set_current(root: &Path, number: u64) -> io::Result<()> {
    replace_file(&RealDisk, &root.join(CURRENT_FILE), &frame::encode(FrameKind::Generation, &number.to_le_bytes()))
}

fn read_current(root: &Path) -> Result<u64, StorageError> {
    let path = root.join(CURRENT_FILE);
    let bytes = read_file(&RealDisk, &path).map_err(|error| StorageError::io("reading", &path, error))?;
    let bytes = bytes.ok_or_else(|| StorageError::damaged(&path, 0, "the file is missing"))?;
    match frame::decode(FrameKind::Generation, &bytes).map(<[u8]>::first_chunk) {
        Ok(Some(number)) => Ok(u64::from_le_bytes(*number)),
        Ok(None) => Err(StorageError::damaged(&path, 0, "it does not name a generation")),
        Err(flaw) => Err(StorageError::damaged(&path, 0, flaw.to_string())),
    }
}

/// Removes all generations but the current one.
fn remove_others(root: &Path, number: u64) -> io::Result<()> {
    let keep = Generation::dir(root, number);
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let is_generation = entry.file_name().to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if is_generation && entry.path() != keep {
            fs::remove_dir_all(entry.path())?;
        }
    }
    match fs::remove_file(temporary_name(&root.join(CURRENT_FILE))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
