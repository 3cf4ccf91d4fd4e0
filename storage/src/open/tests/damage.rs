//! One bit of sled's file is turned over where sled does not look when it opens it.

use super::*;
use crate::fault::rot;

/// Entries, each with a row that fills pages by itself: many of sled's segments.
const ENTRIES: u64 = 900;
const ROW_BYTES: usize = 12 << 10;

fn work_much(storage: &Storage) {
    for index in 0..ENTRIES {
        append(storage, index);
        let writes = BTreeMap::from([(
            index.to_be_bytes().to_vec(),
            Some(vec![if index / 20 == 20 { ROTTEN } else { 1 }; ROW_BYTES]),
        )]);
        storage.state.commit(writes, id(index), Some(b"members".to_vec())).unwrap();
    }
}

fn rows(storage: &Storage) -> Vec<holdfast_machine::Pair> {
    storage.state.scan(b"", &[0xff; 9], usize::MAX).unwrap()
}

/// A byte that the rows of some entries in the middle have, and no other bytes are full of.
const ROTTEN: u8 = 0x7b;

fn generation(path: &Path) -> std::path::PathBuf {
    rot::generation(path).unwrap()
}

/// A directory with a state in which damage is found only when rows are read. With a snapshot, the log is purged.
fn with_damaged_pages(with_snapshot: bool) -> (tempfile::TempDir, Vec<holdfast_machine::Pair>) {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work_much(&storage);
    if with_snapshot {
        snapshot_and_purge(&storage, ENTRIES - 100);
    }
    drop(storage);
    // sled notes how far it has come when it opens.
    let storage = open(root.path()).unwrap();
    work(&storage, ENTRIES..ENTRIES + 1);
    let sound = rows(&storage);
    drop(storage);
    let rotten = rot::rot(&generation(root.path()), |piece| piece.iter().all(|byte| *byte == ROTTEN)).unwrap();
    assert!(rotten > 100, "{rotten} bits");
    let report = crate::verify::verify(root.path()).unwrap();
    assert!(report.to_string().contains(generation(root.path()).to_str().unwrap()), "{report}");
    (root, sound)
}

/// The state has said what it found, and that nothing is acknowledged any more.
fn has_stopped(storage: &Storage, path: &Path) {
    let said = storage.dir.failure().unwrap();
    for part in [generation(path).to_str().unwrap(), "is damaged", "Start it again"] {
        assert!(said.contains(part), "no word of {part:?} in {said}");
    }
    let refused = storage.state.commit(BTreeMap::new(), id(ENTRIES + 1), None).unwrap_err();
    assert!(refused.to_string().contains("is damaged"), "{refused}");
    assert!(storage.log.save_vote(crate::Vote { term: 9, node: 1, committed: false }).is_err());
}

/// Reads until the damage is found, in the ways that there are.
fn find(storage: &Storage, way: usize) -> String {
    let first = |index: u64| storage.state.get(&index.to_be_bytes()).err();
    match way {
        0 => (0..ENTRIES).find_map(first).unwrap().to_string(),
        1 => storage.state.scan(b"", &[0xff; 9], usize::MAX).unwrap_err().to_string(),
        2 => storage.state.scan_back(b"", &[0xff; 9], usize::MAX).unwrap_err().to_string(),
        3 => storage.snapshots.write(storage.state.snapshot_builder().unwrap()).unwrap_err().to_string(),
        _ => {
            let changed = (0..ENTRIES).map(|index| (index.to_be_bytes().to_vec(), Some(b"changed".to_vec())));
            storage.state.commit(changed.collect(), id(ENTRIES), None).unwrap();
            storage.state.sync().unwrap_err().to_string()
        }
    }
}

#[test]
fn damage_that_is_found_late_stops_the_storage_and_the_next_start_makes_the_state_anew() {
    for way in 0..5 {
        let (root, sound) = with_damaged_pages(true);
        let storage = open(root.path()).unwrap();
        assert_eq!(storage.state.applied(), Some(id(ENTRIES)), "it opens as if nothing were wrong");
        let said = find(&storage, way);
        assert!(said.contains("is damaged"), "way {way}: {said}");
        has_stopped(&storage, root.path());
        drop(storage);

        let damaged = generation(root.path());
        let storage = open(root.path()).unwrap();
        assert_eq!((storage.state.applied(), storage.dir.failure()), (Some(id(ENTRIES - 1)), None));
        assert_eq!(rows(&storage), sound[..ENTRIES as usize], "the log has the rest");
        work(&storage, ENTRIES + 1..ENTRIES + 2);
        drop(storage);
        let names: Vec<_> = fs::read_dir(root.path().join("state")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(!damaged.exists() && !names.iter().any(|name| name.to_str().unwrap().contains("damaged")), "{names:?}");
        assert!(crate::verify::verify(root.path()).unwrap().is_sound());
    }
}

#[test]
fn damage_that_is_found_late_is_replayed_when_the_log_is_whole() {
    let (root, _) = with_damaged_pages(false);
    let storage = open(root.path()).unwrap();
    find(&storage, 3);
    drop(storage);
    let storage = open(root.path()).unwrap();
    assert_eq!((storage.state.applied(), storage.log.last()), (None, Some(id(ENTRIES))));
}

#[test]
fn damage_that_is_found_late_is_refused_from_then_on_when_nothing_is_left_to_mend_it() {
    let (root, _) = with_damaged_pages(true);
    let storage = open(root.path()).unwrap();
    let snapshot = storage.snapshots.newest().unwrap().unwrap().path;
    find(&storage, 0);
    drop(storage);
    fs::remove_file(snapshot).unwrap();
    let before = contents(root.path());
    for _ in 0..2 {
        let error = open(root.path()).unwrap_err();
        assert!(error.is_damage(), "{error}");
        for part in [generation(root.path()).to_str().unwrap(), "holdfast member replace"] {
            assert!(error.to_string().contains(part), "no word of {part:?} in {error}");
        }
    }
    assert!(contents(root.path()) == before, "something was changed");
}
