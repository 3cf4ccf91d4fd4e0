//! The power goes after every single change: what was acknowledged is there, what was not is there or not, nothing else
//! is, and the log brings the state forward to where it was.

use super::node::{Promises, Step, rows_after, rows_of, writes};
use super::*;
use crate::fault::{Fault, Random};
use crate::{LogId, LogRecord};

/// Steps of one run.
pub(super) const STEPS: u64 = 60;

/// What a run was promised, and the step that was cut off.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub promises: Promises,
    pub cut_off: Option<Step>,
}

/// Works until the end or the first error; the storage is dropped at the end, on a disk that may have stopped.
pub(super) fn run(disk: &FaultDisk, seed: u64) -> Run {
    let mut promises = Promises::default();
    let Ok(storage) = open(disk) else { return Run { promises, cut_off: None } };
    let mut random = Random(seed);
    for step in 0..STEPS {
        let step = promises.draw(&mut random, step / 8);
        if promises.perform(&storage, &step).is_err() {
            return Run { promises, cut_off: Some(step) };
        }
        promises.acknowledge(step);
    }
    Run { promises, cut_off: None }
}

impl Run {
    /// Holds a storage that has come back against what was promised.
    pub(super) fn check(&self, storage: &Storage, what: &str) {
        let before = &self.promises;
        let mut after = before.clone();
        if let Some(step) = self.cut_off.clone() {
            after.acknowledge(step);
        }
        let (log, state) = (&storage.log, &storage.state);
        assert!([before.vote, after.vote].contains(&log.vote()), "{what}: vote {:?}", log.vote());
        assert!([before.purged, after.purged].contains(&log.purged()), "{what}: purged {:?}", log.purged());
        let first = log.purged().map_or(0, |purged| purged.index + 1);
        let found = log.read(first..u64::MAX).unwrap();
        let known = |entry: &LogRecord| before.entries.contains(entry) || after.entries.contains(entry);
        assert!(found.iter().all(known), "{what}: an entry that nobody wrote");
        for entry in before.entries.iter().filter(|entry| after.entries.contains(entry)) {
            let kept = entry.id.index < first || found.contains(entry);
            assert!(kept, "{what}: {} was acknowledged and is lost", entry.id);
        }

        let applied = state.applied().map_or(0, |applied| applied.index as usize + 1);
        let is_install = state.applied().is_some() && state.applied() == after.installed;
        let committed = match &self.cut_off {
            // What the other's snapshot has is not in the log here.
            Some(Step::Install(_)) => &before.applied,
            _ => &after.applied,
        };
        let most = committed.len();
        assert!(applied >= before.synced, "{what}: the state was synced at {} and is at {applied}", before.synced);
        assert!(applied <= most || is_install, "{what}: the state is at {applied}, only {most} were applied");
        assert_eq!(state.applied(), applied.checked_sub(1).map(|last| after.applied[last]), "{what}");
        assert_eq!(rows_of(&**state), rows_after(&after.applied[..applied]), "{what}: rows after {applied}");

        let snapshot = storage.snapshots.newest().unwrap();
        if let Some(snapshot) = &snapshot {
            snapshot.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let snapshot = snapshot.map(|snapshot| snapshot.header.applied);
        assert!([before.snapshot, after.snapshot].contains(&snapshot), "{what}: snapshot {snapshot:?}");
        // Invariant 3, of what one node knows by itself; an installed state may be ahead of a log that is not purged yet.
        assert!(log.purged() <= snapshot && log.purged() <= state.applied(), "{what}: purged too far");
        assert!(state.applied() <= log.last() || is_install, "{what}: the state is ahead of the log");
        catch_up(storage, committed, applied, what);
    }
}

/// Applies from the log what was applied before.
fn catch_up(storage: &Storage, committed: &[LogId], from: usize, what: &str) {
    let last = storage.log.last().map_or(0, |last| last.index + 1);
    let missing: Vec<_> = committed.iter().skip(from).filter(|id| id.index < last).copied().collect();
    let read = storage.log.read(from as u64..(from + missing.len()) as u64).unwrap();
    assert_eq!(read.iter().map(|entry| entry.id).collect::<Vec<_>>(), missing, "{what}: committed entries");
    for id in &missing {
        storage.state.commit(writes(*id), *id, None).unwrap();
    }
    if !missing.is_empty() {
        let expected = rows_after(&committed[..from + missing.len()]);
        assert_eq!(rows_of(&*storage.state), expected, "{what}: after the log was applied again");
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_goes() {
    let (mut losses, mut steps) = (0, 0);
    for seed in 0..seeds(4) {
        let whole = FaultDisk::default();
        let done = run(&whole, seed);
        assert!(done.cut_off.is_none() && done.promises.snapshot.is_some(), "seed {seed} does not do enough");
        steps += done.promises.applied.len();
        for cut in 0..whole.changes() {
            let disk = FaultDisk::default();
            disk.fail_after(cut, Fault::Stop);
            let run = run(&disk, seed);
            for loss in 0..4 {
                let what = format!("seed {seed}, cut after {cut}, loss {loss}");
                let after = if loss == 0 { disk.kill() } else { disk.power_loss(loss * 10_007 + cut) };
                // Every other time the power goes again while the node starts.
                let after = if loss % 2 == 1 { cut_start(&after, cut * 7 + loss) } else { after };
                let storage = open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
                run.check(&storage, &what);
                losses += 1;
            }
        }
    }
    println!("{losses} losses of power, {steps} entries applied");
    assert!(losses > 1000, "only {losses} losses were tried");
}

/// The disk after a start that was cut off somewhere.
fn cut_start(disk: &FaultDisk, seed: u64) -> FaultDisk {
    let mut random = Random(seed);
    disk.fail_after(random.below(20), Fault::Stop);
    drop(open(disk));
    disk.power_loss(random.next_number())
}
