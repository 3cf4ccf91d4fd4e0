//! Rows as values of the tree.
//!
//! Each value is framed with its checksum and says at which log index a row was written, which lets a snapshot
//! tell rows that are newer than itself. sled writes a tree leaf that outgrows a quarter of its segment to a
//! file of its own, which it never syncs, so a row over [`PIECE_BYTES`] is stored in pieces, small enough for a
//! leaf full of them to stay in the log of sled.
//!
//! What a row costs sled hardly depends on its length: a leaf has sixteen values, whatever their size. So neighbours in
//! tables with numbered rows share a value (see bundle).

mod bundle;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Bound;

use holdfast_machine::{ArchiveError, ArchiveResult, BUNDLED_BITS, bundle_key};
use sled::IVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{self, FrameError, FrameKind};
use crate::keys;
use crate::tree::Tree;

/// Longest value stored in one piece, in bytes.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// A row to be written; without a value it is removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub key: &'a [u8],
    /// Log index of the entry that wrote it.
    pub index: u64,
    pub value: Option<&'a [u8]>,
}

/// A stored row, of which a large one is not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub key: Vec<u8>,
    /// Log index of the entry that wrote it.
    pub index: u64,
    body: Body,
}

/// What stands in a row's place: all of it, or where the pieces are.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    Whole(Vec<u8>),
    Large(Head),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    length: u64,
    pieces: u32,
    digest: u64,
}

const HEAD_BYTES: usize = 20;

impl Head {
    fn of(value: &[u8]) -> Head {
        let pieces = value.len().div_ceil(PIECE_BYTES) as u32;
        Head { length: value.len() as u64, pieces, digest: xxh3_64(value) }
    }

    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[12..].copy_from_slice(&self.digest.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Head, FrameError> {
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or(FrameError::Contents)?;
        let (pieces, rest) = rest.split_first_chunk::<4>().ok_or(FrameError::Contents)?;
        let digest = rest.first_chunk::<8>().ok_or(FrameError::Contents)?;
        Ok(Head {
            length: u64::from_le_bytes(*length),
            pieces: u32::from_le_bytes(*pieces),
            digest: u64::from_le_bytes(*digest),
        })
    }
}

impl Row {
    /// The row's value; reads the pieces of a large one.
    pub(crate) fn value(self, tree: &Tree) -> ArchiveResult<Vec<u8>> {
        match self.body {
            Body::Whole(value) => Ok(value),
            Body::Large(head) => read_pieces(tree, &self.key, self.index, head),
        }
    }
}

/// Which rows outside of bundles may be large: hashes of their keys. A false hit costs one read.
#[derive(Debug, Default)]
pub(crate) struct LargeRows(HashSet<u64>);

impl LargeRows {
    pub(crate) fn load(tree: &Tree) -> ArchiveResult<LargeRows> {
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

/// The key under which the tree has a row.
pub(crate) fn place(key: &[u8]) -> Cow<'_, [u8]> {
    bundle_of(key).map_or(Cow::Borrowed(key), Cow::Owned)
}

/// The bundle that the row of this key is in.
fn bundle_of(key: &[u8]) -> Option<Vec<u8>> {
    bundle_key(key).filter(|bundle| bundle.len() == key.len())
}

/// The first key behind all rows that have this place.
pub(crate) fn behind(place: &[u8]) -> Vec<u8> {
    let is_bundle = bundle_of(place).is_some_and(|bundle| bundle == place);
    let last = if is_bundle { bundle::last_key(place) } else { place.to_vec() };
    [last.as_slice(), &[0]].concat()
}

/// The writes by the places that they go to; `writes` are ascending by key.
pub(crate) fn by_place<'a, 'b>(writes: &'a [Write<'b>]) -> impl Iterator<Item = &'a [Write<'b>]> {
    writes.chunk_by(|one, other| share_a_bundle(one.key, other.key))
}

fn share_a_bundle(one: &[u8], other: &[u8]) -> bool {
    let (Some((last, start)), Some((other_last, other_start))) = (one.split_last(), other.split_last()) else {
        return false;
    };
    start == other_start && (last ^ other_last) & !BUNDLED_BITS == 0 && bundle_of(one).is_some()
}

