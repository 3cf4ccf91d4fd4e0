//! The one place where the log's files change, one operation after the other.
//!
//! All appends that wait together become one write and one sync, and are then reported in order. Everything
//! else (vote, truncate, purge) is done between such groups, so that the order on disk is the order of calls.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_machine::is_planted;

use super::mark::Mark;
use super::record;
use super::segment::{SEGMENT_HEADER, Segment, SegmentHeader};
use super::shared::Shared;
use super::{Done, LogConfig};
use crate::disk::{Disk, DiskFile, Poison};
use crate::ids::{FIRST_INDEX, LogId, LogRecord, Vote};

/// A group is closed when it has this many bytes, so that the first in it need not wait for ever.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// A buffer that one huge group has blown up is not kept.
const BUFFER_BYTES_KEPT: usize = 16 << 20;

/// One queued operation.
pub(super) enum Op {
    Append { records: Vec<LogRecord>, done: Done },
    Truncate { after: Option<LogId>, done: Done },
    Purge { upto: LogId, done: Done },
    Vote { vote: Vote, done: Done },
}

impl Op {
    fn into_done(self) -> Done {
        let (Op::Append { done, .. } | Op::Truncate { done, .. } | Op::Purge { done, .. } | Op::Vote { done, .. }) =
            self;
        done
    }

    /// Reports that the operation was not performed, because the writer is gone.
    pub(super) fn refuse(self) {
        self.into_done()(Err(io::Error::other("the log writer has stopped")));
    }
}

