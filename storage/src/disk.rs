//! The seam between storage and the operating system.
//!
//! Every file of a data directory goes through [`Disk`], so that tests can put a disk underneath that loses unsynced
//! writes, tears them, runs full, or fails after a countdown (see `fault`). sled is the exception: it opens its own files,
//! so such a disk needs the other kind of state ([`crate::StateKind::Plain`]).
//!
//! [`Poison`] is the rule about failed syncs: after one, the kernel may have dropped the dirty pages and a
//! later sync would wrongly succeed. So the first failure is remembered and nothing is acknowledged after it.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Files by path: what storage needs of a file system, and no more.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Creates an empty file, replacing one of that name, open for reading and writing.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing what has that name; atomic, durable after [`Disk::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Names of what is directly in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a directory and its parents; their names are durable on return. No error when it is there.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes created, renamed and removed names in a directory durable. Its errors are those of [`DiskFile::sync_data`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks a file (made when missing) until what is returned is dropped, or the process ends, however that ends; an
    /// error of the kind `WouldBlock` when somebody has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>>;
    /// The space of the file system that a directory is on.
    fn space(&self, dir: &Path) -> io::Result<DiskSpace>;
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What this process may still write.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// Keeps a file locked.
pub trait DiskLock: Send + Sync + fmt::Debug {}

/// One open file; all offsets and lengths are bytes.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Current length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros) to `len`.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Extends to `len` with reserved space, so that later writes inside cannot run out of it.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes the contents durable. An error is never of the kind `StorageFull`, which says that a thing can be tried again:
    /// of what was to be synced nothing is known any more.
    fn sync_data(&self) -> io::Result<()>;
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(fs::File);

#[derive(Debug)]
struct RealLock(#[expect(dead_code, reason = "the lock is let go when the file is closed")] fs::File);

impl DiskLock for RealLock {}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
        fs::create_dir_all(dir)?;
        missing.iter().rev().try_for_each(|dir| sync_parent(self, dir))?;
        // The one that was there: an earlier process may have made it, and not come to the sync.
        let found = dir.ancestors().nth(missing.len()).map_or(Ok(()), |found| sync_parent(self, found));
        match found {
            // Who may not read what is above it has not made it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            found => found,
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all().map_err(failed_sync)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock(file)))
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(DiskSpace { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.0, flags, 0, len) {
            Ok(()) => Ok(()),
            // Not every file system can reserve space; a longer file still saves a length update on each sync.
            Err(rustix::io::Errno::OPNOTSUPP) if self.len()? < len => self.0.set_len(len),
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().map_err(failed_sync)
    }
}

/// A failed sync cannot be tried again, not even one that failed for want of space.
pub(crate) fn failed_sync(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::StorageFull => io::Error::other(format!("a sync failed: {error}")),
        _ => error,
    }
}

/// Remembers the first failed write or sync of a data directory, or that what is on it cannot be trusted; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Poison(Arc<OnceLock<String>>);

impl Poison {
    /// An error once something has failed: nothing may be acknowledged any more.
    pub fn check(&self) -> io::Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(reason) => Err(io::Error::other(crate::StorageError::Poisoned(reason.clone()))),
        }
    }

    /// Why storage has stopped, if it has: a sentence that says what to do.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Records a failure that nothing can be acknowledged after: any but a full disk, where things can be tried again.
    pub(crate) fn guard<T>(&self, doing: &str, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::StorageFull
        {
            self.strike(doing, error);
        }
        result
    }

    /// Records a failed write or sync; the first failure stays.
    pub fn strike(&self, doing: &str, error: &io::Error) {
        self.stop(format!(
            "storage stopped after a failed write: {doing}: {error}. Nothing has been acknowledged since. Look at the disk, \
             then start the node again."
        ));
    }

    /// Records why nothing can be acknowledged any more; the first reason stays. True if this is it.
    pub(crate) fn stop(&self, reason: String) -> bool {
        let is_first = self.0.set(reason).is_ok();
        if let Some(reason) = self.reason().filter(|_| is_first) {
            tracing::error!(reason, "nothing more is acknowledged");
        }
        is_first
    }
}

/// The name a file has while it is written, before it is renamed into place.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(TEMPORARY_SUFFIX);
    PathBuf::from(name)
}

/// Files with this ending are leftovers of an interrupted write, and are removed at open.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Replaces a small file so that a crash leaves either the old contents or the new ones; durable on return.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = temporary_name(path);
    let file = disk.create(&temporary)?;
    file.write_at(0, contents)?;
    file.sync_data()?;
    disk.rename(&temporary, path)?;
    sync_parent(disk, path)
}

/// Makes the name of `path` durable.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => disk.sync_dir(Path::new(".")),
        Some(dir) => disk.sync_dir(dir),
        None => Ok(()),
    }
}

/// The whole contents of a file, or `None` when there is no such file.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut contents = vec![0; length];
    let count = file.read_at(0, &mut contents)?;
    contents.truncate(count);
    Ok(Some(contents))
}
