//! Writing snapshot files from the state.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_machine::Pair;
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::{SNAPSHOT_FORMAT, SnapshotHeader, Snapshots, StoredHeader, Trailer};
use crate::disk::{Disk, DiskFile, TEMPORARY_SUFFIX};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::room::Room;

/// Rows are compressed when this many bytes of them have gathered.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes after which a long file is synced on the way, so that the last sync does not stall the log's.
pub(super) const SYNC_BYTES: u64 = 32 << 20;

/// Writes one snapshot file under a temporary name.
pub(super) struct SnapshotWriter {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    room: Room,
    end: u64,
    synced: u64,
    chunk: Vec<u8>,
    digest: Xxh3,
    trailer: Trailer,
}

impl SnapshotWriter {
    pub(super) fn create(snapshots: &Snapshots, header: &SnapshotHeader) -> Result<SnapshotWriter, StorageError> {
        let path = temporary(&snapshots.dir);
        let creating = |error| StorageError::io("creating the snapshot", &path, error);
        let file = snapshots.disk.create(&path).map_err(creating)?;
        let stored = StoredHeader {
            format: SNAPSHOT_FORMAT,
            machine: header.machine,
            applied: header.applied,
            membership: header.membership.clone(),
            mark: header.mark,
        };
        let mut writer = SnapshotWriter {
            path: path.clone(),
            file,
            room: snapshots.room.clone(),
            end: 0,
            synced: 0,
            chunk: Vec::with_capacity(CHUNK_BYTES * 2),
            digest: Xxh3::new(),
            trailer: Trailer::default(),
        };
        match writer.put(&frame::encode_value(FrameKind::SnapshotHeader, &stored)) {
            Ok(()) => Ok(writer),
            Err(error) => {
                writer.discard(&*snapshots.disk);
                Err(creating(error))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, rows: &[Pair]) -> io::Result<()> {
        for (key, value) in rows {
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
            self.chunk.extend_from_slice(&length(key)?.to_le_bytes());
            self.chunk.extend_from_slice(&length(value)?.to_le_bytes());
            self.chunk.extend_from_slice(key);
            self.chunk.extend_from_slice(value);
            self.trailer.rows += 1;
            if self.chunk.len() >= CHUNK_BYTES {
                self.put_chunk()?;
            }
        }
        Ok(())
    }

    /// Writes what is left and the trailer, and syncs the file.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if !self.chunk.is_empty() {
            self.put_chunk()?;
        }
        self.trailer.digest = self.digest.digest();
        self.put(&frame::encode_value(FrameKind::SnapshotTrailer, &self.trailer))?;
        self.file.sync_data()
    }

    pub(super) fn discard(&self, disk: &dyn Disk) {
        // What cannot be removed now is removed when the directory is opened.
        let _ = disk.remove(&self.path);
    }

    fn put_chunk(&mut self) -> io::Result<()> {
        self.digest.update(&self.chunk);
        self.trailer.bytes += self.chunk.len() as u64;
        let compressed = lz4_flex::compress_prepend_size(&self.chunk);
        self.chunk.clear();
        self.put(&frame::encode(FrameKind::SnapshotChunk, &compressed))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.room.check(bytes.len() as u64)?;
        self.file.write_at(self.end, bytes)?;
        self.end += bytes.len() as u64;
        if self.end - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.end;
        }
        Ok(())
    }
}

fn temporary(dir: &Path) -> PathBuf {
    dir.join(format!("{}{TEMPORARY_SUFFIX}", Uuid::new_v4().simple()))
}
