//! Backup files: a snapshot behind a manifest that says where it comes from.
//!
//! ```text
//! frame  manifest { format, cluster, node, created at, program }
//! a snapshot file, to the last byte (see snapshot)
//! ```
//! Each frame has its checksum and the snapshot's trailer proves that nothing is missing, so a file that was cut off or
//! changed on its way is refused.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::error::StorageError;
use crate::frame::{self, FRAME_HEADER, FrameError, FrameKind};
use crate::snapshot::{SnapshotFile, SnapshotReader};

/// Newest layout of backup files that this program reads and writes.
const BACKUP_FORMAT: u32 = 1;
/// A manifest is names and numbers; a longer one is damage.
const MANIFEST_BYTES_MAX: usize = 64 << 10;

/// Where a backup comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node that gave it.
    pub node: String,
    /// The node's wall clock then, Unix time in milliseconds.
    pub created_at_ms: u64,
    /// Version of the node's program.
    pub program: String,
}

/// The encoding of [`Manifest`]; the format comes first, so that any later layout can be told apart.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    cluster: String,
    node: String,
    created_at_ms: u64,
    program: String,
}

/// A backup file whose beginning makes sense; reading it checks the rest.
#[derive(Debug, Clone)]
pub struct Backup {
    /// Where it comes from.
    pub manifest: Manifest,
    /// The state in it.
    pub snapshot: SnapshotFile,
}

impl Manifest {
    /// The bytes that stand before the snapshot's.
    pub fn encode(&self) -> Vec<u8> {
        let Manifest { cluster, node, created_at_ms, program } = self.clone();
        let stored = Stored { format: BACKUP_FORMAT, cluster, node, created_at_ms, program };
        frame::encode_value(FrameKind::BackupManifest, &stored)
    }
}

impl Backup {
    /// Opens a backup file.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Backup, StorageError> {
        let (manifest, length) = read_manifest(disk, path)?;
        let snapshot = SnapshotFile::open_behind(disk, path, length).map_err(as_backup)?;
        Ok(Backup { manifest, snapshot })
    }

    /// Reads the rows, checking everything.
    pub fn rows(&self) -> Result<BackupRows, StorageError> {
        self.snapshot.reader().map(BackupRows).map_err(as_backup)
    }

    /// Where it is.
    pub fn path(&self) -> &PathBuf {
        &self.snapshot.path
    }
}

/// The rows of a backup, chunk by chunk.
#[derive(Debug)]
pub struct BackupRows(SnapshotReader);

impl BackupRows {
    /// The rows of the next chunk; `None` when the trailer has proved that nothing is missing.
    pub fn next_rows(&mut self) -> Result<Option<Vec<holdfast_machine::Pair>>, StorageError> {
        self.0.next_rows().map_err(as_backup)
    }
}

/// The manifest and the length of its frame.
fn read_manifest(disk: &dyn Disk, path: &Path) -> Result<(Manifest, u64), StorageError> {
    let reading = |error| StorageError::io("reading the backup", path, error);
    let file = disk.open(path).map_err(reading)?;
    let damaged = |what: String| StorageError::DamagedBackup { file: path.to_path_buf(), offset: 0, what };
    let read = |offset: u64, count: usize| {
        let mut bytes = vec![0; count];
        let read = file.read_at(offset, &mut bytes).map_err(reading)?;
        if read < count { Err(damaged("the file ends within its manifest".to_owned())) } else { Ok(bytes) }
    };
    let head = read(0, FRAME_HEADER)?;
    let flawed = |flaw: FrameError| match flaw {
        FrameError::Newer(_) => as_backup(StorageError::flawed(path, &flaw)),
        FrameError::Checksum | FrameError::Short => damaged(flaw.to_string()),
        _ => damaged(format!("it does not begin as a backup does: {flaw}")),
    };
    let header = frame::header(FrameKind::BackupManifest, &head).map_err(flawed)?;
    if header.length > MANIFEST_BYTES_MAX {
        return Err(damaged("the manifest is too long".to_owned()));
    }
    let contents = read(FRAME_HEADER as u64, header.length)?;
    frame::verify(&header, &contents).map_err(flawed)?;
    if let Ok((format, _)) = postcard::take_from_bytes::<u32>(&contents)
        && format > BACKUP_FORMAT
    {
        let file = path.to_path_buf();
        return Err(StorageError::NewerBackup { file, found: format, supported: BACKUP_FORMAT });
    }
    let stored = postcard::from_bytes(&contents).map_err(|_| damaged("the manifest cannot be decoded".to_owned()))?;
    let Stored { cluster, node, created_at_ms, program, .. } = stored;
    Ok((Manifest { cluster, node, created_at_ms, program }, (FRAME_HEADER + header.length) as u64))
}

