//! The outbox's rows: what they hold, where they can stand, and how failed attempts are repeated.
//! `row_index.rs` keeps the live ones in order.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::history::EventKind;
use crate::id::{
    ActivityType, BootId, ClaimToken, Claimant, DispatchKey, ErrorType, Millis, Namespace, NodeName, SessionId,
    TaskQueue,
};
use crate::payload::Payload;

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Where an activity's outcome leaves its row.
    pub(crate) fn after(outcome: &EventKind) -> Self {
        match outcome {
            EventKind::ActivityCompleted => Self::Done,
            EventKind::ActivityFailed => Self::Failed,
            _ => Self::Cancelled,
        }
    }

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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// The first wait, in milliseconds.
    pub initial_ms: u64,
    /// The growth of the wait, in percent: 200 doubles it; less than 100 counts as 100.
    pub multiplier_percent: u32,
    /// The longest wait, in milliseconds.
    pub maximum_ms: u64,
    /// Deliveries after which the row becomes a dead letter.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub deliveries_max: u32,
    /// Errors that no further attempt can mend: a failure of one of these types is for good.
    pub non_retryable: Vec<ErrorType>,
}

/// How long the parts of an activity may take, in milliseconds of log time; none for no limit. The names and what they
/// mean are Temporal's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// From the moment at which a row is due, or is pending again, to its claim. Passed: the activity fails for good.
    pub schedule_to_start_ms: Option<u64>,
    /// From a claim to the end of that attempt. Passed: the attempt has failed, and may be repeated.
    pub start_to_close_ms: Option<u64>,
    /// From the staging of a row to its outcome, over all attempts. Passed: the activity fails for good.
    pub schedule_to_close_ms: Option<u64>,
    /// Between two heartbeats of one attempt. Passed: the attempt has failed, and may be repeated.
    pub heartbeat_ms: Option<u64>,
}

impl Timeouts {
    /// Those that are set, by name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { schedule_to_start_ms, start_to_close_ms, schedule_to_close_ms, heartbeat_ms } = *self;
        let all = [
            ("schedule_to_start_ms", schedule_to_start_ms),
            ("start_to_close_ms", start_to_close_ms),
            ("schedule_to_close_ms", schedule_to_close_ms),
            ("heartbeat_ms", heartbeat_ms),
        ];
        all.into_iter().filter_map(|(name, ms)| Some((name, ms?)))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_ms: 1_000,
            multiplier_percent: 200,
            maximum_ms: 60_000,
            deliveries_max: 10,
            non_retryable: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// The wait before delivery number `deliveries` (from 1) of the row `key`, in milliseconds. The jitter
    /// comes from the key, so that every node computes the same.
    pub fn backoff_ms(&self, key: &DispatchKey, deliveries: u32) -> u64 {
        // With 32 binary places, so that a short wait grows by small percentages too. A u64 with them times
        // a u32 fits in 128 bits.
        let most = u128::from(self.maximum_ms) << 32;
        let mut wait = (u128::from(self.initial_ms) << 32).min(most);
        for _ in 1..deliveries {
            let grown = (wait * u128::from(self.multiplier_percent.max(100)) / 100).min(most);
            if grown == wait {
                break;
            }
            wait = grown;
        }
        let wait = u64::try_from(wait >> 32).unwrap_or(u64::MAX);
        let seed = xxh3_64(format!("{key}/{deliveries}").as_bytes());
        wait.saturating_add(seed % (wait / 10 + 1))
    }
}

/// A row as a caller stages it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Not before this time. 0 stands for the log time of the commit: at once, behind what waits already.
    #[serde(default)]
    pub visible_after: Millis,
    /// How failed attempts are repeated.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// How long the activity and its attempts may take.
    #[serde(default)]
    pub timeouts: Timeouts,
}

impl NewRow {
    /// A row for anybody in the default task queue, due at once, with no input.
    pub fn new(ordinal: u64, activity_type: ActivityType) -> Self {
        Self {
            ordinal,
            task_queue: TaskQueue::default(),
            node: None,
            activity_type,
            input: Payload::default(),
            visible_after: Millis(0),
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// A row in the outbox. Its input is kept beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Log time at which it was staged, or put back after it had finished.
    pub scheduled_at: Millis,
    /// When it has to be claimed at the latest, if it is pending and has such a timeout.
    pub start_by: Option<Millis>,
    /// How long the activity and its attempts may take.
    pub timeouts: Timeouts,
}

/// Who holds a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RowClaim {
    /// The proof.
    pub token: ClaimToken,
    /// Who.
    pub holder: Holder,
    /// Log time of the claim.
    pub claimed_at: Millis,
    /// When the lease ends; none for a claim of a node or of a session.
    pub deadline: Option<Millis>,
    /// Log time of the attempt's last heartbeat; of the claim before the first one.
    pub heartbeat_at: Millis,
}

/// Who a claim belongs to. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
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
    /// A worker's session; ends with it.
    Session {
        /// The session.
        session: SessionId,
    },
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
    }

    #[test]
    fn backoff_of_any_policy_ends_and_stays_in_range() {
        let key: DispatchKey = "w:1".parse().unwrap();
        let wait = |initial_ms, multiplier_percent, maximum_ms| {
            let policy =
                RetryPolicy { initial_ms, multiplier_percent, maximum_ms, deliveries_max: 1, ..Default::default() };
            policy.backoff_ms(&key, u32::MAX)
        };
        assert_eq!(wait(u64::MAX, 200, u64::MAX), u64::MAX);
        assert_eq!(wait(u64::MAX, u32::MAX, u64::MAX), u64::MAX);
        assert_eq!(wait(0, 200, 1_000), 0);
        assert_eq!(wait(5, 0, 1_000), 5);
        assert_eq!(wait(5, 100, 1), 1);
        assert!((1_000..=1_100).contains(&wait(1, 101, 1_000)), "a slow growth arrives");
    }
}
