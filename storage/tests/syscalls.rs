//! Counts the system calls that make a write durable, so that no change can quietly lose or add one.
//!
//! Runs itself under strace. Where there is no strace the test says so and passes.

#![allow(clippy::unwrap_used)]

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};

use holdfast_storage::disk::{Poison, RealDisk};
use holdfast_storage::{Log, LogConfig, LogId, LogRecord};

const ROUNDS: u64 = 200;
const APPENDS: u64 = 32;
const DIR: &str = "HOLDFAST_TEST_SYSCALLS_DIR";

/// Not a test by itself: the process whose system calls are counted.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    Log::create(&RealDisk, dir).unwrap();
    let log = Log::open(Arc::new(RealDisk), dir, LogConfig::default(), Poison::default()).unwrap();
    for round in 0..ROUNDS {
        let (sender, receiver) = mpsc::channel();
        for index in round * APPENDS..(round + 1) * APPENDS {
            let record = LogRecord { id: LogId { term: 1, index }, payload: vec![7; 300].into() };
            let sender = sender.clone();
            log.append(vec![record], Box::new(move |result: io::Result<()>| sender.send(result).unwrap()));
        }
        receiver.iter().take(APPENDS as usize).for_each(|result| result.unwrap());
        eprintln!("acknowledged round {round}");
    }
    eprintln!("wrote {} groups", log.stats().groups);
}

fn has_strace() -> bool {
    let status = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn each_acknowledgement_follows_a_sync_and_each_group_has_one_write_and_one_sync() {
    if !has_strace() {
        println!("SKIPPED: strace is not installed or not permitted, so the system calls were not counted");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let trace = root.path().join("trace");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=fdatasync,fsync,pwrite64,write", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIR, root.path().join("log"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{report}");
    let trace = std::fs::read_to_string(&trace).unwrap();

    let mut synced_since_acknowledgement = false;
    let mut counts = Counts::default();
    for line in trace.lines() {
        // `<pid> fdatasync(5) = 0`, or in two lines when another thread's call came in between.
        if line.contains("fdatasync(") {
            counts.data_syncs += 1;
        }
        if line.contains("fdatasync") && line.ends_with("= 0") {
            synced_since_acknowledgement = true;
        }
        if line.contains("pwrite64(") {
            counts.writes += 1;
        }
        if line.contains("\"acknowledged round") {
            assert!(synced_since_acknowledgement, "acknowledged without a sync before it");
            synced_since_acknowledgement = false;
            counts.acknowledgements += 1;
        }
    }
    let groups = groups(&report);
    println!("{counts:?}, {groups} groups");
    assert_eq!(counts.acknowledgements, ROUNDS);
    // Besides the groups: the vote file at creation, opening and closing and when the log was idle, and for each of at
    // most two new segments its header and the vote file.
    let allowed = groups..=groups + 10;
    assert!(allowed.contains(&counts.data_syncs), "{counts:?}, {groups} groups");
    assert!(allowed.contains(&counts.writes), "{counts:?}, {groups} groups");
    assert!((ROUNDS..=ROUNDS * APPENDS).contains(&groups));
}

#[derive(Debug, Default)]
struct Counts {
    data_syncs: u64,
    writes: u64,
    acknowledgements: u64,
}

/// The number of groups in the child's `wrote 412 groups`.
fn groups(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("wrote ")).unwrap();
    line.trim_end_matches(" groups").parse().unwrap()
}
