//! Whose data a directory holds, and that only one process uses it.
//!
//! The file `identity` is written last when the directory is made; it names the cluster, the node, the layout's version
//! and a random incarnation, by which peers tell this disk from an empty one under the same name. The node's Raft id is
//! added once, when it is known: a node that comes back without its data gets another one. Opening another cluster's,
//! another node's or a newer program's directory is refused, with nothing changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::disk::{Disk, DiskLock, Poison, TEMPORARY_SUFFIX, read_file, replace_file};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::log::Log;
use crate::state::State;

/// Newest layout of data directories that this program reads, and the only one it writes: 2 has bundles in the state.
pub const FORMAT_VERSION: u32 = 2;

const IDENTITY_FILE: &str = "identity";
const LOCK_FILE: &str = "lock";
const CONDEMNED_FILE: &str = "condemned";

/// Whose data the caller expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node.
    pub name: String,
}

/// Whose data a directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node.
    pub name: String,
    /// Raft id of the node; none until the cluster has said it.
    pub node: Option<u64>,
    /// Random, drawn when the directory was made.
    pub incarnation: Uuid,
    /// What the directory was made with, if not empty: the same on all nodes that a cluster was restored to.
    pub base: Option<u128>,
}

/// The encoding of [`Identity`]; the format comes first, so that any later layout can be told apart.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    cluster: String,
    name: String,
    node: Option<u64>,
    incarnation: u128,
    base: Option<u128>,
}

/// An open data directory; the lock is held until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Mutex<Identity>,
    fresh: bool,
    disk: Arc<dyn Disk>,
    poison: Poison,
    _lock: Box<dyn DiskLock>,
}

