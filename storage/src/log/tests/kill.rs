//! A real process on a real disk, killed in the middle of writing.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;
use crate::disk::RealDisk;

const DIR: &str = "HOLDFAST_TEST_LOG_DIR";

/// Not a test by itself: the process that [`acknowledged_entries_survive_kill_9`] kills. It appends, several at a
/// time, and prints each acknowledged index.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let config = LogConfig { segment_bytes: 64 << 10, ..LogConfig::default() };
    let log = Log::open(Arc::new(RealDisk), Path::new(&dir), config, Poison::default()).unwrap();
    let mut next = log.last().map_or(FIRST_INDEX, |last| last.index + 1);
    println!("begin {next}");
    loop {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..8 {
            let (index, sender) = (next, sender.clone());
            let done = move |result: io::Result<()>| sender.send(result.map(|()| index)).unwrap();
            log.append(vec![entry(1, index, 50 + index as usize % 700)], Box::new(done));
            next += 1;
        }
        for index in receiver.iter().take(8) {
            println!("acknowledged {}", index.unwrap());
        }
    }
}

#[test]
fn acknowledged_entries_survive_kill_9() {
    let root = tempfile::tempdir().unwrap();
    Log::create(&RealDisk, root.path()).unwrap();
    let mut promised = None;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::tests::kill::child", "--nocapture", "--test-threads=1"])
            .env(DIR, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let acknowledged =
            lines.map_while(Result::ok).filter_map(|line| Some(line.split_once("acknowledged ")?.1.parse().unwrap()));
        let enough = round * 150;
        for index in acknowledged.take(enough) {
            let index: u64 = index;
            promised = promised.max(Some(index));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let log = Log::open(Arc::new(RealDisk), root.path(), LogConfig::default(), Poison::default()).unwrap();
        let last = log.last().unwrap().index;
        assert!(Some(last) >= promised, "round {round}: {promised:?} was acknowledged, the log ends at {last}");
        for (index, found) in all(&log).into_iter().enumerate() {
            assert_eq!(found, entry(1, index as u64, 50 + index % 700), "round {round}");
        }
        promised = Some(last);
    }
}
