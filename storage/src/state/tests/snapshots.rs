//! The directory of snapshots: which one it has, whatever was cut off.

use super::*;
use crate::fault::{Fault, FaultDisk};

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
    // Received in pieces, as over the network.
    let bytes = {
        let second = kept.write(state.snapshot_builder().unwrap()).unwrap();
        fs::read(second.path).unwrap()
    };
    assert!(!first.path.exists());
    let mut receiver = kept.receive().unwrap();
    bytes.chunks(7).for_each(|piece| receiver.write(piece).unwrap());
    assert_eq!(receiver.received(), bytes.len() as u64);
    assert_eq!(receiver.finish().unwrap().header.applied, id(2));
    let mut broken = kept.receive().unwrap();
    broken.write(&bytes[..bytes.len() - 3]).unwrap();
    assert!(broken.finish().unwrap_err().is_damage());
    let abandoned = kept.receive().unwrap();
    std::mem::forget(abandoned);
    let dir = root.path().join("snapshots");
    assert_eq!(RealDisk.list(&dir).unwrap().len(), 2);
    drop(kept);
    assert_eq!(snapshots(root.path()).newest().unwrap().unwrap().header.applied, id(2));
    assert_eq!(RealDisk.list(&dir).unwrap().len(), 1);
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
