#![allow(clippy::unwrap_used)]
//! Opening: what comes back, what is made anew, what is refused.

mod damage;

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::data_dir::tests::contents;
use crate::ids::{LogId, LogRecord};
use holdfast_machine::Archive;

fn open(path: &Path) -> Result<Storage, StorageError> {
    let log = LogConfig { segment_bytes: 4096, ..LogConfig::default() };
    let expected = Expected { cluster: "prod".into(), name: "node-1".into() };
    Storage::open(path, &expected, &Options { log, ..Options::default() })
}

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

fn append(storage: &Storage, index: u64) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let record = LogRecord { id: id(index), payload: vec![7; 100].into() };
    storage.log.append(vec![record], Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
}

/// Appends and applies `indexes`, one row each.
fn work(storage: &Storage, indexes: std::ops::Range<u64>) {
    for index in indexes {
        append(storage, index);
        let writes = BTreeMap::from([(index.to_be_bytes().to_vec(), Some(vec![1; 40]))]);
        storage.state.commit(writes, id(index), Some(b"members".to_vec())).unwrap();
    }
}

fn snapshot_and_purge(storage: &Storage, upto: u64) {
    storage.snapshots.write(storage.state.snapshot_builder().unwrap()).unwrap();
    assert!(storage.state.sync().unwrap() >= Some(id(upto)));
    storage.log.purge(id(upto)).unwrap();
}

/// Makes sled's file unreadable.
fn ruin_state(path: &Path) {
    let current = fs::read_dir(path.join("state")).unwrap().map(|entry| entry.unwrap().path());
    let dir = current.filter(|path| path.is_dir()).max().unwrap();
    fs::remove_file(dir.join("conf")).unwrap();
    fs::write(dir.join("conf"), "segment_size: nonsense").unwrap();
}

#[test]
fn all_parts_come_back_and_the_state_keeps_its_place() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    assert!(storage.dir.is_fresh());
    work(&storage, 0..60);
    snapshot_and_purge(&storage, 30);
    drop(storage);
    let storage = open(root.path()).unwrap();
    assert_eq!((storage.state.applied(), storage.log.last()), (Some(id(59)), Some(id(59))));
    assert_eq!(storage.snapshots.newest().unwrap().unwrap().header.applied, id(59));
}

#[test]
fn a_damaged_state_is_made_anew_from_the_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..40);
    snapshot_and_purge(&storage, 30);
    work(&storage, 40..50);
    drop(storage);
    ruin_state(root.path());
    let storage = open(root.path()).unwrap();
    assert_eq!(storage.state.applied(), Some(id(39)), "the log brings forward the rest");
    assert_eq!(storage.state.membership().unwrap(), b"members");
    assert_eq!(storage.state.scan(b"", &[0xff; 9], 100).unwrap().len(), 40);
}

#[test]
fn a_damaged_state_is_replayed_when_the_log_is_whole() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..10);
    drop(storage);
    ruin_state(root.path());
    let storage = open(root.path()).unwrap();
    assert_eq!((storage.state.applied(), storage.log.last()), (None, Some(id(9))));
    work(&storage, 10..11);
}

#[test]
fn a_damaged_state_with_nothing_to_make_it_from_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..40);
    snapshot_and_purge(&storage, 30);
    let snapshot = storage.snapshots.newest().unwrap().unwrap().path;
    drop(storage);
    fs::remove_file(snapshot).unwrap();
    ruin_state(root.path());
    let error = open(root.path()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("from its peers"), "{error}");
}

#[test]
fn a_state_is_not_trusted_after_the_machine_went_down_under_it() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..40);
    snapshot_and_purge(&storage, 30);
    work(&storage, 40..45);
    drop(storage);
    fs::write(root.path().join("state/open"), "another boot").unwrap();
    let storage = open(root.path()).unwrap();
    assert_eq!(storage.state.applied(), Some(id(39)));
    assert!(!storage.state.was_cut_off());
}

