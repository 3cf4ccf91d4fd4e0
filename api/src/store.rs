//! The typed store of one node: what an engine that lives in the node's process calls.
//!
//! Any node's store takes any call; what has to be agreed on goes to the leader. A write returns once it is
//! durable on a majority and applied there; [`Answer::index`] is its place in the log.

use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{
    BootId, Command, Commit, Committed, DispatchKey, Epoch, Fence, Limits, Millis, Moved, NewEvent, NewRow, NodeName,
    Reply, Request, ShardId, WorkflowId,
};
use holdfast_raft::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attachments::Attachments;
use crate::error::StoreError;
use crate::explain::FullDisk;
use crate::growth::Growth;
use crate::waiting::Waiting;
use crate::{Adoption, Answer, Write, metrics};

/// The result of a call.
pub type StoreResult<T> = Result<Answer<T>, StoreError>;

/// What a store needs to know about its node.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The node's name.
    pub node: NodeName,
    /// This start of it.
    pub boot: BootId,
    /// What is checked before anything is proposed.
    pub limits: Limits,
    /// The longest that a call waits (a claim for work, a reader for the next event, an engine for a timer), whatever it asks for.
    pub wait_max: Duration,
    /// Index rows that one count of workflows walks over at most.
    pub count_rows_max: usize,
}

impl StoreOptions {
    /// Options with every default.
    pub fn new(node: NodeName, boot: BootId) -> Self {
        let (limits, wait_max) = (Limits::default(), Duration::from_secs(60));
        Self { node, boot, limits, wait_max, count_rows_max: 1_000_000 }
    }
}

/// A node's store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    fence: Option<Fence>,
}

pub(crate) struct Shared {
    pub raft: Handle,
    pub options: StoreOptions,
    pub waiting: Arc<Waiting>,
    pub growth: Arc<Growth>,
    pub attachments: Arc<Attachments>,
    pub full_disk: FullDisk,
    pub closed: watch::Sender<bool>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("node", &self.shared.options.node).finish_non_exhaustive()
    }
}

impl Store {
    /// The store of a running node. Must be called inside a tokio runtime: tasks that wake waiting callers
    /// run until the store's last clone is gone.
    pub fn new(raft: Handle, options: StoreOptions) -> Self {
        let (effects, histories, sessions) = (raft.effects(), raft.effects(), raft.effects());
        let waiting = Arc::new(Waiting::new(raft.clock()));
        let (growth, attachments) = Default::default();
        let (full_disk, closed) = (FullDisk::default(), watch::Sender::new(false));
        let shared = Arc::new(Shared { raft, options, waiting, growth, attachments, full_disk, closed });
        tokio::spawn(crate::waiting::watch_for_work(Arc::downgrade(&shared), effects));
        tokio::spawn(crate::growth::watch_histories(Arc::downgrade(&shared), histories));
        tokio::spawn(crate::attachments::watch_sessions(Arc::downgrade(&shared), sessions));
        Self { shared, fence: None }
    }

    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Self { shared, fence: None }
    }

    /// The same store, whose writes carry this fence unless a call brings its own.
    pub fn with_fence(&self, fence: Fence) -> Self {
        Self { shared: Arc::clone(&self.shared), fence: Some(fence) }
    }

    /// Ends all calls that wait (with [`StoreError::Stopped`]), all event streams and all attachments of sessions, so
    /// that a node that stops does not have to wait for them. Calls that do not wait go on.
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    /// The node's name.
    pub fn node(&self) -> &NodeName {
        &self.shared.options.node
    }

    /// The limits that calls are checked against.
    pub fn limits(&self) -> &Limits {
        &self.shared.options.limits
    }

    /// How many claims wait for work on this node.
    pub fn claims_waiting(&self) -> usize {
        self.shared.waiting.count()
    }
}

/// Workflows.
impl Store {
    /// Appends events: all or nothing.
    ///
    /// # Errors
    /// A [`StoreError`]; so with all calls here.
    pub async fn append(
        &self,
        workflow: &WorkflowId,
        expected_seq: u64,
        events: Vec<NewEvent>,
        write: Write,
    ) -> StoreResult<Committed> {
        self.commit(Commit { events, ..Commit::new(workflow.clone(), expected_seq) }, write).await
    }

