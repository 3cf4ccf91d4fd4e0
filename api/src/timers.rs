//! Timers: arming and retiring them, and hearing of those that are due.
//!
//! Nobody asks again and again: the leader lets log time reach the next timer, apply says which shard has one,
//! and only then does a caller that waits look. It gets what is due and not retired, so an engine retires what
//! it has fired, best in the commit that fires it, before it asks anew.

use std::time::Duration;

use holdfast_client::wire::{DueTimer, DueTimers, ExpiredCall, PageCall, TimerPage};
use holdfast_machine::{Arming, Command, Effect, Machine, Reply, Retirement, TimerChange, TimerId, WorkflowId};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::error::StoreError;
use crate::listings::{cut, one_more};
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode, Write};

impl Store {
    /// Arms a timer; an arming that stands under the same name is overwritten.
    ///
    /// # Errors
    /// `workflow_not_found`, `workflow_ended`, or another [`StoreError`].
    pub async fn schedule_timer(&self, workflow: &WorkflowId, arming: Arming, write: Write) -> StoreResult<()> {
        let command = Command::Timer { workflow: workflow.clone(), change: TimerChange::Schedule(arming) };
        self.propose(command, write).await?.answer("timer", |reply| match reply {
            Reply::TimerScheduled => Some(()),
            _ => None,
        })
    }

    /// Removes this very arming; another one of the same name is left alone.
    ///
    /// # Errors
    /// A [`StoreError`].
    pub async fn retire_timer(&self, workflow: &WorkflowId, arming: Arming, write: Write) -> StoreResult<Retirement> {
        let command = Command::Timer { workflow: workflow.clone(), change: TimerChange::Retire(arming) };
        self.propose(command, write).await?.answer("timer", |reply| match reply {
            Reply::TimerRetired(retirement) => Some(retirement),
            _ => None,
        })
    }

    /// A page of a workflow's armed timers, by name; empty for an unknown workflow.
    ///
    /// # Errors
    /// As [`Store::history`]; `invalid_argument` for a cursor of another listing.
    pub async fn timers(&self, workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> StoreResult<TimerPage> {
        let query = ("timers", workflow);
        let after: Option<TimerId> = self.place(&query, page)?;
        let look = |machine: &Machine| machine.timers_of(workflow, after.as_ref(), one_more(page));
        let Answer { index, value: mut timers } = self.read(mode, |machine, _| Ok(look(machine))).await?;
        let next_cursor = cut(&query, page, &mut timers, |arming| &arming.timer);
        Ok(Answer { index, value: TimerPage { timers, next_cursor } })
    }

    /// Timers that are due, by time, then workflow, then name; waits for some up to `call.wait_ms`, capped by
    /// [`crate::StoreOptions::wait_max`]. Empty if none came. A timer is returned until it is retired; those of
    /// paused workflows wait until they are resumed. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As [`Store::history`]; [`StoreError::Stopped`] when the node stops in the meantime.
    pub async fn expired_timers(&self, call: ExpiredCall, mode: ReadMode) -> StoreResult<DueTimers> {
        self.limits().check_page(call.limit)?;
        let wait = Duration::from_millis(call.wait_ms).min(self.shared.options.wait_max);
        let deadline = Instant::now() + wait;
        // Listened to before the look, so that nothing that comes in between is missed.
        let mut effects = self.shared.raft.effects();
        let mut closed = self.shared.closed.subscribe();
        let mut mode = mode;
        loop {
            let due = self.read(mode, |machine, _| Ok(due_timers(machine, &call))).await?;
            if !due.value.timers.is_empty() || deadline <= Instant::now() {
                return Ok(due);
            }
            mode = ReadMode::AtLeast(due.index);
            tokio::select! {
                stirred = stirred(&mut effects) => stirred?,
                () = sleep_until(deadline) => {}
                _ = closed.wait_for(|closed| *closed) => return Err(StoreError::Stopped),
            }
        }
    }
}

fn due_timers(machine: &Machine, call: &ExpiredCall) -> DueTimers {
    let as_of = call.as_of.unwrap_or_else(|| machine.now());
    let (owner, namespace) = (call.owner.as_ref(), call.namespace.as_ref());
    let timers = machine.expired_timers(owner, namespace, as_of, call.limit as usize);
    DueTimers {
        timers: timers.into_iter().map(|(workflow, arming)| DueTimer::new(workflow, arming)).collect(),
        next_due: machine.next_timer_due(owner, as_of),
    }
}

/// Waits until there may be timers to see. A state that jumped to a snapshot says that the topology changed.
async fn stirred(effects: &mut Receiver<(u64, Effect)>) -> Result<(), StoreError> {
    loop {
        match effects.recv().await {
            Ok((_, Effect::TimersDue { .. } | Effect::TopologyChanged)) | Err(RecvError::Lagged(_)) => return Ok(()),
            Ok(_) => {}
            Err(RecvError::Closed) => return Err(StoreError::Stopped),
        }
    }
}
