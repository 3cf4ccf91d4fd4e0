//! The file that makes the writing of a layer all or nothing, and what it shows of a tree that has lost rows.

use super::*;
use crate::rows::Write;

#[test]
fn a_layer_that_was_cut_off_anywhere_is_finished_at_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    let mut model = BTreeMap::new();
    let mut random = Random(11);
    for round in 0..12_u64 {
        for step in 0..10 {
            let writes = random_writes(&mut random, 200);
            apply(&mut model, &writes);
            state.commit(writes, id(round * 10 + step), Some(vec![round as u8])).unwrap();
        }
        // What write_layer does, stopped after some of the rows.
        let mut base = state.shared.base();
        let (Some(layer), Flushed { applied, membership }) = state.shared.freeze() else { panic!("nothing to write") };
        let generation = state.shared.current();
        layer_file::save(
            &RealDisk,
            root.path(),
            generation.number,
            &layer,
            base.applied,
            applied.unwrap(),
            membership.as_deref(),
        )
        .unwrap();
        let some = random.below(layer.rows.len() as u64 + 1) as usize;
        let rows = layer.rows.iter().take(some);
        let writes: Vec<_> =
            rows.map(|(key, slot)| Write { key, index: slot.index, value: slot.value.as_deref() }).collect();
        for writes in rows::by_place(&writes) {
            rows::put(&generation.tree, &mut base.large, writes).unwrap();
        }
        generation.sync().unwrap();
        let copy = tempfile::tempdir().unwrap();
        copy_dir(root.path(), copy.path());
        let found = open(copy.path());
        assert_eq!((found.applied(), found.membership()), (applied, Some(vec![round as u8])), "round {round}");
        assert_eq!(rows_of(&found), model, "round {round}, after {some} rows");
        state.shared.write_frozen(&mut base, &layer, &Flushed { applied, membership }).unwrap();
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => {
                fs::create_dir_all(&to).unwrap();
                copy_dir(&entry.path(), &to);
            }
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn a_damaged_layer_is_damage() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let state = open(root.path());
    state.commit(writes(&[("a", Some(b"1"))]), id(1), None).unwrap();
    drop(state);
    let layer = root.path().join("layer-0000000001");
    let mut bytes = fs::read(&layer).unwrap();
    bytes[30] ^= 1;
    fs::write(&layer, bytes).unwrap();
    assert!(State::open(Arc::new(RealDisk), root.path(), config(), Poison::default()).unwrap_err().is_damage());
}

#[test]
fn a_layer_does_not_hide_that_sled_has_lost_rows() {
    let (root, older) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    State::create(&RealDisk, root.path()).unwrap();
    let generation = generation_dir(root.path(), 1);
    let commit = |state: &State, index: u64| {
        state.commit(writes(&[(&format!("row-{index}"), Some(b"1"))]), id(index), None).unwrap();
        state.sync().unwrap();
    };
    let state = open(root.path());
    commit(&state, 1);
    drop(state);
    copy_dir(&generation, older.path());
    let state = open(root.path());
    commit(&state, 2);
    commit(&state, 3);
    drop(state);

    // sled as it opens when its file is damaged behind the first row.
    fs::remove_dir_all(&generation).unwrap();
    fs::create_dir(&generation).unwrap();
    copy_dir(older.path(), &generation);
    let error = State::open(Arc::new(RealDisk), root.path(), config(), Poison::default()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("rows were lost"), "{error}");
}
