//! A disk in memory that forgets, tears, fills up and fails, so that crash tests are real.
//!
//! What the calls have done and what is on the medium are two things (see media). [`FaultDisk::power_loss`] gives the disk
//! as it may be found after the power went: synced bytes and synced names are there; of what was not synced, any part
//! is, down to single sectors of a write and single names. [`FaultDisk::kill`] gives it as a killed process leaves it.
//! Everything that is drawn is drawn from seeds, so a run repeats itself.
//!
//! [`FaultDisk::fail_after`] makes the n-th change fail, of any kind or of one. A sync of a file that fails loses what it
//! was to make durable, as a kernel does: readers still see it, the next sync succeeds and has nothing to write. (Names are
//! a journal's business: they wait for the next sync.) [`FaultDisk::set_capacity`] makes the disk run full.

mod media;
mod random;
pub mod rot;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile, DiskLock, DiskSpace, failed_sync, sync_parent};
use media::{Media, Node, Place};
pub use random::Random;

/// What changes a disk, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// A file or directory is made.
    Create,
    /// Bytes are written.
    Write,
    /// A file is given space.
    Length,
    /// A file is cut.
    Cut,
    /// A file is given another name.
    Rename,
    /// A file is removed.
    Remove,
    /// A file's bytes are made durable.
    Sync,
    /// A directory's names are made durable.
    SyncDir,
}

/// What happens when the countdown ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// That change and every later one fails: the process is as good as dead.
    Stop,
    /// That change fails with this kind of error, later ones work.
    Once(io::ErrorKind),
}

/// The disk; clones share it.
#[derive(Debug, Clone, Default)]
pub struct FaultDisk(Arc<Mutex<Contents>>);

#[derive(Debug, Clone, Default)]
struct Contents {
    media: Media,
    locked: Vec<PathBuf>,
    capacity: Option<u64>,
    countdown: Option<Countdown>,
    stopped: bool,
    counts: BTreeMap<Change, u64>,
    failed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Countdown {
    left: u64,
    of: Option<Change>,
    fault: Fault,
}

#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    inode: u64,
}

#[derive(Debug)]
struct FaultLock {
    disk: FaultDisk,
    path: PathBuf,
}

impl FaultDisk {
    /// Lets `changes` more changes work; the next one meets `fault`.
    pub fn fail_after(&self, changes: u64, fault: Fault) {
        self.contents().countdown = Some(Countdown { left: changes, of: None, fault });
    }

    /// The same, counting changes of one kind only.
    pub fn fail_after_some(&self, of: Change, changes: u64, fault: Fault) {
        self.contents().countdown = Some(Countdown { left: changes, of: Some(of), fault });
    }

