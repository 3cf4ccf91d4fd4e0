//! One record of the log, as bytes.
//!
//! ```text
//! bytes 0-3    crc32c of the segment's salt and of all that follows in the record, padding included
//! bytes 4-7    length of the payload
//! bytes 8-11   crc of the record before this one (the chain)
//! bytes 12-15  position in its group: how many records were written before it by the same write
//! bytes 16-23  index
//! bytes 24-31  term
//! bytes 32-    payload, then zeros up to a multiple of 8
//! ```
//! All numbers are little endian. The salt makes bytes of one segment file mean nothing in another. The
//! position in the group is what tells a torn write from damage: a group is written at once and synced
//! before the next, so a hole in front of a *later* group cannot come from a crash.

use holdfast_machine::is_planted;

use crate::ids::{LogId, LogRecord};

/// Bytes before the payload.
pub(crate) const RECORD_HEADER: usize = 32;

/// Records start at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

/// Longest payload, in bytes; a longer length on disk is damage.
pub const PAYLOAD_MAX: usize = 256 << 20;

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub crc: u32,
    pub length: usize,
    pub previous: u32,
    pub position: u32,
    pub id: LogId,
}

impl Header {
    /// Parses without checking; `None` when there are too few bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Header> {
        Some(Header {
            crc: word(bytes, 0)?,
            length: word(bytes, 4)? as usize,
            previous: word(bytes, 8)?,
            position: word(bytes, 12)?,
            id: LogId { index: long(bytes, 16)?, term: long(bytes, 24)? },
        })
    }

    /// Index of the first record of the group that this record was written in.
    pub(crate) fn group_start(&self) -> u64 {
        self.id.index.saturating_sub(u64::from(self.position))
    }
}

/// Bytes on disk of a record with a payload of `length` bytes.
pub(crate) fn size(length: usize) -> usize {
    (RECORD_HEADER + length).next_multiple_of(ALIGNMENT)
}

/// Appends a record to `buffer` and returns its crc, which the next record carries.
pub(crate) fn encode(buffer: &mut Vec<u8>, salt: u64, previous: u32, position: u32, record: &LogRecord) -> u32 {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&previous.to_le_bytes());
    buffer.extend_from_slice(&position.to_le_bytes());
    buffer.extend_from_slice(&record.id.index.to_le_bytes());
    buffer.extend_from_slice(&record.id.term.to_le_bytes());
    buffer.extend_from_slice(&record.payload);
    buffer.resize(start + size(record.payload.len()), 0);
    let crc = checksum(salt, &buffer[start + 4..]);
    buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The record at the start of `bytes`, if its checksum holds.
pub(crate) fn decode(bytes: &[u8], salt: u64) -> Option<Header> {
    let header = Header::parse(bytes)?;
    if header.length > PAYLOAD_MAX {
        return None;
    }
    let body = bytes.get(4..size(header.length))?;
    (checksum(salt, body) == header.crc || is_planted("believe-every-record")).then_some(header)
}

fn checksum(salt: u64, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), body)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_comes_back_and_any_flip_is_seen() {
        let record = LogRecord { id: LogId { term: 3, index: 9 }, payload: (0..61).collect::<Vec<u8>>().into() };
        let mut bytes = Vec::new();
        let crc = encode(&mut bytes, 77, 5, 2, &record);
        let header = decode(&bytes, 77).unwrap();
        assert_eq!(header, Header { crc, length: 61, previous: 5, position: 2, id: record.id });
        assert_eq!(header.group_start(), 7);
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        for position in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[position / 8] ^= 1 << (position % 8);
            assert!(decode(&bad, 77).is_none(), "bit {position}");
        }
        assert!(decode(&bytes, 78).is_none(), "another segment's salt");
    }
}
