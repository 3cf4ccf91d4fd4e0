//! One sled database, with sled 0.34.7's known quirks met in one place.
//!
//! - `flush()` ends in `sync_file_range`, which makes nothing durable (sled issue 1452): [`Generation::sync`]
//!   follows it with a sync by a handle of our own.
//! - Leaves over a quarter of a segment go to files under `blobs`, which sled never syncs: they are synced here.
//! - An empty `snap.*.generating` file left by a crash blocks opening (sled issue 1527): it is removed.
//! - Opening a damaged database may panic: caught, and reported as damage.
//! - Its batches hold up all readers, write out a buffer each, and leave garbage that a large batch lets grow without
//!   bound: they are not used, see layer_file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_machine::ArchiveError;

use crate::error::StorageError;

/// Size of sled's segments, in bytes: leaves up to a quarter of it stay out of sled's unsynced files.
const SEGMENT_BYTES: usize = 2 << 20;

/// How long sled's own lock may stay taken after the database was closed.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// How often that lock is tried.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// An open sled database in a directory of its own.
#[derive(Debug)]
pub(crate) struct SledTree {
    pub db: sled::Db,
    dir: PathBuf,
    /// Our own handle on sled's file.
    file: File,
    /// Blob files that are durable already. Locked during a sync, so that syncs do not overlap.
    synced_blobs: Mutex<BTreeSet<OsString>>,
}

impl SledTree {
    /// Opens the database in `dir`, or creates it.
    pub(super) fn open(dir: &Path, cache_bytes: u64) -> Result<SledTree, StorageError> {
        remove_empty_snapshots(dir).map_err(|error| StorageError::io("preparing", dir, error))?;
        let config = sled::Config::new()
            .path(dir)
            .mode(sled::Mode::HighThroughput)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None);
        let db = open_sled(&config, dir)?;
        let file = File::open(dir.join("db")).map_err(|error| StorageError::io("opening", dir, error))?;
        Ok(SledTree { db, dir: dir.to_path_buf(), file, synced_blobs: Mutex::default() })
    }

    /// Makes durable everything that was committed before the call.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut synced = self.synced_blobs.lock().unwrap_or_else(PoisonError::into_inner);
        self.db.flush().map_err(io::Error::other)?;
        self.file.sync_data()?;
        let blobs = self.dir.join("blobs");
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&blobs)? {
            present.insert(entry?.file_name());
        }
        let mut is_new = false;
        for name in present.difference(&synced) {
            match File::open(blobs.join(name)) {
                Ok(blob) => blob.sync_data()?,
                // sled has already replaced what was in it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            is_new = true;
        }
        if is_new {
            File::open(&blobs)?.sync_all()?;
        }
        *synced = present;
        File::open(&self.dir)?.sync_all()
    }
}

/// A copy of a database among the temporary files, until this is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryTree(PathBuf);

impl TemporaryTree {
    pub(super) fn of(dir: &Path) -> Result<TemporaryTree, StorageError> {
        let copy = TemporaryTree(std::env::temp_dir().join(format!("holdfast-{}", uuid::Uuid::new_v4().simple())));
        copy_dir(dir, &copy.0).map_err(|error| StorageError::io("copying to the temporary files", dir, error))?;
        Ok(copy)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryTree {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "a temporary copy could not be removed");
        }
    }
}

/// Copies a directory with all that is in it; a missing one is an empty one, as it is for sled.
fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_dir(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

fn remove_empty_snapshots(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") && entry.metadata()?.len() == 0 {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens sled; waits a while for its threads of an earlier opening in this process to let go of the file.
fn open_sled(config: &sled::Config, dir: &Path) -> Result<sled::Db, StorageError> {
    let began = Instant::now();
    loop {
        let error = match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(error)) => open_failed(dir, error),
            Err(_) => StorageError::damaged(dir, 0, "sled cannot make sense of it, and gave up"),
        };
        // Other processes are kept out by the data directory's own lock.
        if !matches!(error, StorageError::InUse { .. }) || began.elapsed() > LOCK_PATIENCE {
            return Err(error);
        }
        thread::sleep(LOCK_RETRY);
    }
}

fn open_failed(dir: &Path, error: sled::Error) -> StorageError {
    match error {
        sled::Error::Io(error) if error.to_string().contains("lock") => StorageError::InUse { dir: dir.to_path_buf() },
        sled::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => {
            StorageError::io("opening the state in", dir, error)
        }
        error => StorageError::damaged(dir, 0, format!("sled cannot open it: {}", told(&error))),
    }
}

/// sled's own words for damage are of use to its authors only.
fn told(error: &sled::Error) -> String {
    match error {
        sled::Error::Corruption { .. } => "what was read is not what was written".to_owned(),
        error => error.to_string(),
    }
}

/// An error of sled's own, for whoever reads rows.
pub(super) fn unreadable(error: &sled::Error) -> ArchiveError {
    ArchiveError(told(error))
}
