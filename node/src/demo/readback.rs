//! The end of the demo: waiting for the last outcome, and reading everything back from every node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{HistoryEvent, WorkflowId};
use tokio::time::sleep;

use super::audit::{Evidence, Histories, Kill};
use super::report::Report;
use super::story::Demo;

/// How long the rest of the work may take, whatever there is, and on top of that for each activity.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
const FOR_EACH_ACTIVITY: Duration = Duration::from_millis(40);
/// How long the nodes may take to come to one applied index.
const LEVEL_WITHIN: Duration = Duration::from_secs(10);
/// Histories read at a time.
const AT_A_TIME: usize = 8;
/// Events read with one call.
const PAGE: u32 = 1_000;

impl Demo {
    /// Waits until every workflow has ended.
    ///
    /// # Errors
    /// When they do not end in time.
    pub async fn drain(&mut self) -> anyhow::Result<()> {
        let (mut open, _) = self.ledger.close();
        let activities = u32::try_from(open.len() as u64 * self.activities)?;
        let deadline = Instant::now() + DRAINED_WITHIN + FOR_EACH_ACTIVITY * activities;
        while let Some(workflow) = open.first().cloned() {
            let view = self.client.workflow(&workflow, ReadMode::Stale).await?.value;
            if view.workflow.is_some_and(|workflow| workflow.status.is_terminal()) {
                open.remove(&workflow);
                continue;
            }
            self.look_again(deadline, &format!("{} workflows to end, {workflow} among them", open.len())).await?;
        }
        self.screen.step("             every workflow has ended");
        Ok(())
    }

    /// Reads every history back from each node on its own and judges what was found.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn reckon(&mut self, kills: Vec<Kill>) -> anyhow::Result<Report> {
        let cluster = self.client.cluster().await?.value;
        let (staged, executions) = self.ledger.close();
        let mut histories = BTreeMap::new();
        for (name, client) in self.names_of_nodes.iter().zip(self.watch.clients()) {
            let read = stream::iter(&staged).map(|workflow| read_history(client, workflow, cluster.committed));
            let read: Result<Histories, _> = read.buffer_unordered(AT_A_TIME).try_collect().await;
            histories.insert(name.clone(), read.with_context(|| format!("{name} could not be read"))?);
        }
        let activities = self.activities;
        let evidence = Evidence { activities, shard_count: cluster.shard_count, staged, executions, histories, kills };
        let mut report = evidence.judge();
        let (equal, said) = self.compare_hashes().await?;
        report.state_hashes_equal = equal;
        if !equal {
            report.problems.push(format!("the state hashes differ: {said}"));
        }
        self.screen.step(format!("             state hashes: {said}"));
        Ok(report)
    }

    /// The state hashes of all nodes at one applied index.
    async fn compare_hashes(&self) -> anyhow::Result<(bool, String)> {
        let deadline = Instant::now() + LEVEL_WITHIN;
        while Instant::now() < deadline {
            let views = self.watch.views().await.into_iter().collect::<Option<Vec<_>>>();
            let views = views.context("a node does not answer")?;
            let level = views.windows(2).all(|pair| pair[0].applied == pair[1].applied);
            if level {
                let equal = views.windows(2).all(|pair| pair[0].state_hash == pair[1].state_hash);
                let hashes: Vec<&str> = views.iter().map(|view| view.state_hash.as_str()).collect();
                let applied = views.first().map_or(0, |view| view.applied);
                return Ok((equal, format!("{} at log index {applied}", hashes.join(", "))));
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("the nodes do not come to one applied index")
    }
}

async fn read_history(
    client: &Client,
    workflow: &WorkflowId,
    index: u64,
) -> anyhow::Result<(WorkflowId, Vec<HistoryEvent>)> {
    let mut history: Vec<HistoryEvent> = Vec::new();
    loop {
        let next = history.len() as u64 + 1;
        let page = client.history(workflow, next, PAGE, ReadMode::AtLeast(index)).await?.value;
        let is_last = page.len() < PAGE as usize;
        history.extend(page);
        if is_last {
            return Ok((workflow.clone(), history));
        }
    }
}
