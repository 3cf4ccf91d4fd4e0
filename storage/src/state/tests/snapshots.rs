//! The directory of snapshots: which one it has, whatever was cut off.

use super::*;
use crate::fault::{Fault, FaultDisk};
use crate::snapshot::{SnapshotFile, SnapshotReceiver};

#[test]
fn interrupted_and_older_snapshots_are_removed() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let kept = snapshots(root.path());
    assert!(kept.newest().unwrap().is_none());
    assert!(matches!(state.snapshot_builder(), Err(StorageError::NothingApplied)));
    state.commit(writes(&[("a", Some(b"1"))]), id(1), None).unwrap();
    let first = kept.write(state.snapshot_builder().unwrap()).unwrap();
    state.commit(writes(&[("b", Some(b"1"))]), id(2), None).unwrap();
    let second = kept.write(state.snapshot_builder().unwrap()).unwrap();
    assert!(!first.path.exists());
    let unfinished = root.path().join("snapshots/4711.tmp");
    fs::write(unfinished, "half").unwrap();
    fs::write(&first.path, "an older one").unwrap();
    drop(kept);
    assert_eq!(snapshots(root.path()).newest().unwrap().unwrap().header, second.header);
    assert_eq!(names(root.path()).len(), 1);
}

fn names(root: &Path) -> Vec<String> {
    RealDisk.list(&root.join("snapshots")).unwrap()
}

/// A snapshot as of `index` that another node has taken.
fn sent(root: &Path, index: u64) -> SnapshotFile {
    State::create(&RealDisk, root).unwrap();
    let state = open(root);
    let mut random = Random(index);
    let mut noise = || (0..32 * 1024).map(|_| random.below(256) as u8).collect::<Vec<_>>();
    let rows = [b"a", b"b", b"c"].map(|key| (key.to_vec(), Some(noise())));
    state.commit(rows.into_iter().collect(), id(index), None).unwrap();
    snapshots(root).write(state.snapshot_builder().unwrap()).unwrap()
}

fn receive(into: &Arc<Snapshots>, sent: &SnapshotFile, until: u64) -> SnapshotReceiver {
    let mut receiver = into.receive(&sent.id().unwrap()).unwrap();
    while receiver.received() < until {
        let left = until - receiver.received();
        receiver.write(&sent.read(receiver.received(), left.min(700) as usize).unwrap()).unwrap();
    }
    receiver
}

#[test]
fn a_snapshot_that_comes_in_pieces_goes_on_where_it_was() {
    let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sent = sent(other.path(), 7);
    assert!(sent.length > 20_000);
    let into = snapshots(root.path());
    let first = receive(&into, &sent, 5_000);
    let mut second = receive(&into, &sent, 0);
    assert_eq!(second.received(), 5_000);
    second.write(&sent.read(5_000, 1_000).unwrap()).unwrap();
    let mut first = first;
    assert!(first.write(b"late").unwrap_err().to_string().contains("taken over"));
    assert!(first.finish().is_err());
    // Over a restart as well; until it is whole it is nothing that could be served.
    drop((second, into));
    let into = snapshots(root.path());
    assert!(into.newest().unwrap().is_none());
    let receiver = receive(&into, &sent, 0);
    assert_eq!(receiver.received(), 6_000);
    drop(receiver);
    let whole = receive(&into, &sent, sent.length).finish().unwrap();
    assert_eq!((&whole.header, whole.id().unwrap()), (&sent.header, sent.id().unwrap()));
    assert_eq!(whole.verify().unwrap(), sent.verify().unwrap());
    assert_eq!(names(root.path()).len(), 1);
    // More than was announced is not written.
    let mut receiver = receive(&into, &sent, sent.length);
    assert!(receiver.write(b"more").unwrap_err().to_string().contains("more came"));
}

