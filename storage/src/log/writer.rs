//! The one place where the log's files change, one operation after the other.
//!
//! All appends that wait together become one write and one sync, and are then reported in order. Everything
//! else (vote, truncate, purge) is done between such groups, so that the order on disk is the order of calls.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::mark::Mark;
use super::record;
use super::segment::{SEGMENT_HEADER, Segment, SegmentHeader};
use super::shared::Shared;
use super::{Done, LogConfig, LogWriter};
use crate::disk::{Disk, DiskFile, Poison};
use crate::ids::{FIRST_INDEX, LogId, LogRecord, Vote};

/// A group is closed when it has this many bytes, so that the first in it need not wait for ever.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// A buffer that one huge group has blown up is not kept.
const BUFFER_BYTES_KEPT: usize = 16 << 20;

/// How often a full disk is tried again.
const FULL_DISK_RETRY: Duration = Duration::from_millis(100);

/// One queued operation.
pub(super) enum Op {
    Append { records: Vec<LogRecord>, done: Done },
    Truncate { after: Option<LogId>, done: Done },
    Purge { upto: LogId, done: Done },
    Vote { vote: Vote, done: Done },
}

impl Op {
    /// Reports that the operation was not performed, because the writer is gone.
    pub(super) fn refuse(self) {
        let (Op::Append { done, .. } | Op::Truncate { done, .. } | Op::Purge { done, .. } | Op::Vote { done, .. }) =
            self;
        done(Err(io::Error::other("the log writer has stopped")));
    }
}

/// An operation that has ended, to be reported.
pub(super) type Completion = (Done, io::Result<()>);

/// The segment that is written to.
struct Head {
    file: Arc<dyn DiskFile>,
    salt: u64,
    /// Where the next write goes.
    end: u64,
    capacity: u64,
}

pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    config: LogConfig,
    shared: Arc<Shared>,
    poison: Poison,
    /// What the vote file says, or is about to say.
    mark: Mark,
    /// Last index that was synced.
    durable: Option<u64>,
    head: Option<Head>,
    /// Crc of the last record.
    chain: u32,
    /// Encoded records of the group, and where each of them will be.
    buffer: Vec<u8>,
    offsets: Vec<u32>,
    last_staged: Option<u64>,
    waiting: Vec<Done>,
}

