//! Explaining: what the state machine cannot know of the reasons why something does not move. Whether this node reaches
//! a majority, whether a disk is full, who waits here for work, and what log time is between entries.

use std::time::Duration;

use holdfast_client::wire::Explanation;
use holdfast_machine::{
    Archive, ArchiveResult, Census, DispatchKey, Machine, Millis, NextTimeout, NoQuorum, NodeName, ParkedRoute, Route,
    RowReason, ShardId, ShardReason, Vantage, WorkflowId, WorkflowReason,
};
use holdfast_raft::{ProposeError, Status};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::read::leader;
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

/// A disk that was full is taken to be full for so long after a write was refused.
const FULL_FOR: Duration = Duration::from_secs(10);

/// When a write was refused last because a disk was full, if none has been taken since.
#[derive(Debug, Default)]
pub(crate) struct FullDisk(Mutex<Option<Instant>>);

impl FullDisk {
    /// A write was refused, or was not.
    pub fn note(&self, error: Option<&ProposeError>) {
        match error {
            Some(ProposeError::StorageFull) => *self.0.lock() = Some(Instant::now()),
            None => *self.0.lock() = None,
            Some(_) => {}
        }
    }

    fn is_full(&self) -> bool {
        self.0.lock().is_some_and(|refused| refused.elapsed() < FULL_FOR)
    }
}

/// How old claims are, by this node's clock.
pub(crate) struct Claims {
    /// How many deadlines of rows and sessions have passed, and nothing has come of them.
    pub overdue: u64,
    /// How long ago the oldest one was made; nothing if there is none.
    pub oldest_age: Duration,
}

/// What is said of a subject besides the reason itself.
struct Said<R> {
    reason: R,
    census: Option<Census>,
    timeout: Option<NextTimeout>,
    sentence: fn(&R, Millis) -> String,
    advice: fn(&R) -> String,
    outlook: fn(&R) -> holdfast_machine::Outlook,
}

impl Store {
    /// Why a row is where it is: the first reason that holds, and what to do. Answers without a quorum as well, from what
    /// this node knows; the reason is then that.
    ///
    /// # Errors
    /// [`StoreError::Stopped`], [`StoreError::Read`]; so with all calls here.
    pub async fn explain_row(&self, key: &DispatchKey) -> StoreResult<Explanation<RowReason>> {
        self.explain(key.to_string(), |machine, archive, vantage| {
            let reason = machine.explain_row(archive, key, vantage)?;
            let census = machine.census_for(archive, key, &reason, vantage)?;
            let (sentence, advice, outlook) = (RowReason::sentence, RowReason::advice, RowReason::outlook);
            let timeout = machine.timeout_of(archive, key, vantage.now)?;
            Ok(Said { reason, census, timeout, sentence, advice, outlook })
        })
        .await
    }

    /// What a workflow waits for.
    pub async fn explain_workflow(&self, workflow: &WorkflowId) -> StoreResult<Explanation<WorkflowReason>> {
        self.explain(workflow.to_string(), |machine, archive, vantage| {
            let reason = machine.explain_workflow(archive, workflow, vantage)?;
            let (census, timeout) = match reason.row() {
                Some((row, reason)) => {
                    (machine.census_for(archive, row, reason, vantage)?, machine.timeout_of(archive, row, vantage.now)?)
                }
                None => (None, None),
            };
            let (sentence, advice) = (WorkflowReason::sentence, WorkflowReason::advice);
            Ok(Said { reason, census, timeout, sentence, advice, outlook: WorkflowReason::outlook })
        })
        .await
    }

    /// How a shard stands.
    pub async fn explain_shard(&self, shard: ShardId) -> StoreResult<Explanation<ShardReason>> {
        self.explain(shard.to_string(), |machine, _, vantage| {
            let reason = machine.explain_shard(shard, vantage);
            let (sentence, advice, outlook) = (ShardReason::sentence, ShardReason::advice, ShardReason::outlook);
            Ok(Said { reason, census: None, timeout: None, sentence, advice, outlook })
        })
        .await
    }

