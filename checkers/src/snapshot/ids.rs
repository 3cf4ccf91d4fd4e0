//! Which workflows and rows the stored keys speak of. The layout is the one of `machine/src/keys.rs`, told a second
//! time: whoever looks for what should not be there cannot ask the machine what there is.

use std::collections::BTreeSet;

use holdfast_machine::{Archive, ArchiveResult, DispatchKey, WorkflowId};

/// How many keys are read at a time.
const PAGE: usize = 4_096;

/// The keys of everything that is stored.
pub fn stored(archive: &dyn Archive) -> ArchiveResult<BTreeSet<Vec<u8>>> {
    let (mut all, mut from) = (BTreeSet::new(), Vec::new());
    loop {
        let page = archive.scan(&from, &[u8::MAX], PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(all) };
        from = [last.as_slice(), &[0]].concat();
        all.extend(page.into_iter().map(|(key, _)| key));
    }
}

/// The workflow that a key speaks of.
pub fn workflow_of(key: &[u8]) -> Option<WorkflowId> {
    let id = match key.split_first()? {
        (b'A' | b'W' | b'R' | b'E' | b'L' | b'O' | b'I' | b'D' | b'T' | b'F' | b'H' | b'J' | b'P', rest) => rest,
        // Behind the namespace.
        (b'G', rest) => rest.splitn(2, |byte| *byte == 0).nth(1)?,
        _ => return None,
    };
    WorkflowId::new(std::str::from_utf8(id.split(|byte| *byte == 0).next()?).ok()?).ok()
}

/// The row that a key is of.
pub fn row_of(key: &[u8]) -> Option<DispatchKey> {
    let (b'L' | b'O', rest) = key.split_first()? else { return None };
    let (id, ordinal) = rest.split_last_chunk::<8>()?;
    let workflow = WorkflowId::new(std::str::from_utf8(id.strip_suffix(&[0])?).ok()?).ok()?;
    Some(DispatchKey { workflow, ordinal: u64::from_be_bytes(*ordinal) })
}