    /// How many bytes all files together may have; beyond that there is no space.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.contents().capacity = bytes;
    }

    /// How many bytes all files together have.
    pub fn used(&self) -> u64 {
        self.contents().media.used()
    }

    /// How many changes were tried so far.
    pub fn changes(&self) -> u64 {
        self.contents().counts.values().sum()
    }

    /// How many changes of one kind were tried so far.
    pub fn count(&self, of: Change) -> u64 {
        self.contents().counts.get(&of).copied().unwrap_or(0)
    }

    /// How many changes have failed so far.
    pub fn failed(&self) -> u64 {
        self.contents().failed
    }

    /// Whether every change fails from now on.
    pub fn has_stopped(&self) -> bool {
        self.contents().stopped
    }

    /// The disk after a power loss; `seed` decides what has arrived of the unsynced changes. This disk stays as it is, with
    /// nobody to read it: what still holds it can go on, and changes nothing that counts.
    pub fn power_loss(&self, seed: u64) -> FaultDisk {
        let mut media = self.contents().media.clone();
        media.lose_power(&mut Random(seed));
        FaultDisk::of(media)
    }

    /// The disk after the process was killed: all that was written is there, synced or not.
    pub fn kill(&self) -> FaultDisk {
        FaultDisk::of(self.contents().media.clone())
    }

    /// A copy that shares nothing with this disk, and has no faults ahead.
    pub fn copy(&self) -> FaultDisk {
        self.kill()
    }

    /// The bytes that readers see in a file.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        self.contents().media.file(path).map(|file| file.now.clone())
    }

    /// Changes a file's bytes, durably: damage by other means than a crash.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.contents().media.damage(path, change);
    }

    /// Turns one bit of a file over, durably; bits count from the first byte's lowest.
    pub fn flip(&self, path: &Path, bit: u64) {
        self.damage(path, |bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
    }

    /// All file names with their bytes: to see that nothing was changed.
    pub fn image(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.contents().media.files().map(|(path, file)| (path.clone(), file.now.clone())).collect()
    }

    fn of(media: Media) -> FaultDisk {
        FaultDisk(Arc::new(Mutex::new(Contents { media, ..Contents::default() })))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Counts a change, and fails it when its time has come.
    fn change(&mut self, kind: Change) -> io::Result<()> {
        *self.counts.entry(kind).or_default() += 1;
        let outcome = self.meet(kind);
        self.failed += u64::from(outcome.is_err());
        outcome
    }

    fn meet(&mut self, kind: Change) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::other("the disk has stopped"));
        }
        let Some(countdown) = self.countdown.as_mut().filter(|countdown| countdown.of.is_none_or(|of| of == kind))
        else {
            return Ok(());
        };
        if countdown.left > 0 {
            countdown.left -= 1;
            return Ok(());
        }
        let fault = countdown.fault;
        self.countdown = None;
        match fault {
            Fault::Stop => {
                self.stopped = true;
                Err(io::Error::other("the disk has stopped"))
            }
            Fault::Once(kind) => Err(kind.into()),
        }
    }

    /// Bytes that may be added.
    fn free(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.media.used()))
    }

    /// Makes a file longer, if there is space; shorter always.
    fn set_len(&mut self, inode: u64, len: u64) -> io::Result<()> {
        let more = len.saturating_sub(self.media.inode(inode).now.len() as u64);
        self.change(if more > 0 { Change::Length } else { Change::Cut })?;
        if more > self.free() {
            self.failed += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.media.set_len(inode, len as usize);
        Ok(())
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut contents = self.contents();
        contents.change(Change::Create)?;
        let inode = contents.media.create(path)?;
        Ok(Arc::new(FaultFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        match self.contents().media.node(path) {
            Some(Node::File(inode)) => Ok(Arc::new(FaultFile { disk: self.clone(), inode })),
            Some(Node::Directory) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut contents = self.contents();
        contents.change(Change::Rename)?;
        contents.media.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut contents = self.contents();
        contents.change(Change::Remove)?;
        contents.media.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.contents().media.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        for dir in dir.ancestors() {
            match self.contents().media.place(dir) {
                Place::Missing => missing.push(dir),
                Place::Directory => break,
                Place::File => return Err(io::ErrorKind::NotADirectory.into()),
            }
        }
        for dir in missing.iter().rev() {
            let mut contents = self.contents();
            contents.change(Change::Create)?;
            contents.media.create_dir(dir);
        }
        // And the one that was there: an earlier process may have made it, and not come to the sync.
        missing.extend(dir.ancestors().nth(missing.len()));
        missing.iter().rev().try_for_each(|dir| sync_parent(self, dir))
    }

    fn space(&self, _dir: &Path) -> io::Result<DiskSpace> {
        let contents = self.contents();
        Ok(DiskSpace { free: contents.free(), total: contents.capacity.unwrap_or(u64::MAX) })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Names without a directory in front of them are in the one that has no name here.
        let dir = if dir == Path::new(".") { Path::new("") } else { dir };
        let mut contents = self.contents();
        contents.change(Change::SyncDir).map_err(failed_sync)?;
        contents.media.sync_dir(dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        if self.contents().media.node(path).is_none() {
            self.create(path)?;
        }
        let mut contents = self.contents();
        if contents.locked.iter().any(|locked| locked == path) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        contents.locked.push(path.to_path_buf());
        Ok(Box::new(FaultLock { disk: self.clone(), path: path.to_path_buf() }))
    }
}

impl DiskLock for FaultLock {}

impl Drop for FaultLock {
    fn drop(&mut self) {
        self.disk.contents().locked.retain(|locked| *locked != self.path);
    }
}

impl DiskFile for FaultFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut contents = self.disk.contents();
        let mut outcome = contents.change(Change::Write);
        // A write that fails may have got anywhere.
        let mut written = if outcome.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let end = contents.media.inode(self.inode).now.len() as u64;
        let space = (end.saturating_sub(offset)).saturating_add(contents.free());
        if outcome.is_ok() && bytes.len() as u64 > space {
            contents.failed += 1;
            outcome = Err(io::ErrorKind::StorageFull.into());
            written = space as usize;
        }
        contents.media.write(self.inode, offset as usize, &bytes[..written]);
        outcome
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut contents = self.disk.contents();
        let rest = contents.media.inode(self.inode).now.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.contents().media.inode(self.inode).now.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.contents().set_len(self.inode, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match self.len()? < len {
            true => self.set_len(len),
            false => Ok(()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut contents = self.disk.contents();
        let allowed = contents.change(Change::Sync);
        let (seed, stopped) = (contents.failed, contents.stopped);
        let file = contents.media.inode(self.inode);
        match &allowed {
            Ok(()) => file.sync(),
            Err(_) if !stopped => file.lose_unsynced(&mut Random(seed)),
            Err(_) => {}
        }
        allowed.map_err(failed_sync)
    }
}