/// What is wrong with a backup is wrong with no node: the way out is another backup, or another program.
fn as_backup(error: StorageError) -> StorageError {
    match error {
        StorageError::NewerFormat { file, found, supported } => StorageError::NewerBackup { file, found, supported },
        StorageError::Damaged { file, offset, what } => StorageError::DamagedBackup { file, offset, what },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::disk::RealDisk;
    use crate::ids::LogId;
    use crate::snapshot::StateMark;
    use crate::{Expected, Options, Storage};

    const MARK: StateMark = StateMark { hash: 7, now: 8 };

    fn manifest() -> Manifest {
        let (cluster, node, program) = ("prod".into(), "node-a".into(), "0.1.0".into());
        Manifest { cluster, node, created_at_ms: 5, program }
    }

    /// A backup of forty rows.
    fn bytes() -> Vec<u8> {
        let root = tempfile::tempdir().unwrap();
        let expected = Expected { cluster: "prod".into(), name: "node-a".into() };
        let storage = Storage::open(&root.path().join("data"), &expected, &Options::default()).unwrap();
        let rows: BTreeMap<_, _> = (0u8..40).map(|n| (vec![n], Some(vec![n; 300]))).collect();
        storage.state.commit(rows, LogId { term: 1, index: 0 }, Some(b"members".to_vec())).unwrap();
        let snapshot = storage.snapshots.write(storage.state.snapshot_builder().unwrap().with_mark(MARK)).unwrap();
        [manifest().encode(), fs::read(snapshot.path).unwrap()].concat()
    }

    fn read(path: &Path) -> Result<u64, StorageError> {
        let backup = Backup::open(&RealDisk, path)?;
        assert_eq!((&backup.manifest, backup.snapshot.header.mark), (&manifest(), Some(MARK)));
        let (mut rows, mut count) = (backup.rows()?, 0);
        while let Some(chunk) = rows.next_rows()? {
            count += chunk.len() as u64;
        }
        Ok(count)
    }

    #[test]
    fn a_backup_reads_back_and_any_change_of_it_is_seen_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let (path, whole) = (root.path().join("backup"), bytes());
        fs::write(&path, &whole).unwrap();
        assert_eq!(read(&path).unwrap(), 40);
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, StorageError::DamagedBackup { .. }), "{what}: {error}");
            assert!(error.to_string().contains("another backup") && !error.to_string().contains("peers"), "{error}");
        };
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 0x04;
            refused(&changed, &format!("byte {place}"));
            refused(&whole[..place], &format!("cut at {place}"));
        }
        refused(&[whole.as_slice(), b"!"].concat(), "a byte more");
    }

    #[test]
    fn a_newer_layout_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("backup");
        let newer = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, StorageError::NewerBackup { found: 2, supported: 1, .. }), "{error}");
            assert!(error.to_string().contains("another backup") && !error.to_string().contains("upgrade"), "{error}");
        };
        // Frames of the next version: that of the manifest, and each of the snapshot's.
        let whole = bytes();
        let mut at = 0;
        while at < whole.len() {
            let length = u32::from_le_bytes(whole[at + 2..at + 6].try_into().unwrap()) as usize;
            let end = at + FRAME_HEADER + length;
            let mut later = whole.clone();
            later[at] += 1;
            frame::finish(&mut later[..end], at);
            newer(&later);
            at = end;
        }
        let Manifest { cluster, node, created_at_ms, program } = manifest();
        let stored = Stored { format: BACKUP_FORMAT + 1, cluster, node, created_at_ms, program };
        newer(&frame::encode_value(FrameKind::BackupManifest, &stored));
    }
}
