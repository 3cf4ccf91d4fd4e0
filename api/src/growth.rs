//! Histories that grow: a caller that waits for the next event of one workflow, and an engine that hears of many.
//!
//! Neither asks again and again: apply says which history grew, and only who waits for that one looks. An
//! engine's stream tells the heads of workflows, not their events; what it is behind with is one head for
//! each workflow, however often that grew.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use holdfast_client::wire::{DeadLetter, HeadGrew, HeadMessage, HeadScope};
use holdfast_machine::{DispatchKey, Effect, HistoryEvent, Namespace, ShardId, WorkflowId};
use holdfast_raft::{FeedItem, Since, Subscription};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::ReadMode;
use crate::error::StoreError;
use crate::store::{Shared, Store, StoreResult};

/// Who waits for which workflow's next event.
#[derive(Debug, Default)]
pub(crate) struct Growth(Mutex<BTreeMap<WorkflowId, Waiters>>);

#[derive(Debug, Default)]
struct Waiters {
    count: usize,
    grew: Arc<Notify>,
}

impl Growth {
    fn wait_for(self: &Arc<Self>, workflow: &WorkflowId) -> Waiter {
        let mut waiting = self.0.lock();
        let waiters = waiting.entry(workflow.clone()).or_default();
        waiters.count += 1;
        Waiter { growth: Arc::clone(self), workflow: workflow.clone(), grew: Arc::clone(&waiters.grew) }
    }

    /// Wakes those for whom there may be something to see.
    fn note(&self, effect: &Effect) {
        match effect {
            Effect::HistoryGrew { workflow, .. } => self.tell(workflow),
            // A state that jumped to a snapshot says no more than this.
            Effect::TopologyChanged => self.tell_everybody(),
            _ => {}
        }
    }

    fn tell(&self, workflow: &WorkflowId) {
        if let Some(waiters) = self.0.lock().get(workflow) {
            waiters.grew.notify_waiters();
        }
    }

    fn tell_everybody(&self) {
        self.0.lock().values().for_each(|waiters| waiters.grew.notify_waiters());
    }
}

/// One caller's place among those who wait; given up by dropping it.
struct Waiter {
    growth: Arc<Growth>,
    workflow: WorkflowId,
    grew: Arc<Notify>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.growth.0.lock();
        if let Some(waiters) = waiting.get_mut(&self.workflow) {
            waiters.count -= 1;
            if waiters.count == 0 {
                waiting.remove(&self.workflow);
            }
        }
    }
}

/// Wakes those who wait for a history, until the store is gone.
pub(crate) async fn watch_histories(store: Weak<Shared>, mut effects: Receiver<(u64, Effect)>) {
    let Some(growth) = store.upgrade().map(|shared| Arc::clone(&shared.growth)) else { return };
    loop {
        match effects.recv().await {
            Ok((_, effect)) => growth.note(&effect),
            Err(RecvError::Lagged(_)) => growth.tell_everybody(),
            Err(RecvError::Closed) => return,
        }
    }
}

impl Store {
    /// As [`Store::history`], but where there is no event from `from_seq` on it waits for one, up to `wait`, capped
    /// by [`crate::StoreOptions::wait_max`]. Empty if none came. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As [`Store::history`]; [`StoreError::Stopped`] when the node stops in the meantime.
    pub async fn next_events(
        &self,
        workflow: &WorkflowId,
        from_seq: u64,
        limit: u32,
        wait: Duration,
        mode: ReadMode,
    ) -> StoreResult<Vec<HistoryEvent>> {
        let deadline = Instant::now() + wait.min(self.shared.options.wait_max);
        let waiter = self.shared.growth.wait_for(workflow);
        let mut closed = self.shared.closed.subscribe();
        let mut mode = mode;
        loop {
            // Listened for before the look, so that nothing that comes in between is missed.
            let mut grew = pin!(waiter.grew.notified());
            grew.as_mut().enable();
            let page = self.history(workflow, from_seq, limit, mode).await?;
            if !page.value.is_empty() || deadline <= Instant::now() {
                return Ok(page);
            }
            mode = ReadMode::AtLeast(page.index);
            tokio::select! {
                () = grew => {}
                () = sleep_until(deadline) => {}
                _ = closed.wait_for(|closed| *closed) => return Err(StoreError::Stopped),
            }
        }
    }

