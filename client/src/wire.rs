//! What HTTP carries besides the state machine's own types. `Store` and `Client` speak the same types,
//! so an engine can move between embedding and HTTP without rewriting its calls.
//!
//! Bodies are objects, never bare lists, so that members can be added. Times are unix milliseconds, log
//! time unless said otherwise. Keys and tokens are texts.

mod batch;
mod cluster;
mod encoding;
mod events;
mod explain;
mod growth;
mod listings;
mod namespaces;
mod node_message;
mod outbox;
mod rows;
mod sessions;
mod timers;
mod visibility;
mod workflows;

pub use holdfast_machine::{EventId, ReadMode};
use holdfast_machine::{Fence, IdempotencyKey};
use serde::{Deserialize, Serialize};

pub use batch::{Batch, BatchedCommit, BatchedResult, Outcome, Outcomes, RowResult};
pub use cluster::{
    AdoptBody, Adoption, ClusterView, Directory, DiskSpace, MemberView, ReplaceBody, Replacement, ReplacementStage,
    TransferBody,
};
pub use encoding::Encoding;
pub use events::{EventBody, EventMessage, LaggedBody, Topology};
pub use explain::Explanation;
pub use growth::{DeadLetter, HeadGrew, HeadMessage, HeadScope, ResyncBody};
pub use listings::{
    CountPage, Head, HeadPage, RoutePage, RowsInNamespace, UnsettledPage, UnsettledWorkflow, WaitingRoute,
};
pub use namespaces::{Deleted, NamespacePage, NamespaceView};
pub use outbox::{
    ClaimCall, ClaimHolder, CompleteBody, Completed, Deliveries, Delivery, Extended, FailBody, Failure, HeartbeatBody,
    Keys, ListedRow, ReconcileBody, Reconciled, RetryBody, ReturnedRow, RowView, StaleRows,
};
pub use rows::{
    DeadLetterPage, FailureDelivered, FailureDeliveredBody, RedriveBody, RedriveMode, Redriven, StageBody, StagedRows,
};
pub use sessions::{
    Ended, HeldRow, NodeMessage, SessionFilter, SessionPage, SessionView, SessionWithRows, WithdrawnRow, WorkerMessage,
};
pub use timers::{DueTimer, DueTimers, ExpiredCall, RetiredTimer, Scheduled, TimerPage};
pub use visibility::{Counted, ListCall, WorkflowList};
pub use workflows::{AppendBody, CommitBody, HistoryPage, RearmBody, Runs, SettleBody, WorkflowView};

/// Answer header: the log index that the answer reflects.
pub const INDEX_HEADER: &str = "holdfast-index";
/// The content type of a backup.
pub const BACKUP_CONTENT_TYPE: &str = "application/vnd.holdfast.backup";
/// Request header: the ownership that a write is made under, `owner/epoch`.
pub const FENCE_HEADER: &str = "holdfast-fence";
/// Request header: the caller's key for one mutating call.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Items in a page when the caller does not say.
pub const PAGE: u32 = 100;

/// An answer and the log index that it reflects: the write's own entry, or the state that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The log index. Pass it as [`ReadMode::AtLeast`] to read what was written, from any node.
    pub index: u64,
    /// The answer.
    pub value: T,
}

impl<T> Answer<T> {
    /// The same answer with its value changed.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { index: self.index, value: change(self.value) }
    }
}

/// Which page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCall {
    /// Most items; at least 1.
    pub limit: u32,
    /// `next_cursor` of the page before; none for the first page. It belongs to that very listing.
    pub cursor: Option<String>,
}

impl PageCall {
    /// The first page.
    pub fn first(limit: u32) -> Self {
        Self { limit, cursor: None }
    }

    /// The page after the one that gave this cursor.
    pub fn after(limit: u32, cursor: impl Into<String>) -> Self {
        Self { limit, cursor: Some(cursor.into()) }
    }
}

/// What guards a write. By default nothing but its own preconditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Write {
    /// The ownership that the caller believes in.
    pub fence: Option<Fence>,
    /// A retry under the same key gets the first reply. The client makes one up if none is given, except for heartbeats.
    pub idempotency_key: Option<IdempotencyKey>,
}

impl Write {
    /// A write under this key.
    pub fn keyed(key: IdempotencyKey) -> Self {
        Self { idempotency_key: Some(key), ..Self::default() }
    }
}

/// The names of the `consistency` parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// [`ReadMode::Linearizable`].
    Linearizable,
    /// [`ReadMode::Stale`].
    Stale,
}
