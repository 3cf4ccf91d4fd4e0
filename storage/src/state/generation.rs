//! One generation of the state: the rows since the last install, in a tree of their own beside the others'.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::StateConfig;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::tree::{StateKind, Tree};

/// An open generation.
#[derive(Debug)]
pub(crate) struct Generation {
    pub number: u64,
    pub tree: Tree,
    pub path: PathBuf,
    kind: StateKind,
    disk: Arc<dyn Disk>,
    /// Set when another generation has taken over: what it has on disk is removed with the last user.
    retired: AtomicBool,
}

impl Generation {
    /// Where generation `number` lives: a directory of sled's, or a file.
    pub(crate) fn path(kind: StateKind, root: &Path, number: u64) -> PathBuf {
        match kind {
            StateKind::Sled => root.join(format!("{number:010}")),
            StateKind::Plain => root.join(format!("{number:010}{PLAIN_SUFFIX}")),
        }
    }

    /// The number of the generation that a name in the state's directory belongs to, if it belongs to one.
    pub(super) fn number_in(name: &str) -> Option<u64> {
        let beside = [super::layer_file::PREFIX, super::damage::PREFIX];
        let name = beside.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        name.strip_suffix(PLAIN_SUFFIX).unwrap_or(name).parse().ok()
    }

    /// Opens generation `number`, or creates it.
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        root: &Path,
        number: u64,
        config: &StateConfig,
    ) -> Result<Generation, StorageError> {
        Generation::open_at(disk, number, &Generation::path(config.kind, root, number), config)
    }

    /// Opens generation `number` at another place than its own.
    pub(super) fn open_at(
        disk: &Arc<dyn Disk>,
        number: u64,
        path: &Path,
        config: &StateConfig,
    ) -> Result<Generation, StorageError> {
        let tree = Tree::open(config.kind, disk, path, config.cache_bytes)?;
        let (path, disk, retired) = (path.to_path_buf(), Arc::clone(disk), AtomicBool::new(false));
        Ok(Generation { number, tree, path, kind: config.kind, disk, retired })
    }

    /// Opens generation `number` empty, whatever was there.
    pub(super) fn create(
        disk: &Arc<dyn Disk>,
        root: &Path,
        number: u64,
        config: &StateConfig,
    ) -> Result<Generation, StorageError> {
        let path = Generation::path(config.kind, root, number);
        let removed = Tree::remove_at(config.kind, &**disk, &path);
        removed.map_err(|error| StorageError::io("removing", &path, error))?;
        Generation::open(disk, root, number, config)
    }

    /// Makes durable everything that was committed before the call.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.tree.sync()
    }

    /// Has it removed from the disk once nobody uses it any more.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.retired.load(Ordering::Relaxed)
            && let Err(error) = Tree::remove_at(self.kind, &*self.disk, &self.path)
        {
            let path = self.path.display();
            tracing::warn!(%path, %error, "an old state could not be removed; the next start tries again");
        }
    }
}

const PLAIN_SUFFIX: &str = ".rows";
