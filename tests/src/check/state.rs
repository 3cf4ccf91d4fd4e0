//! All nodes hold the same state at the same applied index (invariant 4).

use anyhow::{Result, ensure};
use holdfast_client::Client;

use crate::cluster::view;
use crate::wait::{LONG, wait_until};

/// Waits until all nodes have applied the same index, and compares their hashes there.
///
/// # Errors
/// When they differ, or when the nodes never meet at one index.
pub async fn same_on_all(clients: &[Client]) -> Result<u64> {
    let views = wait_until("all nodes have applied the same index", LONG, async || {
        let mut views = Vec::new();
        for client in clients {
            views.push(view(client).await?);
        }
        let applied: Vec<u64> = views.iter().map(|view| view.applied).collect();
        ensure!(applied.iter().all(|index| *index == applied[0]), "they are at {applied:?}");
        Ok(views)
    })
    .await?;
    let hashes: Vec<(&str, &str)> = views.iter().map(|view| (view.node.as_str(), view.state_hash.as_str())).collect();
    ensure!(
        hashes.iter().all(|(_, hash)| *hash == hashes[0].1),
        "the states at {} differ: {hashes:?}",
        views[0].applied
    );
    Ok(views[0].applied)
}
