//! Copy on write for snapshots: the tree's iterators see later writes, so the old values are kept aside.
//!
//! A cursor walks over the rows, place by place, while commits go on. Before a commit changes a row that the cursor has not
//! reached, the row's old value is saved; the cursor then takes the saved value instead. Rows that are newer
//! than the snapshot are told by the log index in them, so new rows cost no memory here.

use std::collections::BTreeMap;
use std::ops::Bound;

use holdfast_machine::{ArchiveError, Pair, is_planted};

use crate::tree::Tree;
use crate::{keys, rows};

/// Rows of one step; the step holds up commits, so it is kept to about a millisecond.
const STEP_ROWS: usize = 512;

/// Bytes of values after which a step ends.
const STEP_BYTES: usize = 256 << 10;

/// How far a snapshot has come, and what has changed ahead of it.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The log index of the snapshot: newer rows are not part of it.
    index: u64,
    /// The last place of rows that was visited.
    position: Option<Vec<u8>>,
    finished: bool,
    /// Values as of the snapshot, of rows ahead that have changed since.
    saved: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The rows of one step, ascending, or `None` at the end.
pub(crate) type Step = Option<Vec<Pair>>;

impl Cursor {
    pub(crate) fn new(index: u64) -> Cursor {
        Cursor { index, position: None, finished: false, saved: BTreeMap::new() }
    }

    /// To be called before a commit changes the rows of `changing`.
    pub(crate) fn save<'a>(
        &mut self,
        tree: &Tree,
        changing: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), ArchiveError> {
        if self.finished || is_planted("snapshot-of-two-moments") {
            return Ok(());
        }
        for key in changing {
            let passed = self.position.as_ref().is_some_and(|position| *rows::place(key) <= **position);
            if passed || self.saved.contains_key(key) {
                continue;
            }
            if let Some(row) = rows::get(tree, key)?
                && row.index <= self.index
            {
                self.saved.insert(key.to_vec(), row.value(tree)?);
            }
        }
        Ok(())
    }

    /// Moves over some rows and returns those that the snapshot has; no commit may happen meanwhile.
    pub(crate) fn step(&mut self, tree: &Tree) -> Result<Step, ArchiveError> {
        if self.finished {
            return Ok(None);
        }
        let from = match &self.position {
            Some(key) => Bound::Excluded(keys::row(key)),
            None => Bound::Included(keys::row(b"")),
        };
        let mut found = BTreeMap::new();
        let (mut visited, mut bytes, mut last) = (0, 0, None);
        for pair in tree.range(from, keys::ROWS_END.to_vec()) {
            let (stored, packed) = pair?;
            let place = keys::row_key(&stored);
            for row in rows::unpack(place, &packed)? {
                visited += 1;
                if row.index <= self.index {
                    let (key, value) = (row.key.clone(), row.value(tree)?);
                    bytes += value.len();
                    found.insert(key, value);
                }
            }
            last = Some(place.to_vec());
            if visited >= STEP_ROWS || bytes >= STEP_BYTES {
                break;
            }
        }
        self.finished = visited < STEP_ROWS && bytes < STEP_BYTES;
        self.take_saved(last.as_ref(), &mut found);
        self.position = last.or(self.position.take());
        Ok(Some(found.into_iter().collect()))
    }

    /// Moves the saved values that the step has passed into what it found.
    fn take_saved(&mut self, last: Option<&Vec<u8>>, found: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        let ahead = match last {
            Some(last) if !self.finished => self.saved.split_off(&rows::behind(last)),
            _ => BTreeMap::new(),
        };
        found.append(&mut std::mem::replace(&mut self.saved, ahead));
    }
}
