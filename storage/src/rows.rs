//! Rows as values of the tree.
//!
//! Each value is framed with its checksum and says at which log index it was written, which lets a snapshot
//! tell rows that are newer than itself. sled writes a tree leaf that outgrows a quarter of its segment to a
//! file of its own, which it never syncs, so a row over [`PIECE_BYTES`] is stored in pieces, small enough for a
//! leaf full of them to stay in the log of sled.

use std::collections::HashSet;
use std::ops::Bound;

use holdfast_machine::ArchiveError;
use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{self, FrameError, FrameKind};
use crate::keys;
use crate::tree::Tree;

/// Longest value stored in one piece, in bytes.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// A stored row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// Log index of the entry that wrote it.
    pub index: u64,
    pub value: Vec<u8>,
}

/// What stands in a row's own place: all of it, or where the pieces are.
enum Stored<'a> {
    Whole { index: u64, value: &'a [u8] },
    Large { index: u64, head: Head },
}

#[derive(Clone, Copy)]
struct Head {
    length: u64,
    pieces: u32,
    digest: u64,
}

/// Which rows may be large: hashes of their keys. A false hit costs one read.
#[derive(Debug, Default)]
pub(crate) struct LargeRows(HashSet<u64>);

impl LargeRows {
    pub(crate) fn load(tree: &Tree) -> Result<LargeRows, ArchiveError> {
        let mut rows = LargeRows::default();
        for pair in tree.range(Bound::Included(keys::LARGE.to_vec()), keys::LARGE_END.to_vec()) {
            let (key, _) = pair?;
            rows.0.insert(xxh3_64(&key[keys::LARGE.len()..]));
        }
        Ok(rows)
    }

    fn contains(&self, key: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains(&xxh3_64(key))
    }
}

