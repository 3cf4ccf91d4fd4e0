//! The invariants, one property a file, checked through the API as any user could, and on the disks of nodes that have
//! stopped. What the crate `checkers` knows is not told here again.

pub mod calls;
pub mod directories;
pub mod events;
pub mod fan_out;
pub mod history;
pub mod lookout;
pub mod outcomes;
pub mod rows;
pub mod state;

use anyhow::Result;
use holdfast_client::Client;
use holdfast_machine::{HistoryEvent, WorkflowId};

/// Holds one workflow against every invariant that its history and its rows can show, and gives its history.
///
/// # Errors
/// The first invariant that is broken.
pub async fn workflow(client: &Client, id: &WorkflowId) -> Result<Vec<HistoryEvent>> {
    let events = history::read(client, id).await?;
    history::dense(id, &events)?;
    outcomes::at_most_one(id, &events)?;
    rows::none_live_after_the_end(client, id, &events).await?;
    Ok(events)
}
