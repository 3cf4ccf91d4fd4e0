//! The dead letters of a workflow, and those of a namespace, are its failed rows: none is missing, none is left
//! behind. (Contract, section 6: dead letters, redrive. One that is missing here is one that nobody ever looks at.)

use std::collections::BTreeSet;

use holdfast_machine::{DispatchKey, RowStatus};

use crate::{Check, Snapshot, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let failed: BTreeSet<DispatchKey> = state.rows_in(RowStatus::Failed).map(|(key, _)| key.clone()).collect();
    let listings = &state.listings;
    for (what, keys) in [("workflow", &listings.dead_letters_of), ("namespace", &listings.dead_letters_in)] {
        let listed: BTreeSet<DispatchKey> = keys.iter().cloned().collect();
        ensure_eq!(listed.len(), keys.len(), "different dead letters of a {what}");
        ensure_eq!(listed, failed, "the dead letters by {what} are not the failed rows");
    }
    for letter in [b'G', b'H'] {
        let entries = state.stored_in(letter);
        ensure_eq!(entries, failed.len(), "table {} is not what the failed rows make of it", char::from(letter));
    }
    Ok(())
}
