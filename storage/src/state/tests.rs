#![allow(clippy::unwrap_used)]
//! Tests of the state: rows of all sizes, reopening, snapshots under commits, installs that are cut off.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

mod full_disk;
mod kill;
mod layers;
mod snapshots;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::PathBuf;

use super::overlay::Flushed;
use super::*;
use crate::disk::RealDisk;
use crate::fault::Random;
use crate::keys;
use crate::snapshot::Snapshots;

fn config() -> StateConfig {
    StateConfig { cache_bytes: 4 << 20, ..StateConfig::default() }
}

fn real() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

fn generation_dir(root: &Path, number: u64) -> PathBuf {
    Generation::path(StateKind::Sled, root, number)
}

/// How many values of all kinds a generation has.
fn entries(generation: &Generation) -> usize {
    generation.tree.range(Bound::Included(Vec::new()), vec![0xff]).count()
}

fn open(root: &Path) -> State {
    State::open(Arc::new(RealDisk), root, config(), Poison::default()).unwrap()
}

/// The generation, with all commits in it.
fn flushed(state: &State) -> Arc<Generation> {
    flush(state);
    state.shared.current()
}

/// Brings all commits into sled, without a sync.
fn flush(state: &State) {
    state.shared.flush(&mut state.shared.base()).unwrap();
}

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

fn writes(pairs: &[(&str, Option<&[u8]>)]) -> Writes {
    pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.map(<[u8]>::to_vec))).collect()
}

fn rows_of(archive: &dyn Archive) -> BTreeMap<Vec<u8>, Vec<u8>> {
    archive.scan(b"", &[0xff; 8], usize::MAX).unwrap().into_iter().collect()
}

/// The key of a row: every second one of a table whose rows are stored in bundles.
fn key(number: u64) -> Vec<u8> {
    match number % 2 {
        0 => format!("row-{number:05}").into_bytes(),
        _ => [format!("Ew-{}\0", number / 50).as_bytes(), &(number % 50).to_be_bytes()].concat(),
    }
}

/// Some writes that change, add and remove rows of all sizes.
fn random_writes(random: &mut Random, keys: u64) -> Writes {
    (0..random.below(20))
        .map(|_| {
            let key = key(random.below(keys));
            let length = match random.below(20) {
                0 => rows::PIECE_BYTES * random.below(5) as usize + random.below(9) as usize,
                1 => random.below(4_000) as usize,
                _ => random.below(200) as usize,
            };
            let value = (random.below(5) > 0).then(|| vec![random.below(256) as u8; length]);
            (key, value)
        })
        .collect()
}

fn apply(model: &mut BTreeMap<Vec<u8>, Vec<u8>>, writes: &Writes) {
    for (key, value) in writes {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
}

fn snapshots(root: &Path) -> Arc<Snapshots> {
    Arc::new(Snapshots::open(real(), &root.join("snapshots"), Poison::default()).unwrap())
}

#[test]
fn rows_and_ids_come_back_after_reopening() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let large = vec![7; rows::PIECE_BYTES * 3 + 5];
    let state = open(root.path());
    assert_eq!((state.applied(), state.membership()), (None, None));
    state.commit(writes(&[("a", Some(b"1")), ("b", Some(&large))]), id(4), Some(b"members".to_vec())).unwrap();
    state.commit(writes(&[("a", None), ("c", Some(b""))]), id(5), None).unwrap();
    assert_eq!(state.sync().unwrap(), Some(id(5)));
    drop(state);
    let state = open(root.path());
    assert!(!state.was_cut_off());
    assert_eq!((state.applied(), state.membership().unwrap()), (Some(id(5)), b"members".to_vec()));
    assert_eq!(rows_of(&state), BTreeMap::from([(b"b".to_vec(), large), (b"c".to_vec(), Vec::new())]));
    assert_eq!(state.get(b"a").unwrap(), None);
    assert_eq!(state.scan(b"b", b"c", 9).unwrap().len(), 1);
    assert_eq!(state.scan(b"", b"z", 1).unwrap().len(), 1);
}

