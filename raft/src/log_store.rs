//! openraft's log storage over [`holdfast_storage::Log`].
//!
//! The log's own writer thread groups what is queued and reports in order; here is only translation, and
//! two checks that must never fail: what is appended continues the log, and what is read has no gap.
//! Calls that wait for the disk run on blocking threads.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::{Stream, stream};
use holdfast_machine::is_planted;
use holdfast_storage::{LogRecord, Storage};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};

use crate::environment::WritePause;
use crate::progress::Progress;
use crate::types::{LogEntry, LogId, TypeConfig, Vote, decode_payload, encode_payload, from_storage, to_storage};
use crate::wire::WireVote;

/// Entries read at a time, and the bytes after which a bounded read ends.
const READ_ENTRIES: u64 = 64;
const READ_BYTES: usize = 1024 * 1024;
/// Entries this close to the end are in the log's memory, so that reading them does not block.
const HOT_ENTRIES: u64 = 512;

/// From this size on, what is encoded, decoded or copied is so on a blocking thread.
const LARGE_BYTES: usize = 256 * 1024;

/// The log as openraft sees it; cheap to clone.
#[derive(Clone)]
pub(crate) struct LogStore {
    storage: Arc<Storage>,
    progress: Progress,
    /// What a write waits for, where the log is driven from here.
    pause: Option<WritePause>,
}

impl LogStore {
    /// The log in `storage`; the durable part of the state there bounds every purge.
    pub fn new(storage: Arc<Storage>, progress: Progress, pause: Option<WritePause>) -> Self {
        // What was found at the start was made durable when it was opened.
        progress.flushed_to(storage.log.last().map(|last| last.index));
        Self { storage, progress, pause }
    }

    fn end(&self) -> u64 {
        self.storage.log.last().map_or(0, |last| last.index + 1)
    }

    fn bounds(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => self.storage.log.purged().map_or(0, |purged| purged.index + 1),
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(to) => *to,
            Bound::Unbounded => self.end(),
        };
        (from, to)
    }

    /// Entries `from..to`; fewer only if the log ends before.
    async fn read(&self, from: u64, to: u64) -> io::Result<Vec<LogEntry>> {
        if from >= to {
            return Ok(Vec::new());
        }
        if from + HOT_ENTRIES >= self.end() {
            return entries(from, self.storage.log.read(from..to)?);
        }
        let log = self.storage.log.clone();
        blocking(move || entries(from, log.read(from..to)?)).await
    }

    /// Entries from `from` on: at least one, at most up to `to`, and no more once they have [`READ_BYTES`].
    async fn read_some(&self, mut from: u64, to: u64) -> io::Result<Vec<LogEntry>> {
        let (mut read, mut bytes) = (Vec::new(), 0);
        while from < to {
            let some = self.read(from, to.min(from + READ_ENTRIES)).await?;
            if some.is_empty() {
                break;
            }
            from += some.len() as u64;
            for entry in some {
                bytes += size(&entry);
                read.push(entry);
                if bytes >= READ_BYTES {
                    return Ok(read);
                }
            }
        }
        Ok(read)
    }
}

/// The bytes of an entry's payload.
pub(crate) fn size(entry: &LogEntry) -> usize {
    encode_payload(&entry.payload).as_bytes().len()
}

/// Turns records into entries, and insists that none is missing.
fn entries(from: u64, records: Vec<LogRecord>) -> io::Result<Vec<LogEntry>> {
    let numbered = records.into_iter().zip(from..);
    numbered.map(|(record, expected)| entry(record, expected)).collect()
}

fn entry(record: LogRecord, expected: u64) -> io::Result<LogEntry> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if record.id.index != expected {
        return Err(invalid(format!("the log gave entry {} for {expected}", record.id.index)));
    }
    let payload =
        decode_payload(record.payload).map_err(|error| invalid(format!("log entry {}: {error}", record.id)))?;
    Ok(LogEntry { log_id: from_storage(record.id), payload })
}

