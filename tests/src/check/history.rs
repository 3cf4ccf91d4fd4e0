//! Histories are dense from 1, in order (invariant 9).

use anyhow::{Result, ensure};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{HistoryEvent, WorkflowId};

/// Events asked for at a time; odd, so that pages do not fall together with batches.
const PAGE: u32 = 97;

/// The whole history of a workflow as of now, page by page.
///
/// # Errors
/// When it cannot be read.
pub async fn read(client: &Client, id: &WorkflowId) -> Result<Vec<HistoryEvent>> {
    read_as(client, id, ReadMode::Linearizable).await
}

/// The same in another mode of reading.
///
/// # Errors
/// As [`read`].
pub async fn read_as(client: &Client, id: &WorkflowId, mode: ReadMode) -> Result<Vec<HistoryEvent>> {
    let mut events: Vec<HistoryEvent> = Vec::new();
    loop {
        let from = events.last().map_or(1, |event| event.seq + 1);
        let page = client.history(id, from, PAGE, mode).await?.value;
        let is_last = page.len() < PAGE as usize;
        events.extend(page);
        if is_last {
            return Ok(events);
        }
    }
}

/// Numbers go 1, 2, 3 … and log time does not go back.
///
/// # Errors
/// The first event that is out of order.
pub fn dense(id: &WorkflowId, events: &[HistoryEvent]) -> Result<()> {
    for (event, seq) in events.iter().zip(1..) {
        ensure!(event.seq == seq, "{id}: event {} stands where {seq} belongs", event.seq);
    }
    for pair in events.windows(2) {
        ensure!(pair[0].at <= pair[1].at, "{id}: event {} is older than the one before it", pair[1].seq);
    }
    Ok(())
}
