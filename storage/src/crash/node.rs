//! A node without Raft: it appends, votes, takes back, applies, syncs, makes snapshots, purges and takes in those of
//! others, as a seed draws it, and remembers what it was promised.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};

use holdfast_machine::{Archive, Writes};

use super::*;
use crate::disk::Poison;
use crate::fault::Random;
use crate::{FIRST_INDEX, LogId, LogRecord, SnapshotFile, Snapshots, State, Vote};

pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a node does in one step.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Several appends that wait together.
    Append(Vec<Vec<LogRecord>>),
    Vote(Vote),
    Truncate(Option<LogId>),
    Commit(Vec<LogId>),
    Committed(LogId),
    SyncState,
    Snapshot,
    Purge(LogId),
    /// The entries that the other's snapshot has beyond what is applied here.
    Install(Vec<LogId>),
}

/// What was promised, as far as it has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Promises {
    pub vote: Option<Vote>,
    /// Entries in the log.
    pub entries: Vec<LogRecord>,
    pub purged: Option<LogId>,
    /// The entries that are committed for ever and applied, from the first on.
    pub applied: Vec<LogId>,
    /// How many of them the state cannot lose any more.
    pub synced: usize,
    /// The newest snapshot.
    pub snapshot: Option<LogId>,
    /// The last install: after a crash in it the state may be as of then.
    pub installed: Option<LogId>,
}

/// The rows that an entry writes: some of its own, some that others write or remove as well, now and then a large one.
pub(super) fn writes(id: LogId) -> Writes {
    let mut random = Random(id.index * 31 + id.term);
    let mut writes = Writes::new();
    writes.insert([b"Eown\0".as_slice(), &id.index.to_be_bytes()].concat(), Some(id.to_string().into_bytes()));
    for _ in 0..random.below(4) {
        let key = format!("shared-{}", random.below(12)).into_bytes();
        let length = if random.below(12) == 0 { crate::rows::PIECE_BYTES + 99 } else { random.below(90) as usize };
        writes.insert(key, (random.below(4) > 0).then(|| vec![id.index as u8; length]));
    }
    writes
}

/// The rows after these entries.
pub(super) fn rows_after(applied: &[LogId]) -> Rows {
    let mut rows = Rows::new();
    for (key, value) in applied.iter().flat_map(|id| writes(*id)) {
        match value {
            Some(value) => drop(rows.insert(key, value)),
            None => drop(rows.remove(&key)),
        }
    }
    rows
}

pub(super) fn rows_of(archive: &dyn Archive) -> Rows {
    archive.scan(b"", &[0xff; 8], usize::MAX).unwrap().into_iter().collect()
}

fn record(id: LogId, length: usize) -> LogRecord {
    let payload: Vec<u8> = format!("{id};").bytes().cycle().take(length).collect();
    LogRecord { id, payload: payload.into() }
}

