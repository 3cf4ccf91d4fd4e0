//! One file of the log: a header, then records end to end, then reserved space.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::record;
use crate::disk::{Disk, DiskFile, temporary_name};
use crate::ids::LogRecord;

/// Bytes before the first record.
pub(crate) const SEGMENT_HEADER: usize = 64;

/// Newest layout of segments that this program reads and writes.
pub(crate) const SEGMENT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"HOLDLOG\n";

/// What the header of a segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Index of the first record.
    pub first: u64,
    /// Random number that all checksums in the file start from.
    pub salt: u64,
    /// Crc of the last record of the segment before, 0 when there is none.
    pub chain: u32,
}

/// Why a segment's header is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderFlaw {
    Damaged,
    Version(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.chain.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]);
        bytes[SEGMENT_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderFlaw> {
        let bytes: &[u8; SEGMENT_HEADER] = bytes.first_chunk().ok_or(HeaderFlaw::Damaged)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[0..8] != MAGIC || crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]) != word(SEGMENT_HEADER - 4) {
            return Err(HeaderFlaw::Damaged);
        }
        match word(8) {
            SEGMENT_VERSION => Ok(SegmentHeader { first: long(16), salt: long(24), chain: word(12) }),
            version => Err(HeaderFlaw::Version(version)),
        }
    }
}

/// The name of the segment that begins at `first`; names sort as the indexes do.
pub(crate) fn file_name(first: u64) -> String {
    format!("{first:020}.log")
}

/// The first index that a segment's file name stands for.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    if digits.len() != 20 { None } else { digits.parse().ok() }
}

/// An open segment and where its records are.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub header: SegmentHeader,
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    /// Byte offset of each record, in index order.
    pub offsets: Vec<u32>,
    /// Where the next record goes.
    pub end: u64,
}

impl Segment {
    /// Creates a segment with reserved space of `capacity` bytes; whole and durable, name included, on return.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, header: SegmentHeader, capacity: u64) -> io::Result<Segment> {
        let path = dir.join(file_name(header.first));
        let temporary = temporary_name(&path);
        let file = disk.create(&temporary)?;
        file.allocate(capacity)?;
        file.write_at(0, &header.encode())?;
        file.sync_data()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(dir)?;
        Ok(Segment { header, path, file, offsets: Vec::new(), end: SEGMENT_HEADER as u64 })
    }

    /// Index after the last record.
    pub(crate) fn next_index(&self) -> u64 {
        self.header.first + self.offsets.len() as u64
    }

    /// Byte offset of the record at `index`, or the end when it is the next one.
    pub(crate) fn offset_of(&self, index: u64) -> u64 {
        let position = usize::try_from(index.saturating_sub(self.header.first)).unwrap_or(usize::MAX);
        self.offsets.get(position).map_or(self.end, |offset| u64::from(*offset))
    }

    /// Where to read the records `from..to` (which must be in this segment).
    pub(crate) fn span(&self, indexes: Range<u64>) -> Span {
        Span {
            file: Arc::clone(&self.file),
            path: self.path.clone(),
            salt: self.header.salt,
            bytes: self.offset_of(indexes.start)..self.offset_of(indexes.end),
            indexes,
        }
    }
}

/// Records that lie end to end in one file: enough to read them without holding any lock.
#[derive(Debug)]
pub(crate) struct Span {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    salt: u64,
    bytes: Range<u64>,
    indexes: Range<u64>,
}

impl Span {
    /// Reads and checks the records; payloads share one buffer.
    pub(crate) fn read(&self, records: &mut Vec<LogRecord>) -> io::Result<()> {
        let length = usize::try_from(self.bytes.end - self.bytes.start).map_err(io::Error::other)?;
        let mut buffer = vec![0; length];
        let count = self.file.read_at(self.bytes.start, &mut buffer)?;
        if count < length {
            return Err(self.damage(count, "the file is shorter than when it was written"));
        }
        let buffer = Bytes::from(buffer);
        let mut at = 0;
        for index in self.indexes.clone() {
            let header = record::decode(&buffer[at..], self.salt)
                .filter(|header| header.id.index == index)
                .ok_or_else(|| self.damage(at, &format!("entry {index} does not match its checksum")))?;
            let start = at + record::RECORD_HEADER;
            records.push(LogRecord { id: header.id, payload: buffer.slice(start..start + header.length) });
            at += record::size(header.length);
        }
        Ok(())
    }

    fn damage(&self, at: usize, what: &str) -> io::Error {
        crate::StorageError::damaged(&self.path, self.bytes.start + at as u64, what).into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_flip_is_seen() {
        let header = SegmentHeader { first: 12, salt: u64::MAX - 1, chain: 99 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
        for position in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[position / 8] ^= 1 << (position % 8);
            assert_eq!(SegmentHeader::decode(&bad), Err(HeaderFlaw::Damaged), "bit {position}");
        }
    }

    #[test]
    fn names_sort_as_indexes_do() {
        assert_eq!(parse_name(&file_name(u64::MAX)), Some(u64::MAX));
        assert!(file_name(9) < file_name(10));
        assert_eq!(parse_name("vote"), None);
        assert_eq!(parse_name("12.log"), None);
    }
}
