//! A finished workflow owns no pending and no claimed row (invariant 15).

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{DispatchKey, EventKind, HistoryEvent, WorkflowId};

/// Looks at every row that the history tells of, if it has ended.
///
/// # Errors
/// The first live row.
pub async fn none_live_after_the_end(client: &Client, id: &WorkflowId, events: &[HistoryEvent]) -> Result<()> {
    let status = events.iter().rev().find_map(|event| event.kind.leads_to());
    if !status.is_some_and(|status| status.is_terminal()) {
        return Ok(());
    }
    let scheduled = events.iter().filter(|event| event.kind == EventKind::ActivityScheduled);
    let ordinals: BTreeSet<u64> = scheduled.filter_map(|event| event.ordinal).collect();
    for ordinal in ordinals {
        let key = DispatchKey { workflow: id.clone(), ordinal };
        match client.row(&key, ReadMode::Linearizable).await {
            Ok(row) => ensure!(!row.value.row.status.is_live(), "{key} lives on in a finished workflow: {row:?}"),
            // Engines may schedule what they run themselves; there is no row then.
            Err(error) => ensure!(error.code() == "row_not_found", "{key}: {error}"),
        }
    }
    Ok(())
}
