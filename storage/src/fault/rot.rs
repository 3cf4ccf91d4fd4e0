//! Bits that rot in sled's file, where sled does not look when it opens it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// sled's segments, as they are set for the state.
const SEGMENT_BYTES: i64 = 2 << 20;
/// So many bytes are looked at, and one bit of them turned over, at a time.
const PIECE_BYTES: usize = 64;

/// The directory of the newest generation of the state in the data directory `data`.
pub fn generation(data: &Path) -> io::Result<PathBuf> {
    let mut newest = None;
    for entry in fs::read_dir(data.join("state"))? {
        let path = entry?.path();
        newest = newest.max(Some(path).filter(|path| path.is_dir()));
    }
    newest.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Turns a bit over in each piece that is `chosen`, in all of sled's segments but those that it goes through when it opens;
/// gives how many. The database is closed, and has been opened twice or more.
pub fn rot(generation: &Path, chosen: impl Fn(&[u8]) -> bool) -> io::Result<usize> {
    let db = generation.join("db");
    let (mut bytes, unseen) = (fs::read(&db)?, unseen(generation)?);
    let mut rotten = 0;
    for segment in
        bytes.chunks_mut(SEGMENT_BYTES as usize).filter(|segment| end(segment).is_some_and(|end| end <= unseen))
    {
        for piece in segment.chunks_mut(PIECE_BYTES).filter(|piece| chosen(piece)) {
            piece[PIECE_BYTES / 2] ^= 1;
            rotten += 1;
        }
    }
    fs::write(&db, bytes)?;
    Ok(rotten)
}

/// How far what sled has written is not looked at when it opens: it begins where its last snapshot of itself ends.
fn unseen(generation: &Path) -> io::Result<i64> {
    let mut unseen = 0;
    for entry in fs::read_dir(generation)? {
        let name = entry?.file_name();
        let place = name.to_str().and_then(|name| i64::from_str_radix(name.strip_prefix("snap.")?, 16).ok());
        unseen = unseen.max(place.unwrap_or(0));
    }
    Ok(unseen)
}

/// Where a segment ends in the order in which all were written; none of a free one, which is all zero. It begins with a checksum
/// and the place, turned over, where it begins.
fn end(segment: &[u8]) -> Option<i64> {
    let place = segment.get(4..)?.first_chunk().filter(|place| **place != [0; 8])?;
    Some((i64::from_le_bytes(*place) ^ i64::MAX).saturating_add(SEGMENT_BYTES))
}