    /// The heads of histories that grow, and the rows that become dead letters, as they do. Begins with [`HeadMessage::Resync`], which comes again
    /// wherever something may be missing. Ends when the node stops or the store is closed.
    pub fn watch_heads(&self, scope: HeadScope) -> BoxStream<'static, HeadMessage> {
        let watcher = HeadWatcher::new(self.clone(), scope);
        let messages = stream::unfold(watcher, |mut watcher| async move {
            let message = watcher.next().await?;
            Some((message, watcher))
        });
        messages.boxed()
    }
}

struct HeadWatcher {
    store: Store,
    scope: HeadScope,
    effects: Receiver<(u64, Effect)>,
    /// Says when the state has jumped to a snapshot, past the effects of the entries in between.
    feed: Subscription,
    closed: watch::Receiver<bool>,
    /// True while something may be missing that the subscriber has not been told of.
    resync: bool,
    /// What has grown and is not told yet.
    heads: BTreeMap<WorkflowId, HeadGrew>,
    /// What was given up and is not told yet.
    dead_letters: BTreeMap<DispatchKey, DeadLetter>,
}

impl HeadWatcher {
    fn new(store: Store, scope: HeadScope) -> Self {
        let raft = &store.shared.raft;
        let (effects, feed) = (raft.effects(), raft.feed().subscribe(Since::Now));
        let closed = store.shared.closed.subscribe();
        Self {
            store,
            scope,
            effects,
            feed,
            closed,
            resync: true,
            heads: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
        }
    }

    async fn next(&mut self) -> Option<HeadMessage> {
        loop {
            self.drain();
            if std::mem::take(&mut self.resync) {
                // The heads at this index and above hold all that was dropped or not yet told.
                self.heads.clear();
                self.dead_letters.clear();
                let index = self.store.shared.raft.view(|machine, _| machine.applied());
                return Some(HeadMessage::Resync { index });
            }
            if let Some((_, grew)) = self.heads.pop_first() {
                return Some(HeadMessage::Grew(grew));
            }
            if let Some((_, letter)) = self.dead_letters.pop_first() {
                return Some(HeadMessage::DeadLetter(letter));
            }
            let effect = tokio::select! {
                effect = self.effects.recv() => effect,
                item = self.feed.next() => match item? {
                    FeedItem::Lagged { .. } => Err(RecvError::Lagged(0)),
                    FeedItem::Event { .. } => continue,
                },
                _ = self.closed.wait_for(|closed| *closed) => return None,
            };
            match effect {
                Ok((_, effect)) => self.note(effect),
                Err(RecvError::Lagged(_)) => self.resync = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Takes in what is there already, so that a workflow that grew often is told once.
    fn drain(&mut self) {
        loop {
            match self.effects.try_recv() {
                Ok((_, effect)) => self.note(effect),
                Err(TryRecvError::Lagged(_)) => self.resync = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn note(&mut self, effect: Effect) {
        match effect {
            Effect::HistoryGrew { workflow, shard, head, namespace } if self.takes(shard, &namespace) => {
                self.heads.insert(workflow.clone(), HeadGrew { workflow, shard, head, namespace });
            }
            Effect::DeadLetter { key, shard, namespace } if self.takes(shard, &namespace) => {
                self.dead_letters.insert(key.clone(), DeadLetter { key, shard, namespace });
            }
            _ => {}
        }
    }

    fn takes(&self, shard: ShardId, namespace: &Namespace) -> bool {
        let HeadScope { shard: only, owner, namespace: within } = &self.scope;
        if only.is_some_and(|only| only != shard) || within.as_ref().is_some_and(|within| within != namespace) {
            return false;
        }
        owner.as_ref().is_none_or(|owner| {
            let raft = &self.store.shared.raft;
            raft.view(|machine, _| machine.shard(shard).is_some_and(|entry| entry.owner == *owner))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_waiter_is_woken_by_its_own_history_and_by_a_jump_of_the_state() {
        let growth = Arc::new(Growth::default());
        let workflow: WorkflowId = "w".parse().unwrap();
        let waiter = growth.wait_for(&workflow);
        let grew = |workflow: &WorkflowId| {
            let (workflow, namespace) = (workflow.clone(), Namespace::default());
            Effect::HistoryGrew { workflow, shard: ShardId(0), head: 1, namespace }
        };
        let woken_by = |effect: &Effect| {
            let mut notified = pin!(waiter.grew.notified());
            notified.as_mut().enable();
            growth.note(effect);
            notified.now_or_never().is_some()
        };
        assert!(woken_by(&grew(&workflow)));
        assert!(!woken_by(&grew(&"another".parse().unwrap())));
        assert!(woken_by(&Effect::TopologyChanged));
    }
}
