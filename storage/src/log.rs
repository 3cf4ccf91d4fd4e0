//! The Raft log: segmented append-only files, and the vote.
//!
//! A Raft node may forget nothing that it has acknowledged, neither entries nor votes. So the log is made of
//! plain files whose every byte is accounted for:
//!
//! ```text
//! log/vote                      vote, purged id, durable mark: replaced atomically (see mark)
//! log/committed                 committed id, written but never synced
//! log/00000000000000000000.log  segments, named by their first entry (see segment and record)
//! log/00000000000000071203.log
//! ```
//!
//! [`Log::append`] puts entries where readers see them at once and hands them to one writer thread, which
//! writes all that waits with one write and one sync and then reports in order. A full disk stalls the
//! writer and poisons nothing; a failed write or sync poisons for good.
//!
//! [`Log::open`] reads everything back (see scan): a torn write at the very end is cut off, anything else that
//! is not as it was written is damage, and then nothing on disk is changed.

mod mark;
mod record;
mod scan;
mod segment;
mod shared;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use crate::disk::{Disk, Poison};
use crate::error::StorageError;
use crate::ids::{FIRST_INDEX, LogId, LogRecord, Vote};
pub(crate) use mark::COMMITTED_FILE;
use mark::{Committed, Mark, VOTE_FILE};
pub use record::PAYLOAD_MAX;
use scan::Scan;
use segment::Segment;
use shared::{Shared, report};
use tail::Tail;
use writer::{Op, Writer};

/// Called once, when an operation is durable or has failed; by whoever writes, so it must be short.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What can be set about the log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Size of a segment file, in bytes, reserved when it is created; at most 1 GiB.
    pub segment_bytes: u64,
    /// Bytes of the newest entries that are kept in memory.
    pub cache_bytes: usize,
    /// Who writes.
    pub writer: LogWriter,
}

/// Who writes what is appended to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogWriter {
    /// A thread of the log's own.
    #[default]
    Thread,
    /// The calling thread, before the call returns: for tests.
    Inline,
    /// Whoever calls [`Log::drive`]; until then what is appended waits. All else first writes what waits and is then done
    /// before the call returns. For simulations, where time passes between an append and its sync.
    Driven,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { segment_bytes: 16 << 20, cache_bytes: 64 << 20, writer: LogWriter::Thread }
    }
}

/// What the log has written since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Groups: one write and one sync each.
    pub groups: u64,
    /// Entries in them.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// The open log; all methods may be called from any thread.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    committed: Mutex<Committed>,
    poison: Poison,
    engine: Engine,
}

enum Engine {
    Thread(Option<JoinHandle<()>>),
    /// The writer, and whether appends wait for [`Log::drive`].
    Here(Box<Mutex<Writer>>, LogWriter),
}

impl Log {
    /// Makes an empty log in `dir`; durable on return. For a new data directory only: opening never creates.
    pub fn create(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
        let creating = |error| StorageError::io("creating the log in", dir, error);
        disk.create_dir(dir).map_err(creating)?;
        Mark::default().save(disk, dir).map_err(creating)
    }

    /// Whether `dir` has a log, be it damaged.
    pub fn exists(disk: &dyn Disk, dir: &Path) -> bool {
        disk.list(dir).is_ok_and(|names| names.iter().any(|name| name == VOTE_FILE || name.ends_with(".log")))
    }

    /// Opens the log in `dir`: checks all of it, cuts a torn end, and makes durable what it found.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: LogConfig, poison: Poison) -> Result<Log, StorageError> {
        let config = LogConfig { segment_bytes: config.segment_bytes.clamp(4096, 1 << 30), ..config };
        let mut scan = scan::scan(&*disk, dir)?;
        repair(&*disk, dir, &config, &scan).map_err(|error| StorageError::io("repairing the log in", dir, error))?;
        let opening = |error| StorageError::io("opening the log in", dir, error);
        scan.mark.newest = scan.segments.last().map(|segment| segment.header.first);
        scan.mark.durable = scan.last.map(|last| last.index);
        scan.mark.save(&*disk, dir).map_err(opening)?;
        let committed = Committed::open(&*disk, dir).map_err(opening)?;