#[test]
fn pieces_of_large_rows_do_not_stay_behind() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let empty = entries(&flushed(&state));
    let bundled = key(7);
    for (index, length) in [5, 2, 0, 4].into_iter().enumerate() {
        let value = vec![1; rows::PIECE_BYTES * length + 1];
        state.commit(writes(&[("big", Some(&value))]), id(2 * index as u64), None).unwrap();
        state.commit([(bundled.clone(), Some(value.clone()))].into(), id(2 * index as u64 + 1), None).unwrap();
        flush(&state);
        assert_eq!(state.get(b"big").unwrap().unwrap(), value);
        assert_eq!(state.get(&bundled).unwrap().unwrap(), value);
    }
    drop(state);
    let state = open(root.path());
    state.commit([(b"big".to_vec(), None), (bundled, None)].into(), id(9), None).unwrap();
    assert_eq!(entries(&flushed(&state)), empty + 1, "only the applied id is left");
}

#[test]
fn a_damaged_row_is_an_error_and_not_a_value() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    state.commit(writes(&[("a", Some(b"value"))]), id(1), None).unwrap();
    let mut stored = flushed(&state).tree.get(&keys::row(b"a")).unwrap().unwrap().to_vec();
    stored[20] ^= 1;
    flushed(&state).tree.insert(keys::row(b"a"), stored).unwrap();
    assert!(state.get(b"a").unwrap_err().to_string().contains("damaged"));
    assert!(state.scan(b"a", b"b", 1).is_err());
}

#[test]
fn a_damaged_bundle_is_an_error_for_each_of_its_rows() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let in_it = [key(1), key(3)];
    state.commit(in_it.iter().map(|key| (key.clone(), Some(b"value".to_vec()))).collect(), id(1), None).unwrap();
    let tree = flushed(&state);
    let place = keys::row(&rows::place(&in_it[0]));
    let mut stored = tree.tree.get(&place).unwrap().unwrap().to_vec();
    stored[20] ^= 1;
    tree.tree.insert(place, stored).unwrap();
    for key in &in_it {
        assert!(state.get(key).unwrap_err().to_string().contains("damaged"));
    }
    assert!(state.scan(&in_it[0], b"F", 1).is_err());
    assert!(state.scan(&in_it[1], b"F", 1).is_err());
}

#[test]
fn neighbours_of_a_numbered_table_are_one_value() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let empty = entries(&flushed(&state));
    let event = |number: u64| [b"Ew\0".as_slice(), &number.to_be_bytes()].concat();
    let events = |numbers: std::ops::Range<u64>| numbers.map(|number| (event(number), Some(vec![number as u8; 20])));
    state.commit(events(1..13).collect(), id(1), None).unwrap();
    assert_eq!(entries(&flushed(&state)), empty + 2, "the bundle and the applied id");
    state.commit(events(13..40).collect(), id(2), None).unwrap();
    assert_eq!(entries(&flushed(&state)), empty + 4);
    // From the middle of one to the middle of another one, from both ends, and with rows that are not in the tree yet.
    state.commit([(event(5), None), (event(21), Some(b"new".to_vec()))].into(), id(3), None).unwrap();
    for _ in 0..2 {
        let numbers = |pairs: Vec<Pair>| -> Vec<u64> {
            pairs.iter().map(|(key, _)| u64::from_be_bytes(*key.last_chunk().unwrap())).collect()
        };
        assert_eq!(
            numbers(state.scan(&event(4), &event(19), 99).unwrap()),
            [4].into_iter().chain(6..19).collect::<Vec<_>>()
        );
        assert_eq!(numbers(state.scan(&[event(4), vec![0]].concat(), &event(19), 2).unwrap()), [6, 7]);
        assert_eq!(numbers(state.scan_back(&event(15), &event(33), 3).unwrap()), [32, 31, 30]);
        assert_eq!(state.get(&event(21)).unwrap().unwrap(), b"new");
        assert_eq!(state.get(&event(5)).unwrap(), None);
        flush(&state);
    }
}

#[test]
fn an_empty_generating_file_of_sled_does_not_block_opening() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    state.commit(writes(&[("a", Some(b"1"))]), id(1), None).unwrap();
    drop(state);
    let left = generation_dir(root.path(), 1).join("snap.0000000000001234.generating");
    fs::write(&left, b"").unwrap();
    assert_eq!(open(root.path()).get(b"a").unwrap().unwrap(), b"1");
}

#[test]
fn a_state_that_the_machine_went_down_under_says_so_until_it_is_restored() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    drop(open(root.path()));
    fs::write(root.path().join("open"), b"another boot").unwrap();
    assert!(open(root.path()).was_cut_off());
    assert!(open(root.path()).was_cut_off());
    State::restore(&real(), root.path(), None, &config()).unwrap();
    assert!(!open(root.path()).was_cut_off());
}

