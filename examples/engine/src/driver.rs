//! One workflow's driver: read the history, replay it, commit what is new, wait.
//!
//! A driver holds nothing that counts. It may be dropped between any two of its calls, or in the middle of one; the
//! next driver, here or on another node, replays the history and stands where this one stood.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::{PageCall, ReadMode, Store, StoreError};
use holdfast_machine::{Commit, Fence, Namespace, Reject, WorkflowId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::child::{self, ChildEnd};
use crate::facts::{Facts, Mailbox};
use crate::program::Programs;
use crate::replay::{Halt, Replay};
use crate::retry::{until_answered, until_read};

/// Events read with one call.
const PAGE: u32 = 200;
/// Dead letters read with one call.
const LETTERS: u32 = 100;

/// Why a driver stops before its workflow has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error(transparent)]
    Halted(#[from] Halt),
    /// Another node owns the shard, or this one does under another epoch; or the node stops.
    #[error("{0}")]
    Store(#[from] StoreError),
}

pub(crate) struct Driver {
    store: Store,
    /// The same, whose writes carry the fence of the shard.
    fenced: Store,
    workflow: WorkflowId,
    replay: Replay,
    mailbox: Arc<Mailbox>,
    facts: Facts,
    children: JoinSet<Result<ChildEnd, StoreError>>,
    followed: BTreeSet<u64>,
    /// The run that the children are of, by its first event.
    run: u64,
}

/// Drives a workflow until it ends. Comes back at once if it is not this engine's: ended, of a type that the engine has
/// no function for, or of another namespace. `permit` is given back once the history is replayed.
pub(crate) async fn drive(
    store: Store,
    fence: Fence,
    programs: Programs,
    namespace: Namespace,
    workflow: WorkflowId,
    mailbox: Arc<Mailbox>,
    permit: OwnedSemaphorePermit,
) -> Result<(), Stop> {
    let view = until_read(|| store.workflow(&workflow, ReadMode::Stale)).await?;
    let Some(seen) = view.value.workflow else { return Ok(()) };
    let is_known = seen.run.workflow_type.as_ref().is_some_and(|workflow_type| programs.has(workflow_type));
    if seen.status.is_terminal() || !is_known || seen.namespace != namespace {
        return Ok(());
    }
    let replay = Replay::new(programs, workflow.clone(), seen.run.started_seq.saturating_sub(1));
    let (facts, children, followed, run) = Default::default();
    let fenced = store.with_fence(fence);
    let driver = Driver { store, fenced, workflow, replay, mailbox, facts, children, followed, run };
    driver.run(permit).await
}

impl Driver {
    async fn run(mut self, permit: OwnedSemaphorePermit) -> Result<(), Stop> {
        self.read_dead_letters().await?;
        // What this node has applied is enough: it is told of a growth after it has applied it.
        let mut mode = ReadMode::Stale;
        let mut permit = Some(permit);
        loop {
            self.facts.take(&self.mailbox);
            self.read(mode).await?;
            if self.replay.ended() {
                return Ok(());
            }
            self.follow_children();
            mode = match self.next_commit().await? {
                Some(commit) => self.commit(commit).await?,
                None => {
                    drop(permit.take());
                    self.wait().await?;
                    ReadMode::Stale
                }
            };
        }
    }

    /// Reads on to the end of the history, and feeds what is new.
    async fn read(&mut self, mut mode: ReadMode) -> Result<(), Stop> {
        loop {
            let next = self.replay.head() + 1;
            let page = until_read(|| self.store.history(&self.workflow, next, PAGE, mode)).await?;
            if page.value.is_empty() {
                return Ok(());
            }
            for event in &page.value {
                self.replay.feed(event)?;
            }
            mode = ReadMode::AtLeast(page.index);
        }
    }

    /// Facts first, as the function may decide otherwise once it has heard of them. Nothing while the workflow is
    /// paused.
    async fn next_commit(&mut self) -> Result<Option<Commit>, Stop> {
        if self.replay.paused() {
            return Ok(None);
        }
        let facts = self.facts.commit(&self.store, &self.workflow, &mut self.replay).await?;
        Ok(facts.or_else(|| self.replay.decided()))
    }

    /// Commits, and says how the history is to be read next: what was decided is known to be decided once it is read.
    async fn commit(&mut self, commit: Commit) -> Result<ReadMode, Stop> {
        match until_answered(|write| self.fenced.commit(commit.clone(), write)).await {
            Ok(answer) => {
                self.facts.written(&commit);
                Ok(ReadMode::AtLeast(answer.index))
            }
            // The history says more than was read: decide again with that. So it does if an outcome came in between.
            Err(StoreError::Reject(Reject::SequenceConflict { .. } | Reject::AlreadyTerminal { .. })) => {
                Ok(ReadMode::Linearizable)
            }
            Err(StoreError::Reject(reject)) if !matches!(reject, Reject::NotOwner { .. }) => {
                Err(Halt::Refused(reject).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn wait(&mut self) -> Result<(), Stop> {
        let resting = self.children.is_empty();
        tokio::select! {
            () = self.mailbox.wait(resting) => {}
            Some(ended) = self.children.join_next() => {
                // A child's task that panicked is a mistake of this crate; the child is followed again with the next
                // driver.
                if let Ok(end) = ended {
                    self.facts.ended(end?);
                }
            }
        }
        Ok(())
    }

    /// Follows the children whose ends the history does not tell.
    fn follow_children(&mut self) {
        if self.run != self.replay.run() {
            self.run = self.replay.run();
            (self.children, self.followed) = Default::default();
            self.facts.forget_children();
        }
        for (start, parent) in self.replay.children() {
            if self.followed.insert(start.child) {
                // Another workflow, maybe of another owner: our fence says nothing about it.
                self.children.spawn(child::run(self.store.clone(), start.clone(), parent.clone()));
            }
        }
    }

    /// Rows that were given up while nobody listened.
    async fn read_dead_letters(&mut self) -> Result<(), Stop> {
        let mut page = PageCall::first(LETTERS);
        loop {
            let letters = until_read(|| self.store.dead_letters(&self.workflow, &page, ReadMode::Stale)).await?.value;
            let undelivered = letters.rows.into_iter().filter(|listed| !listed.row.failure_delivered);
            undelivered.for_each(|listed| self.facts.given_up(listed.key.ordinal));
            match letters.next_cursor {
                Some(cursor) => page = PageCall::after(LETTERS, cursor),
                None => return Ok(()),
            }
        }
    }
}