/// Writes rows that have one place.
///
/// Of a large row, what nobody points to goes first and what points to it comes last, so that the whole can be
/// done again after it was cut off anywhere, and leaves nothing behind.
pub(crate) fn put(tree: &Tree, large: &mut LargeRows, writes: &[Write<'_>]) -> ArchiveResult<()> {
    match writes.first().and_then(|first| bundle_of(first.key)) {
        Some(place) => bundle::put(tree, &place, writes),
        None => writes.iter().try_for_each(|write| put_single(tree, large, *write)),
    }
}

fn put_single(tree: &Tree, large: &mut LargeRows, write: Write<'_>) -> ArchiveResult<()> {
    let Write { key, index, value } = write;
    let head = value.filter(|value| value.len() > PIECE_BYTES).map(|value| (value, Head::of(value)));
    let was_large = large.contains(key);
    if was_large {
        let had = tree.get(&keys::row(key))?.map_or(Ok(None), |bytes| head_in(&bytes));
        let had = had.map_err(|flaw| damaged(key, &flaw))?;
        remove_pieces(tree, key, had, head.map(|(_, head)| head))?;
    }
    match (value, head) {
        (_, Some((value, head))) => {
            tree.insert(keys::large(key), Vec::new())?;
            large.0.insert(xxh3_64(key));
            put_pieces(tree, key, index, value)?;
            tree.insert(keys::row(key), framed(FrameKind::LargeRow, index, &head.to_bytes()))?;
        }
        (Some(value), None) => tree.insert(keys::row(key), framed(FrameKind::Row, index, value))?,
        (None, None) => tree.remove(&keys::row(key))?,
    }
    if was_large && head.is_none() {
        tree.remove(&keys::large(key))?;
    }
    Ok(())
}

fn put_pieces(tree: &Tree, key: &[u8], index: u64, value: &[u8]) -> ArchiveResult<()> {
    for (piece, number) in value.chunks(PIECE_BYTES).zip(0..) {
        tree.insert(keys::piece(key, number), framed(FrameKind::Piece, index, piece))?;
    }
    Ok(())
}

/// Removes the pieces that a row had, but for those that will be written over.
fn remove_pieces(tree: &Tree, key: &[u8], had: Option<Head>, will_have: Option<Head>) -> ArchiveResult<()> {
    let pieces = |head: Option<Head>| head.map_or(0, |head| head.pieces);
    (pieces(will_have)..pieces(had)).try_for_each(|number| tree.remove(&keys::piece(key, number)))
}

/// Reads one row.
pub(crate) fn get(tree: &Tree, key: &[u8]) -> ArchiveResult<Option<Row>> {
    let place = place(key);
    let Some(bytes) = tree.get(&keys::row(&place))? else { return Ok(None) };
    Ok(unpack(&place, &bytes)?.into_iter().find(|row| row.key == key))
}

/// The rows whose place `place` holds `bytes`, ascending.
pub(crate) fn unpack(place: &[u8], bytes: &[u8]) -> ArchiveResult<Vec<Row>> {
    let unpacked = match frame::kind_of(bytes) {
        Some(kind) if kind == FrameKind::Bundle as u8 => bundle::unpack(place, bytes),
        _ => single(bytes).map(|(index, body)| vec![Row { key: place.to_vec(), index, body }]),
    };
    unpacked.map_err(|flaw| damaged(place, &flaw))
}

/// The rows with `from <= key < to`, from both ends.
pub(crate) fn range<'a>(
    tree: &'a Tree,
    from: &'a [u8],
    to: &'a [u8],
) -> impl DoubleEndedIterator<Item = ArchiveResult<Row>> + 'a {
    // A bundle that begins before `from` may reach into the range.
    let first = bundle_key(from).map_or_else(|| keys::row(from), |bundle| keys::row(&bundle));
    let stored = tree.range(Bound::Included(first), keys::row(to)).flat_map(rows_of);
    stored.filter(move |row| row.as_ref().map_or(true, |row| row.key.as_slice() >= from && row.key.as_slice() < to))
}

