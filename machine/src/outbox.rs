//! The outbox: rows, their statuses, and the indexes over live ones.
//!
//! Only live rows (pending or claimed) are in memory. Finished rows are on disk alone, so a claim costs
//! the same whether a thousand or ten million rows have gone before it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::command::Scope;
use crate::id::{
    ActivityType, BootId, ClaimToken, Claimant, DispatchKey, Millis, Namespace, NodeName, ShardId, TaskQueue,
    WorkflowId,
};
use crate::payload::Payload;

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowStatus {
    /// Waiting to be claimed.
    Pending,
    /// Held by somebody.
    Claimed,
    /// Finished; the result is in the history.
    Done,
    /// Its budget is spent, or it failed for good.
    Failed,
    /// Will never be delivered.
    Cancelled,
}

impl RowStatus {
    /// True for pending and claimed.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Claimed)
    }
}

impl fmt::Display for RowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Claimed => "claimed",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// How failed attempts are repeated: the n-th wait is `initial_ms * (multiplier_percent / 100)^n`, at
/// most `maximum_ms`, plus up to a tenth derived from the row's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// The first wait, in milliseconds.
    pub initial_ms: u64,
    /// The growth of the wait, in percent: 200 doubles it.
    pub multiplier_percent: u32,
    /// The longest wait, in milliseconds.
    pub maximum_ms: u64,
    /// Deliveries after which the row becomes a dead letter.
    pub deliveries_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { initial_ms: 1_000, multiplier_percent: 200, maximum_ms: 60_000, deliveries_max: 10 }
    }
}

impl RetryPolicy {
    /// The wait before delivery number `deliveries` (from 1) of the row `key`, in milliseconds. The jitter
    /// comes from the key, so that every node computes the same.
    pub fn backoff_ms(&self, key: &DispatchKey, deliveries: u32) -> u64 {
        let mut wait = self.initial_ms.min(self.maximum_ms);
        for _ in 1..deliveries {
            if wait >= self.maximum_ms || self.multiplier_percent <= 100 {
                break;
            }
            let grown = u128::from(wait) * u128::from(self.multiplier_percent) / 100;
            wait = u64::try_from(grown).unwrap_or(u64::MAX).min(self.maximum_ms);
        }
        let seed = xxh3_64(format!("{key}/{deliveries}").as_bytes());
        wait.saturating_add(seed % (wait / 10 + 1))
    }
}

/// A row as a caller stages it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRow {
    /// The activity's number in its workflow.
    pub ordinal: u64,
    /// The pool of workers that it is meant for.
    #[serde(default)]
    pub task_queue: TaskQueue,
    /// The node that it is pinned to.
    #[serde(default)]
    pub node: Option<NodeName>,
    /// What to run.
    pub activity_type: ActivityType,
    /// What to run it on.
    #[serde(default)]
    pub input: Payload,
    /// Not before this time.
    #[serde(default)]
    pub visible_after: Millis,
    /// How failed attempts are repeated.
    #[serde(default)]
    pub retry: RetryPolicy,
}

/// A row in the outbox. Its input is kept beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The run that staged it.
    pub run: u32,
    /// The namespace of its workflow.
    pub namespace: Namespace,
    /// The pool of workers that it is meant for.
    pub task_queue: TaskQueue,
    /// The node that it is pinned to.
    pub node: Option<NodeName>,
    /// What to run.
    pub activity_type: ActivityType,
    /// Where it stands.
    pub status: RowStatus,
    /// How often it came back (failed or handed back); redelivery after a death does not count.
    pub deliveries: u32,
    /// The activity's own attempt, from 1; grows with failed attempts only.
    pub attempt: u32,
    /// Not due before this time.
    pub visible_after: Millis,
    /// The claim, while it is claimed.
    pub claim: Option<RowClaim>,
    /// The event that recorded its outcome.
    pub outcome_seq: Option<u64>,
    /// True once the workflow has heard of its failure.
    pub failure_delivered: bool,
    /// How failed attempts are repeated.
    pub retry: RetryPolicy,
}

/// Who holds a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowClaim {
    /// The proof.
    pub token: ClaimToken,
    /// Who.
    pub holder: Holder,
    /// Log time of the claim.
    pub claimed_at: Millis,
    /// When the lease ends; none for a node's own claim.
    pub deadline: Option<Millis>,
}

/// Who a claim belongs to. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holder {
    /// A node's own dispatcher or engine; ends with that boot, or with the ownership of the shard.
    Node {
        /// The node.
        node: NodeName,
        /// The boot.
        boot: BootId,
    },
    /// A plain lease; ends with its deadline.
    Lease {
        /// Who, in its own words.
        claimant: Claimant,
    },
}

type Pool = (Namespace, TaskQueue);
type Lane = (Option<NodeName>, ActivityType);
type Queue = BTreeSet<(Millis, DispatchKey)>;

/// The indexes over live rows. Derived from the rows, never stored.
#[derive(Debug, Default)]
pub(crate) struct RowIndex {
    due: BTreeMap<Pool, BTreeMap<Lane, Queue>>,
    leases: Queue,
    claimed: Queue,
}

impl RowIndex {
    /// Adds a live row; `held` says that its workflow is paused.
    pub fn insert(&mut self, key: &DispatchKey, row: &Row, held: bool) {
        match &row.claim {
            Some(claim) => {
                self.claimed.insert((claim.claimed_at, key.clone()));
                if let Some(deadline) = claim.deadline {
                    self.leases.insert((deadline, key.clone()));
                }
            }
            None if held => {}
            None => {
                let lanes = self.due.entry((row.namespace.clone(), row.task_queue.clone())).or_default();
                let lane = (row.node.clone(), row.activity_type.clone());
                lanes.entry(lane).or_default().insert((row.visible_after, key.clone()));
            }
        }
    }