impl Writer {
    /// `mark` as it is on disk; `chain` and the shared tail as the scan found them.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        config: LogConfig,
        shared: Arc<Shared>,
        poison: Poison,
        mark: Mark,
        chain: u32,
    ) -> Writer {
        let (head, durable) = {
            let tail = shared.tail();
            let head = tail.segments.last().map(|segment| Head::of(segment, config.segment_bytes));
            (head, tail.last.map(|last| last.index))
        };
        Writer {
            disk,
            dir,
            config,
            shared,
            poison,
            mark,
            durable,
            head,
            chain,
            buffer: Vec::new(),
            offsets: Vec::new(),
            last_staged: None,
            waiting: Vec::new(),
        }
    }

    /// Performs operations from the front of `ops`, up to the end of one group; returns what to report, in order.
    pub(crate) fn perform(&mut self, ops: &mut VecDeque<Op>) -> Vec<Completion> {
        let mut completions = Vec::new();
        while let Some(op) = ops.pop_front() {
            match op {
                Op::Append { records, done } => {
                    self.stage(&records);
                    self.waiting.push(done);
                    if self.buffer.len() >= GROUP_BYTES_MAX {
                        break;
                    }
                }
                Op::Truncate { after, done } => self.between_groups(done, &mut completions, |w| w.truncate(after)),
                Op::Purge { upto, done } => self.between_groups(done, &mut completions, |w| w.purge(upto)),
                Op::Vote { vote, done } => self.between_groups(done, &mut completions, |w| w.vote(vote)),
            }
        }
        self.settle(&mut completions);
        completions
    }

    fn between_groups(
        &mut self,
        done: Done,
        completions: &mut Vec<Completion>,
        work: impl FnOnce(&mut Writer) -> io::Result<()>,
    ) {
        self.settle(completions);
        let result = self.poison.check().and_then(|()| work(self));
        completions.push((done, result));
    }

    /// Adds records to the group. A failure poisons, and is reported when the group is settled.
    fn stage(&mut self, records: &[LogRecord]) {
        if self.poison.reason().is_some() {
            return;
        }
        let staged = records.iter().try_for_each(|record| self.stage_one(record));
        if let Err(error) = staged {
            self.poison.strike("writing the log", &error);
        }
    }

    fn stage_one(&mut self, record: &LogRecord) -> io::Result<()> {
        let size = record::size(record.payload.len()) as u64;
        let fits = self.head.as_ref().is_some_and(|head| {
            let end = head.end + self.buffer.len() as u64;
            end + size <= head.capacity || end == SEGMENT_HEADER as u64
        });
        if !fits {
            self.flush()?;
            self.roll(record.id.index, size)?;
        }
        let Some(head) = &self.head else { return Err(io::Error::other("no segment after a roll")) };
        // Segments are limited to 4 GiB when they are created.
        self.offsets.push((head.end + self.buffer.len() as u64) as u32);
        let position = self.offsets.len() as u32 - 1;
        self.chain = record::encode(&mut self.buffer, head.salt, self.chain, position, record);
        self.last_staged = Some(record.id.index);
        Ok(())
    }

    /// Ends the group: one write, one sync, then all who wait for it.
    fn settle(&mut self, completions: &mut Vec<Completion>) {
        if self.poison.reason().is_none()
            && let Err(error) = self.flush()
        {
            self.poison.strike("writing the log", &error);
        }
        completions.extend(self.waiting.drain(..).map(|done| (done, self.poison.check())));
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let Some(head) = &mut self.head else { return Err(io::Error::other("a group without a segment")) };
        head.file.write_at(head.end, &self.buffer)?;
        head.end += self.buffer.len() as u64;
        self.shared.tail().written(&self.offsets, head.end);
        head.file.sync_data()?;
        self.shared.count_group(self.offsets.len(), self.buffer.len());
        self.durable = self.last_staged.or(self.durable);
        self.offsets.clear();
        self.buffer.clear();
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Begins a new segment with the entry `first`, which takes `size` bytes.
    fn roll(&mut self, first: u64, size: u64) -> io::Result<()> {
        let capacity = self.config.segment_bytes.max(SEGMENT_HEADER as u64 + size);
        let salt = uuid::Uuid::new_v4().as_u64_pair().1;
        let header = SegmentHeader { first, salt, chain: self.chain };
        let segment = self.until_space(|w| Segment::create(&*w.disk, &w.dir, header, capacity))?;
        self.head = Some(Head::of(&segment, capacity));
        self.shared.tail().segments.push(segment);
        self.mark.newest = Some(first);
        self.save_mark()
    }

    /// Writes the vote file, with the durable mark as it is now.
    fn save_mark(&mut self) -> io::Result<()> {
        self.mark.durable = self.durable;
        let saved = self.until_space(|w| w.mark.save(&*w.disk, &w.dir));
        if let Err(error) = &saved {
            self.poison.strike("writing the log's vote file", error);
        }
        saved
    }

    /// Brings the durable mark up to date when it is behind: when the log is idle, and when it is closed.
    pub(crate) fn refresh_mark(&mut self) {
        if self.mark_is_behind() {
            // A failure has poisoned storage; the next operation reports it.
            let _ = self.save_mark();
        }
    }

    pub(crate) fn mark_is_behind(&self) -> bool {
        self.mark.durable != self.durable && self.poison.reason().is_none()
    }

    fn vote(&mut self, vote: Vote) -> io::Result<()> {
        self.mark.vote = Some(vote);
        self.save_mark()?;
        self.shared.tail().vote = Some(vote);
        Ok(())
    }

    fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        let next = after.map_or(FIRST_INDEX, |id| id.index + 1);
        {
            let tail = self.shared.tail();
            if next >= tail.next_index() {
                return Ok(());
            }
            if tail.purged.is_some_and(|purged| next <= purged.index) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "purged entries cannot be truncated"));
            }
            self.mark.newest =
                tail.segments.iter().rev().map(|segment| segment.header.first).find(|first| *first < next);
        }
        // The mark goes down before the entries go: a crash in between must not look like a lost tail.
        self.durable = next.checked_sub(1);
        self.save_mark()?;
        let (dropped, kept) = {
            let mut tail = self.shared.tail();
            let dropped = tail.truncate(after);
            (dropped, tail.segments.last().cloned())
        };
        let cut = self.cut(&dropped, kept.as_ref(), after);
        if let Err(error) = &cut {
            self.poison.strike("truncating the log", error);
        }
        cut
    }

    /// Takes truncated entries off the disk, newest first, so that what is left is always without a gap.
    fn cut(&mut self, dropped: &[Segment], kept: Option<&Segment>, after: Option<LogId>) -> io::Result<()> {
        for segment in dropped.iter().rev() {
            self.disk.remove(&segment.path)?;
        }
        self.disk.sync_dir(&self.dir)?;
        self.head = None;
        let (Some(segment), Some(after)) = (kept, after) else { return Ok(()) };
        segment.file.set_len(segment.end)?;
        segment.file.sync_data()?;
        let capacity = self.config.segment_bytes.max(segment.end);
        self.until_space(|_| segment.file.allocate(capacity))?;
        self.chain = match segment.offsets.last() {
            Some(_) => read_crc(&*segment.file, segment.offset_of(after.index))?,
            None => segment.header.chain,
        };
        self.head = Some(Head::of(segment, capacity));
        Ok(())
    }

    fn purge(&mut self, upto: LogId) -> io::Result<()> {
        {
            let tail = self.shared.tail();
            if tail.purged.is_some_and(|purged| purged.index >= upto.index) {
                return Ok(());
            }
            if tail.droppable(upto) == tail.segments.len() {
                self.mark.newest = None;
            }
        }
        self.mark.purged = Some(upto);
        self.durable = self.durable.max(Some(upto.index));
        self.save_mark()?;
        let dropped = {
            let mut tail = self.shared.tail();
            let dropped = tail.purge(upto);
            if tail.segments.is_empty() {
                self.head = None;
            }
            dropped
        };
        for segment in dropped {
            // The space comes back at the next start: what counts, the purged id, is on disk.
            if let Err(error) = self.disk.remove(&segment.path) {
                tracing::warn!(file = %segment.path.display(), %error, "a purged log segment could not be removed");
            }
        }
        let synced = self.disk.sync_dir(&self.dir);
        if let Err(error) = &synced {
            self.poison.strike("purging the log", error);
        }
        synced
    }

    /// Tries again while the disk is full: the log stalls, is not poisoned, and goes on when there is space.
    fn until_space<T>(&mut self, mut work: impl FnMut(&mut Writer) -> io::Result<T>) -> io::Result<T> {
        let mut result = work(self);
        while let Err(error) = &result
            && error.kind() == io::ErrorKind::StorageFull
            && self.config.writer == LogWriter::Thread
            && self.shared.wait_for_space(FULL_DISK_RETRY)
        {
            result = work(self);
        }
        self.shared.has_space();
        result
    }
}

impl Head {
    fn of(segment: &Segment, capacity: u64) -> Head {
        Head { file: Arc::clone(&segment.file), salt: segment.header.salt, end: segment.end, capacity }
    }
}

/// The crc of the record at `offset`.
fn read_crc(file: &dyn DiskFile, offset: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    match file.read_at(offset, &mut bytes)? {
        4 => Ok(u32::from_le_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