    /// Appends events, stages rows and settles rows of one workflow: all or nothing.
    pub async fn commit(&self, commit: Commit, write: Write) -> StoreResult<Committed> {
        let proposed = self.propose(Command::Commit(commit), write).await?;
        proposed.answer("commit", |reply| match reply {
            Reply::Committed(committed) => Some(committed),
            _ => None,
        })
    }

    /// Cancels the live rows of a workflow and returns their keys.
    pub async fn settle(&self, workflow: &WorkflowId, write: Write) -> StoreResult<Vec<DispatchKey>> {
        let proposed = self.propose(Command::Settle { workflow: workflow.clone() }, write).await?;
        proposed.answer("settle", |reply| match reply {
            Reply::Settled { keys } => Some(keys),
            _ => None,
        })
    }

    /// Puts rows back to pending whatever their status; missing ones are inserted.
    pub async fn rearm(&self, workflow: &WorkflowId, rows: Vec<NewRow>, write: Write) -> StoreResult<Vec<DispatchKey>> {
        let proposed = self.propose(Command::Rearm { workflow: workflow.clone(), rows }, write).await?;
        proposed.answer("rearm", |reply| match reply {
            Reply::Rearmed { keys } => Some(keys),
            _ => None,
        })
    }
}

/// Shards.
impl Store {
    /// Moves a shard between live nodes.
    pub async fn transfer(
        &self,
        shard: ShardId,
        to: &NodeName,
        expected_epoch: Epoch,
        write: Write,
    ) -> StoreResult<Moved> {
        let proposed = self.propose(Command::Transfer { shard, to: to.clone(), expected_epoch }, write).await?;
        proposed.answer("transfer", |reply| match reply {
            Reply::Transferred(moved) => Some(moved),
            _ => None,
        })
    }

    /// Takes a shard over from a node that is committed as down. To come too late is an answer.
    pub async fn adopt(
        &self,
        shard: ShardId,
        from: &NodeName,
        by: &NodeName,
        expected_epoch: Epoch,
        write: Write,
    ) -> StoreResult<Adoption> {
        let command = Command::Adopt { shard, from: from.clone(), by: by.clone(), expected_epoch };
        self.propose(command, write).await?.answer("adopt", |reply| match reply {
            Reply::Adopted(moved) => Some(Adoption::Adopted(moved)),
            Reply::AlreadyAdopted { held_by, epoch, .. } => Some(Adoption::AlreadyAdopted { held_by, epoch }),
            _ => None,
        })
    }
}

/// A reply and its place in the log.
pub(crate) struct Proposed {
    pub index: u64,
    /// Log time after the entry.
    pub at: Millis,
    pub reply: Reply,
}

impl Proposed {
    /// The reply as the kind that its command has.
    pub fn answer<T>(self, command: &'static str, kind: impl FnOnce(Reply) -> Option<T>) -> StoreResult<T> {
        let value = kind(self.reply).ok_or(StoreError::WrongReply { command })?;
        Ok(Answer { index: self.index, value })
    }
}

impl Store {
    /// Checks a command, proposes it, and waits for its reply.
    pub(crate) async fn propose(&self, command: Command, write: Write) -> Result<Proposed, StoreError> {
        let kind = metrics::name(&command);
        let begun = Instant::now();
        let proposed = self.propose_uncounted(command, write).await;
        metrics::command(kind, begun, proposed.as_ref().err());
        proposed
    }

    async fn propose_uncounted(&self, command: Command, write: Write) -> Result<Proposed, StoreError> {
        self.limits().check(&command)?;
        let fence = write.fence.or_else(|| self.fence.clone());
        let request = Request { idempotency_key: write.idempotency_key, fence, command };
        let committed = self.shared.raft.propose(request).await;
        self.shared.full_disk.note(committed.as_ref().err());
        let committed = committed?;
        Ok(Proposed { index: committed.index, at: committed.at, reply: committed.reply? })
    }
}
