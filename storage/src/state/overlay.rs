//! The newest rows, in memory, before the tree gets them.
//!
//! Most rows change several times in a short while (pending, claimed, done) and each change costs sled as much as
//! a row that stays. So commits land here, where they cost little, and go to the tree a layer at a time, each row once.
//! What is here and not in the tree is lost with the process, and comes back from the log.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_machine::Writes;

use crate::ids::LogId;

/// Rows after which a layer goes to the tree.
const LAYER_ROWS: usize = 64 << 10;

/// Bytes after which a layer goes to the tree, where the disk is not small.
pub(super) const LAYER_BYTES: usize = 16 << 20;

/// Memory that a row takes besides its key and value, about.
const ROW_OVERHEAD: usize = 100;

/// A row as it was last written; no value when it was removed.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Log index of the entry that wrote it.
    pub index: u64,
    pub value: Option<Bytes>,
}

/// Rows that go to the tree together.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub rows: BTreeMap<Vec<u8>, Slot>,
    bytes: usize,
}

/// What the tree holds after a flush.
#[derive(Debug, Clone, Default)]
pub(super) struct Flushed {
    pub applied: Option<LogId>,
    pub membership: Option<Vec<u8>>,
}

/// What the state is, as far as it is not in the tree yet.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Where commits land.
    pub active: Layer,
    /// What is just being written to the tree, or has to wait for space there; and what the state was with it.
    pub frozen: Option<(Arc<Layer>, Flushed)>,
    pub applied: Option<LogId>,
    pub installed: Option<LogId>,
    pub membership: Option<Vec<u8>>,
    /// Bytes after which a layer goes to the tree.
    pub layer_bytes: usize,
    /// Whether a thread of its own takes layers to the tree, so that commits can wait for it.
    pub has_flusher: bool,
    /// Whether the tree's applied id is older than `applied`.
    pub is_ahead: bool,
    pub closing: bool,
}

/// A row found in the overlay: its key, and its value or that it was removed.
pub(super) type Recent = (Vec<u8>, Option<Bytes>);

impl Layer {
    /// A layer of these rows, to be written and not to be added to.
    pub(super) fn of(rows: BTreeMap<Vec<u8>, Slot>) -> Layer {
        Layer { rows, bytes: 0 }
    }

    /// Memory that the rows take, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, key: Vec<u8>, slot: Slot) {
        self.bytes += key.len() + slot.value.as_ref().map_or(0, Bytes::len) + ROW_OVERHEAD;
        if let Some(old) = self.rows.insert(key, slot) {
            self.bytes -= old.value.as_ref().map_or(0, Bytes::len) + ROW_OVERHEAD;
        }
    }

    fn is_over(&self, times: usize, bytes: usize) -> bool {
        self.rows.len() >= LAYER_ROWS * times || self.bytes >= bytes.saturating_mul(times)
    }
}

impl Overlay {
    /// Takes in a commit.
    pub(super) fn commit(&mut self, writes: Writes, applied: LogId, membership: Option<Vec<u8>>) {
        for (key, value) in writes {
            self.active.add(key, Slot { index: applied.index, value: value.map(Bytes::from) });
        }
        self.applied = Some(applied);
        if membership.is_some() {
            self.membership = membership;
        }
        self.is_ahead = true;
    }

    /// Whether it is time to write to the tree.
    pub(super) fn is_due(&self) -> bool {
        self.active.is_over(1, self.layer_bytes)
    }

    /// Whether commits must wait for the tree.
    pub(super) fn is_full(&self) -> bool {
        self.has_flusher && self.active.is_over(2, self.layer_bytes)
    }

    /// The newest value of `key`; `None` when the tree has it, if anyone.
    pub(super) fn find(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let frozen = || self.frozen.as_ref().and_then(|(layer, _)| layer.rows.get(key));
        self.active.rows.get(key).or_else(frozen).map(|slot| slot.value.clone())
    }

    /// Rows with `from <= key < to` in this direction, up to the `limit`-th that has a value.
    pub(super) fn range(&self, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Vec<Recent> {
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let newer = self.active.rows.range::<[u8], _>(bounds);
        let older = self.frozen.iter().flat_map(|(layer, _)| layer.rows.range::<[u8], _>(bounds));
        match direction {
            Direction::Up => newest(newer, older, direction, limit),
            Direction::Down => newest(newer.rev(), older.rev(), direction, limit),
        }
    }
}

/// Which way rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Ascending.
    Up,
    /// Descending.
    Down,
}

impl Direction {
    /// True if `key` comes before `other`.
    pub(super) fn is_before(self, key: &[u8], other: &[u8]) -> bool {
        match self {
            Direction::Up => key < other,
            Direction::Down => key > other,
        }
    }
}

/// The rows of both, in this direction, up to the `limit`-th that has a value.
fn newest<'a>(
    newer: impl Iterator<Item = (&'a Vec<u8>, &'a Slot)>,
    older: impl Iterator<Item = (&'a Vec<u8>, &'a Slot)>,
    direction: Direction,
    limit: usize,
) -> Vec<Recent> {
    let (mut newer, mut older) = (newer.peekable(), older.peekable());
    let mut found = Vec::new();
    let mut present = 0;
    while present < limit
        && let Some((key, slot)) = next_of(&mut newer, &mut older, direction)
    {
        present += usize::from(slot.value.is_some());
        found.push((key.clone(), slot.value.clone()));
    }
    found
}

/// The next pair in this direction; where both have the key, the newer one.
fn next_of<'a, A, B>(
    newer: &mut Peekable<A>,
    older: &mut Peekable<B>,
    direction: Direction,
) -> Option<(&'a Vec<u8>, &'a Slot)>
where
    A: Iterator<Item = (&'a Vec<u8>, &'a Slot)>,
    B: Iterator<Item = (&'a Vec<u8>, &'a Slot)>,
{
    let Some((key, _)) = newer.peek() else { return older.next() };
    match older.peek() {
        Some((other, _)) if direction.is_before(other, key) => older.next(),
        Some((other, _)) if other == key => {
            older.next();
            newer.next()
        }
        _ => newer.next(),
    }
}
