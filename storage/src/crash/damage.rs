//! One bit of a closed data directory is turned over, anywhere: `verify` names the file, a start finds it or does not need
//! it, and nothing but what was written is ever served.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::node::{Promises, Step, rows_after, rows_of};
use super::*;
use crate::fault::Random;
use crate::verify::verify_on;

/// A directory that has something of everything: several segments, purged entries, a vote, a layer, rows, a snapshot.
fn sound() -> (FaultDisk, Promises) {
    let disk = FaultDisk::default();
    let mut promises = Promises::default();
    let storage = open(&disk).unwrap();
    let mut random = Random(5);
    let step = |promises: &mut Promises, step: Step| {
        promises.perform(&storage, &step).unwrap();
        promises.acknowledge(step);
    };
    for round in 0..90 {
        let next = promises.draw(&mut random, round / 8);
        step(&mut promises, next);
    }
    step(&mut promises, Step::SyncState);
    let snapshot = promises.applied.last().copied().unwrap();
    step(&mut promises, Step::Snapshot);
    step(&mut promises, Step::Purge(snapshot));
    for _ in 0..12 {
        let next = promises.next_commit(&mut random);
        step(&mut promises, next);
    }
    drop(storage);
    // A start removes what an install has left.
    drop(open(&disk).unwrap());
    promises.synced = promises.applied.len();
    (disk, promises)
}

/// The bits of a file that are tried: all near its beginning and its end, some of the rest.
fn bits(bytes: &[u8], stride: usize) -> impl Iterator<Item = u64> {
    let length = bytes.len();
    let near = move |at: &usize| *at < 80 || *at + 40 > length || at.is_multiple_of(stride);
    (0..length).filter(near).map(|at| (at * 8 + at % 8) as u64)
}

fn is_sound(disk: &FaultDisk, what: &str) -> Result<(), String> {
    let before = disk.image();
    let report = verify_on(&options(disk), Path::new(DIR)).map_err(|error| error.to_string())?;
    assert_eq!(disk.image(), before, "{what}: verify has changed something");
    if report.is_sound() { Ok(()) } else { Err(report.to_string()) }
}

/// What `verify` says.
fn told(disk: &FaultDisk, what: &str) -> String {
    is_sound(disk, what).err().unwrap_or_else(|| verify_on(&options(disk), Path::new(DIR)).unwrap().to_string())
}

#[test]
fn a_flipped_bit_is_named_and_never_served() {
    let (disk, promises) = sound();
    assert_eq!(is_sound(&disk, "nothing is flipped"), Ok(()));
    let stride = if seeds(1) > 1 { 1 } else { 61 };
    let mut named: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for (path, bytes) in disk.image() {
        for bit in bits(&bytes, stride) {
            let what = format!("{} bit {bit}", path.display());
            let flipped = disk.copy();
            flipped.flip(&path, bit);
            match is_sound(&flipped, &what) {
                Err(report) => {
                    assert!(report.contains(path.to_str().unwrap()), "{what}: not named in {report}");
                    *named.entry(path.clone()).or_default() += 1;
                }
                Ok(()) => assert!(is_harmless(&path, &bytes, bit), "{what}: not seen"),
            }
            serves_nothing_else(&flipped, &promises, &what);
        }
    }
    println!("{named:?}");
    for part in ["identity", "vote", ".log", "current", ".rows", "layer-", ".snapshot"] {
        let flips: u64 = named.iter().filter(|(path, _)| path.to_str().unwrap().contains(part)).map(|(_, n)| n).sum();
        assert!(flips > 10, "{part}: {flips} flips were named");
    }
}

/// The committed id is a hint, and behind the last entry of a segment is reserved space: what stands there looks like a
/// write that was never acknowledged.
fn is_harmless(path: &Path, bytes: &[u8], bit: u64) -> bool {
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64;
    match path.extension() {
        Some(end) if end == "log" => bit / 8 > used,
        _ => path.ends_with("committed"),
    }
}