impl Promises {
    pub(super) fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.id).or(self.purged)
    }

    fn next(&self) -> u64 {
        self.last().map_or(FIRST_INDEX, |last| last.index + 1)
    }

    /// The next step that makes sense here.
    pub(super) fn draw(&self, random: &mut Random, term: u64) -> Step {
        let applied = self.applied.len() as u64;
        match random.below(20) {
            0..7 => {
                let mut ids = (self.next()..).map(|index| LogId { term, index });
                let mut append = |count| -> Vec<LogRecord> {
                    ids.by_ref().take(count).map(|id| record(id, (id.index * 97 % 900) as usize)).collect()
                };
                Step::Append((0..1 + random.below(3)).map(|_| append(1 + random.below(3) as usize)).collect())
            }
            7 => Step::Vote(Vote { term, node: random.below(3), committed: random.below(2) == 0 }),
            8 => {
                // What is applied is committed, and never taken back.
                let back = random.below(self.next().saturating_sub(applied) + 1);
                let keep = self.entries.len().saturating_sub(back as usize);
                Step::Truncate(keep.checked_sub(1).map(|at| self.entries[at].id).or(self.purged))
            }
            9..13 => {
                let count = 1 + random.below(5) as usize;
                Step::Commit(self.entries.iter().map(|e| e.id).filter(|id| id.index >= applied).take(count).collect())
            }
            13 => self.applied.last().map_or(Step::SyncState, |last| Step::Committed(*last)),
            14 => Step::SyncState,
            15..17 if applied > 0 => Step::Snapshot,
            17 | 18 => match self.snapshot.filter(|at| at.index < self.synced as u64 && Some(*at) > self.purged) {
                Some(snapshot) => Step::Purge(snapshot),
                None => Step::SyncState,
            },
            19 if random.below(2) == 0 => {
                let beyond = self.next().max(applied) + random.below(6) + 1;
                Step::Install((applied..beyond).map(|index| LogId { term, index }).collect())
            }
            _ => Step::SyncState,
        }
    }

    /// An append or a commit.
    pub(super) fn next_commit(&self, random: &mut Random) -> Step {
        let term = self.last().map_or(0, |last| last.term);
        loop {
            let step = self.draw(random, term);
            if matches!(step, Step::Append(_) | Step::Commit(_)) {
                return step;
            }
        }
    }

    /// What holds once a step was acknowledged.
    pub(super) fn acknowledge(&mut self, step: Step) {
        match step {
            Step::Append(records) => self.entries.extend(records.into_iter().flatten()),
            Step::Vote(vote) => self.vote = Some(vote),
            Step::Truncate(after) => {
                let next = after.map_or(FIRST_INDEX, |after| after.index + 1);
                self.entries.retain(|entry| entry.id.index < next);
            }
            Step::Commit(ids) => self.applied.extend(ids),
            Step::Committed(_) => {}
            Step::SyncState => self.synced = self.applied.len(),
            Step::Snapshot => {
                self.snapshot = self.applied.last().copied();
                self.synced = self.applied.len();
            }
            Step::Purge(upto) => {
                self.entries.retain(|entry| entry.id.index > upto.index);
                self.purged = Some(upto);
            }
            Step::Install(ids) => {
                self.applied.extend(ids);
                (self.installed, self.snapshot) = (self.applied.last().copied(), self.applied.last().copied());
                self.synced = self.applied.len();
                self.entries.clear();
                self.purged = self.installed;
            }
        }
    }

    /// Performs a step; the promises are not changed.
    pub(super) fn perform(&self, storage: &Storage, step: &Step) -> io::Result<()> {
        match step {
            Step::Append(records) => append(&storage.log, records.clone()),
            Step::Vote(vote) => storage.log.save_vote(*vote),
            Step::Truncate(after) => storage.log.truncate_after(*after),
            Step::Committed(id) => storage.log.save_committed(Some(*id)),
            Step::Commit(ids) => ids.iter().try_for_each(|id| {
                let membership = (id.index % 3 == 0).then(|| id.to_string().into_bytes());
                Ok(storage.state.commit(writes(*id), *id, membership)?)
            }),
            Step::SyncState => Ok(storage.state.sync().map(drop)?),
            Step::Snapshot => Ok(storage.snapshots.write(storage.state.snapshot_builder()?).map(drop)?),
            Step::Purge(upto) => storage.log.purge(*upto),
            Step::Install(ids) => {
                let all: Vec<LogId> = self.applied.iter().chain(ids).copied().collect();
                let sent = snapshot_of(&all);
                // In two transfers, the second of which goes on where the first one was.
                for until in [sent.length / 2, sent.length] {
                    let mut receiver = storage.snapshots.receive(&sent.id()?)?;
                    let left = until.saturating_sub(receiver.received()) as usize;
                    sent.read(receiver.received(), left)?.chunks(700).try_for_each(|piece| receiver.write(piece))?;
                }
                let receiver = storage.snapshots.receive(&sent.id()?)?;
                storage.state.install(&receiver.finish()?)?;
                all.last().map_or(Ok(()), |last| storage.log.purge(*last))
            }
        }
    }
}

/// Appends all, lets the log write, and waits for none: what waits for space is an error of that kind.
fn append(log: &crate::Log, records: Vec<Vec<LogRecord>>) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let appends = records.len();
    for records in records {
        let sender = sender.clone();
        // Whoever waited for a result that comes later has given up.
        log.append(records, Box::new(move |result| drop(sender.send(result))));
    }
    log.drive();
    for _ in 0..appends {
        receiver.try_recv().unwrap_or_else(|_| Err(io::ErrorKind::StorageFull.into()))?;
    }
    Ok(())
}

/// A snapshot of another node that has applied these entries.
fn snapshot_of(applied: &[LogId]) -> SnapshotFile {
    let disk: Arc<dyn crate::disk::Disk> = Arc::new(FaultDisk::default());
    let (root, dir) = (Path::new("/state"), Path::new("/snapshots"));
    State::create(&*disk, root).unwrap();
    let config = StateConfig { kind: StateKind::Plain, ..StateConfig::default() };
    let state = State::open(Arc::clone(&disk), root, config, Poison::default()).unwrap();
    applied.iter().for_each(|id| state.commit(writes(*id), *id, None).unwrap());
    let snapshots = Snapshots::open(disk, dir, Poison::default()).unwrap();
    snapshots.write(state.snapshot_builder().unwrap()).unwrap()
}
