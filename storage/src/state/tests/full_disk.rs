//! A disk without room: nothing is tried that could do harm, nothing is lost, and no restart is needed.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::disk::{Disk, DiskFile, DiskLock, DiskSpace};
use crate::room::Room;
use crate::snapshot::SnapshotId;

/// The real file system, which says of itself what the test wants.
#[derive(Debug, Clone)]
struct Claimed(Arc<AtomicU64>);

impl Claimed {
    const TOTAL: u64 = 8 << 20;

    fn with(free: u64) -> Self {
        Self(Arc::new(AtomicU64::new(free)))
    }

    fn set(&self, free: u64) {
        self.0.store(free, Ordering::Relaxed);
    }
}

impl Disk for Claimed {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        RealDisk.lock(path)
    }
    fn space(&self, _dir: &Path) -> io::Result<DiskSpace> {
        Ok(DiskSpace { free: self.0.load(Ordering::Relaxed), total: Self::TOTAL })
    }
}

fn open_within(root: &Path, disk: &Claimed) -> State {
    let room = Room::new(Arc::new(disk.clone()), root, u64::MAX);
    State::open(real(), root, StateConfig { room, ..config() }, Poison::default()).unwrap()
}

fn commit(state: &State, index: u64, key: &str, value: &[u8]) {
    state.commit(writes(&[(key, Some(value))]), id(index), None).unwrap();
}

fn is_full<T: std::fmt::Debug>(result: Result<T, StorageError>) -> bool {
    result.unwrap_err().is_full()
}

#[test]
fn without_room_a_sync_says_so_and_a_later_one_has_everything() {
    let root = tempfile::tempdir().unwrap();
    State::create(&*real(), root.path()).unwrap();
    let disk = Claimed::with(Claimed::TOTAL);
    let state = open_within(root.path(), &disk);
    commit(&state, 1, "a", b"1");
    disk.set(0);
    assert!(is_full(state.sync()));
    assert!(is_full(state.snapshot_builder()));
    commit(&state, 2, "b", b"2");
    assert_eq!(rows_of(&state).len(), 2, "reads and commits go on");
    disk.set(Claimed::TOTAL);
    assert_eq!(state.sync().unwrap(), Some(id(2)));
    drop(state);
    assert_eq!(rows_of(&open_within(root.path(), &disk)).len(), 2);
}

#[test]
fn commits_wait_for_room_once_memory_is_full_and_then_go_on() {
    let root = tempfile::tempdir().unwrap();
    State::create(&*real(), root.path()).unwrap();
    let disk = Claimed::with(0);
    let state = Arc::new(open_within(root.path(), &disk));
    let value = vec![7; 64 << 10];
    let mut index = 0;
    while !state.is_full() {
        index += 1;
        commit(&state, index, &index.to_string(), &value);
    }
    let waiting = std::thread::spawn({
        let (state, next) = (Arc::clone(&state), index + 1);
        move || commit(&state, next, "last", b"last")
    });
    assert!(!waiting.is_finished() && state.get(index.to_string().as_bytes()).unwrap().is_some(), "reads go on");
    disk.set(Claimed::TOTAL);
    waiting.join().unwrap();
    assert_eq!(state.applied(), Some(id(index + 1)));
    assert_eq!(state.sync().unwrap(), Some(id(index + 1)));
}

#[test]
fn a_state_that_is_closed_without_room_waits_for_nothing() {
    let root = tempfile::tempdir().unwrap();
    State::create(&*real(), root.path()).unwrap();
    let disk = Claimed::with(Claimed::TOTAL);
    let state = open_within(root.path(), &disk);
    commit(&state, 1, "a", b"1");
    state.sync().unwrap();
    disk.set(0);
    let value = vec![7; 1 << 20];
    while !state.is_full() {
        let index = state.applied().unwrap().index + 1;
        commit(&state, index, "large", &value);
    }
    drop(state);
    disk.set(Claimed::TOTAL);
    let state = open_within(root.path(), &disk);
    assert_eq!(state.applied(), Some(id(1)), "the log brings forward what was not written");
}

#[test]
fn a_snapshot_without_room_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    State::create(&*real(), root.path()).unwrap();
    let disk = Claimed::with(Claimed::TOTAL);
    let state = open_within(root.path(), &disk);
    commit(&state, 1, "a", b"1");
    let room = Room::new(Arc::new(disk.clone()), root.path(), u64::MAX);
    let snapshots = Snapshots::open(real(), &root.path().join("snapshots"), Poison::default()).unwrap();
    let snapshots = Arc::new(snapshots.within(room));
    let builder = state.snapshot_builder().unwrap();
    disk.set(0);
    assert!(is_full(snapshots.write(builder)));
    let mut receiver = snapshots.receive(&SnapshotId::unknown(100)).unwrap();
    assert!(is_full(receiver.write(b"anything")));
    drop(receiver);
    assert!(RealDisk.list(&root.path().join("snapshots")).unwrap().is_empty());
    disk.set(Claimed::TOTAL);
    assert_eq!(snapshots.write(state.snapshot_builder().unwrap()).unwrap().verify().unwrap().rows, 1);
}
