#![allow(clippy::unwrap_used)]
//! Tests of the log, by what they try: against a model, crashes, damage, and the writer's own promises.

mod crash;
mod damage;
mod kill;
mod model;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::*;
use crate::fault::FaultDisk;

const SEGMENT: u64 = 4096;

fn dir() -> PathBuf {
    PathBuf::from("/log")
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: SEGMENT, cache_bytes: 1000, writer: LogWriter::Inline }
}

fn create(disk: &FaultDisk) {
    Log::create(disk, &dir()).unwrap();
}

fn open(disk: &FaultDisk) -> Result<Log, StorageError> {
    Log::open(Arc::new(disk.clone()), &dir(), config(), Poison::default())
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term, index }
}

/// An entry whose payload tells its id, so that a mix-up shows.
fn entry(term: u64, index: u64, length: usize) -> LogRecord {
    let text = format!("{index}@{term};");
    let payload: Vec<u8> = text.bytes().cycle().take(length).collect();
    LogRecord { id: id(term, index), payload: payload.into() }
}

fn entries(term: u64, indexes: Range<u64>, length: usize) -> Vec<LogRecord> {
    indexes.map(|index| entry(term, index, length)).collect()
}

/// Appends and waits.
fn append(log: &Log, records: Vec<LogRecord>) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    log.append(records, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

/// All entries that the log has.
fn all(log: &Log) -> Vec<LogRecord> {
    let first = log.purged().map_or(FIRST_INDEX, |purged| purged.index + 1);
    log.read(first..u64::MAX).unwrap()
}