#[test]
fn a_snapshot_is_of_the_moment_it_was_started_whatever_is_committed_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = Arc::new(open(root.path()));
    let mut random = Random(3);
    let mut model = BTreeMap::new();
    let mut index = 0;
    for _ in 0..400 {
        index += 1;
        let writes = random_writes(&mut random, 4000);
        apply(&mut model, &writes);
        state.commit(writes, id(index), Some(index.to_be_bytes().to_vec())).unwrap();
    }
    let builder = state.snapshot_builder().unwrap();
    assert!(matches!(state.snapshot_builder(), Err(StorageError::SnapshotInProgress)));
    let stop = Arc::new(AtomicBool::new(false));
    let committing = {
        let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut random = Random(4);
            let mut commits = 0;
            while !stop.load(Ordering::Relaxed) || commits < 50 {
                index += 1;
                commits += 1;
                state.commit(random_writes(&mut random, 4000), id(index), None).unwrap();
                flush(&state);
            }
        })
    };
    let snapshot = snapshots(root.path()).write(builder).unwrap();
    stop.store(true, Ordering::Relaxed);
    committing.join().unwrap();
    assert_eq!(snapshot.header.applied, id(400));
    assert_eq!(snapshot.header.membership.as_deref(), Some(&400_u64.to_be_bytes()[..]));
    let copy = tempfile::tempdir().unwrap();
    State::create(&RealDisk, copy.path()).unwrap();
    let copy_state = open(copy.path());
    copy_state.install(&snapshot).unwrap();
    assert_eq!(rows_of(&copy_state), model);
    assert_eq!(copy_state.applied(), Some(id(400)));
    state.snapshot_builder().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Wherever a row is (in the newest layer, in the one being written, in sled), reads find its last value.
    #[test]
    fn the_state_is_a_map(seed in any::<u64>()) {
        let root = tempfile::tempdir().unwrap();
        State::create(&RealDisk, root.path()).unwrap();
        let mut state = open(root.path());
        let mut random = Random(seed);
        let mut model = BTreeMap::new();
        for index in 0..200 {
            let writes = random_writes(&mut random, 300);
            apply(&mut model, &writes);
            state.commit(writes, id(index), None).unwrap();
            match random.below(12) {
                0 => flush(&state),
                2 => {
                    drop(state);
                    state = open(root.path());
                }
                _ => {}
            }
            // Half of the reads find the layer while it is being written, below a newer one.
            let mut base = state.shared.base();
            let frozen = if random.below(2) == 0 { state.shared.freeze() } else { (None, Flushed::default()) };
            let writes = random_writes(&mut random, 300);
            apply(&mut model, &writes);
            state.commit(writes, id(index), None).unwrap();
            let (from, to) = (random.below(300), random.below(300));
            let key = |row: u64| format!("row-{row:05}").into_bytes();
            prop_assert_eq!(state.get(&key(from)).unwrap(), model.get(&key(from)).cloned());
            let limit = random.below(40) as usize;
            let expected: Vec<Pair> = match from < to {
                true => model.range(key(from)..key(to)).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect(),
                false => Vec::new(),
            };
            prop_assert_eq!(state.scan(&key(from), &key(to), limit).unwrap(), expected);
            let backwards: Vec<_> = match from < to {
                true => model.range(key(from)..key(to)).rev().take(limit).map(|(k, v)| (k.clone(), v.clone())).collect(),
                false => Vec::new(),
            };
            prop_assert_eq!(state.scan_back(&key(from), &key(to), limit).unwrap(), backwards);
            if let (Some(layer), flushed) = frozen {
                state.shared.write_frozen(&mut base, &layer, &flushed).unwrap();
            }
            drop(base);
        }
        prop_assert_eq!(rows_of(&state), model);
    }

    /// The same, with commits at chosen points between the steps of the cursor.
    #[test]
    fn a_cursor_sees_none_of_the_later_commits(seed in any::<u64>()) {
        let root = tempfile::tempdir().unwrap();
        State::create(&RealDisk, root.path()).unwrap();
        let state = open(root.path());
        let mut random = Random(seed);
        let mut model = BTreeMap::new();
        let mut index = 0;
        for _ in 0..150 {
            index += 1;
            let writes = random_writes(&mut random, 3000);
            apply(&mut model, &writes);
            state.commit(writes, id(index), None).unwrap();
        }
        let builder = state.snapshot_builder().unwrap();
        let mut found = BTreeMap::new();
        let mut last = None;
        loop {
            for _ in 0..random.below(8) {
                index += 1;
                state.commit(random_writes(&mut random, 3000), id(index), None).unwrap();
                if random.below(2) == 0 {
                    flush(&state);
                }
            }
            let Some(rows) = builder.step().unwrap() else { break };
            for (key, value) in rows {
                prop_assert!(last.as_ref() < Some(&key), "rows must ascend");
                last = Some(key.clone());
                found.insert(key, value);
            }
        }
        prop_assert_eq!(found, model);
    }
}

