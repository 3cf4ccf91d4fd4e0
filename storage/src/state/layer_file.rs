//! Makes the writing of a layer all or nothing.
//!
//! sled's own batches hold up readers for as long as they take. So a layer's rows go in one by one, after the whole layer
//! was written to a small file beside the generation. After a crash in the middle the file is there, and its rows are
//! written again. Before the next layer's file takes its place, the tree's rows are durable.
//!
//! The file says what its layer follows. sled takes a damaged place in its file for the end of what was written and opens
//! as of some earlier time; a layer on top of that would hide that the rows in between are lost.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use lz4_flex::frame::{FrameDecoder, FrameEncoder};

use super::overlay::{Layer, Slot};
use crate::disk::{Disk, read_file, replace_file};
use crate::error::StorageError;
use crate::frame::{self, FrameError, FrameKind};
use crate::ids::LogId;

/// A length that stands for: nothing there.
const ABSENT: u32 = u32::MAX;

/// An id that stands for: nothing applied.
const NOTHING: LogId = LogId { term: u64::MAX, index: u64::MAX };

/// A layer, and what the state says of itself once its rows are in.
#[derive(Debug)]
pub(super) struct StoredLayer {
    pub layer: Layer,
    /// The applied id that sled had before.
    pub follows: Option<LogId>,
    pub applied: LogId,
    pub membership: Option<Vec<u8>>,
}

/// What the names of layers begin with; the number of the generation follows.
pub(super) const PREFIX: &str = "layer-";

/// Where the layer of generation `number` is kept.
pub(super) fn path(root: &Path, number: u64) -> PathBuf {
    root.join(format!("{PREFIX}{number:010}"))
}

/// Keeps a layer, compressed; durable on return.
pub(super) fn save(
    disk: &dyn Disk,
    root: &Path,
    number: u64,
    layer: &Layer,
    follows: Option<LogId>,
    applied: LogId,
    membership: Option<&[u8]>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let start = frame::begin(&mut buffer, FrameKind::PackedLayer);
    // A block at a time: one buffer for all of it would be as large as the layer.
    let mut packer = FrameEncoder::new(&mut buffer);
    for id in [follows.unwrap_or(NOTHING), applied] {
        packer.write_all(&id.term.to_le_bytes())?;
        packer.write_all(&id.index.to_le_bytes())?;
    }
    packer.write_all(&length_of(membership)?)?;
    packer.write_all(membership.unwrap_or_default())?;
    for (key, slot) in &layer.rows {
        packer.write_all(&length_of(Some(key))?)?;
        packer.write_all(&length_of(slot.value.as_deref())?)?;
        packer.write_all(&slot.index.to_le_bytes())?;
        packer.write_all(key)?;
        packer.write_all(slot.value.as_deref().unwrap_or_default())?;
    }
    packer.finish().map_err(io::Error::other)?;
    frame::finish(&mut buffer, start);
    replace_file(disk, &path(root, number), &buffer)
}

/// The layer that was kept last for generation `number`.
pub(super) fn load(disk: &dyn Disk, root: &Path, number: u64) -> Result<Option<StoredLayer>, StorageError> {
    let path = path(root, number);
    let bytes = read_file(disk, &path).map_err(|error| StorageError::io("reading", &path, error))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let contents = unpack(&bytes).map_err(|flaw| StorageError::flawed(&path, &flaw))?;
    match parse(&contents) {
        Some(stored) => Ok(Some(stored)),
        None => Err(StorageError::damaged(&path, 0, "the rows cannot be decoded")),
    }
}

/// The contents of the file; those of format 1 are as they are.
fn unpack(bytes: &[u8]) -> Result<Cow<'_, [u8]>, FrameError> {
    if frame::kind_of(bytes) == Some(FrameKind::Layer as u8) {
        return frame::decode(FrameKind::Layer, bytes).map(Cow::Borrowed);
    }
    let packed = frame::decode(FrameKind::PackedLayer, bytes)?;
    let mut contents = Vec::new();
    FrameDecoder::new(packed).read_to_end(&mut contents).map_err(|_| FrameError::Contents)?;
    Ok(Cow::Owned(contents))
}

fn length_of(bytes: Option<&[u8]>) -> io::Result<[u8; 4]> {
    let length = match bytes {
        None => ABSENT,
        Some(bytes) => u32::try_from(bytes.len()).ok().filter(|length| *length != ABSENT).ok_or_else(too_long)?,
    };
    Ok(length.to_le_bytes())
}

fn too_long() -> io::Error {
    io::Error::other("a row of 4 GiB or more")
}

fn parse(contents: &[u8]) -> Option<StoredLayer> {
    let (follows, rest) = take_id(contents)?;
    let follows = Some(follows).filter(|follows| *follows != NOTHING);
    let (applied, rest) = take_id(rest)?;
    let (length, rest) = take_length(rest)?;
    let (membership, mut rest) = take(rest, length)?;
    let membership = membership.map(<[u8]>::to_vec);
    let mut rows = BTreeMap::new();
    while !rest.is_empty() {
        let (key_length, after) = take_length(rest)?;
        let (value_length, after) = take_length(after)?;
        let (index, after) = after.split_first_chunk::<8>()?;
        let (key, after) = take(after, key_length)?;
        let (value, after) = take(after, value_length)?;
        let value = value.map(|value| value.to_vec().into());
        rows.insert(key?.to_vec(), Slot { index: u64::from_le_bytes(*index), value });
        rest = after;
    }
    Some(StoredLayer { layer: Layer::of(rows), follows, applied, membership })
}

fn take_id(bytes: &[u8]) -> Option<(LogId, &[u8])> {
    let (term, rest) = bytes.split_first_chunk::<8>()?;
    let (index, rest) = rest.split_first_chunk::<8>()?;
    Some((LogId { term: u64::from_le_bytes(*term), index: u64::from_le_bytes(*index) }, rest))
}

fn take_length(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*length), rest))
}

fn take(bytes: &[u8], length: u32) -> Option<(Option<&[u8]>, &[u8])> {
    if length == ABSENT {
        return Some((None, bytes));
    }
    let (taken, rest) = bytes.split_at_checked(length as usize)?;
    Some((Some(taken), rest))
}
