//! A cluster with engines inside and workers beside it, and what became of the rows in all their hands.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_client::{Client, ClientError, PageCall, ReadMode, SessionFilter, SessionView, Write};
use holdfast_machine::{
    Epoch, EventKind, HistoryEvent, NewEvent, Payload, Reject, ShardId, Workflow, WorkflowId, WorkflowStatus,
    WorkflowType,
};
use serde::Serialize;
use serde_json::json;

use crate::check;
use crate::cluster::{Cluster, SHARDS};
use crate::engine::{Execution, Order, Record};
use crate::process::Process;
use crate::program::Program;
use crate::programs::{FAN_OUT, FanOut};
use crate::wait::{LONG, wait_until};

/// A session's lease that outlives every story: whoever loses rows under it, it was not for the time.
pub const LEASE_FOR_EVER: Duration = Duration::from_secs(3_600);
/// A session's lease whose end a story waits for.
pub const LEASE_SHORT: Duration = Duration::from_secs(2);

/// Longest time for one page of metrics.
const ANSWER: Duration = Duration::from_secs(5);

impl Cluster {
    /// Starts a worker that asks `first` before the other nodes; its number.
    ///
    /// # Errors
    /// When it does not start.
    pub fn add_worker(&mut self, first: usize, room: u32, lease: Duration) -> Result<usize> {
        let mut urls: Vec<&str> = self.nodes.iter().map(|node| node.url.as_str()).collect();
        urls.rotate_left(first);
        let name = format!("worker-{}", self.workers.len() + 1);
        let settings = [
            ("URLS", urls.join(",")),
            ("NAME", name.clone()),
            ("ROOM", room.to_string()),
            ("LEASE_MS", lease.as_millis().to_string()),
        ];
        let environment = settings.map(|(setting, value)| (format!("HOLDFAST_TEST_WORKER_{setting}"), value));
        let folder = self.folder().join(&name);
        let worker = Process::new(name, folder, Program::Worker, BTreeMap::from(environment))?;
        worker.start()?;
        self.workers.push(worker);
        Ok(self.workers.len() - 1)
    }

    /// Waits until a worker has a session that is attached to some node.
    ///
    /// # Errors
    /// When it gets none.
    pub async fn attached(&self, worker: usize) -> Result<SessionView> {
        let (label, client) = (&self.workers[worker].label, self.any()?);
        wait_until(&format!("{label} is attached"), LONG, async || {
            let sessions = sessions(&client).await?;
            let mine =
                sessions.into_iter().find(|view| view.worker.identity.as_str() == label && view.attached.is_some());
            mine.context("it is not")
        })
        .await
    }

    /// Nodes and workers.
    pub fn puppets(&self) -> impl Iterator<Item = &Process> {
        self.nodes.iter().map(|node| &**node).chain(&self.workers)
    }

    /// Gives every program that runs an order.
    ///
    /// # Errors
    /// When one does not take it.
    pub fn tell_all(&self, order: &Order) -> Result<()> {
        self.puppets().filter(|puppet| puppet.is_running()).try_for_each(|puppet| puppet.tell(order))
    }

    /// Shuts the gates of all programs that run.
    ///
    /// # Errors
    /// When one does not obey.
    pub async fn hold_all(&self) -> Result<()> {
        self.tell_all(&Order::Hold)?;
        wait_until("all gates are shut", LONG, async || {
            for puppet in self.puppets().filter(|puppet| puppet.is_running()) {
                let gates = puppet.records()?.into_iter().filter(|record| matches!(record, Record::Gate { .. }));
                let last = gates.last();
                ensure!(last == Some(Record::Gate { open: false }), "{}: {last:?}", puppet.label);
            }
            Ok(())
        })
        .await
    }