    /// Up to `limit` routes of this node's shards on which rows have been due for `due_for` and longer and wait for
    /// somebody to take them, from behind `after` on; where to go on, if there is more.
    pub fn parked_routes(
        &self,
        due_for: Duration,
        after: Option<&Route>,
        limit: usize,
    ) -> (Vec<ParkedRoute>, Option<Route>) {
        let due_for = u64::try_from(due_for.as_millis()).unwrap_or(u64::MAX);
        let polls = self.shared.waiting.polls();
        self.shared.raft.view(|machine, _| {
            let now = self.shared.waiting.log_time(machine);
            let Some(due_by) = now.0.checked_sub(due_for) else { return (Vec::new(), None) };
            let vantage = Vantage { now, polls, ..Vantage::default() };
            machine.parked_routes(self.node(), Millis(due_by), after, limit, &vantage)
        })
    }

    /// How long it is until the first row of this node's shards that is not claimed is due, and zero if it is; none if
    /// there is none.
    pub fn next_due_in(&self) -> Option<Duration> {
        self.shared.raft.view(|machine, _| {
            let now = self.shared.waiting.log_time(machine);
            machine.next_due_of(self.node()).map(|at| Duration::from_millis(at.0.saturating_sub(now.0)))
        })
    }

    pub(crate) fn claims_now(&self) -> Claims {
        self.shared.raft.view(|machine, _| {
            let now = self.shared.waiting.log_time(machine);
            let age = machine.oldest_claim().map_or(0, |at| now.0.saturating_sub(at.0));
            Claims { overdue: machine.overdue_deadlines(now), oldest_age: Duration::from_millis(age) }
        })
    }

    async fn explain<R>(
        &self,
        subject: String,
        look: impl FnOnce(&Machine, &dyn Archive, &Vantage) -> ArchiveResult<Said<R>>,
    ) -> StoreResult<Explanation<R>> {
        let raft = &self.shared.raft;
        let fresh = match raft.read_index(ReadMode::Linearizable).await {
            Ok(_) => true,
            Err(ProposeError::Stopped) => return Err(StoreError::Stopped),
            Err(_) => false,
        };
        let status = raft.status();
        let mut vantage = Vantage {
            now: Millis(0),
            no_quorum: (!fresh).then(|| self.no_quorum(&status)),
            storage_full: self.storage_full(&status),
            polls: self.shared.waiting.polls(),
        };
        let (index, at, said) = raft.view(|machine, archive| {
            vantage.now = self.shared.waiting.log_time(machine);
            (machine.applied(), vantage.now, look(machine, archive, &vantage))
        });
        let Said { reason, census, timeout, sentence, advice, outlook } = said?;
        // Without new entries log time stands still, and nothing times out.
        let timeout = timeout.filter(|_| fresh && vantage.storage_full.is_none());
        let mut sentence = sentence(&reason, at);
        if let Some(timeout) = &timeout {
            sentence = format!("{sentence} {}", timeout.sentence());
        }
        let value = Explanation {
            subject,
            outlook: outlook(&reason),
            sentence,
            advice: advice(&reason),
            reason,
            census,
            timeout,
            node: self.node().clone(),
            fresh,
            at,
        };
        Ok(Answer { index, value })
    }

    fn no_quorum(&self, status: &Status) -> NoQuorum {
        let voters: Vec<_> = status.members.iter().filter(|member| member.voter).collect();
        let linked = voters.iter().filter(|member| member.linked).count();
        // The majority went with the connection that was one too many.
        let mut gone: Vec<Duration> = voters.iter().filter_map(|member| member.unlinked_for).collect();
        gone.sort_unstable_by(|a, b| b.cmp(a));
        let spare = voters.len() - (voters.len() / 2 + 1).min(voters.len());
        let millis = |gone: &Duration| u64::try_from(gone.as_millis()).unwrap_or(u64::MAX);
        NoQuorum {
            node: self.node().clone(),
            leader: leader(status),
            linked: u32::try_from(linked).unwrap_or(u32::MAX),
            voters: u32::try_from(voters.len()).unwrap_or(u32::MAX),
            for_ms: gone.get(spare).map(millis),
        }
    }

    fn storage_full(&self, status: &Status) -> Option<NodeName> {
        if status.storage_full {
            return Some(self.node().clone());
        }
        // Whatever is refused is refused by the leader.
        self.shared.full_disk.is_full().then(|| leader(status)).flatten()
    }
}