fn rows_of(pair: ArchiveResult<(IVec, IVec)>) -> Vec<ArchiveResult<Row>> {
    match pair.and_then(|(key, bytes)| unpack(keys::row_key(&key), &bytes)) {
        Ok(rows) => rows.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// Puts rows that an earlier version stored by themselves into bundles. It can be cut off anywhere, and done again.
pub(crate) fn bundle_all(tree: &Tree) -> ArchiveResult<()> {
    let mut from = Bound::Included(keys::row(b""));
    while let Some(pair) = tree.range(from, keys::ROWS_END.to_vec()).next() {
        let (stored, _) = pair?;
        let key = keys::row_key(&stored);
        let Some(place) = bundle_of(key) else {
            from = Bound::Excluded(stored.to_vec());
            continue;
        };
        let behind = keys::row(&behind(&place));
        let mut rows = Vec::new();
        for pair in tree.range(Bound::Included(stored.to_vec()), behind.clone()) {
            let (stored, bytes) = pair?;
            if frame::kind_of(&bytes) != Some(FrameKind::Bundle as u8) {
                rows.extend(unpack(keys::row_key(&stored), &bytes)?);
            }
        }
        let mut values = Vec::with_capacity(rows.len());
        for row in rows {
            values.push((row.key.clone(), row.index, row.value(tree)?));
        }
        let writes: Vec<_> =
            values.iter().map(|(key, index, value)| Write { key, index: *index, value: Some(value) }).collect();
        if !writes.is_empty() {
            bundle::put_over(tree, &place, &writes)?;
        }
        for Write { key, .. } in writes.iter().filter(|write| write.key != place) {
            tree.remove(&keys::row(key))?;
        }
        for Write { key, .. } in &writes {
            tree.remove(&keys::large(key))?;
        }
        from = Bound::Included(behind);
    }
    Ok(())
}

fn read_pieces(tree: &Tree, key: &[u8], index: u64, head: Head) -> ArchiveResult<Vec<u8>> {
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

/// The row that is a value by itself.
fn single(bytes: &[u8]) -> Result<(u64, Body), FrameError> {
    let large = frame::kind_of(bytes) == Some(FrameKind::LargeRow as u8);
    let kind = if large { FrameKind::LargeRow } else { FrameKind::Row };
    let (index, value) = frame::decode(kind, bytes)?.split_first_chunk::<8>().ok_or(FrameError::Contents)?;
    let body = if large { Body::Large(Head::from_bytes(value)?) } else { Body::Whole(value.to_vec()) };
    Ok((u64::from_le_bytes(*index), body))
}

/// Where the pieces of the row that is this value are, if it has any.
fn head_in(bytes: &[u8]) -> Result<Option<Head>, FrameError> {
    match single(bytes)?.1 {
        Body::Whole(_) => Ok(None),
        Body::Large(head) => Ok(Some(head)),
    }
}

fn damaged(key: &[u8], flaw: &FrameError) -> ArchiveError {
    ArchiveError(format!("row {} is damaged: {flaw}", show(key)))
}

fn show(key: &[u8]) -> String {
    format!("`{}`", key.escape_ascii())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::disk::{Disk, RealDisk};
    use crate::tree::StateKind;

    fn event(number: u64) -> Vec<u8> {
        [b"Ew\0".as_slice(), &number.to_be_bytes()].concat()
    }

    #[test]
    fn rows_that_an_earlier_version_stored_by_themselves_are_put_into_bundles() {
        let root = tempfile::tempdir().unwrap();
        let disk: std::sync::Arc<dyn Disk> = std::sync::Arc::new(RealDisk);
        let tree = Tree::open(StateKind::Plain, &disk, &root.path().join("rows"), 0).unwrap();
        let values: Vec<(Vec<u8>, Vec<u8>)> = (1..40)
            .map(|number| (event(number), vec![number as u8; if number % 7 == 0 { 3 * PIECE_BYTES } else { 9 }]))
            .chain([(event(80), vec![1; 2_000]), (b"Aw".to_vec(), vec![2; PIECE_BYTES + 1])])
            .collect();
        let mut large = LargeRows::default();
        let mut store = |from: usize| {
            for (key, value) in &values[from..] {
                put_single(&tree, &mut large, Write { key, index: 5, value: Some(value) }).unwrap();
            }
        };
        let count = || tree.range(Bound::Included(Vec::new()), vec![0xff]).count();
        store(0);
        bundle_all(&tree).unwrap();
        let entries = count();
        // Cut off before the last rows were removed.
        store(38);
        assert!(count() > entries);
        for _ in 0..2 {
            bundle_all(&tree).unwrap();
            assert_eq!(count(), entries);
            for (key, value) in &values {
                let row = get(&tree, key).unwrap().unwrap();
                assert_eq!((row.index, row.value(&tree).unwrap()), (5, value.clone()));
            }
        }
        let pieces = |length: usize| length.div_ceil(PIECE_BYTES);
        assert_eq!(entries, 4 + 5 * pieces(3 * PIECE_BYTES) + pieces(2_000) + 2 + pieces(PIECE_BYTES + 1));
    }
}
