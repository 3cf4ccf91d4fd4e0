//! The ordered map of bytes that holds the rows: in sled, or in plain memory over the seam's disk.
//!
//! Everything above it (layers, snapshots, generations, checks) is the same code for both, so that a simulation, which
//! can have neither sled's threads nor its files, runs what a node runs but for this one map.

mod plain;
mod sled;

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::sled::IVec;
use holdfast_machine::ArchiveResult;

use crate::disk::Disk;
use crate::error::StorageError;
pub(crate) use plain::PlainTree;
pub(crate) use sled::{SledTree, TemporaryTree};

/// Where the rows of a state are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateKind {
    /// In sled, on the real file system whatever the disk is.
    #[default]
    Sled,
    /// In memory, written whole to one file of the disk at each sync: for simulations and crash tests. No threads.
    Plain,
}

/// One generation's map.
#[derive(Debug)]
pub(crate) enum Tree {
    Sled(SledTree),
    Plain(PlainTree),
}

impl Tree {
    /// Opens the map at `path`, or makes an empty one.
    pub(crate) fn open(
        kind: StateKind,
        disk: &Arc<dyn Disk>,
        path: &Path,
        cache_bytes: u64,
    ) -> Result<Tree, StorageError> {
        match kind {
            StateKind::Sled => SledTree::open(path, cache_bytes).map(Tree::Sled),
            StateKind::Plain => PlainTree::open(disk, path).map(Tree::Plain),
        }
    }

    /// A file that the map at `path` lacks and that opening it makes again, to no harm.
    pub(crate) fn lacks(kind: StateKind, path: &Path) -> Option<PathBuf> {
        match kind {
            StateKind::Sled => Some(path.join("conf")).filter(|conf| path.exists() && !conf.exists()),
            StateKind::Plain => None,
        }
    }

    /// Removes what is at `path`, if anything.
    pub(crate) fn remove_at(kind: StateKind, disk: &dyn Disk, path: &Path) -> io::Result<()> {
        let removed = match kind {
            StateKind::Sled => std::fs::remove_dir_all(path),
            StateKind::Plain => disk.remove(path),
        };
        removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    /// A copy to be opened instead of what is at `path`, where opening alone would change that.
    pub(crate) fn copy_to_look_at(kind: StateKind, path: &Path) -> Result<Option<TemporaryTree>, StorageError> {
        match kind {
            StateKind::Sled => TemporaryTree::of(path).map(Some),
            StateKind::Plain => Ok(None),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> ArchiveResult<Option<IVec>> {
        match self {
            Tree::Sled(tree) => tree.db.get(key).map_err(|error| sled::unreadable(&error)),
            Tree::Plain(tree) => Ok(tree.rows().get(key).cloned()),
        }
    }

    pub(crate) fn insert(&self, key: Vec<u8>, value: Vec<u8>) -> ArchiveResult<()> {
        match self {
            Tree::Sled(tree) => tree.db.insert(key, value).map(drop).map_err(|error| sled::unreadable(&error)),
            Tree::Plain(tree) => {
                tree.change(|rows| drop(rows.insert(key.into(), value.into())));
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&self, key: &[u8]) -> ArchiveResult<()> {
        match self {
            Tree::Sled(tree) => tree.db.remove(key).map(drop).map_err(|error| sled::unreadable(&error)),
            Tree::Plain(tree) => {
                tree.change(|rows| drop(rows.remove(key)));
                Ok(())
            }
        }
    }

    /// Pairs from `from` to before `to`, from both ends; later writes ahead of an end are seen.
    pub(crate) fn range(&self, from: Bound<Vec<u8>>, to: Vec<u8>) -> Range<'_> {
        match self {
            Tree::Sled(tree) => Range::Sled(tree.db.range((from, Bound::Excluded(to)))),
            Tree::Plain(tree) => Range::Plain(tree.range(from, to)),
        }
    }

    /// Makes durable everything that was written before the call.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self {
            Tree::Sled(tree) => tree.sync(),
            Tree::Plain(tree) => tree.sync(),
        }
    }

    /// Bytes that it takes on disk.
    pub(crate) fn size_on_disk(&self) -> io::Result<u64> {
        match self {
            Tree::Sled(tree) => tree.db.size_on_disk().map_err(io::Error::other),
            Tree::Plain(tree) => tree.size_on_disk(),
        }
    }
}

/// A walk over part of a [`Tree`].
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(crate) enum Range<'a> {
    Sled(::sled::Iter),
    Plain(plain::Range<'a>),
}

impl Iterator for Range<'_> {
    type Item = ArchiveResult<(IVec, IVec)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Range::Sled(pairs) => pairs.next().map(|pair| pair.map_err(|error| sled::unreadable(&error))),
            Range::Plain(pairs) => pairs.next().map(Ok),
        }
    }
}

impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Range::Sled(pairs) => pairs.next_back().map(|pair| pair.map_err(|error| sled::unreadable(&error))),
            Range::Plain(pairs) => pairs.next_back().map(Ok),
        }
    }
}