#[test]
fn a_log_that_has_lost_entries_is_not_covered_up() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..40);
    drop(storage);
    fs::remove_dir_all(root.path().join("log")).unwrap();
    Log::create(&crate::disk::RealDisk, &root.path().join("log")).unwrap();
    let error = open(root.path()).unwrap_err();
    assert!(matches!(error, StorageError::Mismatch { .. }), "{error}");
}

#[test]
fn killed_between_install_and_purge_it_opens() {
    let root = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let (storage, leader) = (open(root.path()).unwrap(), open(other.path()).unwrap());
    work(&storage, 0..10);
    work(&leader, 0..30);
    let sent = leader.snapshots.write(leader.state.snapshot_builder().unwrap()).unwrap();
    let mut receiver = storage.snapshots.receive(&sent.id().unwrap()).unwrap();
    receiver.write(&fs::read(sent.path).unwrap()).unwrap();
    storage.state.install(&receiver.finish().unwrap()).unwrap();
    drop(storage);
    let storage = open(root.path()).unwrap();
    assert_eq!((storage.state.applied(), storage.log.last()), (Some(id(29)), Some(id(9))));
    storage.log.purge(id(29)).unwrap();
    work(&storage, 30..31);
}

#[test]
fn on_a_disk_in_memory_appends_wait_until_the_log_is_driven() {
    let disk = crate::fault::FaultDisk::default();
    let log = LogConfig { segment_bytes: 4096, writer: crate::LogWriter::Driven, ..LogConfig::default() };
    let state = StateConfig { kind: crate::StateKind::Plain, ..StateConfig::default() };
    let options = |disk: &crate::fault::FaultDisk| Options {
        disk: Arc::new(disk.clone()),
        log: log.clone(),
        state: state.clone(),
        ..Options::default()
    };
    let (path, expected) = (Path::new("/data"), Expected { cluster: "prod".into(), name: "node-1".into() });
    let storage = Storage::open(path, &expected, &options(&disk)).unwrap();
    assert!(matches!(Storage::open(path, &expected, &options(&disk)), Err(StorageError::InUse { .. })));
    let (sender, receiver) = std::sync::mpsc::channel();
    for index in 0..3 {
        let sender = sender.clone();
        let record = LogRecord { id: id(index), payload: vec![7; 100].into() };
        storage.log.append(vec![record], Box::new(move |result| sender.send(result).unwrap()));
    }
    assert!(receiver.try_recv().is_err(), "nothing is written yet");
    let lost = Storage::open(path, &expected, &options(&disk.power_loss(1))).unwrap();
    assert_eq!(lost.log.last(), None);
    assert!(storage.log.drive());
    assert_eq!(receiver.try_iter().filter(Result::is_ok).count(), 3);
    assert_eq!(storage.log.stats().groups, 1);
    let writes = BTreeMap::from([(b"row".to_vec(), Some(vec![1; 40_000]))]);
    storage.state.commit(writes, id(2), Some(b"members".to_vec())).unwrap();
    assert_eq!(storage.state.sync().unwrap(), Some(id(2)));
    let after = Storage::open(path, &expected, &options(&disk.power_loss(2))).unwrap();
    assert_eq!((after.log.last(), after.state.applied()), (Some(id(2)), Some(id(2))));
    assert_eq!(after.state.get(b"row").unwrap().unwrap(), vec![1; 40_000]);
    assert!(!after.state.was_cut_off());
    // What still has the disk as it was before the loss ends without a word.
    disk.fail_after(0, crate::fault::Fault::Stop);
    let refused = storage.log.save_vote(crate::Vote { term: 1, node: 1, committed: false });
    assert!(refused.is_err() && disk.has_stopped());
    drop(storage);
}