    /// Executions of the rows of a workflow that have begun, over all programs and all their starts.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn executions(&self, id: &WorkflowId) -> Result<Vec<Execution>> {
        let mut all = Vec::new();
        for puppet in self.puppets() {
            all.extend(puppet.executions()?.into_iter().filter(|execution| execution.key.workflow == *id));
        }
        Ok(all)
    }

    /// Waits until `count` executions of a workflow's rows have begun.
    ///
    /// # Errors
    /// When they do not.
    pub async fn begun(&self, id: &WorkflowId, count: usize) -> Result<Vec<Execution>> {
        wait_until(&format!("{count} executions of {id} have begun"), LONG, async || {
            let executions = self.executions(id)?;
            ensure!(executions.len() >= count, "{} of {count} executions", executions.len());
            Ok(executions)
        })
        .await
    }

    /// Who owns a workflow's shard, as the first running node has it.
    ///
    /// # Errors
    /// When nobody does, or no node answers.
    pub async fn owner_of(&self, id: &WorkflowId) -> Result<(usize, Epoch)> {
        let node = *self.running().first().context("no node runs")?;
        self.owner_as_known_by(node, id).await
    }

    /// Who owns a workflow's shard, as a node has it.
    ///
    /// # Errors
    /// When nobody does, or the node does not answer.
    pub async fn owner_as_known_by(&self, node: usize, id: &WorkflowId) -> Result<(usize, Epoch)> {
        let directory = self.directory(node).await?;
        let entry = directory.get(&ShardId::of(id, SHARDS)).context("nobody owns it")?;
        Ok((self.place(&entry.owner)?, entry.epoch))
    }

    /// Starts a fan-out.
    ///
    /// # Errors
    /// When the start is refused.
    pub async fn fan_out(&self, id: &WorkflowId, plan: &FanOut) -> Result<()> {
        start(&self.any()?, FAN_OUT, id, plan).await
    }

    /// Waits until a fan-out has completed, and holds it against every invariant, on each node that runs.
    ///
    /// # Errors
    /// When it does not end, or an invariant is broken.
    pub async fn completed(&self, id: &WorkflowId, plan: &FanOut) -> Result<Vec<HistoryEvent>> {
        let client = self.any()?;
        ended(&client, id).await?;
        let history = check::workflow(&client, id).await?;
        for node in self.running() {
            check::fan_out::whole(self.client(node), id, plan, &history)
                .await
                .with_context(|| format!("as {} has it", self.nodes[node].name))?;
        }
        Ok(history)
    }

    /// A figure of a node: the sum of all samples whose name and labels hold all of these texts.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn figure(&self, node: usize, parts: &[&str]) -> Result<f64> {
        let url = format!("{}/metrics", self.nodes[node].url);
        let text = self.http().get(url).timeout(ANSWER).send().await?.error_for_status()?.text().await?;
        let samples =
            text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
        let values = samples.filter_map(|line| line.rsplit_once(' ')).map(|(_, value)| value.parse::<f64>());
        Ok(values.collect::<Result<Vec<_>, _>>()?.into_iter().sum())
    }

    /// Up to which index a node has purged its log.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn log_purged(&self, node: usize) -> Result<u64> {
        Ok(self.figure(node, &["holdfast_log_purged_index"]).await? as u64)
    }
}

/// All sessions.
///
/// # Errors
/// When no node answers.
pub async fn sessions(client: &Client) -> Result<Vec<SessionView>> {
    let page = client.sessions(&SessionFilter::default(), &PageCall::first(100), ReadMode::Linearizable).await?;
    Ok(page.value.sessions)
}

/// Starts a workflow of the engines.
///
/// # Errors
/// When the start is refused.
pub async fn start(client: &Client, workflow_type: &str, id: &WorkflowId, input: &impl Serialize) -> Result<()> {
    let started = NewEvent::started(WorkflowType::new(workflow_type)?).with(Payload::json(input)?);
    client.append(id, 0, vec![started], Write::default()).await.context("starting a workflow")?;
    Ok(())
}

/// Sends a signal without a value.
///
/// # Errors
/// When the workflow does not take it.
pub async fn signal(client: &Client, id: &WorkflowId, name: &str) -> Result<()> {
    let signal = NewEvent::of(EventKind::SignalReceived).with(Payload::json(&json!({ "signal": name }))?);
    wait_until("a signal stands in the history", LONG, async || {
        let head = workflow(client, id).await?.head;
        match client.append(id, head, vec![signal.clone()], Write::default()).await {
            Err(ClientError::Reject(Reject::SequenceConflict { .. })) => bail!("the history has grown meanwhile"),
            answer => Ok(answer.map(drop)),
        }
    })
    .await?
    .context("sending a signal")
}

/// A workflow as of now.
///
/// # Errors
/// When there is none.
pub async fn workflow(client: &Client, id: &WorkflowId) -> Result<Workflow> {
    let view = client.workflow(id, ReadMode::Linearizable).await?.value;
    view.workflow.with_context(|| format!("there is no {id}"))
}

/// Waits until a workflow has completed.
///
/// # Errors
/// When it does not, or ends otherwise.
pub async fn ended(client: &Client, id: &WorkflowId) -> Result<()> {
    let status = wait_until(&format!("{id} has ended"), LONG, async || {
        let seen = workflow(client, id).await?;
        ensure!(seen.status.is_terminal(), "it is {} at event {}", seen.status, seen.head);
        Ok(seen.status)
    })
    .await?;
    ensure!(status == WorkflowStatus::Completed, "{id} is {status}");
    Ok(())
}