#[test]
fn an_install_that_fails_or_is_cut_off_leaves_the_old_state() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    state.commit(writes(&[("new", Some(&[9; 5000]))]), id(8), None).unwrap();
    let snapshots = snapshots(root.path());
    let snapshot = snapshots.write(state.snapshot_builder().unwrap()).unwrap();

    let other = tempfile::tempdir().unwrap();
    State::create(&RealDisk, other.path()).unwrap();
    let old = open(other.path());
    old.commit(writes(&[("old", Some(b"1"))]), id(2), None).unwrap();
    let bytes = fs::read(&snapshot.path).unwrap();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        fs::write(&snapshot.path, &bad).unwrap();
        if at % 16 == 0 || at < 40 {
            let error = old.install(&snapshot).unwrap_err();
            assert!(error.is_damage() || matches!(error, StorageError::NewerFormat { .. }), "byte {at}: {error}");
        }
        assert!(snapshot.verify().is_err(), "byte {at}");
    }
    fs::write(&snapshot.path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(old.install(&snapshot).is_err());
    assert_eq!(rows_of(&old).len(), 1);
    drop(old);
    // Cut off after the new generation was filled, before the switch.
    fs::create_dir(generation_dir(other.path(), 2)).unwrap();
    fs::write(generation_dir(other.path(), 2).join("db"), b"half").unwrap();
    let old = open(other.path());
    assert_eq!((old.applied(), rows_of(&old).len()), (Some(id(2)), 1));
    assert!(!generation_dir(other.path(), 2).exists());

    fs::write(&snapshot.path, &bytes).unwrap();
    let prepared = old.prepare(&snapshot).unwrap();
    assert_eq!(
        (old.applied(), old.get(b"old").unwrap()),
        (Some(id(2)), Some(b"1".to_vec())),
        "readers have the old state"
    );
    old.switch_to(prepared).unwrap();
    assert_eq!((old.applied(), old.get(b"old").unwrap()), (Some(id(8)), None));
    old.commit(writes(&[("newer", Some(b"1"))]), id(9), None).unwrap();
    drop(old);
    let old = open(other.path());
    assert_eq!((old.applied(), rows_of(&old).len()), (Some(id(9)), 2));
    assert!(!generation_dir(other.path(), 1).exists(), "the old generation is gone");
}

#[test]
fn a_snapshot_of_a_newer_machine_is_not_installed() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let newer = StateConfig { machine_version: 2, ..config() };
    let state = State::open(Arc::new(RealDisk), root.path(), newer, Poison::default()).unwrap();
    state.commit(writes(&[("a", Some(b"1"))]), id(1), None).unwrap();
    let snapshot = snapshots(root.path()).write(state.snapshot_builder().unwrap()).unwrap();
    drop(state);
    let error = open(root.path()).install(&snapshot).unwrap_err();
    assert!(matches!(error, StorageError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
}

#[test]
fn the_state_must_fit_the_log() {
    let fits = |applied: Option<u64>, installed: Option<u64>, purged: Option<u64>, last: Option<u64>| {
        check_against_log(applied.map(id), installed.map(id), purged.map(id), last.map(id))
    };
    assert_eq!(fits(None, None, None, None), Ok(()));
    assert_eq!(fits(Some(5), None, Some(5), Some(9)), Ok(()));
    assert_eq!(fits(Some(9), None, Some(5), Some(9)), Ok(()));
    assert!(matches!(fits(Some(4), None, Some(5), Some(9)), Err(Misfit::Behind { next: 5, .. })));
    assert!(matches!(fits(None, None, Some(0), Some(9)), Err(Misfit::Behind { next: 0, .. })));
    assert!(matches!(fits(Some(10), None, Some(5), Some(9)), Err(Misfit::Ahead { .. })));
    assert!(matches!(fits(Some(0), None, None, None), Err(Misfit::Ahead { .. })));
    assert_eq!(fits(Some(10), Some(10), Some(5), Some(9)), Ok(()), "killed between install and purge");
    assert!(matches!(fits(Some(11), Some(10), Some(5), Some(9)), Err(Misfit::Ahead { .. })));
}
