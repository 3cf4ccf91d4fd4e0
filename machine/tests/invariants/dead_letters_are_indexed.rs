//! The dead letters of a workflow, and those of a namespace, are its failed rows: none is missing, none is left
//! behind. (Contract, section 6: dead letters, redrive. One that is missing here is one that nobody ever looks at.)

use std::collections::BTreeSet;

use holdfast_machine::{DispatchKey, RowStatus};

use super::Step;

pub fn check(step: &Step<'_>) {
    let failed: BTreeSet<DispatchKey> = step.after.rows_in(RowStatus::Failed).map(|(key, _)| key.clone()).collect();
    let listings = &step.after.listings;
    for (what, keys) in [("workflow", &listings.dead_letters_of), ("namespace", &listings.dead_letters_in)] {
        let listed: BTreeSet<DispatchKey> = keys.iter().cloned().collect();
        assert_eq!(listed.len(), keys.len(), "a dead letter of a {what} is listed twice");
        assert_eq!(listed, failed, "the dead letters by {what} are not the failed rows");
    }
    for letter in [b'G', b'H'] {
        let entries = step.after.stored.iter().filter(|key| key[0] == letter).count();
        assert_eq!(entries, failed.len(), "table {} is not what the failed rows make of it", char::from(letter));
    }
}
