//! Reading snapshot files; every byte is checked, and rows must ascend.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_machine::Pair;
use xxhash_rust::xxh3::Xxh3;

use super::{SNAPSHOT_FORMAT, SnapshotHeader, StoredHeader, Trailer};
use crate::disk::DiskFile;
use crate::error::StorageError;
use crate::frame::{self, FRAME_HEADER, FrameError, FrameKind};
use crate::ids::LogId;

/// No chunk is longer than this, before or after compression: longer lengths on disk are damage.
const CHUNK_BYTES_MAX: usize = 1 << 30;

/// Reads one snapshot file from its beginning to its end.
#[derive(Debug)]
pub struct SnapshotReader {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    length: u64,
    at: u64,
    header: SnapshotHeader,
    digest: Digest,
    seen: Trailer,
    last_key: Option<Vec<u8>>,
    finished: bool,
}

impl SnapshotReader {
    /// Reads the header of a file.
    pub(super) fn open(file: Arc<dyn DiskFile>, path: &Path, start: u64) -> Result<SnapshotReader, StorageError> {
        let length = file.len().map_err(|error| StorageError::io("opening the snapshot", path, error))?;
        let mut reader = SnapshotReader {
            path: path.to_path_buf(),
            file,
            length,
            at: start,
            header: SnapshotHeader { machine: 0, applied: LogId { term: 0, index: 0 }, membership: None, mark: None },
            digest: Digest::default(),
            seen: Trailer::default(),
            last_key: None,
            finished: false,
        };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    /// What the snapshot is of.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// Length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What the rows that were read are, all together.
    pub(super) fn seen(&self) -> Trailer {
        self.seen
    }

    /// The rows of the next chunk; `None` when the trailer has proved that nothing is missing.
    pub fn next_rows(&mut self) -> Result<Option<Vec<Pair>>, StorageError> {
        if self.finished {
            return Ok(None);
        }
        let start = self.at;
        let head = self.read(FRAME_HEADER)?;
        if frame::kind_of(&head) == Some(FrameKind::SnapshotTrailer as u8) {
            self.read_trailer(&head)?;
            self.finished = true;
            return Ok(None);
        }
        let contents = self.contents(FrameKind::SnapshotChunk, &head)?;
        let chunk = decompress(&contents).ok_or_else(|| self.damaged_at(start, "a chunk cannot be decompressed"))?;
        self.digest.0.update(&chunk);
        self.seen.bytes += chunk.len() as u64;
        let rows = split(&chunk).ok_or_else(|| self.damaged_at(start, "a chunk does not hold whole rows"))?;
        self.seen.rows += rows.len() as u64;
        for (key, _) in &rows {
            if self.last_key.as_ref().is_some_and(|last| last >= key) {
                return Err(self.damaged_at(start, "rows are out of order"));
            }
            self.last_key = Some(key.clone());
        }
        Ok(Some(rows))
    }

    fn read_header(&mut self) -> Result<SnapshotHeader, StorageError> {
        let start = self.at;
        let head = self.read(FRAME_HEADER)?;
        let contents = self.contents(FrameKind::SnapshotHeader, &head)?;
        let format = postcard::take_from_bytes::<u32>(&contents).map(|(format, _)| format);
        match format {
            Ok(format) if format > SNAPSHOT_FORMAT => {
                Err(StorageError::NewerFormat { file: self.path.clone(), found: format, supported: SNAPSHOT_FORMAT })
            }
            _ => postcard::from_bytes(&contents)
                .map(|StoredHeader { machine, applied, membership, mark, .. }| SnapshotHeader {
                    machine,
                    applied,
                    membership,
                    mark,
                })
                .map_err(|_| self.damaged_at(start, "the header cannot be decoded")),
        }
    }

    fn read_trailer(&mut self, head: &[u8]) -> Result<(), StorageError> {
        let start = self.at - FRAME_HEADER as u64;
        let contents = self.contents(FrameKind::SnapshotTrailer, head)?;
        let trailer: Trailer =
            postcard::from_bytes(&contents).map_err(|_| self.damaged_at(start, "the trailer cannot be decoded"))?;
        self.seen.digest = self.digest.0.digest();
        if trailer != self.seen {
            return Err(self.damaged_at(start, "the rows are not those that the trailer counts"));
        }
        if self.at != self.length {
            return Err(self.damaged_at(self.at, "there are bytes behind the trailer"));
        }
        Ok(())
    }

    /// Reads and checks what a frame with this header holds.
    fn contents(&mut self, kind: FrameKind, head: &[u8]) -> Result<Vec<u8>, StorageError> {
        let start = self.at - FRAME_HEADER as u64;
        let flawed = |flaw: FrameError| StorageError::flawed_at(&self.path, start, &flaw);
        let header = frame::header(kind, head).map_err(flawed)?;
        if header.length as u64 > self.length - self.at {
            return Err(flawed(FrameError::Short));
        }
        let contents = self.read(header.length)?;
        frame::verify(&header, &contents).map_err(|flaw| StorageError::flawed_at(&self.path, start, &flaw))?;
        Ok(contents)
    }

    fn read(&mut self, count: usize) -> Result<Vec<u8>, StorageError> {
        let mut bytes = vec![0; count];
        let reading = |error: io::Error| StorageError::io("reading the snapshot", &self.path, error);
        if self.file.read_at(self.at, &mut bytes).map_err(reading)? < count {
            return Err(self.damaged_at(self.at, "the file ends before its trailer"));
        }
        self.at += count as u64;
        Ok(bytes)
    }

    fn damaged_at(&self, offset: u64, what: &str) -> StorageError {
        StorageError::damaged(&self.path, offset, what)
    }
}

fn decompress(contents: &[u8]) -> Option<Vec<u8>> {
    let (length, _) = contents.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*length) as usize > CHUNK_BYTES_MAX {
        return None;
    }
    lz4_flex::decompress_size_prepended(contents).ok()
}

fn split(mut chunk: &[u8]) -> Option<Vec<Pair>> {
    let mut rows = Vec::new();
    while !chunk.is_empty() {
        let (key_length, rest) = chunk.split_first_chunk::<4>()?;
        let (value_length, rest) = rest.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_length) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_length) as usize)?;
        rows.push((key.to_vec(), value.to_vec()));
        chunk = rest;
    }
    Some(rows)
}

/// The running digest of all rows.
#[derive(Default)]
struct Digest(Xxh3);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}
