//! Staging: each workflow starts with one commit, its events and its rows together. Several are under way
//! at a time; what was acknowledged goes into the ledger.

use anyhow::Context as _;
use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_client::{Client, Write};
use holdfast_machine::WorkflowId;

use super::ledger::Ledger;
use super::plan::Names;

/// Commits under way at a time.
const AT_A_TIME: usize = 8;

/// Stages a fan-out workflow with this many activities for each id.
///
/// # Errors
/// When a commit is refused or not answered in time.
pub(crate) async fn stage(
    client: &Client,
    names: &Names,
    ledger: &Ledger,
    workflows: Vec<WorkflowId>,
    activities: u64,
) -> anyhow::Result<()> {
    let commits = stream::iter(workflows).map(|workflow| async move {
        let commit = names.fan_out(workflow.clone(), activities);
        let answer = client.commit(commit, Write::default()).await;
        answer.with_context(|| format!("{workflow} could not be staged"))?;
        ledger.staged(workflow);
        anyhow::Ok(())
    });
    commits.buffer_unordered(AT_A_TIME).try_collect().await
}