#[test]
fn verify_names_the_part_that_is_damaged_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..60);
    snapshot_and_purge(&storage, 30);
    work(&storage, 60..70);
    drop(storage);
    assert!(crate::verify::verify(root.path()).unwrap().is_sound());
    let part = |path: &Path| path.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned();
    let mut damaged = Vec::new();
    for (path, bytes) in contents(root.path()) {
        let name = part(&path);
        // sled's rows lie somewhere in a large file, mostly of zeros: one whole segment of it is damaged.
        let is_ours = ["identity", "log/vote", "state/current", "state/layer", "snapshots/", ".log"]
            .iter()
            .any(|ours| name.contains(ours));
        if !is_ours && !name.ends_with("/db") && !name.ends_with("/conf") {
            continue;
        }
        let mut bad = bytes.clone();
        match is_ours {
            true => bad[8] ^= 1,
            false => bad.iter_mut().filter(|byte| **byte != 0).for_each(|byte| *byte ^= 0x55),
        }
        fs::write(&path, bad).unwrap();
        let before = contents(root.path());
        let report = crate::verify::verify(root.path()).unwrap();
        assert!(contents(root.path()) == before, "{name}: verify has changed something");
        let place = if is_ours { path.as_path() } else { path.parent().unwrap() };
        assert!(!report.is_sound() && report.to_string().contains(place.to_str().unwrap()), "{name}: {report}");
        fs::write(&path, bytes).unwrap();
        damaged.push(name);
    }
    assert!(damaged.len() >= 9, "{damaged:?}");
    assert!(crate::verify::verify(root.path()).unwrap().is_sound());
}

#[test]
fn verify_reports_what_is_sound_and_what_is_not() {
    let root = tempfile::tempdir().unwrap();
    let storage = open(root.path()).unwrap();
    work(&storage, 0..60);
    snapshot_and_purge(&storage, 30);
    assert!(matches!(crate::verify::verify(root.path()), Err(StorageError::InUse { .. })));
    drop(storage);
    let report = crate::verify::verify(root.path()).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.state.unwrap().rows, report.snapshots[0].rows), (60, 60));

    let snapshot = report.snapshots[0].path.clone();
    let mut bytes = fs::read(&snapshot).unwrap();
    bytes[60] ^= 1;
    fs::write(&snapshot, bytes).unwrap();
    let segments = fs::read_dir(root.path().join("log")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.filter(|path| path.extension().is_some()).min().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[500] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let report = crate::verify::verify(root.path()).unwrap();
    assert_eq!((report.problems.len(), report.is_sound()), (2, false), "{report}");
    assert!(report.to_string().contains(segment.to_str().unwrap()));
    assert!(open(root.path()).unwrap_err().is_damage());
}

#[test]
fn verify_tells_what_is_missing_to_no_harm_from_what_is_not_there_at_all() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    for (what, words) in [("nothing", "nothing is there"), ("empty", "the directory is empty")] {
        let error = crate::verify::verify(&data).unwrap_err();
        assert!(
            matches!(error, StorageError::NoDataDirectory { .. }) && error.to_string().contains(words),
            "{what}: {error}"
        );
        fs::create_dir_all(&data).unwrap();
    }
    fs::write(data.join("thesis.tex"), "draft").unwrap();
    let error = crate::verify::verify(&data).unwrap_err();
    assert!(error.to_string().contains("holds files (thesis.tex, ...)"), "{error}");
    fs::remove_file(data.join("thesis.tex")).unwrap();

    work(&open(&data).unwrap(), 0..10);
    let conf = crate::fault::rot::generation(&data).unwrap().join("conf");
    for file in [&conf, &data.join("log/committed")] {
        fs::remove_file(file).unwrap();
        let report = crate::verify::verify(&data).unwrap();
        assert!(report.is_sound() && report.to_string().contains(file.to_str().unwrap()), "{report}");
        assert!(!file.exists(), "verify has changed something");
        assert_eq!(open(&data).unwrap().state.applied(), Some(id(9)));
        assert_eq!(crate::verify::verify(&data).unwrap().notes, [""; 0]);
    }
}
