//! A small workflow engine inside a node's process: how Holdfast is embedded.
//!
//! An engine does two things, and each of them is one loop here.
//!
//! - **Rows.** [`Dispatcher`] claims rows as the node itself, executes them, and completes them. If the
//!   process dies, its rows are pending again the moment a survivor adopts their shard.
//! - **Workflows.** [`Coordinator`] follows the workflows of the shards that this node owns. It hears of
//!   a shard when the node acquires it, takes up the open workflows that it finds there, and ends each one
//!   once all its activities have their outcome. It writes under its fence: when it has lost a shard and
//!   does not know it yet, its writes are refused.
//!
//! Nothing that is not in the store has to survive: an engine that starts, or takes over a shard, reads
//! everything it needs from there.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use holdfast_api::{Answer, ClaimCall, ClaimHolder, Delivery, ReadMode, Store, StoreError, Write};
use holdfast_machine::{
    Effect, Epoch, EventKind, Fence, HistoryEvent, IdempotencyKey, NewEvent, Reject, Scope, ShardId, WorkflowId,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ledger::Line;
use super::plan::{ActivityResult, Names, engine_work};
use crate::{Node, ShardChange};

/// How many rows are executed at a time.
const CAPACITY: usize = 8;
/// How long a claim waits for work before it asks again.
const WAIT_MS: u64 = 10_000;
/// Before a call is repeated that could not be answered.
const PAUSE: Duration = Duration::from_millis(20);
/// Events read with one call.
const PAGE: u32 = 500;

/// Runs the engine on a node, until the node stops.
///
/// # Errors
/// What the engine cannot go on after.
pub(crate) async fn run_engine(node: &Node) -> anyhow::Result<()> {
    let names = Names::new()?;
    node.ready().await;
    let dispatcher = Dispatcher { store: node.store(), names: names.clone() };
    let coordinator = Coordinator::new(node, names);
    tokio::try_join!(dispatcher.run(), coordinator.run())?;
    Ok(())
}

/// Executes the rows of this node's shards.
#[derive(Debug, Clone)]
struct Dispatcher {
    store: Store,
    names: Names,
}

impl Dispatcher {
    /// Executes up to [`CAPACITY`] rows at a time: each lane takes one, executes it, and takes the next.
    async fn run(self) -> anyhow::Result<()> {
        let mut lanes: JoinSet<anyhow::Result<()>> = (0..CAPACITY).map(|_| self.clone().lane()).collect();
        lanes.join_next().await.map_or(Ok(()), |ended| ended.context("a lane of the engine panicked")?)
    }

    async fn lane(self) -> anyhow::Result<()> {
        loop {
            for delivery in self.claim().await? {
                self.execute(delivery).await?;
            }
        }
    }

    /// Waits until there is a row and takes it, as the node itself: such a claim has no lease, it ends
    /// with the node or with its ownership of the shard.
    async fn claim(&self) -> anyhow::Result<Vec<Delivery>> {
        let call = ClaimCall {
            scope: Scope {
                namespace: self.names.namespace.clone(),
                task_queue: self.names.engine_queue.clone(),
                activity_types: Vec::new(),
                node: Some(self.store.node().clone()),
            },
            limit: 1,
            holder: ClaimHolder::Node,
            hold: Vec::new(),
            wait_ms: WAIT_MS,
        };
        until_answered(|write| self.store.claim(call.clone(), write)).await.context("no row could be claimed")
    }

    async fn execute(&self, delivery: Delivery) -> anyhow::Result<()> {
        let Delivery { key, token, .. } = delivery;
        report(&Line::Began { key: key.clone(), token });
        sleep(engine_work(&key)).await;
        let result = ActivityResult { token, by: self.store.node().to_string() }.payload();
        let answer = until_answered(|write| self.store.complete(&key, Some(token), result.clone(), write)).await;
        let seq = match answer {
            Ok(seq) => seq,
            // Somebody else has the row now, or its outcome is on record: this execution counts for nothing.
            Err(StoreError::Reject(Reject::ClaimLost { .. } | Reject::AlreadyTerminal { .. })) => None,
            Err(error) => return Err(error).with_context(|| format!("{key} could not be completed")),
        };
        report(&Line::Ended { key, token, seq });
        Ok(())
    }
}

/// Follows the workflows of this node's shards.
struct Coordinator<'a> {
    node: &'a Node,
    store: Store,
    names: Names,
    owned: BTreeMap<ShardId, Epoch>,
    /// What is known of each open workflow; all of it can be read again.
    open: BTreeMap<WorkflowId, Progress>,
    ending: JoinSet<anyhow::Result<()>>,
}

/// A workflow, folded from its history as far as that was read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    head: u64,
    /// Activities without an outcome.
    waiting: BTreeSet<u64>,
    ended: bool,
}

impl Progress {
    fn fold(&mut self, event: &HistoryEvent) {
        self.head = event.seq;
        match (&event.kind, event.ordinal) {
            (EventKind::ActivityScheduled, Some(ordinal)) => {
                self.waiting.insert(ordinal);
            }
            (kind, Some(ordinal)) if kind.is_outcome() => {
                self.waiting.remove(&ordinal);
            }
            (kind, _) => self.ended |= kind.leads_to().is_some_and(|status| status.is_terminal()),
        }
    }
}

impl<'a> Coordinator<'a> {
    fn new(node: &'a Node, names: Names) -> Self {
        let (owned, open) = (BTreeMap::new(), BTreeMap::new());
        Self { node, store: node.store(), names, owned, open, ending: JoinSet::new() }
    }

