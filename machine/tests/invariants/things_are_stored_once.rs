//! A row is stored as live or as finished, a workflow as open or as closed, never as both: a start reads only what
//! lives, and would bring the other one back. (The key layout of the state; invariant 14 after a restart.)

use super::Step;

pub fn check(step: &Step<'_>) {
    for [live, finished] in [[b'L', b'O'], [b'A', b'W']] {
        for key in step.after.stored.iter().filter(|key| key[0] == live) {
            let mut twin = key.clone();
            twin[0] = finished;
            let shown = String::from_utf8_lossy(key);
            assert!(!step.after.stored.contains(&twin), "{shown} is stored as {} as well", char::from(finished));
        }
    }
    let in_table = |letter| step.after.stored.iter().filter(|key| key[0] == letter).count();
    assert_eq!(in_table(b'L'), step.after.live.len(), "live rows are not those on disk");
    assert_eq!(in_table(b'L') + in_table(b'O'), step.after.rows.len(), "rows on disk are not those that can be seen");
    assert_eq!(in_table(b'A') + in_table(b'W'), step.after.workflows.len(), "nor are workflows");
}
