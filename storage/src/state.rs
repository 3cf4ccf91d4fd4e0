//! The replicated state as rows in a tree: what the state machine last committed.
//!
//! ```text
//! state/current           which generation counts, replaced atomically
//! state/0000000001/       a generation: one sled database
//! state/0000000001.rows   or one file, where the state is not in sled (see tree)
//! state/layer-0000000001  the rows that went to it last, in case their writing was cut off
//! state/damaged-0000000001  says that rows of it could not be read (see damage)
//! ```
//! The log is the truth, so commits are not synced: they gather in memory (see overlay) and go to the tree in batches,
//! each with its applied id, so after a crash the state is as of some earlier entry and the log brings it forward.
//! [`State::sync`] says how far the state is durable: the log must not be purged beyond that.
//!
//! Installing a snapshot fills a new generation beside the current one and then switches, so that a crash
//! leaves one or the other. Only rows' own bytes are checked by us; that sled has lost none is checked against the
//! log by [`State::check_against_log`].

mod cursor;
mod damage;
mod fit;
mod generation;
mod layer_file;
mod open_mark;
mod overlay;
mod shared;
mod switch;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use holdfast_machine::{Archive, ArchiveResult, Pair, Writes};

use crate::disk::{Disk, Poison};
use crate::error::StorageError;
use crate::ids::LogId;
use crate::room::Room;
use crate::rows::{self, Row};
use crate::snapshot::{SnapshotFile, SnapshotHeader, StateMark};
pub use crate::tree::StateKind;
use crate::tree::{TemporaryTree, Tree};
use cursor::Cursor;
pub use fit::{Misfit, check_against_log};
use generation::Generation;
use open_mark::OpenMark;
use overlay::{Direction, Recent};
use shared::Shared;

/// Space that rows take in sled, as a multiple of what they take in a snapshot, about: those are compressed.
const INSTALLED_SIZE: u64 = 4;

/// What can be set about the state.
#[derive(Debug, Clone)]
pub struct StateConfig {
    /// Where the rows are.
    pub kind: StateKind,
    /// Memory for sled's page cache, in bytes.
    pub cache_bytes: u64,
    /// Version of the state machine's rows: written into snapshots, and newer ones are not installed.
    pub machine_version: u32,
    /// The room that is left on the disk.
    pub room: Room,
}

impl Default for StateConfig {
    fn default() -> StateConfig {
        let room = Room::default();
        StateConfig { kind: StateKind::Sled, cache_bytes: 64 << 20, machine_version: 1, room }
    }
}

/// A snapshot's state beside the one that counts; see [`State::prepare`].
#[derive(Debug)]
pub struct Prepared(Generation);

/// The open state; reads are concurrent, commits one at a time.
#[derive(Debug)]
pub struct State {
    config: StateConfig,
    shared: Arc<Shared>,
    /// Writes layers that are due; without it the committing thread does.
    flusher: Option<JoinHandle<()>>,
    cut_off: bool,
}

impl State {
    /// Makes an empty state in `root`; durable on return. For a new data directory only.
    pub fn create(disk: &dyn Disk, root: &Path) -> Result<(), StorageError> {
        let creating = |error| StorageError::io("creating the state in", root, error);
        disk.create_dir(root).map_err(creating)?;
        switch::set_current(disk, root, 1).map_err(creating)
    }

    /// Opens the state in `root`, and removes what an interrupted install left there.
    pub fn open(disk: Arc<dyn Disk>, root: &Path, config: StateConfig, poison: Poison) -> Result<State, StorageError> {
        let number = switch::read_current(&*disk, root)?;
        damage::check(&*disk, root, number, &config)?;
        let generation = Generation::open(&disk, root, number, &config)?;
        let shared = Arc::new(Shared::new(disk, root.to_path_buf(), poison, config.room.clone(), generation)?);
        let opening = |error| StorageError::io("opening the state in", root, error);
        switch::remove_others(&*shared.disk, root, number).map_err(opening)?;
        let mut state = State { config, shared, flusher: None, cut_off: false };
        if state.config.kind == StateKind::Sled {
            state.cut_off = OpenMark::set(&*state.shared.disk, root).map_err(opening)?;
            state.shared.overlay().has_flusher = true;
            let shared = Arc::clone(&state.shared);
            let spawned = thread::Builder::new().name("state-flusher".into()).spawn(move || shared.run());
            state.flusher = Some(spawned.map_err(opening)?);
        }
        Ok(state)
    }

    /// Id of the last entry whose rows are committed.
    pub fn applied(&self) -> Option<LogId> {
        self.shared.overlay().applied
    }

    /// The membership as of the last commit that had one; opaque.
    pub fn membership(&self) -> Option<Vec<u8>> {
        self.shared.overlay().membership.clone()
    }

    /// Bytes that the state takes on disk.
    pub fn size_on_disk(&self) -> io::Result<u64> {
        self.shared.current().tree.size_on_disk()
    }

