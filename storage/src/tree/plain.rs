//! The map in memory, and one file that is the map as of the last sync.
//!
//! Each sync writes the whole file anew and puts it in the old one's place at once, so a crash leaves one or the other.
//! That costs as much as the state is large, which is for tests only; what it promises is what the state needs of sled,
//! and that under any loss of power.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use sled::IVec;

use crate::disk::{Disk, read_file, replace_file, sync_parent};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};

type Rows = BTreeMap<IVec, IVec>;

#[derive(Debug)]
pub(crate) struct PlainTree {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    rows: RwLock<Rows>,
    /// Whether the file is not what the map is.
    changed: AtomicBool,
}

impl PlainTree {
    pub(super) fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<PlainTree, StorageError> {
        let bytes = read_file(&**disk, path).map_err(|error| StorageError::io("reading", path, error))?;
        let changed = AtomicBool::new(bytes.is_none());
        let rows = match bytes {
            None => Rows::new(),
            Some(bytes) => {
                let contents =
                    frame::decode(FrameKind::PlainRows, &bytes).map_err(|flaw| StorageError::flawed(path, &flaw))?;
                parse(contents).ok_or_else(|| StorageError::damaged(path, 0, "the rows cannot be decoded"))?
            }
        };
        Ok(PlainTree { disk: Arc::clone(disk), path: path.to_path_buf(), rows: RwLock::new(rows), changed })
    }

    pub(super) fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Rows)) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        self.changed.store(true, Ordering::Relaxed);
        change(&mut rows);
    }

    pub(super) fn range(&self, from: Bound<Vec<u8>>, to: Vec<u8>) -> Range<'_> {
        Range { tree: self, from, to }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        let rows = self.rows();
        if !self.changed.load(Ordering::Relaxed) {
            // The process that replaced the file may have been killed before the name was durable.
            return sync_parent(&*self.disk, &self.path);
        }
        replace_file(&*self.disk, &self.path, &encode(&rows)?)?;
        // Writers wait for the lock that is held here.
        self.changed.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn size_on_disk(&self) -> io::Result<u64> {
        match self.disk.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            file => file?.len(),
        }
    }
}

/// Steps of its own for each pair, so that no lock is held between them.
pub(crate) struct Range<'a> {
    tree: &'a PlainTree,
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
}

impl Range<'_> {
    fn step(
        &self,
        choose: impl FnOnce(std::collections::btree_map::Range<'_, IVec, IVec>) -> Option<(IVec, IVec)>,
    ) -> Option<(IVec, IVec)> {
        let (Bound::Included(from) | Bound::Excluded(from)) = &self.from else { return None };
        // An empty range is a panic in the standard library when its ends are excluded.
        if *from >= self.to {
            return None;
        }
        let bounds = (self.from.as_ref().map(Vec::as_slice), Bound::Excluded(self.to.as_slice()));
        choose(self.tree.rows().range::<[u8], _>(bounds))
    }
}

impl Iterator for Range<'_> {
    type Item = (IVec, IVec);

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.step(|mut pairs| pairs.next().map(|(key, value)| (key.clone(), value.clone())))?;
        self.from = Bound::Excluded(pair.0.to_vec());
        Some(pair)
    }
}

impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let pair = self.step(|mut pairs| pairs.next_back().map(|(key, value)| (key.clone(), value.clone())))?;
        self.to = pair.0.to_vec();
        Some(pair)
    }
}

fn encode(rows: &Rows) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let start = frame::begin(&mut buffer, FrameKind::PlainRows);
    for (key, value) in rows {
        for part in [key, value] {
            let length = u32::try_from(part.len()).map_err(io::Error::other)?;
            buffer.extend_from_slice(&length.to_le_bytes());
        }
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value);
    }
    if u32::try_from(buffer.len()).is_err() {
        return Err(io::Error::other("a plain state of 4 GiB or more"));
    }
    frame::finish(&mut buffer, start);
    Ok(buffer)
}

fn parse(mut contents: &[u8]) -> Option<Rows> {
    let mut rows = Rows::new();
    while !contents.is_empty() {
        let (key_length, rest) = contents.split_first_chunk::<4>()?;
        let (value_length, rest) = rest.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_length) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_length) as usize)?;
        rows.insert(key.into(), value.into());
        contents = rest;
    }
    Some(rows)
}
