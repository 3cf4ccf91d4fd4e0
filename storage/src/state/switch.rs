//! Which generation counts, and how another one takes over: filled beside the old one, synced, then switched to by
//! the atomic replacement of one small file.

use std::fs;
use std::io;
use std::path::Path;

use sled::Batch;

use super::StateConfig;
use super::generation::Generation;
use crate::disk::{RealDisk, read_file, replace_file, temporary_name};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::keys;
use crate::rows::{self, LargeRows};
use crate::snapshot::SnapshotFile;

const CURRENT_FILE: &str = "current";

/// Bytes of rows that are put into one batch while a snapshot is installed.
const INSTALL_BATCH_BYTES: usize = 1 << 20;

/// Makes generation `number` from a snapshot, or empty, and lets it count.
pub(super) fn switch(
    root: &Path,
    number: u64,
    snapshot: Option<&SnapshotFile>,
    config: &StateConfig,
) -> Result<Generation, StorageError> {
    let switching = |error| StorageError::io("installing in", root, error);
    let dir = Generation::dir(root, number);
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(switching)?;
    }
    let generation = Generation::open(root, number, config.cache_bytes)?;
    let filled = snapshot.map_or(Ok(()), |snapshot| fill(&generation, snapshot, config.machine_version));
    let switched = filled.and_then(|()| {
        generation.sync().map_err(switching)?;
        fs::File::open(root).and_then(|root| root.sync_all()).map_err(switching)?;
        set_current(root, number).map_err(switching)
    });
    match switched {
        Ok(()) => Ok(generation),
        Err(error) => {
            generation.retire();
            Err(error)
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
    let mut large = LargeRows::default();
    let mut batch = Batch::default();
    let (mut count, mut bytes) = (0, 0);
    while let Some(rows) = reader.next_rows()? {
        for (key, value) in rows {
            rows::stage(&generation.db, &mut large, &mut batch, header.applied.index, &key, Some(&value))
                .map_err(|error| failed(io::Error::other(error)))?;
            bytes += key.len() + value.len();
            count += 1;
        }
        if bytes >= INSTALL_BATCH_BYTES {
            generation.apply(std::mem::take(&mut batch), count).map_err(failed)?;
            (count, bytes) = (0, 0);
        }
    }
    let applied = frame::encode_value(FrameKind::Applied, &header.applied);
    batch.insert(keys::APPLIED, applied.clone());
    batch.insert(keys::INSTALLED, applied);
    if let Some(membership) = &header.membership {
        batch.insert(keys::MEMBERSHIP, frame::encode(FrameKind::Membership, membership));
    }
    generation.apply(batch, count).map_err(failed)
}

pub(super) fn set_current(root: &Path, number: u64) -> io::Result<()> {
    replace_file(&RealDisk, &root.join(CURRENT_FILE), &frame::encode(FrameKind::Generation, &number.to_le_bytes()))
}

pub(super) fn read_current(root: &Path) -> Result<u64, StorageError> {
    let path = root.join(CURRENT_FILE);
    let bytes = read_file(&RealDisk, &path).map_err(|error| StorageError::io("reading", &path, error))?;
    let bytes = bytes.ok_or_else(|| StorageError::damaged(&path, 0, "the file is missing"))?;
    match frame::decode(FrameKind::Generation, &bytes).map(<[u8]>::first_chunk) {
        Ok(Some(number)) => Ok(u64::from_le_bytes(*number)),
        Ok(None) => Err(StorageError::damaged(&path, 0, "it does not name a generation")),
        Err(flaw) => Err(StorageError::damaged(&path, 0, flaw.to_string())),
    }
}

/// Removes all generations but the current one.
pub(super) fn remove_others(root: &Path, number: u64) -> io::Result<()> {
    let keep = Generation::dir(root, number);
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let is_generation = entry.file_name().to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if is_generation && entry.path() != keep {
            fs::remove_dir_all(entry.path())?;
        }
    }
    match fs::remove_file(temporary_name(&root.join(CURRENT_FILE))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
