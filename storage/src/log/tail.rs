//! What readers and the writer share: the newest entries in memory, and where the older ones are on disk.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::record::PAYLOAD_MAX;
use super::segment::{Segment, Span};
use crate::ids::{FIRST_INDEX, LogId, LogRecord, Vote};

/// Memory that an entry takes in the cache besides its payload, about.
const ENTRY_OVERHEAD: usize = 64;

/// The log as readers see it: every entry that `append` has accepted.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The newest entries, without a gap up to the last one. Entries that are not on disk yet are always here.
    cache: VecDeque<LogRecord>,
    cache_bytes: usize,
    cache_bytes_max: usize,
    pub segments: Vec<Segment>,
    pub last: Option<LogId>,
    pub purged: Option<LogId>,
    pub vote: Option<Vote>,
}

impl Tail {
    pub(crate) fn new(
        segments: Vec<Segment>,
        last: Option<LogId>,
        purged: Option<LogId>,
        vote: Option<Vote>,
        cache_bytes_max: usize,
    ) -> Tail {
        Tail { cache: VecDeque::new(), cache_bytes: 0, cache_bytes_max, segments, last, purged, vote }
    }

    /// The index that the next appended entry must have.
    pub(crate) fn next_index(&self) -> u64 {
        self.last.map_or(FIRST_INDEX, |last| last.index + 1)
    }

    /// Takes entries in; refused as a whole when they do not continue the log.
    pub(crate) fn accept(&mut self, records: &[LogRecord]) -> io::Result<()> {
        let mut term = self.last.map_or(0, |last| last.term);
        for (record, expected) in records.iter().zip(self.next_index()..) {
            if record.id.index != expected || record.id.term < term {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("entry {} was appended where entry {expected} of term {term} or later belongs", record.id),
                ));
            }
            if record.payload.len() > PAYLOAD_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("entry {} has {} bytes, the limit is {PAYLOAD_MAX}", record.id, record.payload.len()),
                ));
            }
            term = record.id.term;
        }
        for record in records {
            self.cache_bytes += record.payload.len() + ENTRY_OVERHEAD;
            self.cache.push_back(record.clone());
        }
        self.last = records.last().map(|record| record.id).or(self.last);
        Ok(())
    }

    /// Records where entries now lie in the newest segment, and lets go of cached entries that are over the limit.
    pub(crate) fn written(&mut self, offsets: &[u32], end: u64) {
        let Some(segment) = self.segments.last_mut() else { return };
        segment.offsets.extend_from_slice(offsets);
        segment.end = end;
        let next = segment.next_index();
        while self.cache_bytes > self.cache_bytes_max && self.cache.front().is_some_and(|record| record.id.index < next)
        {
            self.pop_front();
        }
    }

    /// Forgets entries after `after`; returns the segments that hold nothing else, oldest first.
    pub(crate) fn truncate(&mut self, after: Option<LogId>) -> Vec<Segment> {
        let next = after.map_or(FIRST_INDEX, |id| id.index + 1);
        while self.cache.back().is_some_and(|record| record.id.index >= next) {
            if let Some(record) = self.cache.pop_back() {
                self.cache_bytes -= record.payload.len() + ENTRY_OVERHEAD;
            }
        }
        self.last = after;
        let kept = self.segments.partition_point(|segment| segment.header.first < next);
        let dropped = self.segments.split_off(kept);
        if let Some(segment) = self.segments.last_mut() {
            segment.end = segment.offset_of(next);
            segment.offsets.truncate(usize::try_from(next - segment.header.first).unwrap_or(usize::MAX));
        }
        dropped
    }

    /// Forgets entries up to `upto`; returns the segments that hold nothing else, oldest first.
    pub(crate) fn purge(&mut self, upto: LogId) -> Vec<Segment> {
        self.purged = Some(upto);
        while self.cache.front().is_some_and(|record| record.id.index <= upto.index) {
            self.pop_front();
        }
        let dropped = self.droppable(upto);
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.last = Some(upto);
        }
        self.segments.drain(..dropped).collect()
    }

    /// How many of the oldest segments hold nothing after `upto`.
    pub(crate) fn droppable(&self, upto: LogId) -> usize {
        let wanted = upto.index + 1;
        if self.segments.last().is_some_and(|segment| segment.next_index() < wanted) {
            return self.segments.len();
        }
        self.segments.windows(2).take_while(|pair| pair[1].header.first <= wanted).count()
    }

    /// Bytes of the segments that hold entries after this one.
    pub(crate) fn bytes_after(&self, index: Option<u64>) -> u64 {
        let next = index.map_or(FIRST_INDEX, |index| index + 1);
        let after = self.segments.iter().rev().take_while(|segment| segment.next_index() > next);
        after.map(|segment| segment.end).sum()
    }

    /// The last entry before the newest segments that have at most `bytes` together; the very newest is one of them.
    pub(crate) fn before_last(&self, bytes: u64) -> Option<u64> {
        let mut kept = 0;
        let is_kept = |segment: &&Segment| {
            kept += segment.end;
            kept <= bytes
        };
        let newest = self.segments.iter().rev().take_while(is_kept).count().max(1);
        let first = self.segments.get(self.segments.len().checked_sub(newest)?)?;
        first.header.first.checked_sub(1)
    }

    fn pop_front(&mut self) {
        if let Some(record) = self.cache.pop_front() {
            self.cache_bytes -= record.payload.len() + ENTRY_OVERHEAD;
        }
    }

    /// Plans the reading of `from..to`, cut at the end of the log: what to read from disk, then what is in memory.
    pub(crate) fn plan(&self, indexes: Range<u64>) -> io::Result<(Vec<Span>, Vec<LogRecord>)> {
        let end = indexes.end.min(self.next_index());
        let start = indexes.start;
        if start >= end {
            return Ok((Vec::new(), Vec::new()));
        }
        if let Some(purged) = self.purged.filter(|purged| start <= purged.index) {
            let what = format!("entry {start} was purged: the log begins after {purged}");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let cached = self.cache.front().map_or(end, |record| record.id.index.clamp(start, end));
        let memory = match self.cache.front() {
            Some(front) if cached < end => {
                let skip = usize::try_from(cached - front.id.index).map_err(io::Error::other)?;
                let count = usize::try_from(end - cached).map_err(io::Error::other)?;
                self.cache.range(skip..skip + count).cloned().collect()
            }
            _ => Vec::new(),
        };
        Ok((self.spans(start..cached)?, memory))
    }

    fn spans(&self, indexes: Range<u64>) -> io::Result<Vec<Span>> {
        let mut spans = Vec::new();
        let mut next = indexes.start;
        let first = self.segments.partition_point(|segment| segment.next_index() <= next);
        for segment in &self.segments[first..] {
            if next >= indexes.end || segment.header.first > next {
                break;
            }
            let to = segment.next_index().min(indexes.end);
            spans.push(segment.span(next..to));
            next = to;
        }
        if next < indexes.end {
            return Err(io::Error::other(format!("entry {next} is neither in memory nor in a segment")));
        }
        Ok(spans)
    }
}