    /// Takes a row out, as it was when it was inserted.
    pub fn remove(&mut self, key: &DispatchKey, row: &Row) {
        if let Some(claim) = &row.claim {
            self.claimed.remove(&(claim.claimed_at, key.clone()));
            if let Some(deadline) = claim.deadline {
                self.leases.remove(&(deadline, key.clone()));
            }
            return;
        }
        let pool = (row.namespace.clone(), row.task_queue.clone());
        let Some(lanes) = self.due.get_mut(&pool) else { return };
        let lane = (row.node.clone(), row.activity_type.clone());
        if let Some(queue) = lanes.get_mut(&lane) {
            queue.remove(&(row.visible_after, key.clone()));
            if queue.is_empty() {
                lanes.remove(&lane);
            }
        }
        if lanes.is_empty() {
            self.due.remove(&pool);
        }
    }

    fn queues<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a Queue> {
        let pool = (scope.namespace.clone(), scope.task_queue.clone());
        let lanes = self.due.get(&pool).into_iter().flatten();
        lanes.filter(|((node, activity), _)| scope_takes(scope, node.as_ref(), activity)).map(|(_, queue)| queue)
    }

    /// Due rows of a scope in the order of claims: oldest `visible_after` first, then by key.
    pub fn due<'a>(&'a self, scope: &'a Scope, now: Millis) -> impl Iterator<Item = &'a DispatchKey> {
        let mut queues: Vec<_> = self.queues(scope).map(|queue| queue.iter()).collect();
        let mut heads: BinaryHeap<_> = queues
            .iter_mut()
            .enumerate()
            .filter_map(|(number, queue)| queue.next().map(|head| Reverse((head, number))))
            .collect();
        std::iter::from_fn(move || {
            let Reverse(((visible_after, key), number)) = heads.pop()?;
            if let Some(next) = queues[number].next() {
                heads.push(Reverse((next, number)));
            }
            (*visible_after <= now).then_some(key)
        })
    }

    /// When the first row of a scope is or was due.
    pub fn next_due(&self, scope: &Scope) -> Option<Millis> {
        self.queues(scope).filter_map(|queue| queue.first()).map(|(at, _)| *at).min()
    }

    /// The first lease to end.
    pub fn next_lease_end(&self) -> Option<Millis> {
        self.leases.first().map(|(at, _)| *at)
    }

    /// Up to `limit` claims whose lease has ended at `now`, earliest first.
    pub fn ended_leases(&self, now: Millis, limit: usize) -> Vec<DispatchKey> {
        self.leases.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, key)| key.clone()).collect()
    }

    /// Claimed rows by claim time, then key, up to and including `until`.
    pub fn claimed_until(&self, until: Millis) -> impl Iterator<Item = &DispatchKey> {
        self.claimed.iter().take_while(move |(at, _)| *at <= until).map(|(_, key)| key)
    }
}

fn scope_takes(scope: &Scope, node: Option<&NodeName>, activity: &ActivityType) -> bool {
    let placed = node.is_none() || node == scope.node.as_ref();
    placed && (scope.activity_types.is_empty() || scope.activity_types.contains(activity))
}

/// Live rows by shard, then by key, so that a shard's or a workflow's rows are one range.
#[derive(Debug, Default)]
pub(crate) struct LiveRows(BTreeMap<ShardId, BTreeMap<DispatchKey, Row>>);

impl LiveRows {
    pub fn get(&self, shard: ShardId, key: &DispatchKey) -> Option<&Row> {
        self.0.get(&shard)?.get(key)
    }

    pub fn insert(&mut self, shard: ShardId, key: DispatchKey, row: Row) {
        self.0.entry(shard).or_default().insert(key, row);
    }

    pub fn remove(&mut self, shard: ShardId, key: &DispatchKey) -> Option<Row> {
        self.0.get_mut(&shard)?.remove(key)
    }

    /// The rows of a shard, by key.
    pub fn of_shard(&self, shard: ShardId) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.0.get(&shard).into_iter().flatten()
    }

    /// The rows of a workflow, by key.
    pub fn of_workflow(&self, shard: ShardId, workflow: &WorkflowId) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        let bound = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
        let range = bound(0)..=bound(u64::MAX);
        self.0.get(&shard).into_iter().flat_map(move |rows| rows.range(range.clone()))
    }

    /// All rows.
    pub fn all(&self) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.0.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_maximum_with_jitter_from_the_key() {
        let policy = RetryPolicy::default();
        let key: DispatchKey = "w:1".parse().unwrap();
        let waits: Vec<u64> = (1..=12).map(|n| policy.backoff_ms(&key, n)).collect();
        for (n, wait) in waits.iter().enumerate() {
            let base = (1_000u64 << n).min(60_000);
            assert!((base..=base + base / 10).contains(wait), "{n}: {wait}");
        }
        assert_eq!(waits, (1..=12).map(|n| policy.backoff_ms(&key, n)).collect::<Vec<_>>());
        let extreme = RetryPolicy { initial_ms: u64::MAX, maximum_ms: u64::MAX, ..policy };
        assert_eq!(extreme.backoff_ms(&key, u32::MAX), u64::MAX);
    }
}
