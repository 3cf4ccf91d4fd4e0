//! Every limit in one place. They are checked before anything is proposed, so that a request over a
//! limit costs nothing and changes nothing.

use serde::{Deserialize, Serialize};

/// Longest text id, in bytes.
pub const ID_BYTES_MAX: usize = 255;
/// Deadlines of rows (ends of leases, timeouts) that one log entry passes at most; and as many sessions and their
/// rows, give or take those of one session. The rest come with the next entry.
pub const DEADLINES_PASSED_PER_ENTRY_MAX: usize = 1_000;
/// Longest timeout of a row, in milliseconds: ten years.
pub const TIMEOUT_MS_MAX: u64 = 10 * 365 * 24 * 60 * 60 * 1_000;
/// Most error types in a retry policy.
pub const NON_RETRYABLE_MAX: usize = 100;
/// Most worker sessions at a time; they are all in memory.
pub const SESSIONS_MAX: u64 = 100_000;
/// Most rows that a session holds at a time. They end together, so that it bounds an entry as well.
pub const WORKER_CONCURRENCY_MAX: u32 = 1_000;
/// Most namespaces that a session serves.
pub const WORKER_NAMESPACES_MAX: usize = 100;
/// Most activity types that a session names.
pub const WORKER_ACTIVITY_TYPES_MAX: usize = 1_000;
/// Rows that one log entry gives to sessions at most; the rest goes with the next entry.
pub const ROWS_GIVEN_PER_ENTRY_MAX: usize = 1_000;
/// Remembered replies that one log entry forgets at most.
pub const REPLIES_FORGOTTEN_PER_ENTRY_MAX: usize = 1_000;
/// How long a reply is remembered for its idempotency key, in milliseconds of log time.
pub const REPLY_REMEMBERED_MS: u64 = 10 * 60 * 1_000;
/// Most replies that are remembered at a time; beyond it the oldest go before their time, so that memory is
/// bounded whatever the load. It stands for 10 minutes at 1,600 calls a second, or 100 seconds at 10,000.
pub const REPLIES_REMEMBERED_MAX: usize = 1_000_000;
/// Most search attributes of a workflow, and in one change of them.
pub const ATTRIBUTES_MAX: usize = 64;
/// Longest text in a search attribute, in bytes.
pub const ATTRIBUTE_TEXT_BYTES_MAX: usize = 1_024;
/// Most texts in one search attribute.
pub const ATTRIBUTE_TEXTS_MAX: usize = 32;
/// Most bytes that the names and values of a workflow's search attributes take together.
pub const ATTRIBUTES_BYTES_MAX: usize = 16 * 1_024;
/// Most workflow types in one filter.
pub const FILTER_TYPES_MAX: usize = 100;
/// Most conditions on search attributes in one filter.
pub const FILTER_ATTRIBUTES_MAX: usize = 10;
/// Most namespaces that a cluster has.
pub const NAMESPACES_MAX: usize = 10_000;
/// Finished workflows that one log entry takes out of sight at most.
pub const WORKFLOWS_PURGED_PER_ENTRY_MAX: usize = 100;
/// Stored keys of removed workflows that one log entry deletes, give or take those of one row.
pub const KEYS_REMOVED_PER_ENTRY_MAX: usize = 1_000;
/// Longest description of a namespace, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Most workflow types with a retention of their own in a namespace.
pub const RETENTION_TYPES_MAX: usize = 100;
/// Most shards that a cluster may be created with.
pub const SHARDS_MAX: u32 = 4_096;

/// The limits that a node's configuration may change. They guard the entrance only: `apply` does not
/// know them, so nodes with different limits still compute the same state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest payload, in bytes.
    pub payload_bytes_max: usize,
    /// Most events, rows or keys in one command.
    pub batch_max: usize,
    /// Most items in one page or one claim.
    pub page_max: usize,
    /// Longest lease, in milliseconds.
    pub lease_ms_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes_max: 2 * 1024 * 1024,
            batch_max: 1_000,
            page_max: 1_000,
            lease_ms_max: 24 * 60 * 60 * 1_000,
        }
    }
}