impl DataDir {
    /// Opens the directory, or makes it when there is none or an empty one.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, expected: &Expected) -> Result<DataDir, StorageError> {
        DataDir::open_or_fill(disk, path, expected, None, DataDir::fill_empty)
    }

    /// Makes the directory, for the Raft id `node`, with what `fill` writes to its parts; `fill` says what that is
    /// ([`Identity::base`]). Refused when there is a data directory already.
    pub fn make(
        disk: &Arc<dyn Disk>,
        path: &Path,
        owner: &Expected,
        node: u64,
        fill: impl FnOnce(&DataDir) -> Result<u128, StorageError>,
    ) -> Result<DataDir, StorageError> {
        let has_data = |Identity { cluster, name, .. }| {
            let dir = path.to_path_buf();
            Err(StorageError::HasData { dir, cluster, name })
        };
        if let Some(identity) = Identity::read(&**disk, path)? {
            return has_data(identity);
        }
        let dir = DataDir::open_or_fill(disk, path, owner, Some(node), |dir| {
            let snapshots = dir.snapshot_dir();
            disk.create_dir(&snapshots).map_err(|error| StorageError::io("creating", &snapshots, error))?;
            Log::create(&**disk, &dir.log_dir())?;
            fill(dir).map(Some)
        })?;
        if dir.fresh { Ok(dir) } else { has_data(dir.identity()) }
    }

    fn open_or_fill(
        disk: &Arc<dyn Disk>,
        path: &Path,
        expected: &Expected,
        node: Option<u64>,
        fill: impl FnOnce(&DataDir) -> Result<Option<u128>, StorageError>,
    ) -> Result<DataDir, StorageError> {
        let new = |identity, fresh, lock| {
            let (path, disk, poison) = (path.to_path_buf(), Arc::clone(disk), Poison::default());
            DataDir { path, identity: Mutex::new(identity), fresh, disk, poison, _lock: lock }
        };
        if let Some((identity, format)) = Identity::read_with_format(&**disk, path)? {
            identity.check(path, expected)?;
            let lock = take_lock(&**disk, path)?;
            if format < FORMAT_VERSION {
                // Each part brings itself into the present form when it is opened. An older program must not see that begun.
                identity.write(&**disk, path)?;
            }
            return Ok(new(identity, false, lock));
        }
        refuse_foreign(&**disk, path)?;
        disk.create_dir(path).map_err(|error| StorageError::io("creating", path, error))?;
        let lock = take_lock(&**disk, path)?;
        // Another process may have finished making it before the lock was free.
        if let Some(identity) = Identity::read(&**disk, path)? {
            identity.check(path, expected)?;
            return Ok(new(identity, false, lock));
        }
        let Expected { cluster, name } = expected.clone();
        let mut identity = Identity { cluster, name, node, incarnation: Uuid::new_v4(), base: None };
        let mut dir = new(identity.clone(), true, lock);
        identity.base = fill(&dir)?;
        // This makes it count.
        identity.write(&**disk, path)?;
        dir.identity = Mutex::new(identity);
        Ok(dir)
    }

    /// Makes the empty parts of a new directory.
    fn fill_empty(&self) -> Result<Option<u128>, StorageError> {
        Log::create(&*self.disk, &self.log_dir())?;
        State::create(&*self.disk, &self.state_dir())?;
        let snapshots = self.snapshot_dir();
        self.disk.create_dir(&snapshots).map_err(|error| StorageError::io("creating", &snapshots, error))?;
        Ok(None)
    }

    /// Marks the data as not to be served any more, and says why; the directory is refused from now on. Gives the error
    /// that every later opening gives.
    pub fn condemn(&self, reason: &str) -> StorageError {
        let marked = replace_file(&*self.disk, &self.path.join(CONDEMNED_FILE), reason.as_bytes());
        if let Err(error) = marked {
            tracing::error!(%error, "the data directory could not be marked as condemned");
        }
        StorageError::Condemned { dir: self.path.clone(), reason: reason.to_owned() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn identity(&self) -> Identity {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the node its Raft id, for as long as this directory lives; durable on return.
    pub fn assign(&self, node: u64) -> Result<(), StorageError> {
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        match identity.node {
            Some(known) if known == node => Ok(()),
            Some(known) => Err(StorageError::OtherId { dir: self.path.clone(), known, found: node }),
            None => {
                let assigned = Identity { node: Some(node), ..identity.clone() };
                assigned.write(&*self.disk, &self.path)?;
                *identity = assigned;
                Ok(())
            }
        }
    }

    /// Whether it was made just now, so that it holds nothing.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The disk that its files are on.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    /// The failure that all parts of the directory share.
    pub fn poison(&self) -> Poison {
        self.poison.clone()
    }

    /// Why nothing more is acknowledged, if so: a sentence that says what to do.
    pub fn failure(&self) -> Option<&str> {
        self.poison.reason()
    }

    /// The directory of the Raft log.
    pub fn log_dir(&self) -> PathBuf {
        log_dir(&self.path)
    }

    /// The directory of the replicated state.
    pub fn state_dir(&self) -> PathBuf {
        state_dir(&self.path)
    }

    /// The directory of the snapshots.
    pub fn snapshot_dir(&self) -> PathBuf {
        snapshot_dir(&self.path)
    }
}

pub(crate) fn log_dir(path: &Path) -> PathBuf {
    path.join("log")
}

pub(crate) fn state_dir(path: &Path) -> PathBuf {
    path.join("state")
}

pub(crate) fn snapshot_dir(path: &Path) -> PathBuf {
    path.join("snapshots")
}

impl Identity {
    /// Reads the identity of the directory at `path`; `None` when it has none.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Identity>, StorageError> {
        Ok(Identity::read_with_format(disk, path)?.map(|(identity, _)| identity))
    }

    /// The same, with the layout of the directory.
    fn read_with_format(disk: &dyn Disk, path: &Path) -> Result<Option<(Identity, u32)>, StorageError> {
        let file = path.join(IDENTITY_FILE);
        let bytes = read_file(disk, &file).map_err(|error| StorageError::io("reading", &file, error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let contents = frame::decode(FrameKind::Identity, &bytes).map_err(|flaw| StorageError::flawed(&file, &flaw))?;
        match postcard::take_from_bytes::<u32>(contents) {
            Ok((format, _)) if format > FORMAT_VERSION => {
                return Err(StorageError::NewerFormat { file, found: format, supported: FORMAT_VERSION });
            }
            _ => {}
        }
        let Stored { format, cluster, name, node, incarnation, base } = postcard::from_bytes(contents)
            .map_err(|_| StorageError::damaged(&file, 0, "the identity cannot be decoded"))?;
        Ok(Some((Identity { cluster, name, node, incarnation: Uuid::from_u128(incarnation), base }, format)))
    }

    fn write(&self, disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
        let file = path.join(IDENTITY_FILE);
        let stored = Stored {
            format: FORMAT_VERSION,
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            node: self.node,
            incarnation: self.incarnation.as_u128(),
            base: self.base,
        };
        replace_file(disk, &file, &frame::encode_value(FrameKind::Identity, &stored))
            .map_err(|error| StorageError::io("writing", &file, error))
    }

    fn check(&self, path: &Path, expected: &Expected) -> Result<(), StorageError> {
        let dir = path.to_path_buf();
        if self.cluster != expected.cluster {
            let (expected, found) = (expected.cluster.clone(), self.cluster.clone());
            return Err(StorageError::OtherCluster { dir, expected, found });
        }
        if self.name != expected.name {
            let (expected, found) = (expected.name.clone(), self.name.clone());
            return Err(StorageError::OtherNode { dir, expected, found });
        }
        Ok(())
    }
}

/// Refuses a directory that has files in it and no identity, unless they are what an interrupted making leaves.
fn refuse_foreign(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let own = ["log", "state", "snapshots", LOCK_FILE, "lost+found"];
    for name in names(disk, path)? {
        if !own.contains(&name.as_str()) && !name.ends_with(TEMPORARY_SUFFIX) {
            return Err(StorageError::NotADataDirectory { dir: path.to_path_buf(), example: name });
        }
    }
    let inner = [(log_dir(path), "vote"), (state_dir(path), "current"), (snapshot_dir(path), "")];
    for (dir, only) in inner {
        let used = names(disk, &dir)?.into_iter().find(|name| name != only && !name.ends_with(TEMPORARY_SUFFIX));
        if let Some(name) = used {
            let example = dir.join(name).strip_prefix(path).unwrap_or(&dir).display().to_string();
            return Err(StorageError::NotADataDirectory { dir: path.to_path_buf(), example });
        }
    }
    Ok(())
}

fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, StorageError> {
    match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| StorageError::io("listing", dir, error)),
    }
}

/// Takes the lock that keeps other processes out; it ends with this process, however that ends.
pub(crate) fn take_lock(disk: &dyn Disk, path: &Path) -> Result<Box<dyn DiskLock>, StorageError> {
    let file = path.join(LOCK_FILE);
    disk.lock(&file).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StorageError::InUse { dir: path.to_path_buf() },
        _ => StorageError::io("locking", &file, error),
    })
}

/// An error if the data at `path` must not be served; see [`DataDir::condemn`].
pub(crate) fn check_not_condemned(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let file = path.join(CONDEMNED_FILE);
    match read_file(disk, &file).map_err(|error| StorageError::io("reading", &file, error))? {
        None => Ok(()),
        Some(reason) => {
            let (dir, reason) = (path.to_path_buf(), String::from_utf8_lossy(&reason).into_owned());
            Err(StorageError::Condemned { dir, reason })
        }
    }
}

/// The same where a lock was ever taken: who only looks makes no file.
pub(crate) fn take_lock_if_any(disk: &dyn Disk, path: &Path) -> Result<Option<Box<dyn DiskLock>>, StorageError> {
    match names(disk, path)?.iter().any(|name| name == LOCK_FILE) {
        true => take_lock(disk, path).map(Some),
        false => Ok(None),
    }
}

#[cfg(test)]
pub(crate) mod tests;