        let Scan { mark, segments, last, chain, .. } = scan;
        let tail = Tail::new(segments, last, mark.purged, mark.vote, config.cache_bytes);
        let shared = Arc::new(Shared::new(tail));
        let kind = config.writer;
        let writer = Writer::new(disk, dir.to_path_buf(), config, Arc::clone(&shared), poison.clone(), mark, chain);
        let engine = if kind != LogWriter::Thread {
            Engine::Here(Box::new(Mutex::new(writer)), kind)
        } else {
            let (shared, poison) = (Arc::clone(&shared), poison.clone());
            let run = move || {
                if catch_unwind(AssertUnwindSafe(|| shared.run(writer))).is_err() {
                    poison.strike("running the log writer", &io::Error::other("it panicked"));
                }
                shared.abandon();
            };
            Engine::Thread(Some(thread::Builder::new().name("log-writer".into()).spawn(run).map_err(opening)?))
        };
        Ok(Log { shared, committed: Mutex::new(committed), poison, engine })
    }

    /// Checks the log in `dir` without changing anything; returns the first entry kept, the last, and torn bytes.
    pub(crate) fn check(disk: &dyn Disk, dir: &Path) -> Result<LogSummary, StorageError> {
        let scan = scan::scan(disk, dir)?;
        Ok(LogSummary {
            purged: scan.mark.purged,
            last: scan.last,
            vote: scan.mark.vote,
            segments: scan.segments.len(),
            torn_bytes: scan.torn_bytes,
            has_committed: Committed::can_be_read(disk, dir)?,
        })
    }

    /// The last entry, or the purged id when no entry is left.
    pub fn last(&self) -> Option<LogId> {
        self.shared.tail().last
    }

    /// Entries up to this one are gone on purpose.
    pub fn purged(&self) -> Option<LogId> {
        self.shared.tail().purged
    }

    /// The last vote that was saved.
    pub fn vote(&self) -> Option<Vote> {
        self.shared.tail().vote
    }

    /// The last committed id that was written; at most the last entry, and it may be old.
    pub fn committed(&self) -> Option<LogId> {
        let last = self.last();
        lock(&self.committed).get().filter(|committed| last.is_some_and(|last| committed.index <= last.index))
    }

    /// What has been written since the log was opened.
    pub fn stats(&self) -> LogStats {
        self.shared.stats()
    }

    /// Bytes of the segments that hold entries after this one (all, when `None`).
    pub fn bytes_after(&self, index: Option<u64>) -> u64 {
        self.shared.tail().bytes_after(index)
    }

    /// The last entry before the newest segments that have `bytes` together; none when there is no such entry.
    pub fn before_last(&self, bytes: u64) -> Option<u64> {
        self.shared.tail().before_last(bytes)
    }

    /// Whether the writer waits for space on a full disk.
    pub fn is_full(&self) -> bool {
        self.shared.is_full()
    }

    /// Appends entries that continue the log. They can be read when this returns; `done` is called when they
    /// are durable, in the order of calls. Entries that do not continue the log are refused as a whole.
    pub fn append(&self, records: Vec<LogRecord>, done: Done) {
        if let Err(error) = self.poison.check() {
            return done(Err(error));
        }
        let mut tail = self.shared.tail();
        if let Err(error) = tail.accept(&records) {
            drop(tail);
            return done(Err(error));
        }
        // Queued under the tail's lock, so that the queue has the order of the indexes.
        self.shared.enqueue(Op::Append { records, done });
        drop(tail);
        if matches!(self.engine, Engine::Here(_, LogWriter::Inline)) {
            self.drive();
        }
    }

    /// Writes and reports what waits, where no thread of the log's own does; true if anything waited. On a full disk the rest
    /// goes on waiting, until this is called again.
    pub fn drive(&self) -> bool {
        let Engine::Here(writer, _) = &self.engine else { return false };
        let mut any = false;
        // Let go of before the reports, which may come back here.
        loop {
            let mut completions = Vec::new();
            let left = {
                let mut writer = lock(writer);
                let mut ops = self.shared.take();
                any |= !ops.is_empty();
                let left = self.shared.work(&mut writer, &mut ops, &mut completions);
                self.shared.put_back(ops);
                left
            };
            report(completions);
            if !left || self.is_full() {
                return any;
            }
        }
    }

    /// The entries `from..to`, without a gap, cut at the end of the log; an error when `from` was purged.
    pub fn read(&self, indexes: Range<u64>) -> io::Result<Vec<LogRecord>> {
        let (spans, memory) = self.shared.tail().plan(indexes)?;
        if spans.is_empty() {
            return Ok(memory);
        }
        let mut records = Vec::new();
        for span in &spans {
            span.read(&mut records)?;
        }
        records.extend(memory);
        Ok(records)
    }

    /// Removes the entries after `after` (all, when `None`); durable on return, before any later append.
    /// Not to be called while another thread appends.
    pub fn truncate_after(&self, after: Option<LogId>) -> io::Result<()> {
        self.wait_for(|done| Op::Truncate { after, done })
    }

    /// Removes the entries up to `upto`, which may lie beyond the end (after a snapshot was installed). The purged
    /// id is durable on return; the space comes back by whole segments.
    pub fn purge(&self, upto: LogId) -> io::Result<()> {
        self.wait_for(|done| Op::Purge { upto, done })
    }

    /// Saves a vote; durable on return, and after everything that was queued before it.
    pub fn save_vote(&self, vote: Vote) -> io::Result<()> {
        self.wait_for(|done| Op::Vote { vote, done })
    }

    /// Like [`Log::save_vote`], but reports through `done` instead of waiting.
    pub fn save_vote_then(&self, vote: Vote, done: Done) {
        self.submit(Op::Vote { vote, done });
    }

    /// Writes the committed id, without a sync: it may be lost, and is then found out again.
    pub fn save_committed(&self, committed: Option<LogId>) -> io::Result<()> {
        self.poison.check()?;
        lock(&self.committed).set(committed)
    }

    fn wait_for(&self, op: impl FnOnce(Done) -> Op) -> io::Result<()> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.submit(op(Box::new(move |result| {
            // The receiver waits below until this is sent.
            let _ = sender.send(result);
        })));
        if matches!(self.engine, Engine::Here(..)) {
            return receiver.try_recv().unwrap_or_else(|_| {
                // Nobody else would perform it while the caller waits.
                self.shared.withdraw();
                Err(io::ErrorKind::StorageFull.into())
            });
        }
        receiver.recv().unwrap_or_else(|_| Err(io::Error::other("the log writer has stopped")))
    }

    fn submit(&self, op: Op) {
        self.shared.enqueue(op);
        self.drive();
    }
}

