//! One change fails, or there is no space for it. After a failed sync nothing is acknowledged; a full disk is waited for.

use std::io;

use super::node::{Promises, Step};
use super::power::{Run, STEPS, run};
use super::*;
use crate::fault::{Change, Fault, Random};

const FAILS: Fault = Fault::Once(io::ErrorKind::Other);

/// Every kind of change but the syncs, which have a rule of their own.
const OTHERS: [Change; 6] =
    [Change::Create, Change::Write, Change::Length, Change::Cut, Change::Rename, Change::Remove];

/// Works on after an error; what is acknowledged after a failed sync is one too many.
fn run_on(disk: &FaultDisk, seed: u64, what: &str) -> Run {
    let mut run = Run::default();
    let Ok(storage) = open(disk) else { return run };
    let mut random = Random(seed);
    for step in 0..STEPS {
        let step = run.promises.draw(&mut random, step / 8);
        if matches!(&step, Step::Commit(ids) if ids.is_empty()) {
            continue;
        }
        match run.promises.perform(&storage, &step) {
            Ok(()) => {
                assert_eq!(disk.failed(), 0, "{what}: {step:?} was acknowledged after a failed sync");
                run.promises.acknowledge(step);
            }
            Err(_) => {
                assert!(storage.dir.poison().reason().is_some(), "{what}: {step:?} failed and storage goes on");
                run.cut_off.get_or_insert(step);
            }
        }
    }
    run
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_a_restart_finds_what_was_before() {
    let mut failed = 0;
    for seed in 0..seeds(2) {
        let whole = FaultDisk::default();
        run(&whole, seed);
        for kind in [Change::Sync, Change::SyncDir] {
            for at in 0..whole.count(kind) {
                let what = format!("seed {seed}, {kind:?} {at}");
                let disk = FaultDisk::default();
                disk.fail_after_some(kind, at, FAILS);
                let run = run_on(&disk, seed, &what);
                failed += u64::from(run.cut_off.is_some());
                comes_back(&disk, &run, at, &what);
            }
        }
    }
    assert!(failed > 150, "only {failed} runs met a failed sync");
}

#[test]
fn whatever_fails_once_costs_nothing_that_was_acknowledged() {
    let mut failed = 0;
    for seed in 0..seeds(2) {
        let whole = FaultDisk::default();
        run(&whole, seed);
        for kind in OTHERS {
            for at in 0..whole.count(kind) {
                let what = format!("seed {seed}, {kind:?} {at}");
                let disk = FaultDisk::default();
                disk.fail_after_some(kind, at, FAILS);
                let run = run(&disk, seed);
                failed += disk.failed();
                comes_back(&disk, &run, at, &what);
            }
        }
    }
    assert!(failed > 150, "only {failed} changes failed");
}

/// Killed, and after a loss of power; what the killed process has left is durable once it was found.
fn comes_back(disk: &FaultDisk, run: &Run, seed: u64, what: &str) {
    let killed = disk.kill();
    let found = open(&killed).unwrap_or_else(|error| panic!("{what}, killed: {error}"));
    run.check(&found, &format!("{what}, killed"));
    let (last, applied) = (found.log.last(), found.state.sync().unwrap());
    let later = killed.power_loss(seed);
    drop(found);
    let found = open(&later).unwrap_or_else(|error| panic!("{what}, killed and without power: {error}"));
    assert_eq!((found.log.last(), found.state.applied()), (last, applied), "{what}: found once, and lost");
    let lost = open(&disk.power_loss(seed)).unwrap_or_else(|error| panic!("{what}, without power: {error}"));
    run.check(&lost, &format!("{what}, without power"));
}

/// Works while there is no space now and then: what is refused for that alone is done when there is space.
fn run_with_little_space(disk: &FaultDisk, seed: u64, more_space: impl Fn(), what: &str) -> Run {
    let mut run = Run::default();
    let mut opened = open(disk);
    while let Err(error) = opened {
        assert!(is_full(&error.into()), "{what}");
        more_space();
        opened = open(disk);
    }
    let storage = opened.unwrap();
    let mut random = Random(seed);
    for step in 0..STEPS {
        let step = run.promises.draw(&mut random, step / 8);
        let mut done = run.promises.perform(&storage, &step);
        while let Err(error) = &done {
            assert!(is_full(error), "{what}: {step:?}: {error}");
            more_space();
            done = match &step {
                // They are in the log and wait there.
                Step::Append(_) => {
                    storage.log.drive();
                    if storage.log.is_full() { done } else { Ok(()) }
                }
                step => run.promises.perform(&storage, step),
            };
        }
        assert!(!storage.log.is_full(), "{what}");
        assert_eq!(storage.dir.poison().reason(), None, "{what}");
        run.promises.acknowledge(step);
    }
    run
}

/// Whether this says that there was no space.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

#[test]
fn a_full_disk_stops_nothing_for_good_wherever_it_is_met() {
    let mut refused = 0;
    for seed in 0..seeds(2) {
        let whole = FaultDisk::default();
        run(&whole, seed);
        for kind in [Change::Create, Change::Write, Change::Length, Change::Rename] {
            for at in 0..whole.count(kind) {
                let what = format!("seed {seed}, {kind:?} {at} finds no space");
                let disk = FaultDisk::default();
                disk.fail_after_some(kind, at, Fault::Once(io::ErrorKind::StorageFull));
                let run = run_with_little_space(&disk, seed, || (), &what);
                refused += disk.failed();
                run.check(&open(&disk.power_loss(at)).unwrap(), &what);
            }
        }
    }
    assert!(refused > 150, "only {refused} changes were refused");
}

#[test]
fn a_disk_that_has_filled_up_goes_on_when_there_is_more() {
    for seed in 0..seeds(4) {
        let what = format!("seed {seed}");
        let disk = FaultDisk::default();
        disk.set_capacity(Some(1000));
        let more_space = || disk.set_capacity(Some(disk.used() + 9000));
        let run = run_with_little_space(&disk, seed, more_space, &what);
        assert!(disk.failed() > 3, "{what}: never full");
        assert!(run.promises != Promises::default());
        run.check(&open(&disk.power_loss(seed)).unwrap(), &what);
    }
}