/// A start on a damaged directory ends with an error about damage, or with what was written.
fn serves_nothing_else(disk: &FaultDisk, promises: &Promises, what: &str) {
    let storage = match open(disk) {
        Ok(storage) => storage,
        Err(error) => {
            let named = error.is_damage() || matches!(error, StorageError::NewerFormat { .. });
            return assert!(named, "{what}: {error}");
        }
    };
    let first = storage.log.purged().map_or(0, |purged| purged.index + 1);
    let entries = storage.log.read(first..u64::MAX).unwrap();
    assert_eq!((storage.log.vote(), entries), (promises.vote, promises.entries.clone()), "{what}");
    let applied = storage.state.applied().map_or(0, |applied| applied.index as usize + 1);
    assert!(first as usize <= applied, "{what}: the log cannot bring the state forward from {applied}");
    assert_eq!(rows_of(&*storage.state), rows_after(&promises.applied[..applied]), "{what}");
    // One that has no sound beginning counts for nothing; the rest of a snapshot is checked when it is read.
    if let Some(snapshot) = storage.snapshots.newest().unwrap()
        && snapshot.verify().is_ok()
    {
        assert_eq!(Some(snapshot.header.applied), promises.snapshot, "{what}");
    }
}

#[test]
fn a_lost_file_is_named_and_nothing_else_is_served_for_it() {
    let (disk, promises) = sound();
    for path in disk.image().into_keys() {
        let what = format!("{} is gone", path.display());
        let lost = disk.copy();
        crate::disk::Disk::remove(&lost, &path).unwrap();
        // A lock and a hint can be done without.
        let said = told(&lost, &what);
        match path.file_name().unwrap().to_str().unwrap() {
            "lock" => assert_eq!(said, told(&disk, "nothing is gone"), "{what}"),
            "committed" => {
                assert!(said.contains("all sound") && said.contains("harmless: /var/data/log/committed"), "{said}")
            }
            name if name.ends_with(".snapshot") => {
                assert!(said.contains("The next start writes a new snapshot"), "{said}")
            }
            name if name == "current" || name.starts_with("layer-") || name.ends_with(".rows") => {
                assert!(said.contains("The next start makes the state anew from /var/data/snapshots"), "{said}");
            }
            _ => assert!(said.contains("member replace") || path.ends_with("identity"), "{what}: {said}"),
        }
        let storage = open(&lost);
        if path.ends_with("identity") {
            assert!(matches!(storage, Err(StorageError::NotADataDirectory { .. })), "{what}");
        } else {
            drop(storage);
            serves_nothing_else(&lost, &promises, &what);
        }
    }
}

#[test]
fn a_damaged_snapshot_is_set_aside_and_stops_nobody_who_can_do_without_it() {
    let (disk, promises) = sound();
    let is_snapshot = |path: &PathBuf| path.to_str().unwrap().ends_with(crate::snapshot::SNAPSHOT_SUFFIX);
    let names = |disk: &FaultDisk| disk.image().into_keys().collect::<Vec<_>>();
    let (path, whole) = disk.image().into_iter().find(|(path, _)| is_snapshot(path)).unwrap();
    let rows = names(&disk).into_iter().find(|path| path.to_str().unwrap().ends_with(".rows")).unwrap();
    let aside = PathBuf::from(format!("{}{}", path.display(), crate::snapshot::DAMAGED_SUFFIX));
    for length in [0, 1, 9, whole.len() - 1] {
        let what = format!("{length} bytes are left");
        let cut = disk.copy();
        cut.damage(&path, |bytes| bytes.truncate(length));
        let is_seen = length < 10;
        serves_nothing_else(&cut, &promises, &what);
        assert_eq!((names(&cut).contains(&aside), names(&cut).contains(&path)), (is_seen, !is_seen), "{what}");

        // With the state gone as well, the log would have to begin at its first entry.
        let lost = disk.copy();
        lost.damage(&path, |bytes| bytes.truncate(length));
        crate::disk::Disk::remove(&lost, &rows).unwrap();
        let before = lost.image();
        let error = open(&lost).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("member replace"), "{what}: {error}");
        assert_eq!(lost.image(), before, "{what}: nothing was to be changed");
    }
}

#[test]
fn what_is_left_of_a_state_without_its_snapshot_is_said() {
    let (disk, _) = sound();
    let paths: Vec<PathBuf> = disk.image().into_keys().collect();
    let lose = |disk: &FaultDisk, part: &str| {
        let path = paths.iter().find(|path| path.to_str().unwrap().contains(part)).unwrap();
        crate::disk::Disk::remove(disk, path).unwrap();
    };
    for parts in [[".snapshot", ".rows"], [".snapshot", "layer-"], [".snapshot", "current"]] {
        let lost = disk.copy();
        parts.iter().for_each(|part| lose(&lost, part));
        let said = told(&lost, parts[1]);
        assert!(said.contains("this disk has them no more") && said.contains("member replace"), "{parts:?}: {said}");
        assert!(open(&lost).unwrap_err().is_damage(), "{parts:?}");
    }
}
