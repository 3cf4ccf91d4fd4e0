//! A real process, killed in the middle of commits and syncs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "HOLDFAST_TEST_STATE_DIR";

/// What entry `index` writes: some rows of its own, and some that later entries overwrite or remove.
fn entry(index: u64) -> Writes {
    let own = (0..4).map(|row| (format!("own-{index:06}-{row}").into_bytes(), Some(vec![index as u8; 60])));
    let shared = (0..4).map(|row| {
        let key = format!("shared-{:03}", (index * 7 + row) % 200).into_bytes();
        (key, (!index.is_multiple_of(5)).then(|| index.to_string().repeat(1 + row as usize * 40).into_bytes()))
    });
    own.chain(shared).collect()
}

/// Not a test by itself: the process that [`a_killed_state_is_as_of_some_entry_after_the_last_sync`] kills.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let state = open(Path::new(&dir));
    let first = state.applied().map_or(0, |applied| applied.index + 1);
    println!("begin {first}");
    for index in first.. {
        state.commit(entry(index), id(index), None).unwrap();
        if index.is_multiple_of(40) {
            println!("synced {}", state.sync().unwrap().unwrap().index);
        } else if index.is_multiple_of(9) {
            flush(&state);
        }
    }
}

#[test]
fn a_killed_state_is_as_of_some_entry_after_the_last_sync() {
    let root = tempfile::tempdir().unwrap();
    State::create(&RealDisk, root.path()).unwrap();
    let mut model = BTreeMap::new();
    let mut modelled = 0;
    for round in 1..=4_usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::tests::kill::child", "--nocapture", "--test-threads=1"])
            .env(DIR, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let synced = lines.map_while(Result::ok).filter_map(|line| Some(line.split_once("synced ")?.1.to_owned()));
        let promised: u64 = synced.take(round * 3).last().unwrap().parse().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let state = open(root.path());
        assert!(!state.was_cut_off(), "the machine did not go down");
        let applied = state.applied().unwrap().index;
        assert!(applied >= promised, "round {round}: {promised} was synced, the state is as of {applied}");
        for index in modelled..=applied {
            apply(&mut model, &entry(index));
        }
        modelled = applied + 1;
        assert_eq!(rows_of(&state), model, "round {round}");
    }
}