#[test]
fn a_first_part_that_is_wrong_is_noticed_and_thrown_away() {
    let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sent = sent(other.path(), 7);
    let into = snapshots(root.path());
    for (from, bytes) in [(0, &b"wrong"[..]), (3_000, &[0; 2_000]), (4_999, b"x")] {
        drop(receive(&into, &sent, 5_000));
        let [partial] = &names(root.path())[..] else { panic!("one file") };
        let file = RealDisk.open(&root.path().join("snapshots").join(partial)).unwrap();
        file.write_at(from, bytes).unwrap();
        assert!(receive(&into, &sent, sent.length).finish().is_err());
        assert!(into.newest().unwrap().is_none() && names(root.path()).is_empty());
    }
    // One that is longer than the whole is not of it.
    drop(receive(&into, &sent, 5_000));
    let [partial] = &names(root.path())[..] else { panic!("one file") };
    RealDisk.open(&root.path().join("snapshots").join(partial)).unwrap().set_len(sent.length + 1).unwrap();
    assert_eq!(receive(&into, &sent, 0).received(), 0);
    receive(&into, &sent, sent.length).finish().unwrap();
}

#[test]
fn of_first_parts_there_is_one_and_none_that_is_older_than_the_snapshot() {
    let (root, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sent = |index: u64| sent(&others.path().join(index.to_string()), index);
    let into = snapshots(root.path());
    drop(receive(&into, &sent(7), 100));
    drop(receive(&into, &sent(8), 100));
    assert_eq!(names(root.path()).len(), 1);
    assert_eq!(receive(&into, &sent(7), 0).received(), 0);
    let seven = sent(7);
    drop(receive(&into, &seven, 100));
    // A snapshot of the node's own, behind it and before it.
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    state.commit(writes(&[("a", Some(b"1"))]), id(6), None).unwrap();
    into.write(state.snapshot_builder().unwrap()).unwrap();
    drop(into);
    let into = snapshots(root.path());
    assert_eq!(receive(&into, &seven, 0).received(), 100);
    state.commit(writes(&[("a", Some(b"1"))]), id(7), None).unwrap();
    into.write(state.snapshot_builder().unwrap()).unwrap();
    assert_eq!(names(root.path()).len(), 1);
    drop(receive(&into, &sent(3), 100));
    drop(into);
    assert_eq!(snapshots(root.path()).newest().unwrap().unwrap().header.applied, id(7));
    assert_eq!(names(root.path()).len(), 1);
}

#[test]
fn a_snapshot_directory_has_a_whole_snapshot_wherever_the_power_goes() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let dir = Path::new("/snapshots");
    let open_on = |disk: &FaultDisk| Snapshots::open(Arc::new(disk.clone()), dir, Poison::default());
    state.commit(random_writes(&mut Random(1), 500), id(1), None).unwrap();
    let before = FaultDisk::default();
    open_on(&before).unwrap().write(state.snapshot_builder().unwrap()).unwrap();
    for index in 2..60 {
        state.commit(random_writes(&mut Random(index), 500), id(index), None).unwrap();
    }
    let mut newer = 0;
    for cut in 0.. {
        let disk = before.copy();
        disk.fail_after(cut, Fault::Stop);
        let written = open_on(&disk).and_then(|snapshots| snapshots.write(state.snapshot_builder()?));
        for seed in 0..4 {
            let after = if seed == 0 { disk.kill() } else { disk.power_loss(seed) };
            let snapshots = open_on(&after).unwrap();
            let newest = snapshots.newest().unwrap().unwrap();
            assert_eq!(after.list(dir).unwrap().len(), 1, "cut {cut}, seed {seed}: leftovers");
            newest.verify().unwrap_or_else(|error| panic!("cut {cut}, seed {seed}: {error}"));
            let at = newest.header.applied;
            assert!(at == id(59) || (written.is_err() && at == id(1)), "cut {cut}, seed {seed}: {at}");
            newer += usize::from(at == id(59));
        }
        if written.is_ok() {
            assert!(cut > 5 && newer > 4, "{cut} cuts, {newer} times the newer snapshot");
            return;
        }
    }
}