/// Runs `work` where it may wait for the disk: on another thread, unless the runtime has but one. There it would hold up
/// nobody but this node, and the order of things stays the same from run to run, as a simulation needs it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if has_one_thread() {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Runs `work`, which goes over so many bytes: on another thread if they are many, because whatever waits for this one
/// meanwhile, a heartbeat for instance, would wait for all of them.
pub(crate) async fn at_leisure<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    if bytes < LARGE_BYTES {
        return Ok(work());
    }
    blocking(move || Ok(work())).await
}

/// True if there is no other thread that would go on with the runtime's tasks while this one waits.
pub(crate) fn has_one_thread() -> bool {
    use tokio::runtime::{Handle, RuntimeFlavor};
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = self.bounds(&range);
        self.read(from, to).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.storage.log.vote().map(|vote| {
            let holdfast_storage::Vote { term, node, committed } = vote;
            WireVote { term, node, committed }.into()
        }))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        self.read_some(start, end).await
    }

    /// Reads ahead of apply in pieces, so that a long log does not have to fit into memory.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        use futures::{StreamExt, TryStreamExt};
        let (from, to) = self.bounds(&range);
        let store = self.clone();
        stream::try_unfold((store, from), move |(store, from)| async move {
            if from >= to {
                return Ok(None);
            }
            let some = store.read_some(from, to).await?;
            if some.is_empty() {
                return Err(io::Error::other(format!("committed entry {from} is not in the log")));
            }
            let next = from + some.len() as u64;
            Ok(Some((stream::iter(some).map(Ok::<_, io::Error>), (store, next))))
        })
        .try_flatten()
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        Ok(LogState {
            last_purged_log_id: self.storage.log.purged().map(from_storage),
            last_log_id: self.storage.log.last().map(from_storage),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let WireVote { term, node, committed } = vote.into();
        let vote = holdfast_storage::Vote { term, node, committed };
        let (sender, saved) = tokio::sync::oneshot::channel();
        let done = move |result| {
            // openraft waits below for as long as the node lives.
            let _ = sender.send(result);
        };
        self.storage.log.save_vote_then(vote, Box::new(done));
        saved.await.map_err(io::Error::other)?
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.storage.log.save_committed(committed.map(to_storage))
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.storage.log.committed().map(from_storage))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records: Vec<_> = entries
            .into_iter()
            .map(|entry| LogRecord {
                id: to_storage(entry.log_id),
                payload: encode_payload(&entry.payload).as_bytes().clone(),
            })
            .collect();
        let end = self.end();
        if let Some(first) = records.first().filter(|first| first.id.index != end) {
            let what = format!("entry {} cannot follow entry {end} in the log", first.id.index);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let (progress, last) = (self.progress.clone(), records.last().map(|last| last.id.index));
        let done = move |result: io::Result<()>| {
            match &result {
                Ok(()) => progress.flushed_to(last),
                Err(error) => progress.fail(error),
            }
            callback.io_completed(result);
        };
        self.storage.log.append(records, Box::new(done));
        if let Some(pause) = &self.pause {
            let (pause, log) = (pause(), self.storage.log.clone());
            // Whatever waits by then is written with it.
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                log.drive();
            });
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let log = self.storage.log.clone();
        blocking(move || log.truncate_after(last_log_id.map(to_storage))).await?;
        self.progress.truncated_to(last_log_id.map(|last| last.index));
        Ok(())
    }

    /// Never beyond what the state has made durable: what is purged cannot be applied again. While the disk has no room
    /// to make it durable nothing is purged; a later purge takes more.
    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let (storage, progress) = (self.storage.clone(), self.progress.clone());
        blocking(move || {
            if !progress.is_durable(log_id.index) {
                match storage.state.sync() {
                    Ok(durable) => progress.durable_to(durable.map(|durable| durable.index)),
                    Err(error) if error.is_full() => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            if !progress.is_durable(log_id.index) {
                let what = format!("a purge up to {log_id} would pass what the state has on disk");
                return Err(io::Error::other(what));
            }
            let too_far = storage.state.applied().filter(|_| is_planted("purge-too-far"));
            storage.log.purge(too_far.unwrap_or(to_storage(log_id)))?;
            progress.flushed_to(Some(log_id.index));
            Ok(())
        })
        .await
    }
}
