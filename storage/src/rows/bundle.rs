//! Bundles: neighbouring rows of a numbered table as one value of the tree, compressed.
//!
//! ```text
//! frame of kind Bundle: method (u8: 0 as it is, 1 lz4 behind the length), then for each row, ascending:
//!   last byte of its key, 0 whole or 1 in pieces (u8), log index (u64), length (u32), value or head; little endian
//! ```
//! A bundle is read before it is changed; most are new or small. Rows over [`INLINE_BYTES`] are outside, in pieces, so
//! that a leaf full of bundles stays in the log of sled too. Which keys belong together is the machine's to say
//! ([`holdfast_machine::bundle_key`]).

use std::collections::BTreeMap;

use holdfast_machine::ArchiveResult;
use lz4_flex::block;

use super::{Body, HEAD_BYTES, Head, Row, Write, damaged, put_pieces, remove_pieces};
use crate::frame::{self, FrameError, FrameKind};
use crate::keys;
use crate::tree::Tree;

/// Longest value that stands in a bundle itself, in bytes.
const INLINE_BYTES: usize = 1536;

/// From this length on it is tried whether compression makes a bundle smaller, in bytes.
const COMPRESSED_FROM: usize = 256;

const AS_IT_IS: u8 = 0;
const LZ4: u8 = 1;

const WHOLE: u8 = 0;
const LARGE: u8 = 1;

/// Rows by the last byte of their keys.
type Rows = BTreeMap<u8, (u64, Body)>;

/// The last key that a row of the bundle at `place` can have.
pub(super) fn last_key(place: &[u8]) -> Vec<u8> {
    let mut key = place.to_vec();
    if let Some(last) = key.last_mut() {
        *last |= holdfast_machine::BUNDLED_BITS;
    }
    key
}

/// Changes rows of the bundle at `place`, all of which have their place there.
pub(super) fn put(tree: &Tree, place: &[u8], writes: &[Write<'_>]) -> ArchiveResult<()> {
    let had = match tree.get(&keys::row(place))? {
        Some(bytes) => parse(&bytes).map_err(|flaw| damaged(place, &flaw))?,
        None => Rows::new(),
    };
    change(tree, place, had, writes)
}

/// The same where something else may stand in the bundle's place: one of the rows by itself, which is in `writes`.
pub(super) fn put_over(tree: &Tree, place: &[u8], writes: &[Write<'_>]) -> ArchiveResult<()> {
    let stored = tree.get(&keys::row(place))?;
    let is_bundle = |bytes: &&sled::IVec| frame::kind_of(bytes) == Some(FrameKind::Bundle as u8);
    let had = stored.as_ref().filter(is_bundle).map_or(Ok(Rows::new()), |bytes| parse(bytes));
    change(tree, place, had.map_err(|flaw| damaged(place, &flaw))?, writes)
}

fn change(tree: &Tree, place: &[u8], mut rows: Rows, writes: &[Write<'_>]) -> ArchiveResult<()> {
    for Write { key, index, value } in writes {
        let Some(last) = key.last() else { continue };
        let head = value.filter(|value| value.len() > INLINE_BYTES).map(Head::of);
        let had = match rows.get(last) {
            Some((_, Body::Large(head))) => Some(*head),
            _ => None,
        };
        remove_pieces(tree, key, had, head)?;
        match (value, head) {
            (Some(value), Some(head)) => {
                put_pieces(tree, key, *index, value)?;
                rows.insert(*last, (*index, Body::Large(head)));
            }
            (Some(value), None) => drop(rows.insert(*last, (*index, Body::Whole(value.to_vec())))),
            (None, _) => drop(rows.remove(last)),
        }
    }
    match rows.is_empty() {
        true => tree.remove(&keys::row(place)),
        false => tree.insert(keys::row(place), encode(&rows)),
    }
}

/// The rows of the bundle `bytes` at `place`, ascending.
pub(super) fn unpack(place: &[u8], bytes: &[u8]) -> Result<Vec<Row>, FrameError> {
    let Some((_, start)) = place.split_last() else { return Err(FrameError::Contents) };
    let row = |(last, (index, body))| Row { key: [start, &[last]].concat(), index, body };
    Ok(parse(bytes)?.into_iter().map(row).collect())
}

fn encode(rows: &Rows) -> Vec<u8> {
    let mut contents = Vec::new();
    for (last, (index, body)) in rows {
        let head;
        let (kind, bytes) = match body {
            Body::Whole(value) => (WHOLE, value.as_slice()),
            Body::Large(large) => {
                head = large.to_bytes();
                (LARGE, head.as_slice())
            }
        };
        contents.extend_from_slice(&[*last, kind]);
        contents.extend_from_slice(&index.to_le_bytes());
        contents.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        contents.extend_from_slice(bytes);
    }
    let smaller = match contents.len() < COMPRESSED_FROM {
        true => None,
        false => Some(block::compress_prepend_size(&contents)).filter(|smaller| smaller.len() < contents.len()),
    };
    let (method, contents) = smaller.map_or((AS_IT_IS, contents), |smaller| (LZ4, smaller));
    let mut buffer = Vec::with_capacity(frame::FRAME_HEADER + 1 + contents.len());
    let start = frame::begin(&mut buffer, FrameKind::Bundle);
    buffer.push(method);
    buffer.extend_from_slice(&contents);
    frame::finish(&mut buffer, start);
    buffer
}

fn parse(bytes: &[u8]) -> Result<Rows, FrameError> {
    let (method, contents) = frame::decode(FrameKind::Bundle, bytes)?.split_first().ok_or(FrameError::Contents)?;
    let larger;
    let mut rest = match *method {
        AS_IT_IS => contents,
        LZ4 => {
            larger = block::decompress_size_prepended(contents).map_err(|_| FrameError::Contents)?;
            larger.as_slice()
        }
        _ => return Err(FrameError::Contents),
    };
    let mut rows = Rows::new();
    while !rest.is_empty() {
        let (last, body, after) = parse_row(rest).ok_or(FrameError::Contents)?;
        rows.insert(last, body?);
        rest = after;
    }
    Ok(rows)
}

/// The first row in `bytes`, and what is behind it; `None` if they are cut short.
#[expect(clippy::type_complexity, reason = "taken apart at once")]
fn parse_row(bytes: &[u8]) -> Option<(u8, Result<(u64, Body), FrameError>, &[u8])> {
    let ([last, kind], rest) = bytes.split_first_chunk::<2>()?;
    let (index, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let body = match *kind {
        WHOLE => Ok(Body::Whole(value.to_vec())),
        LARGE if value.len() == HEAD_BYTES => Head::from_bytes(value).map(Body::Large),
        _ => Err(FrameError::Contents),
    };
    Some((*last, body.map(|body| (u64::from_le_bytes(*index), body)), rest))
}
