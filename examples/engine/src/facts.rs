//! What a workflow's driver hears besides its history: that it may have grown, that a timer is due, that a row was
//! given up, that a child has ended. Such a fact is written into the history first; the function hears of it from
//! there.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{ReadMode, Store, StoreError};
use holdfast_machine::{Arming, Commit, DispatchKey, EventKind, NewEvent, Reject, RowStatus, TimerChange, WorkflowId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::child::{self, ChildEnd};
use crate::decision::{TimerBody, body};
use crate::replay::Replay;
use crate::retry::until_read;

/// Most facts of one kind that one commit writes.
const FACTS_PER_COMMIT_MAX: usize = 200;

/// Where the engine leaves word for a driver.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Mail {
    unread: bool,
    /// True while the driver waits for nothing but mail.
    resting: bool,
    due: BTreeSet<Arming>,
    given_up: BTreeSet<u64>,
}

/// What the engine has to tell.
#[derive(Debug)]
pub(crate) enum Word {
    /// Look at the history.
    Grew,
    /// This timer is due.
    Due(Arming),
    /// The row with this ordinal is a dead letter.
    GivenUp(u64),
}

impl Mailbox {
    pub fn tell(&self, word: Word) {
        let mut mail = self.mail.lock();
        mail.unread = true;
        match word {
            Word::Grew => {}
            Word::Due(arming) => drop(mail.due.insert(arming)),
            Word::GivenUp(ordinal) => drop(mail.given_up.insert(ordinal)),
        }
        drop(mail);
        self.came.notify_one();
    }

    /// True if there is something that the driver has not taken.
    pub fn unread(&self) -> bool {
        self.mail.lock().unread
    }

    /// True if nothing is lost when the driver is dropped now, and nothing is under way.
    pub fn may_be_closed(&self) -> bool {
        let mail = self.mail.lock();
        mail.resting && !mail.unread
    }

    /// Waits for mail; `resting` says that the driver waits for nothing else.
    pub async fn wait(&self, resting: bool) {
        self.mail.lock().resting = resting;
        self.came.notified().await;
        self.mail.lock().resting = false;
    }
}

/// The facts that a history does not tell yet.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    due: BTreeSet<Arming>,
    given_up: BTreeSet<u64>,
    ended: BTreeMap<u64, ChildEnd>,
}

impl Facts {
    /// Takes what is in the mailbox.
    pub fn take(&mut self, mailbox: &Mailbox) {
        let mut mail = mailbox.mail.lock();
        mail.unread = false;
        self.due.append(&mut mail.due);
        self.given_up.append(&mut mail.given_up);
    }

    pub fn given_up(&mut self, ordinal: u64) {
        self.given_up.insert(ordinal);
    }

    pub fn ended(&mut self, end: ChildEnd) {
        self.ended.insert(end.child, end);
    }

    /// The children of a run that has ended are nobody's.
    pub fn forget_children(&mut self) {
        self.ended.clear();
    }

    /// What the workflow waits for of all this, as one commit; none if it waits for nothing of it. Facts that the
    /// history tells already, or that nobody waits for, are dropped.
    pub async fn commit(
        &mut self,
        store: &Store,
        workflow: &WorkflowId,
        // Not shared, as a function's future may move between threads but not be in two.
        replay: &mut Replay,
    ) -> Result<Option<Commit>, StoreError> {
        let mut commit = Commit::new(workflow.clone(), replay.head());
        for arming in self.due.iter().take(FACTS_PER_COMMIT_MAX) {
            // A timer that nobody waits for goes without an event.
            if let Some(timer) = replay.armed(arming) {
                let fired = NewEvent::of(EventKind::TimerFired);
                commit.events.push(fired.with(body(&TimerBody { timer, fire_at: None })));
            }
            commit.timers.push(TimerChange::Retire(arming.clone()));
        }
        self.given_up.retain(|ordinal| replay.awaits_activity(*ordinal));
        for ordinal in self.given_up.iter().copied().take(FACTS_PER_COMMIT_MAX) {
            let key = DispatchKey { workflow: workflow.clone(), ordinal };
            match until_read(|| store.row(&key, ReadMode::Stale)).await.map(|answer| answer.value) {
                // The last error stands in the row. The event is what the store takes for the delivery of the failure.
                Ok(row) if row.row.status == RowStatus::Failed => {
                    commit.events.push(NewEvent::activity(EventKind::ActivityFailed, ordinal).with(row.details));
                }
                // An operator has taken it up again.
                Ok(_) | Err(StoreError::Reject(Reject::RowNotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        self.ended.retain(|child, _| replay.awaits_child(*child));
        commit.events.extend(self.ended.values().take(FACTS_PER_COMMIT_MAX).map(child::ended));
        Ok((!commit.events.is_empty() || !commit.timers.is_empty()).then_some(commit))
    }

    /// Forgets what a commit has written.
    pub fn written(&mut self, commit: &Commit) {
        for change in &commit.timers {
            if let TimerChange::Retire(arming) = change {
                self.due.remove(arming);
            }
        }
    }
}
