//! The end of the demo: waiting for the last outcome, and reading everything back from every node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_client::{Client, ReadMode};
use holdfast_machine::{ClusterEvent, DispatchKey, HistoryEvent, NodeName, RowStatus, WorkflowId};
use tokio::time::sleep;

use super::audit::{Evidence, Histories, Kill};
use super::ledger::Executor;
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

    /// Reads every history and every row back from each node on its own and judges what was found.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn reckon(&mut self, kills: Vec<Kill>) -> anyhow::Result<Report> {
        let cluster = self.client.cluster().await?.value;
        let (staged, executions) = self.ledger.close();
        let (mut histories, mut rows_not_done) = (BTreeMap::new(), BTreeMap::new());
        for (name, client) in self.names_of_nodes.iter().zip(self.watch.clients()) {
            let read = stream::iter(&staged).map(|workflow| read_history(client, workflow, cluster.committed));
            let read: Result<Histories, _> = read.buffer_unordered(AT_A_TIME).try_collect().await;
            histories.insert(name.clone(), read.with_context(|| format!("{name} could not be read"))?);
            let not_done = count_not_done(client, &staged, self.activities).await;
            rows_not_done
                .insert(name.clone(), not_done.with_context(|| format!("{name} could not be asked for rows"))?);
        }
        let (activities, shard_count) = (self.activities, cluster.shard_count);
        let adopted = self.watch.sighted(self.began, |event| match event {
            ClusterEvent::ShardAdopted { shard, .. } => Some(*shard),
            _ => None,
        });
        let adopted = adopted.into_iter().map(|(_, shard)| shard).collect();
        let taken_for_dead = self.taken_for_dead(&kills);
        let evidence = Evidence {
            activities,
            shard_count,
            staged,
            executions,
            histories,
            rows_not_done,
            kills,
            adopted,
            taken_for_dead,
        };
        let mut report = evidence.judge();
        let (equal, said) = self.compare_hashes().await?;
        report.state_hashes_equal = equal;
        if !equal {
            report.problems.push(format!("the state hashes differ: {said}"));
        }
        self.screen.step(format!("             state hashes: {said}"));
        Ok(report)
    }

    /// Nodes that were committed as down and had not been killed.
    fn taken_for_dead(&self, kills: &[Kill]) -> BTreeSet<NodeName> {
        let down = self.watch.sighted(self.began, |event| match event {
            ClusterEvent::PeerDown { node, .. } => Some(node.clone()),
            _ => None,
        });
        let was_dead = |at: Instant, node: &NodeName| {
            kills.iter().any(|kill| kill.dead == Executor::Engine(node.clone()) && at > kill.at && at < kill.back)
        };
        down.into_iter().filter(|(at, node)| !was_dead(*at, node)).map(|(_, node)| node).collect()
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

/// How many rows this node does not have as done. It has applied all that there is.
async fn count_not_done(client: &Client, workflows: &BTreeSet<WorkflowId>, activities: u64) -> anyhow::Result<u64> {
    let keys = workflows
        .iter()
        .flat_map(|workflow| (1..=activities).map(|ordinal| DispatchKey { workflow: workflow.clone(), ordinal }));
    let asked = stream::iter(keys).map(|key| async move {
        let row = client.row(&key, ReadMode::Stale).await?.value.row;
        anyhow::Ok(u64::from(row.status != RowStatus::Done))
    });
    asked.buffer_unordered(AT_A_TIME).try_fold(0, |sum, not_done| async move { Ok(sum + not_done) }).await
}
