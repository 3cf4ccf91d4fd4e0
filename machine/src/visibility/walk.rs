//! Walking over index rows in the order of time: the rows under several starts, merged.

use std::collections::{BTreeMap, VecDeque};

use super::{Position, SortOrder, TimeRange};
use crate::archive::{Archive, ArchiveResult};
use crate::id::Millis;
use crate::keys::{self, Key};
use crate::state::Machine;

/// Rows that are read of a stream at a time: few at first, because a page is merged from many, more and more later.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 256;

/// An index row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub position: Position,
    /// What stands in the row.
    pub other: Option<Millis>,
}

/// The rows under one start, as far as they are to be walked over.
struct Stream {
    from: Key,
    to: Key,
    start: usize,
    batch: usize,
    /// Rows that have been read.
    read: VecDeque<Found>,
    is_read: bool,
}

/// The merge of streams.
pub(super) struct Walk<'a> {
    machine: &'a Machine,
    archive: &'a dyn Archive,
    order: SortOrder,
    streams: Vec<Stream>,
    /// The next row of each stream that has one.
    heads: BTreeMap<(Position, usize), Option<Millis>>,
}

impl Stream {
    fn new(start: Key, times: &TimeRange, after: Option<&Position>, order: SortOrder, batch: usize) -> Self {
        let at = |at: Millis| [start.as_slice(), &at.0.to_be_bytes()].concat();
        let mut from = times.from.map_or(start.clone(), at);
        // No text goes on with this byte, so no key reaches it.
        let mut to = times.to.map_or_else(|| [start.as_slice(), &[0xff; 9]].concat(), at);
        if let Some(Position { at, workflow }) = after {
            let mut passed = keys::timed(start.clone(), *at, workflow);
            match order {
                SortOrder::Newest => to = to.min(passed),
                SortOrder::Oldest => {
                    passed.push(0);
                    from = from.max(passed);
                }
            }
        }
        Self { from, to, start: start.len(), batch, read: VecDeque::new(), is_read: false }
    }

    fn next(&mut self, machine: &Machine, archive: &dyn Archive, order: SortOrder) -> ArchiveResult<Option<Found>> {
        if self.read.is_empty() && !self.is_read {
            self.fill(machine, archive, order)?;
        }
        Ok(self.read.pop_front())
    }

    fn fill(&mut self, machine: &Machine, archive: &dyn Archive, order: SortOrder) -> ArchiveResult<()> {
        if self.from >= self.to {
            self.is_read = true;
            return Ok(());
        }
        let pairs = match order {
            SortOrder::Newest => machine.scan_back(archive, &self.from, &self.to, self.batch)?,
            SortOrder::Oldest => machine.scan(archive, &self.from, &self.to, self.batch)?,
        };
        self.is_read = pairs.len() < self.batch;
        self.batch = (self.batch * 2).min(BATCH_MAX);
        for (key, value) in &pairs {
            let (at, workflow) = keys::parse_timed(key, self.start)?;
            self.read.push_back(Found { position: Position { at, workflow }, other: keys::decode(key, value)? });
        }
        if let Some((last, _)) = pairs.into_iter().next_back() {
            match order {
                SortOrder::Newest => self.to = last,
                SortOrder::Oldest => {
                    self.from = last;
                    self.from.push(0);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Walk<'a> {
    /// A walk over the rows under these starts whose time is in the range, from behind `after` on, of which about
    /// `wanted` will be taken.
    pub fn over(
        (machine, archive): (&'a Machine, &'a dyn Archive),
        starts: Vec<Key>,
        times: &TimeRange,
        after: Option<&Position>,
        order: SortOrder,
        wanted: usize,
    ) -> ArchiveResult<Self> {
        let batch = (wanted / starts.len().max(1)).clamp(BATCH_MIN, BATCH_MAX);
        let streams = starts.into_iter().map(|start| Stream::new(start, times, after, order, batch)).collect();
        let mut walk = Self { machine, archive, order, streams, heads: BTreeMap::new() };
        for number in 0..walk.streams.len() {
            walk.advance(number)?;
        }
        Ok(walk)
    }

    /// A walk over rows that are at hand, in their order.
    pub fn of(machine: &'a Machine, archive: &'a dyn Archive, order: SortOrder, read: Vec<Found>) -> Self {
        let stream = Stream { from: Key::new(), to: Key::new(), start: 0, batch: 0, read: read.into(), is_read: true };
        let mut walk = Self { machine, archive, order, streams: vec![stream], heads: BTreeMap::new() };
        if let Some(Found { position, other }) = walk.streams[0].read.pop_front() {
            walk.heads.insert((position, 0), other);
        }
        walk
    }

    fn advance(&mut self, number: usize) -> ArchiveResult<()> {
        if let Some(Found { position, other }) = self.streams[number].next(self.machine, self.archive, self.order)? {
            self.heads.insert((position, number), other);
        }
        Ok(())
    }

    /// The next row.
    pub fn next(&mut self) -> ArchiveResult<Option<Found>> {
        let head = match self.order {
            SortOrder::Newest => self.heads.pop_last(),
            SortOrder::Oldest => self.heads.pop_first(),
        };
        let Some(((position, number), other)) = head else { return Ok(None) };
        self.advance(number)?;
        Ok(Some(Found { position, other }))
    }

    /// True if no row is left.
    pub fn is_over(&self) -> bool {
        self.heads.is_empty()
    }
}
