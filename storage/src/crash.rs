//! Crash tests of a whole data directory, on the disk in memory: a small node without Raft works on it, the disk fails or
//! loses power after every single change, and what comes back is held against what was promised.
//!
//! `HOLDFAST_CRASH_SEEDS` makes them try more work and more losses than the few that everybody tries.

#![allow(clippy::unwrap_used)]

mod damage;
mod failing;
mod node;
mod power;

use std::path::Path;
use std::sync::Arc;

use crate::fault::FaultDisk;
use crate::{Expected, LogConfig, LogWriter, Options, StateConfig, StateKind, Storage, StorageError};

/// Where the data directory is.
const DIR: &str = "/var/data";

/// How many seeds are tried where `few` are enough for everybody.
fn seeds(few: u64) -> u64 {
    let more = std::env::var("HOLDFAST_CRASH_SEEDS").ok().map(|seeds| seeds.parse().unwrap());
    more.unwrap_or(few)
}

fn options(disk: &FaultDisk) -> Options {
    Options {
        disk: Arc::new(disk.clone()),
        log: LogConfig { segment_bytes: 4096, cache_bytes: 1000, writer: LogWriter::Driven },
        state: StateConfig { kind: StateKind::Plain, ..StateConfig::default() },
        ..Options::default()
    }
}

/// Opens the directory and gives it its Raft id, as a node does before it takes part.
fn open(disk: &FaultDisk) -> Result<Storage, StorageError> {
    let expected = Expected { cluster: "prod".into(), name: "node-1".into() };
    let storage = Storage::open(Path::new(DIR), &expected, &options(disk))?;
    storage.dir.assign(1)?;
    Ok(storage)
}
