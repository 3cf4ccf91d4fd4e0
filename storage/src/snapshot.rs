//! Snapshot files: the whole state as of one log entry, in a form that another node can take in.
//!
//! ```text
//! frame  header   { format, machine version, applied id, membership, mark }
//! frame  chunk    lz4 of rows: key length (u32), value length (u32), key, value ...; about 256 KiB each
//! ...
//! frame  trailer  { rows, bytes, xxh3 of all rows }
//! ```
//! Each frame has its checksum (see frame), the trailer proves that none is missing. A file is written under a
//! temporary name, synced and renamed, so a file with a snapshot's name is whole. The newest is kept. What has come of a
//! peer's snapshot (see incoming) is kept too, under a name of its own, so that a broken transfer goes on where it was.
//!
//! A snapshot that a start finds damaged counts for nothing, and gets another name, for whoever wants to look at it.

mod incoming;
mod reader;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskFile, Poison, TEMPORARY_SUFFIX};
use crate::error::StorageError;
use crate::ids::LogId;
use crate::room::Room;
use crate::state::SnapshotBuilder;
use incoming::PARTIAL_SUFFIX;
pub use incoming::{SnapshotId, SnapshotReceiver};
pub use reader::SnapshotReader;
use writer::SnapshotWriter;

/// Newest layout of snapshot files that this program reads and writes.
const SNAPSHOT_FORMAT: u32 = 1;

pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";

/// Added to the name of a snapshot that was found damaged.
pub(crate) const DAMAGED_SUFFIX: &str = ".damaged";

/// What a snapshot is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Version of the state machine's rows.
    pub machine: u32,
    /// The last entry that is in it.
    pub applied: LogId,
    /// The membership as of that entry; opaque.
    pub membership: Option<Vec<u8>>,
    /// What the state machine says of that state, to hold against what is read.
    pub mark: Option<StateMark>,
}

/// What a state machine says of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateMark {
    /// The rolling hash.
    pub hash: u64,
    /// Log time.
    pub now: u64,
}

impl std::fmt::Display for StateMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "state hash {:016x} at {}", self.hash, self.now)
    }
}

/// The first frame. The format comes first, alone, so that any later layout can be told apart.
#[derive(Serialize, Deserialize)]
struct StoredHeader {
    format: u32,
    machine: u32,
    applied: LogId,
    membership: Option<Vec<u8>>,
    mark: Option<StateMark>,
}

/// The last frame: what the rows are, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trailer {
    /// How many.
    pub rows: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// The xxh3 of all of them.
    pub digest: u64,
}

/// A whole snapshot file, held open: it stays readable even if a newer one has replaced it meanwhile.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// What it is of.
    pub header: SnapshotHeader,
    /// Where in the file it begins; not at 0 in a backup.
    start: u64,
    file: Arc<dyn DiskFile>,
}

/// The directory of snapshots.
#[derive(Debug)]
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    poison: Poison,
    room: Room,
    /// The number of the transfer that may write what comes in.
    incoming: Mutex<u64>,
    /// The names of those that were found damaged and are not set aside yet.
    damaged: Mutex<Vec<String>>,
}