    /// Commits rows (`None` removes one), the applied id and, if given, the membership. Readers see them on return;
    /// after a crash the state is as of some commit, and as of this one or later once [`State::sync`] has returned.
    pub fn commit(&self, writes: Writes, applied: LogId, membership: Option<Vec<u8>>) -> Result<(), StorageError> {
        let committing = |error| StorageError::io("committing to", &self.shared.root, error);
        let flush = || self.shared.flush(&mut self.shared.base()).map(drop);
        if self.flusher.is_none() && self.shared.overlay().is_full() {
            flush().map_err(committing)?;
        }
        let is_due = self.shared.commit(writes, applied, membership).map_err(committing)?;
        let flushed = if is_due && self.flusher.is_none() { flush() } else { Ok(()) };
        match flushed {
            // The rows are here to be read; they are written when there is space.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            flushed => flushed.map_err(committing),
        }
    }

    /// Whether the next commit has to wait until sled has taken in a layer.
    pub fn is_full(&self) -> bool {
        self.shared.overlay().is_full()
    }

    /// Waits until [`State::is_full`] is false, or nothing can be committed any more.
    pub fn wait_for_sled(&self) {
        drop(self.shared.until_not_full());
    }

    /// Makes the state durable; returns the applied id up to which it is. An error of kind `StorageFull` says that the
    /// disk has no room for it, and has changed nothing: the state goes on, and a later call does it.
    pub fn sync(&self) -> Result<Option<LogId>, StorageError> {
        let flushed = self.shared.flush(&mut self.shared.base());
        let flushed = flushed.map_err(|error| StorageError::io("syncing", &self.shared.root, error))?;
        Ok(flushed.applied)
    }

