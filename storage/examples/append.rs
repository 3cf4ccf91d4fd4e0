//! Appends to a log, alone: what the test that counts system calls runs under strace, and a quick measure.
//!
//! `append <directory> <rounds> <appends per round> <payload bytes>`: each round hands in its appends at once and waits
//! until all are durable.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use holdfast_storage::disk::{Poison, RealDisk};
use holdfast_storage::{FIRST_INDEX, Log, LogConfig, LogId, LogRecord};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, rounds, appends, bytes] = &arguments[..] else {
        return Err("append <directory> <rounds> <appends per round> <payload bytes>".into());
    };
    let (rounds, appends, bytes): (usize, usize, usize) = (rounds.parse()?, appends.parse()?, bytes.parse()?);
    let dir = Path::new(dir);
    if !Log::exists(&RealDisk, dir) {
        Log::create(&RealDisk, dir)?;
    }
    let log = Log::open(Arc::new(RealDisk), dir, LogConfig::default(), Poison::default())?;
    let mut next = log.last().map_or(FIRST_INDEX, |last| last.index + 1);
    let payload = bytes::Bytes::from(vec![7; bytes]);
    let mut waits = Vec::with_capacity(rounds);
    let began = Instant::now();
    for _ in 0..rounds {
        let round = Instant::now();
        let (sender, receiver) = mpsc::channel();
        for _ in 0..appends {
            let record = LogRecord { id: LogId { term: 1, index: next }, payload: payload.clone() };
            let sender = sender.clone();
            log.append(vec![record], Box::new(move |result| drop(sender.send(result))));
            next += 1;
        }
        receiver.iter().take(appends).collect::<Result<(), _>>()?;
        // One write to standard output for each acknowledged round: strace sees what came before what.
        std::io::stdout().write_all(b"acknowledged\n")?;
        waits.push(round.elapsed());
    }
    let took = began.elapsed();
    waits.sort_unstable();
    let stats = log.stats();
    eprintln!(
        "{} entries in {} groups, {:.0} entries/s, round p50 {:?} p99 {:?}",
        stats.records,
        stats.groups,
        stats.records as f64 / took.as_secs_f64(),
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100],
    );
    Ok(())
}