impl Snapshots {
    /// Opens the directory (made when missing) and removes what interrupted writes left: half files, older snapshots. The
    /// first part of a newer one from a peer stays. A newest one whose beginning is damaged counts for nothing.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, poison: Poison) -> Result<Snapshots, StorageError> {
        let opening = |error| StorageError::io("opening", dir, error);
        disk.create_dir(dir).map_err(opening)?;
        let names = disk.list(dir).map_err(opening)?;
        let newest = names.iter().rfind(|name| name.ends_with(SNAPSHOT_SUFFIX));
        let coming = names.iter().rfind(|name| name.ends_with(PARTIAL_SUFFIX) && Some(*name) > newest);
        for name in &names {
            let is_ours = [TEMPORARY_SUFFIX, SNAPSHOT_SUFFIX, PARTIAL_SUFFIX].iter().any(|end| name.ends_with(end));
            if is_ours && Some(name) != newest && Some(name) != coming {
                disk.remove(&dir.join(name)).map_err(opening)?;
            }
        }
        disk.sync_dir(dir).map_err(opening)?;
        let (incoming, damaged) = (Mutex::default(), Mutex::default());
        let snapshots = Snapshots { disk, dir: dir.to_path_buf(), poison, room: Room::default(), incoming, damaged };
        match snapshots.newest() {
            Err(error) if error.is_damage() => newest.into_iter().for_each(|name| snapshots.distrust(name, &error)),
            // Whoever needs it hears of any other error.
            _ => {}
        }
        Ok(snapshots)
    }

    fn distrust(&self, name: &str, error: &StorageError) {
        tracing::error!(error = error.without_advice(), "a snapshot is damaged; the node goes on without it");
        self.damaged().push(name.to_owned());
    }

    /// Whether this error is damage to one of the snapshots. That one counts for nothing from now on.
    pub(crate) fn has_damaged(&self, error: &StorageError) -> bool {
        let StorageError::Damaged { file, .. } = error else { return false };
        let names = self.names().unwrap_or_default();
        let name = names.iter().find(|name| self.dir.join(name) == *file);
        name.inspect(|name| self.distrust(name, error)).is_some()
    }

    /// Gives those that were found damaged another name. One is kept.
    pub(crate) fn set_aside(&self) -> Result<(), StorageError> {
        let failed = |error| StorageError::io("setting a damaged snapshot aside in", &self.dir, error);
        for name in self.damaged().drain(..) {
            let earlier = self.disk.list(&self.dir).map_err(failed)?;
            for other in earlier.iter().filter(|other| other.ends_with(DAMAGED_SUFFIX)) {
                self.disk.remove(&self.dir.join(other)).map_err(failed)?;
            }
            let aside = self.dir.join(format!("{name}{DAMAGED_SUFFIX}"));
            self.disk.rename(&self.dir.join(name), &aside).map_err(failed)?;
            self.disk.sync_dir(&self.dir).map_err(failed)?;
            tracing::warn!(file = %aside.display(), "the damaged snapshot is called so now, and can be removed");
        }
        Ok(())
    }

    fn damaged(&self) -> MutexGuard<'_, Vec<String>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same within this room: a snapshot that would take more fails as on a full disk, and leaves nothing behind.
    pub fn within(self, room: Room) -> Snapshots {
        Snapshots { room, ..self }
    }

    /// The newest snapshot. Only its header is checked; reading it checks the rest.
    pub fn newest(&self) -> Result<Option<SnapshotFile>, StorageError> {
        let names = self.names().map_err(|error| StorageError::io("listing", &self.dir, error))?;
        names.last().map(|name| SnapshotFile::open(&*self.disk, &self.dir.join(name))).transpose()
    }

    /// Writes the snapshot that `builder` has started; durable on return, older ones are removed.
    ///
    /// Long: its time is in proportion to the state. Commits go on meanwhile.
    pub fn write(&self, builder: SnapshotBuilder) -> Result<SnapshotFile, StorageError> {
        // Not begun when it would be broken off: it will be about as long as the last one.
        let expected = self.newest()?.map_or(0, |newest| newest.length);
        self.room.check(expected).map_err(|error| StorageError::io("writing a snapshot in", &self.dir, error))?;
        let mut writer = SnapshotWriter::create(self, builder.header())?;
        let written = loop {
            match builder.step() {
                Ok(Some(rows)) => match writer.add(&rows) {
                    Ok(()) => {}
                    Err(error) => break self.poison.guard("writing a snapshot", Err(error)),
                },
                Ok(None) => break self.poison.guard("writing a snapshot", writer.finish()),
                Err(error) => break Err(io::Error::other(error)),
            }
        };
        let path = self.dir.join(file_name(builder.header().applied));
        written.and_then(|()| self.keep(writer.path(), &path)).map_err(|error| {
            writer.discard(&*self.disk);
            StorageError::io("writing the snapshot", &path, error)
        })?;
        SnapshotFile::open(&*self.disk, &path)
    }

    /// Goes on taking in a snapshot from a peer, behind what an earlier receiver of it has got, if any. That one, and one of
    /// another snapshot, writes nothing any more.
    pub fn receive(self: &Arc<Self>, id: &SnapshotId) -> Result<SnapshotReceiver, StorageError> {
        SnapshotReceiver::begin(Arc::clone(self), id)
    }

    /// Gives a finished file its name, and removes the older ones.
    fn keep(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        self.poison.check()?;
        // After a failure here the snapshot may be found and not be durable.
        let named = self.disk.rename(temporary, path).and_then(|()| self.disk.sync_dir(&self.dir));
        self.poison.guard("naming a snapshot", named)?;
        let newest = path.file_name().map(|name| name.to_string_lossy().into_owned());
        for name in self.disk.list(&self.dir)? {
            let is_ours = name.ends_with(SNAPSHOT_SUFFIX) || name.ends_with(PARTIAL_SUFFIX);
            if is_ours && newest.as_ref().is_some_and(|newest| name < *newest) {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        Ok(())
    }

    /// Names of the snapshots that count, oldest first.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = self.disk.list(&self.dir)?;
        let damaged = self.damaged();
        names.retain(|name| name.ends_with(SNAPSHOT_SUFFIX) && !damaged.contains(name));
        Ok(names)
    }
}

impl SnapshotFile {
    pub(crate) fn open(disk: &dyn Disk, path: &Path) -> Result<SnapshotFile, StorageError> {
        SnapshotFile::open_behind(disk, path, 0)
    }

    /// Opens a snapshot that begins behind `start` bytes of something else.
    pub(crate) fn open_behind(disk: &dyn Disk, path: &Path, start: u64) -> Result<SnapshotFile, StorageError> {
        let file = disk.open(path).map_err(|error| StorageError::io("opening the snapshot", path, error))?;
        let reader = SnapshotReader::open(Arc::clone(&file), path, start)?;
        let (length, header) = (reader.length(), reader.header().clone());
        Ok(SnapshotFile { path: path.to_path_buf(), length, header, start, file })
    }

    /// The bytes from `offset` on, at most `limit`, unchecked: to be sent to a peer, which checks them.
    pub fn read(&self, offset: u64, limit: usize) -> io::Result<Bytes> {
        let left = self.length.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(limit)];
        if self.file.read_at(offset, &mut bytes)? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes.into())
    }

    /// Reads the rows, checking everything.
    pub fn reader(&self) -> Result<SnapshotReader, StorageError> {
        SnapshotReader::open(Arc::clone(&self.file), &self.path, self.start)
    }

    /// Reads the whole file and checks it; returns what the rows are, all together.
    pub fn verify(&self) -> Result<Trailer, StorageError> {
        let mut reader = self.reader()?;
        while reader.next_rows()?.is_some() {}
        Ok(reader.seen())
    }
}

/// Names sort by the applied index.
fn file_name(applied: LogId) -> String {
    format!("{:020}-{:020}{SNAPSHOT_SUFFIX}", applied.index, applied.term)
}
