//! A disk in memory that forgets, tears and fails, so that crash tests are real.
//!
//! Each file has two contents: what readers see, and what is durable. [`FaultDisk::crash`] gives the disk as it
//! may be found after a power loss: of each unsynced write, any subset of its sectors has arrived; of the unsynced
//! renames, creations and removals in a directory, a beginning has. [`FaultDisk::kill`] gives it as a killed process
//! leaves it. A countdown makes the n-th change fail, once or for good.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// Written whole or not at all.
const SECTOR: usize = 512;

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
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    /// Changes of names since the last sync of their directory, in order.
    pending_names: Vec<NameChange>,
    countdown: Option<(u64, Fault)>,
    changes: u64,
    syncs: u64,
}

#[derive(Debug, Clone)]
struct NameChange {
    dir: PathBuf,
    remove: Option<PathBuf>,
    add: Option<(PathBuf, u64)>,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum Pending {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    inode: u64,
}

impl FaultDisk {
    /// Lets `changes` more changes (writes, syncs, names) work; the next one meets `fault`.
    pub fn fail_after(&self, changes: u64, fault: Fault) {
        self.contents().countdown = Some((changes, fault));
    }

    /// How many changes were tried so far.
    pub fn changes(&self) -> u64 {
        self.contents().changes
    }

    /// How many syncs of file contents have succeeded.
    pub fn syncs(&self) -> u64 {
        self.contents().syncs
    }

    /// The disk after a power loss; `seed` decides what has arrived of the unsynced changes.
    pub fn crash(&self, seed: u64) -> FaultDisk {
        let mut random = Random(seed);
        let mut contents = self.contents().clone();
        let survive = random.below(contents.pending_names.len() as u64 + 1) as usize;
        let changes: Vec<NameChange> = contents.pending_names.drain(..).take(survive).collect();
        for change in &changes {
            change.apply(&mut contents.durable_names);
        }
        contents.names = contents.durable_names.clone();
        for inode in contents.inodes.values_mut() {
            inode.crash(&mut random);
        }
        contents.revive()
    }

    /// The disk after the process was killed: all that was written is there, synced or not.
    pub fn kill(&self) -> FaultDisk {
        self.contents().clone().revive()
    }

    /// The bytes that readers see in a file.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let contents = self.contents();
        contents.names.get(path).map(|inode| contents.inodes[inode].now.clone())
    }

    /// Replaces a file's bytes, durably: damage by other means than a crash.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut contents = self.contents();
        let inode = contents.names.get(path).copied();
        if let Some(inode) = inode.and_then(|inode| contents.inodes.get_mut(&inode)) {
            change(&mut inode.now);
            inode.durable.clone_from(&inode.now);
            inode.pending.clear();
        }
    }

    /// All file names with their bytes: to see that nothing was changed.
    pub fn image(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let contents = self.contents();
        contents.names.iter().map(|(path, inode)| (path.clone(), contents.inodes[inode].now.clone())).collect()
    }

    /// A copy that shares nothing with this disk.
    pub fn copy(&self) -> FaultDisk {
        FaultDisk(Arc::new(Mutex::new(self.contents().clone())))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Counts a change, and fails it when its time has come.
    fn change(&mut self) -> io::Result<()> {
        self.changes += 1;
        match &mut self.countdown {
            None => Ok(()),
            Some((0, Fault::Stop)) => Err(io::Error::other("the disk has stopped")),
            Some((0, Fault::Once(kind))) => {
                let kind = *kind;
                self.countdown = None;
                Err(kind.into())
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn rename(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }

    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.entry(inode).or_default()
    }

    fn revive(mut self) -> FaultDisk {
        self.countdown = None;
        FaultDisk(Arc::new(Mutex::new(self)))
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        if let Some(path) = &self.remove {
            names.remove(path);
        }
        if let Some((path, inode)) = &self.add {
            names.insert(path.clone(), *inode);
        }
    }
}

impl Inode {
    fn crash(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Pending::Length(length) if random.below(2) == 0 => self.durable.resize(length, 0),
                Pending::Length(_) => {}
                Pending::Write { offset, bytes } => tear(&mut self.durable, offset, &bytes, random),
            }
        }
        self.now.clone_from(&self.durable);
    }
}

/// Writes all, none, or some sectors of `bytes`.
fn tear(file: &mut Vec<u8>, offset: usize, bytes: &[u8], random: &mut Random) {
    let fate = random.below(4);
    let mut at = 0;
    while at < bytes.len() {
        let end = ((offset + at) / SECTOR + 1) * SECTOR - offset;
        let end = end.min(bytes.len());
        let arrives = match fate {
            0 => false,
            1 => true,
            _ => random.below(2) == 0,
        };
        if arrives {
            put(file, offset + at, &bytes[at..end]);
        }
        at = end;
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut contents = self.contents();
        contents.change()?;
        let inode = contents.next_inode;
        contents.next_inode += 1;
        contents.inodes.insert(inode, Inode::default());
        contents.rename(NameChange { dir: parent(path), remove: None, add: Some((path.to_path_buf(), inode)) });
        Ok(Arc::new(FaultFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        match self.contents().names.get(path) {
            Some(inode) => Ok(Arc::new(FaultFile { disk: self.clone(), inode: *inode })),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut contents = self.contents();
        contents.change()?;
        let inode = *contents.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        let (remove, add) = (Some(from.to_path_buf()), Some((to.to_path_buf(), inode)));
        contents.rename(NameChange { dir: parent(to), remove, add });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut contents = self.contents();
        contents.change()?;
        if !contents.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        contents.rename(NameChange { dir: parent(path), remove: Some(path.to_path_buf()), add: None });
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let contents = self.contents();
        let inside = contents.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut contents = self.contents();
        contents.change()?;
        let contents = &mut *contents;
        let durable_names = &mut contents.durable_names;
        contents.pending_names.retain(|change| {
            let synced = change.dir == dir;
            if synced {
                change.apply(durable_names);
            }
            !synced
        });
        Ok(())
    }
}

impl DiskFile for FaultFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut contents = self.disk.contents();
        let offset = offset as usize;
        let allowed = contents.change();
        // A write that fails may have got anywhere.
        let written = if allowed.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let inode = contents.inode(self.inode);
        put(&mut inode.now, offset, written);
        inode.pending.push(Pending::Write { offset, bytes: written.to_vec() });
        allowed
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut contents = self.disk.contents();
        let rest = contents.inode(self.inode).now.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.contents().inode(self.inode).now.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut contents = self.disk.contents();
        contents.change()?;
        let inode = contents.inode(self.inode);
        inode.now.resize(len as usize, 0);
        inode.pending.push(Pending::Length(len as usize));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match self.len()? < len {
            true => self.set_len(len),
            false => Ok(()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut contents = self.disk.contents();
        contents.change()?;
        contents.syncs += 1;
        let inode = contents.inode(self.inode);
        inode.durable.clone_from(&inode.now);
        inode.pending.clear();
        Ok(())
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A small random number generator (splitmix64): the same seed, the same crash.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, or 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_number() % limit.max(1)
    }
}
