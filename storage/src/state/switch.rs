//! Which generation counts, and how another one takes over: filled beside the old one, synced, then switched to by
//! the atomic replacement of one small file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use holdfast_machine::ArchiveError;

use super::StateConfig;
use super::generation::Generation;
use crate::disk::{Disk, Poison, TEMPORARY_SUFFIX, read_file, replace_file};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::keys;
use crate::rows::{self, LargeRows, Write};
use crate::snapshot::SnapshotFile;
use crate::tree::{StateKind, Tree};

const CURRENT_FILE: &str = "current";

/// Makes generation `number` from a snapshot, or empty, beside the one that counts; durable on return. Anything but a full
/// disk and a snapshot that is not in order poisons.
pub(super) fn make(
    disk: &Arc<dyn Disk>,
    root: &Path,
    number: u64,
    snapshot: Option<&SnapshotFile>,
    config: &StateConfig,
    poison: &Poison,
) -> Result<Generation, StorageError> {
    let making = |error| StorageError::io("installing in", root, error);
    let generation = Generation::create(disk, root, number, config)?;
    let filled = snapshot.map_or(Ok(()), |snapshot| fill(&generation, snapshot, config.machine_version));
    let synced = filled.and_then(|()| {
        let synced = generation.sync().and_then(|()| disk.sync_dir(root));
        poison.guard("writing a state", synced).map_err(making)
    });
    match synced {
        Ok(()) => Ok(generation),
        Err(error) => {
            generation.retire();
            Err(error)
        }
    }
}

/// Lets a generation count from now on. Anything but a full disk poisons.
pub(super) fn switch(
    disk: &dyn Disk,
    root: &Path,
    generation: Generation,
    poison: &Poison,
) -> Result<Generation, StorageError> {
    let switching = |error| StorageError::io("installing in", root, error);
    match poison.guard("switching to a state", set_current(disk, root, generation.number)) {
        Ok(()) => Ok(generation),
        Err(error) => {
            // Once storage has stopped, nobody knows which one counts: the next start finds out, and removes the other.
            if poison.reason().is_none() {
                generation.retire();
            }
            Err(switching(error))
        }
    }
}

/// Writes a snapshot's rows into an empty generation.
fn fill(generation: &Generation, snapshot: &SnapshotFile, machine_version: u32) -> Result<(), StorageError> {
    let failed = |error| StorageError::io("installing", &snapshot.path, error);
    let mut reader = snapshot.reader()?;
    let header = reader.header().clone();
    if header.machine > machine_version {
        let (file, found) = (snapshot.path.clone(), header.machine);
        return Err(StorageError::NewerFormat { file, found, supported: machine_version });
    }
    let unwritten = |error| failed(io::Error::other::<ArchiveError>(error));
    let mut large = LargeRows::default();
    while let Some(rows) = reader.next_rows()? {
        let index = header.applied.index;
        let writes: Vec<_> = rows.iter().map(|(key, value)| Write { key, index, value: Some(value) }).collect();
        for writes in rows::by_place(&writes) {
            rows::put(&generation.tree, &mut large, writes).map_err(unwritten)?;
        }
    }
    if let Some(membership) = &header.membership {
        let membership = frame::encode(FrameKind::Membership, membership);
        generation.tree.insert(keys::MEMBERSHIP.to_vec(), membership).map_err(unwritten)?;
    }
    // Else the whole state would be gone through once more when it takes over, while nobody can read.
    generation.tree.insert(keys::BUNDLED.to_vec(), Vec::new()).map_err(unwritten)?;
    let applied = frame::encode_value(FrameKind::Applied, &header.applied);
    generation.tree.insert(keys::INSTALLED.to_vec(), applied.clone()).map_err(unwritten)?;
    generation.tree.insert(keys::APPLIED.to_vec(), applied).map_err(unwritten)
}

pub(super) fn set_current(disk: &dyn Disk, root: &Path, number: u64) -> io::Result<()> {
    replace_file(disk, &root.join(CURRENT_FILE), &frame::encode(FrameKind::Generation, &number.to_le_bytes()))
}

pub(super) fn read_current(disk: &dyn Disk, root: &Path) -> Result<u64, StorageError> {
    let path = root.join(CURRENT_FILE);
    let bytes = read_file(disk, &path).map_err(|error| StorageError::io("reading", &path, error))?;
    let bytes = bytes.ok_or_else(|| StorageError::damaged(&path, 0, "the file is missing"))?;
    match frame::decode(FrameKind::Generation, &bytes).map(<[u8]>::first_chunk) {
        Ok(Some(number)) => Ok(u64::from_le_bytes(*number)),
        Ok(None) => Err(StorageError::damaged(&path, 0, "it does not name a generation")),
        Err(flaw) => Err(StorageError::flawed(&path, &flaw)),
    }
}

/// Removes all generations but the current one, their layers, and what an interrupted replacement left.
pub(super) fn remove_others(disk: &dyn Disk, root: &Path, number: u64) -> io::Result<()> {
    for name in disk.list(root)? {
        let path = root.join(&name);
        match Generation::number_in(&name) {
            Some(other) if other != number && path == Generation::path(StateKind::Sled, root, other) => {
                Tree::remove_at(StateKind::Sled, disk, &path)?;
            }
            Some(other) if other != number => disk.remove(&path)?,
            None if name.ends_with(TEMPORARY_SUFFIX) => disk.remove(&path)?,
            _ => {}
        }
    }
    Ok(())
}