/// The disk is full: what is left is to be performed again, as it is, when there may be space.
#[derive(Debug)]
pub(super) struct Full;

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
    /// The newest segment is not in the vote file yet; nothing may be staged for it before.
    owes_mark: bool,
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
            owes_mark: false,
        }
    }

    /// Performs operations from the front of `ops`, up to the end of one group, and adds what has ended to `completions`,
    /// in order. When the disk is full, `ops` begins with the first operation that has not ended.
    pub(crate) fn perform(&mut self, ops: &mut VecDeque<Op>, completions: &mut Vec<Completion>) -> Result<(), Full> {
        while let Some(op) = ops.pop_front() {
            let result = match op {
                Op::Append { mut records, done } => match self.stage(&mut records) {
                    Ok(()) => {
                        self.waiting.push(done);
                        if self.buffer.len() >= GROUP_BYTES_MAX {
                            break;
                        }
                        continue;
                    }
                    Err(Full) => {
                        // What was staged before has been written, unless that is what there is no space for.
                        if self.buffer.is_empty() {
                            self.settle(completions)?;
                        }
                        ops.push_front(Op::Append { records, done });
                        return Err(Full);
                    }
                },
                Op::Truncate { after, .. } => self.between_groups(completions, |w| w.truncate(after)),
                Op::Purge { upto, .. } => self.between_groups(completions, |w| w.purge(upto)),
                Op::Vote { vote, .. } => self.between_groups(completions, |w| w.vote(vote)),
            };
            match result {
                Err(error) if is_full(&error) => {
                    ops.push_front(op);
                    return Err(Full);
                }
                result => completions.push((op.into_done(), result)),
            }
        }
        self.settle(completions)
    }

    fn between_groups(
        &mut self,
        completions: &mut Vec<Completion>,
        work: impl FnOnce(&mut Writer) -> io::Result<()>,
    ) -> io::Result<()> {
        self.settle(completions).map_err(|Full| io::ErrorKind::StorageFull)?;
        self.poison.check()?;
        work(self)
    }

    /// Adds records to the group, and takes from `records` those that are in it. A failure poisons, and is reported when
    /// the group is settled.
    fn stage(&mut self, records: &mut Vec<LogRecord>) -> Result<(), Full> {
        for position in 0..records.len() {
            if self.poison.reason().is_some() {
                return Ok(());
            }
            match self.stage_one(&records[position]) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    records.drain(..position);
                    return Err(Full);
                }
                Err(error) => self.poison.strike("writing the log", &error),
            }
        }
        Ok(())
    }

    fn stage_one(&mut self, record: &LogRecord) -> io::Result<()> {
        if self.owes_mark {
            self.save_mark(self.mark)?;
        }
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
    fn settle(&mut self, completions: &mut Vec<Completion>) -> Result<(), Full> {
        if self.poison.reason().is_none()
            && let Err(error) = self.flush()
            && !is_planted("forgive-a-failed-sync")
        {
            if is_full(&error) {
                return Err(Full);
            }
            self.poison.strike("writing the log", &error);
        }
        completions.extend(self.waiting.drain(..).map(|done| (done, self.poison.check())));
        Ok(())
    }

    /// What waits for a group that will not be written.
    pub(super) fn abandon(&mut self) -> Vec<Completion> {
        let refused = |done| (done, Err(io::ErrorKind::StorageFull.into()));
        self.waiting.drain(..).map(refused).collect()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let Some(head) = &mut self.head else { return Err(io::Error::other("a group without a segment")) };
        head.file.write_at(head.end, &self.buffer)?;
        head.end += self.buffer.len() as u64;
        self.shared.tail().written(&self.offsets, head.end);
        if !is_planted("acknowledge-before-the-sync") {
            head.file.sync_data()?;
        }
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
        let segment = Segment::create(&*self.disk, &self.dir, header, capacity)?;
        self.head = Some(Head::of(&segment, capacity));
        self.shared.tail().segments.push(segment);
        self.mark.newest = Some(first);
        self.owes_mark = true;
        self.save_mark(self.mark)
    }

    /// Writes the vote file, with the durable mark as it is now. A full disk leaves all as it was.
    fn save_mark(&mut self, mark: Mark) -> io::Result<()> {
        let mark = Mark { durable: self.durable, ..mark };
        match mark.save(&*self.disk, &self.dir) {
            Ok(()) => {
                self.mark = mark;
                self.owes_mark = false;
                Ok(())
            }
            Err(error) => {
                if !is_full(&error) {
                    self.poison.strike("writing the log's vote file", &error);
                }
                Err(error)
            }
        }
    }

    /// Brings the durable mark up to date when it is behind: when the log is idle, and when it is closed.
    pub(crate) fn refresh_mark(&mut self) {
        if self.mark_is_behind() {
            // A failure has poisoned storage, which the next operation reports; a full disk is tried again.
            let _ = self.save_mark(self.mark);
        }
    }

    pub(crate) fn mark_is_behind(&self) -> bool {
        self.mark.durable != self.durable && self.poison.reason().is_none()
    }

    fn vote(&mut self, vote: Vote) -> io::Result<()> {
        let mark = Mark { vote: Some(vote), ..self.mark };
        match is_planted("keep-votes-in-memory") {
            true => self.mark = mark,
            false => self.save_mark(mark)?,
        }
        self.shared.tail().vote = Some(vote);
        Ok(())
    }

    fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        let next = after.map_or(FIRST_INDEX, |id| id.index + 1);
        let newest = {
            let tail = self.shared.tail();
            if next >= tail.next_index() {
                return Ok(());
            }
            if tail.purged.is_some_and(|purged| next <= purged.index) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "purged entries cannot be truncated"));
            }
            tail.segments.iter().rev().map(|segment| segment.header.first).find(|first| *first < next)
        };
        // The mark goes down before the entries go: a crash in between must not look like a lost tail.
        self.durable = next.checked_sub(1);
        self.save_mark(Mark { newest, ..self.mark })?;
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
            // One by one: nothing says in which order the names would go.
            self.disk.sync_dir(&self.dir)?;
        }
        self.head = None;
        let (Some(segment), Some(after)) = (kept, after) else { return Ok(()) };
        segment.file.set_len(segment.end)?;
        segment.file.sync_data()?;
        let capacity = self.config.segment_bytes.max(segment.end);
        let capacity = match segment.file.allocate(capacity) {
            // The next entry begins a new segment, when there is space for one.
            Err(error) if is_full(&error) => segment.end,
            allocated => allocated.map(|()| capacity)?,
        };
        self.chain = match segment.offsets.last() {
            Some(_) => read_crc(&*segment.file, segment.offset_of(after.index))?,
            None => segment.header.chain,
        };
        self.head = Some(Head::of(segment, capacity));
        Ok(())
    }

    fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let newest = {
            let tail = self.shared.tail();
            if tail.purged.is_some_and(|purged| purged.index >= upto.index) {
                return Ok(());
            }
            self.mark.newest.filter(|_| tail.droppable(upto) < tail.segments.len())
        };
        self.durable = self.durable.max(Some(upto.index));
        self.save_mark(Mark { purged: Some(upto), newest, ..self.mark })?;
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
}

impl Head {
    fn of(segment: &Segment, capacity: u64) -> Head {
        Head { file: Arc::clone(&segment.file), salt: segment.header.salt, end: segment.end, capacity }
    }
}

/// Whether there was no space, and nothing but that: a failed sync is never of this kind (see [`DiskFile::sync_data`]).
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// The crc of the record at `offset`.
fn read_crc(file: &dyn DiskFile, offset: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    match file.read_at(offset, &mut bytes)? {
        4 => Ok(u32::from_le_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
