//! A row is stored as live or as finished, a workflow as open or as closed, never as both: a start reads only what
//! lives, and would bring the other one back. Each row has its input, and each input its row, so that a row that is
//! gone is missed. (The key layout of the state; invariant 14 after a restart.)

use std::collections::BTreeSet;

use crate::{Check, Snapshot, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for [live, finished] in [[b'L', b'O'], [b'A', b'W']] {
        for key in state.stored.iter().filter(|key| key[0] == live) {
            let mut twin = key.clone();
            twin[0] = finished;
            let shown = String::from_utf8_lossy(key);
            ensure!(!state.stored.contains(&twin), "{shown} is stored as {} as well", char::from(finished));
        }
    }
    let in_table = |letter| state.stored_in(letter);
    ensure_eq!(in_table(b'L'), state.live.len(), "live rows are not those on disk");
    ensure_eq!(in_table(b'L') + in_table(b'O'), state.rows.len(), "rows on disk are not those that can be seen");
    ensure_eq!(in_table(b'A') + in_table(b'W'), state.workflows.len(), "nor are workflows");
    let of = |tables: &[u8]| -> BTreeSet<&[u8]> {
        state.stored.iter().filter(|key| tables.contains(&key[0])).map(|key| &key[1..]).collect()
    };
    let (rows, inputs) = (of(b"LO"), of(b"I"));
    let odd = rows.symmetric_difference(&inputs).next().map(|key| String::from_utf8_lossy(key));
    ensure!(odd.is_none(), "a row without an input, or an input without a row: {odd:?}");
    Ok(())
}