impl Drop for Log {
    /// Finishes what is queued and brings the durable mark up to date.
    fn drop(&mut self) {
        self.drive();
        match &mut self.engine {
            Engine::Here(writer, _) => lock(writer).refresh_mark(),
            Engine::Thread(handle) => {
                self.shared.close();
                // A callback may hold the last reference: the writer cannot wait for itself, and ends on its own.
                let others = handle.take().filter(|handle| handle.thread().id() != thread::current().id());
                if let Some(handle) = others {
                    let _ = handle.join();
                }
            }
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Engine::Thread(_) => f.write_str("Thread"),
            Engine::Here(_, kind) => write!(f, "{kind:?}"),
        }
    }
}

/// What an offline check of a log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSummary {
    /// Entries up to here are gone on purpose.
    pub purged: Option<LogId>,
    /// The last entry.
    pub last: Option<LogId>,
    /// The vote.
    pub vote: Option<Vote>,
    /// Number of segment files.
    pub segments: usize,
    /// Bytes of a torn write at the end, which the next start cuts off; no acknowledged entry is in them.
    pub torn_bytes: u64,
    /// Whether the committed id can be read. It saves a start some waiting, and nothing depends on it.
    pub has_committed: bool,
}

/// Brings the files in line with what the scan decided, before the log is used.
fn repair(disk: &dyn Disk, dir: &Path, config: &LogConfig, scan: &Scan) -> io::Result<()> {
    for leftover in &scan.leftovers {
        disk.remove(leftover)?;
    }
    // A killed process leaves written but unsynced bytes: what is reported as present must be durable first.
    disk.sync_dir(dir)?;
    let Some(segment) = scan.segments.last() else { return Ok(()) };
    if scan.torn_bytes > 0 {
        let (file, bytes) = (segment.path.display(), scan.torn_bytes);
        tracing::warn!(%file, offset = segment.end, bytes, "cut a torn, never acknowledged write off the log");
    }
    segment.file.set_len(segment.end)?;
    rewrite_unsure(scan, segment)?;
    segment.file.allocate(config.segment_bytes.max(segment.end))?;
    segment.file.sync_data()
}

/// Writes again what is not known to have been synced. The process before may have ended because a sync had failed: the
/// kernel then shows what it could not write, takes it for written, and a sync alone would make nothing durable.
fn rewrite_unsure(scan: &Scan, segment: &Segment) -> io::Result<()> {
    let start = segment.offset_of(scan.mark.durable.map_or(FIRST_INDEX, |durable| durable + 1));
    let mut bytes = vec![0; usize::try_from(segment.end - start).map_err(io::Error::other)?];
    match segment.file.read_at(start, &mut bytes)? {
        count if count < bytes.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => segment.file.write_at(start, &bytes),
    }
}

/// Locks, also after a panic of another holder: what these locks guard is never left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