    async fn run(mut self) -> anyhow::Result<()> {
        // Effects first, so that nothing falls between them and the first picture of the shards.
        let mut effects = self.node.raft().effects();
        let mut shards = self.node.shards();
        loop {
            tokio::select! {
                change = shards.next() => match change {
                    Some(ShardChange::Acquired { shard, epoch, .. }) => self.acquired(shard, epoch).await?,
                    Some(ShardChange::Lost { shard, .. }) => self.lost(shard),
                    None => return Ok(()),
                },
                effect = effects.recv() => match effect {
                    Ok((_, Effect::HistoryGrew { workflow, shard, .. })) => self.grew(&workflow, shard).await?,
                    Ok(_) => {}
                    // Too slow to hear everything: look at everything.
                    Err(RecvError::Lagged(_)) => self.take_up_all().await?,
                    Err(RecvError::Closed) => return Ok(()),
                },
                Some(ended) = self.ending.join_next() => ended.context("ending a workflow panicked")??,
            }
        }
    }

    async fn acquired(&mut self, shard: ShardId, epoch: Epoch) -> anyhow::Result<()> {
        self.owned.insert(shard, epoch);
        self.take_up(shard).await
    }

    fn lost(&mut self, shard: ShardId) {
        self.owned.remove(&shard);
        self.node.raft().view(|machine, _| self.open.retain(|workflow, _| machine.shard_of(workflow) != shard));
    }

    async fn take_up_all(&mut self) -> anyhow::Result<()> {
        let shards: Vec<ShardId> = self.owned.keys().copied().collect();
        for shard in shards {
            self.take_up(shard).await?;
        }
        Ok(())
    }

    /// Takes up the open workflows of a shard.
    async fn take_up(&mut self, shard: ShardId) -> anyhow::Result<()> {
        let open: Vec<WorkflowId> = self.node.raft().view(|machine, _| {
            let ours = machine.open_workflows(shard).filter(|(_, open)| open.namespace == self.names.namespace);
            ours.map(|(workflow, _)| workflow.clone()).collect()
        });
        for workflow in open {
            self.grew(&workflow, shard).await?;
        }
        Ok(())
    }

    /// Reads what is new in a workflow's history, and ends the workflow if nothing is left to wait for.
    async fn grew(&mut self, workflow: &WorkflowId, shard: ShardId) -> anyhow::Result<()> {
        let Some(epoch) = self.owned.get(&shard).copied() else { return Ok(()) };
        let progress = self.open.entry(workflow.clone()).or_default();
        loop {
            // What this node has applied is enough: it was told of the growth after it had applied it.
            let next = progress.head + 1;
            let events = self.store.history(workflow, next, PAGE, ReadMode::Stale).await?.value;
            events.iter().for_each(|event| progress.fold(event));
            if events.len() < PAGE as usize {
                break;
            }
        }
        if progress.ended {
            self.open.remove(workflow);
        } else if progress.waiting.is_empty() {
            let fence = Fence { owner: self.store.node().clone(), epoch };
            self.ending.spawn(end(self.store.with_fence(fence), workflow.clone(), progress.head));
        }
        Ok(())
    }
}

/// Ends a workflow whose history stands at `head`.
async fn end(store: Store, workflow: WorkflowId, head: u64) -> anyhow::Result<()> {
    let completed = vec![NewEvent::of(EventKind::WorkflowCompleted)];
    let answer = until_answered(|write| store.append(&workflow, head, completed.clone(), write)).await;
    match answer {
        // Another owner goes on, or the history has grown and will be looked at again.
        Ok(_) | Err(StoreError::Reject(Reject::NotOwner { .. } | Reject::SequenceConflict { .. })) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{workflow} could not be ended")),
    }
}

/// Makes one call until it is answered or refused. All tries carry one idempotency key: a try whose
/// answer was lost is not made twice.
async fn until_answered<T, F: Future<Output = Result<Answer<T>, StoreError>>>(
    call: impl Fn(Write) -> F,
) -> Result<T, StoreError> {
    let key = IdempotencyKey::new(uuid::Uuid::now_v7().to_string()).map_err(|invalid| {
        // A uuid is always a valid key; should that change, it is a refusal like any other.
        StoreError::Reject(Reject::InvalidArgument { what: invalid.to_string() })
    })?;
    loop {
        match call(Write::keyed(key.clone())).await {
            Ok(answer) => return Ok(answer.value),
            Err(StoreError::Stopped) => std::future::pending().await,
            Err(error) if error.is_retryable() => sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}

/// Tells the demo, which reads this process's standard output.
fn report(line: &Line) {
    let Ok(mut text) = serde_json::to_string(line) else { return };
    text.push('\n');
    // Without a reader there is nobody to tell, and the work goes on.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use holdfast_machine::{Millis, Payload};

    use super::*;

    fn event(seq: u64, kind: EventKind, ordinal: Option<u64>) -> HistoryEvent {
        HistoryEvent {
            seq,
            at: Millis(0),
            kind,
            ordinal,
            start: None,
            search_attributes: None,
            payload: Payload::default(),
        }
    }

    #[test]
    fn progress_waits_for_every_activity() {
        let mut progress = Progress::default();
        for event in [
            event(1, EventKind::WorkflowStarted, None),
            event(2, EventKind::ActivityScheduled, Some(1)),
            event(3, EventKind::ActivityScheduled, Some(2)),
            event(4, EventKind::ActivityCompleted, Some(1)),
        ] {
            progress.fold(&event);
        }
        assert_eq!(progress, Progress { head: 4, waiting: BTreeSet::from([2]), ended: false });
        progress.fold(&event(5, EventKind::ActivityFailed, Some(2)));
        progress.fold(&event(6, EventKind::WorkflowCompleted, None));
        assert_eq!(progress, Progress { head: 6, waiting: BTreeSet::new(), ended: true });
    }
}