    /// Checks that the log goes on where this state ends; see [`check_against_log`].
    pub fn check_against_log(&self, log: &crate::Log) -> Result<(), Misfit> {
        let (applied, installed) = {
            let overlay = self.shared.overlay();
            (overlay.applied, overlay.installed)
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
        let mut base = self.shared.base();
        if base.cursor.as_ref().is_some_and(|cursor| Arc::strong_count(cursor) > 1) {
            return Err(StorageError::SnapshotInProgress);
        }
        let flushed = self
            .shared
            .flush(&mut base)
            .map_err(|error| StorageError::io("starting a snapshot of", &self.shared.root, error))?;
        let applied = flushed.applied.ok_or(StorageError::NothingApplied)?;
        let cursor = Arc::new(Mutex::new(Cursor::new(applied.index)));
        base.cursor = Some(Arc::clone(&cursor));
        let machine = self.config.machine_version;
        let header = SnapshotHeader { machine, applied, membership: flushed.membership, mark: None };
        Ok(SnapshotBuilder { shared: Arc::clone(&self.shared), generation: self.shared.current(), cursor, header })
    }

    /// Whether the disk has room for a snapshot's rows beside the present ones; an error of kind `StorageFull` says that
    /// it has not.
    pub fn room_for(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        self.config.room.check(snapshot.length.saturating_mul(INSTALLED_SIZE))
    }

    /// Replaces the whole state by a snapshot's; durable on return. The file is checked completely before the switch,
    /// and after an error or a crash the state is what it was before. No commit may happen meanwhile. Ask
    /// [`State::room_for`] before.
    pub fn install(&self, snapshot: &SnapshotFile) -> Result<(), StorageError> {
        self.switch_to(self.prepare(snapshot)?)
    }

    /// The long part of [`State::install`]: everything but the switch. The state can be read as it was all the while.
    pub fn prepare(&self, snapshot: &SnapshotFile) -> Result<Prepared, StorageError> {
        let root = &self.shared.root;
        self.shared.poison.check().map_err(|error| StorageError::io("installing in", root, error))?;
        let number = self.shared.current().number + 1;
        let poison = &self.shared.poison;
        switch::make(&self.shared.disk, root, number, Some(snapshot), &self.config, poison).map(Prepared)
    }

    /// The short part: the prepared state takes over.
    pub fn switch_to(&self, prepared: Prepared) -> Result<(), StorageError> {
        let Shared { disk, root, poison, .. } = &*self.shared;
        self.shared.replace(switch::switch(&**disk, root, prepared.0, poison)?)
    }

    /// Makes the state in `root` anew, from a snapshot or (`None`) empty, whatever is there; durable on return.
    /// Open it afterwards. Correct only when the log has every entry after the snapshot's.
    pub fn restore(
        disk: &Arc<dyn Disk>,
        root: &Path,
        snapshot: Option<&SnapshotFile>,
        config: &StateConfig,
    ) -> Result<(), StorageError> {
        let restoring = |error| StorageError::io("restoring", root, error);
        disk.create_dir(root).map_err(restoring)?;
        let names = disk.list(root).map_err(restoring)?;
        let newest = names.iter().filter_map(|name| Generation::number_in(name)).max();
        // Nothing goes on with it after a failure, so nobody else has to know of one.
        let poison = Poison::default();
        let made = switch::make(disk, root, newest.unwrap_or(0) + 1, snapshot, config, &poison)?;
        switch::switch(&**disk, root, made, &poison)?;
        OpenMark::remove(&**disk, root).map_err(restoring)
    }
}

impl Drop for State {
    /// Makes the state durable, and notes that it was closed in good order.
    fn drop(&mut self) {
        self.shared.close();
        if let Some(flusher) = self.flusher.take() {
            // A panic of the flusher has nothing left to say here.
            let _ = flusher.join();
        }
        // A cut-off state stays marked: it is as doubtful at the next start, when there may be a snapshot.
        if self.sync().is_ok()
            && !self.cut_off
            && self.config.kind == StateKind::Sled
            && let Err(error) = OpenMark::remove(&*self.shared.disk, &self.shared.root)
        {
            let dir = self.shared.root.display();
            tracing::warn!(%dir, %error, "the state was closed, but that could not be noted");
        }
    }
}

impl Archive for State {
    fn get(&self, key: &[u8]) -> ArchiveResult<Option<Vec<u8>>> {
        let recent = self.shared.overlay().find(key);
        match recent {
            Some(value) => Ok(value.map(Vec::from)),
            None => {
                let (generation, shared) = (self.shared.current(), &self.shared);
                let tree = &generation.tree;
                shared.trusting(&generation, || rows::get(tree, key)?.map(|row| row.value(tree)).transpose())
            }
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        self.read(from, to, Direction::Up, limit)
    }

    fn scan_back(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        self.read(from, to, Direction::Down, limit)
    }
}

impl State {
    fn read(&self, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> ArchiveResult<Vec<Pair>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let recent = self.shared.overlay().range(from, to, direction, limit);
        let generation = self.shared.current();
        self.shared.trusting(&generation, || {
            let stored = rows::range(&generation.tree, from, to);
            match direction {
                Direction::Up => merge(&generation.tree, recent, stored, direction, limit),
                Direction::Down => merge(&generation.tree, recent, stored.rev(), direction, limit),
            }
        })
    }
}

/// Up to `limit` rows from the overlay and from the tree, the overlay's where both have one.
fn merge(
    tree: &Tree,
    recent: Vec<Recent>,
    stored: impl Iterator<Item = ArchiveResult<Row>>,
    direction: Direction,
    limit: usize,
) -> ArchiveResult<Vec<Pair>> {
    let (mut recent, mut stored) = (recent.into_iter().peekable(), stored.peekable());
    let mut pairs = Vec::new();
    while pairs.len() < limit {
        let next_stored = match stored.peek() {
            None => None,
            Some(Ok(row)) => Some(row.key.as_slice()),
            Some(Err(error)) => return Err(error.clone()),
        };
        let next_recent = recent.peek().map(|(key, _)| key.as_slice());
        match (next_recent, next_stored) {
            (None, None) => break,
            (Some(key), other) if other.is_none_or(|other| !direction.is_before(other, key)) => {
                if other == Some(key) {
                    stored.next();
                }
                pairs.extend(recent.next().and_then(|(key, value)| Some((key, value?.into()))));
            }
            _ => {
                if let Some(Ok(row)) = stored.next() {
                    pairs.push((row.key.clone(), row.value(tree)?));
                }
            }
        }
    }
    Ok(pairs)
}

/// A snapshot that has been started: the state as it was then, however long the writing takes.
#[derive(Debug)]
pub struct SnapshotBuilder {
    shared: Arc<Shared>,
    generation: Arc<Generation>,
    cursor: Arc<Mutex<Cursor>>,
    header: SnapshotHeader,
}

impl SnapshotBuilder {
    /// What the snapshot is of.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The same with what the state machine says of that state.
    #[must_use]
    pub fn with_mark(mut self, mark: StateMark) -> Self {
        self.header.mark = Some(mark);
        self
    }

    /// The next rows, ascending; `None` at the end.
    pub(crate) fn step(&self) -> ArchiveResult<cursor::Step> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.trusting(&self.generation, || cursor.step(&self.generation.tree))
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
    /// A file that is missing and that the next start makes again, to no harm.
    pub lacks: Option<PathBuf>,
}

/// Reads every row of the state in `root` and checks it; changes nothing there.
pub(crate) fn check(disk: &Arc<dyn Disk>, root: &Path, config: &StateConfig) -> Result<StateSummary, StorageError> {
    let number = switch::read_current(&**disk, root)?;
    damage::check(&**disk, root, number, config)?;
    let path = Generation::path(config.kind, root, number);
    let copy = Tree::copy_to_look_at(config.kind, &path)?;
    let looked_at = copy.as_ref().map_or(path.as_path(), TemporaryTree::path);
    let lacks = Tree::lacks(config.kind, &path);
    let checked = Generation::open_at(disk, number, looked_at, config)
        .and_then(|generation| shared::check(&**disk, root, &generation));
    checked.map(|summary| StateSummary { lacks, ..summary }).map_err(|error| match error {
        StorageError::Damaged { file, offset, what } if file == looked_at => {
            StorageError::Damaged { file: path.clone(), offset, what }
        }
        error => error,
    })
}