/// Writes one row (`None`: removes it).
///
/// Of a large row, what nobody points to goes first and what points to it comes last, so that the whole can be
/// done again after it was cut off anywhere, and leaves nothing behind.
pub(crate) fn put(
    tree: &Tree,
    large: &mut LargeRows,
    index: u64,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<(), ArchiveError> {
    let pieces: Vec<&[u8]> = match value {
        Some(value) if value.len() > PIECE_BYTES => value.chunks(PIECE_BYTES).collect(),
        _ => Vec::new(),
    };
    let was_large = large.contains(key);
    if was_large {
        for number in pieces.len() as u32..stored_pieces(tree, key)? {
            tree.remove(&keys::piece(key, number))?;
        }
    }
    if !pieces.is_empty() {
        tree.insert(keys::large(key), Vec::new())?;
        large.0.insert(xxh3_64(key));
    }
    for (number, piece) in pieces.iter().enumerate() {
        tree.insert(keys::piece(key, number as u32), framed(FrameKind::Piece, index, piece))?;
    }
    match value {
        Some(value) if !pieces.is_empty() => tree.insert(keys::row(key), large_head(index, value, pieces.len()))?,
        Some(value) => tree.insert(keys::row(key), framed(FrameKind::Row, index, value))?,
        None => tree.remove(&keys::row(key))?,
    }
    if was_large && pieces.is_empty() {
        tree.remove(&keys::large(key))?;
    }
    Ok(())
}

fn large_head(index: u64, value: &[u8], pieces: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(20);
    head.extend_from_slice(&(value.len() as u64).to_le_bytes());
    head.extend_from_slice(&(pieces as u32).to_le_bytes());
    head.extend_from_slice(&xxh3_64(value).to_le_bytes());
    framed(FrameKind::LargeRow, index, &head)
}

fn stored_pieces(tree: &Tree, key: &[u8]) -> Result<u32, ArchiveError> {
    let Some(bytes) = tree.get(&keys::row(key))? else { return Ok(0) };
    match parse(&bytes).map_err(|flaw| damaged(key, &flaw))? {
        Stored::Whole { .. } => Ok(0),
        Stored::Large { head, .. } => Ok(head.pieces),
    }
}

/// Reads one row.
pub(crate) fn get(tree: &Tree, key: &[u8]) -> Result<Option<Row>, ArchiveError> {
    match tree.get(&keys::row(key))? {
        Some(bytes) => resolve(tree, key, &bytes).map(Some),
        None => Ok(None),
    }
}

/// The row of `key`, whose own place holds `bytes`.
pub(crate) fn resolve(tree: &Tree, key: &[u8], bytes: &[u8]) -> Result<Row, ArchiveError> {
    match parse(bytes).map_err(|flaw| damaged(key, &flaw))? {
        Stored::Whole { index, value } => Ok(Row { index, value: value.to_vec() }),
        Stored::Large { index, head } => {
            let value = read_pieces(tree, key, index, head)?;
            Ok(Row { index, value })
        }
    }
}

/// The log index in a stored row, without reading its pieces.
pub(crate) fn index_of(key: &[u8], bytes: &[u8]) -> Result<u64, ArchiveError> {
    match parse(bytes).map_err(|flaw| damaged(key, &flaw))? {
        Stored::Whole { index, .. } | Stored::Large { index, .. } => Ok(index),
    }
}

fn read_pieces(tree: &Tree, key: &[u8], index: u64, head: Head) -> Result<Vec<u8>, ArchiveError> {
    let mut value = Vec::with_capacity(usize::try_from(head.length).unwrap_or(0));
    for number in 0..head.pieces {
        let bytes = tree.get(&keys::piece(key, number))?;
        let bytes = bytes.ok_or_else(|| ArchiveError(format!("piece {number} of row {} is missing", show(key))))?;
        let contents = frame::decode(FrameKind::Piece, &bytes).map_err(|flaw| damaged(key, &flaw))?;
        match contents.split_first_chunk::<8>() {
            Some((written, piece)) if u64::from_le_bytes(*written) == index => value.extend_from_slice(piece),
            _ => return Err(ArchiveError(format!("piece {number} of row {} is of another write", show(key)))),
        }
    }
    if value.len() as u64 == head.length && xxh3_64(&value) == head.digest {
        Ok(value)
    } else {
        Err(ArchiveError(format!("the pieces of row {} do not add up", show(key))))
    }
}

fn framed(kind: FrameKind, index: u64, contents: &[u8]) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(frame::FRAME_HEADER + 8 + contents.len());
    let start = frame::begin(&mut buffer, kind);
    buffer.extend_from_slice(&index.to_le_bytes());
    buffer.extend_from_slice(contents);
    frame::finish(&mut buffer, start);
    buffer
}

fn parse(bytes: &[u8]) -> Result<Stored<'_>, FrameError> {
    let large = frame::kind_of(bytes) == Some(FrameKind::LargeRow as u8);
    let kind = if large { FrameKind::LargeRow } else { FrameKind::Row };
    let (index, value) = frame::decode(kind, bytes)?.split_first_chunk::<8>().ok_or(FrameError::Contents)?;
    let index = u64::from_le_bytes(*index);
    if !large {
        return Ok(Stored::Whole { index, value });
    }
    let (length, rest) = value.split_first_chunk::<8>().ok_or(FrameError::Contents)?;
    let (pieces, rest) = rest.split_first_chunk::<4>().ok_or(FrameError::Contents)?;
    let digest = rest.first_chunk::<8>().ok_or(FrameError::Contents)?;
    let head = Head {
        length: u64::from_le_bytes(*length),
        pieces: u32::from_le_bytes(*pieces),
        digest: u64::from_le_bytes(*digest),
    };
    Ok(Stored::Large { index, head })
}

fn damaged(key: &[u8], flaw: &FrameError) -> ArchiveError {
    ArchiveError(format!("row {} is damaged: {flaw}", show(key)))
}

fn show(key: &[u8]) -> String {
    format!("`{}`", key.escape_ascii())
}
