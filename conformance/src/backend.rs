//! The seam: what a store has to answer to be checked. The embedded `Store` and the HTTP `Client` have these
//! methods under the same names and with the same types, so one list of them makes the trait and both
//! implementations.

use std::time::Duration;

use async_trait::async_trait;
use holdfast_client::wire::{
    CountPage, DeadLetterPage, DueTimers, ExpiredCall, Explanation, HeadPage, NamespacePage, NamespaceView, PageCall,
    RedriveMode, Replacement, RoutePage, SessionFilter, SessionPage, SessionWithRows, TimerPage, UnsettledPage,
};
use holdfast_client::{
    Adoption, Answer, ClaimCall, Client, ClientError, ClusterView, Delivery, Directory, HeldRow, ListCall, ReadMode,
    Reconciled, RowView, Runs, StaleRows, WorkflowList, WorkflowView, Write,
};
use holdfast_machine::{
    Arming, ClaimToken, Commit, Committed, DispatchKey, Epoch, HistoryEvent, Millis, Moved, Namespace,
    NamespaceSettings, NamespaceState, NewEvent, NewRow, NodeName, Payload, Reject, Retirement, Returned, RowReason,
    SessionId, ShardId, ShardReason, Staged, Worker, WorkflowFilter, WorkflowId, WorkflowReason,
};

use crate::workers::Attachment;

/// Why a call was not answered with a success.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The call was refused, and nothing changed.
    #[error("{}: {}", .0.code(), .0)]
    Refused(Reject),
    /// Anything else.
    #[error("{code}: {detail}")]
    Other {
        /// The stable name of the error.
        code: String,
        /// A sentence.
        detail: String,
        /// True if the same call may succeed later: the store is busy, or has no leader just now.
        retryable: bool,
    },
}

impl Failure {
    /// The stable name of the error.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(reject) => reject.code(),
            Self::Other { code, .. } => code,
        }
    }

    /// True if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Other { retryable: true, .. })
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let (code, detail, retryable) = (error.code().to_owned(), error.to_string(), error.is_retryable());
        match error {
            ClientError::Reject(reject) => Self::Refused(reject),
            _ => Self::Other { code, detail, retryable },
        }
    }
}

#[cfg(feature = "store")]
impl From<holdfast_api::StoreError> for Failure {
    fn from(error: holdfast_api::StoreError) -> Self {
        let (code, detail, retryable) = (error.code().to_owned(), error.to_string(), error.is_retryable());
        match error {
            holdfast_api::StoreError::Reject(reject) => Self::Refused(reject),
            _ => Self::Other { code, detail, retryable },
        }
    }
}

/// The result of a call.
pub type Called<T> = Result<Answer<T>, Failure>;

/// Makes [`Backend`] and [`Layer`] of the list of calls, and implements them.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        /// A store that can be checked. What each call promises is in the documents of the embedded `Store`.
        #[async_trait]
        #[allow(clippy::too_many_arguments)]
        pub trait Backend: Send + Sync {
            /// True if the store is part of this process, so that its engine may claim rows for its node.
            fn is_embedded(&self) -> bool;
            /// Attaches a worker's session.
            async fn attach(
                &self, session: SessionId, worker: Worker, holding: Vec<HeldRow>
            ) -> Result<Box<dyn Attachment>, Failure>;
            $($(#[$doc])* async fn $name(&self $(, $argument: $type)*) -> Called<$answer>;)+
        }

        #[async_trait]
        impl Backend for Client {
            fn is_embedded(&self) -> bool {
                false
            }
            async fn attach(
                &self, session: SessionId, worker: Worker, holding: Vec<HeldRow>
            ) -> Result<Box<dyn Attachment>, Failure> {
                Ok(Box::new(self.attach(session, worker, holding).await?))
            }
            $(async fn $name(&self $(, $argument: $type)*) -> Called<$answer> {
                Ok(self.$name($($argument),*).await?)
            })+
        }

        #[cfg(feature = "store")]
        #[async_trait]
        impl Backend for holdfast_api::Store {
            fn is_embedded(&self) -> bool {
                true
            }
            async fn attach(
                &self, session: SessionId, worker: Worker, holding: Vec<HeldRow>
            ) -> Result<Box<dyn Attachment>, Failure> {
                Ok(Box::new(self.attach(session, worker, holding).await?))
            }
            $(async fn $name(&self $(, $argument: $type)*) -> Called<$answer> {
                Ok(self.$name($($argument),*).await?)
            })+
        }

        /// Something in front of a store that passes on what it does not answer itself.
        #[async_trait]
        #[allow(clippy::too_many_arguments)]
        pub trait Layer: Send + Sync {
            /// The store behind it.
            fn below(&self) -> &dyn Backend;
            /// Attaches a worker's session.
            async fn attach(
                &self, session: SessionId, worker: Worker, holding: Vec<HeldRow>
            ) -> Result<Box<dyn Attachment>, Failure> {
                self.below().attach(session, worker, holding).await
            }
            $($(#[$doc])* async fn $name(&self $(, $argument: $type)*) -> Called<$answer> {
                self.below().$name($($argument),*).await
            })+
        }

        /// A [`Layer`] as a store.
        #[derive(Debug)]
        pub struct Layered<L>(pub L);

        #[async_trait]
        impl<L: Layer> Backend for Layered<L> {
            fn is_embedded(&self) -> bool {
                self.0.below().is_embedded()
            }
            async fn attach(
                &self, session: SessionId, worker: Worker, holding: Vec<HeldRow>
            ) -> Result<Box<dyn Attachment>, Failure> {
                self.0.attach(session, worker, holding).await
            }
            $(async fn $name(&self $(, $argument: $type)*) -> Called<$answer> {
                self.0.$name($($argument),*).await
            })+
        }
    };
}

calls! {
    /// Appends events.
    append(workflow: &WorkflowId, expected_seq: u64, events: Vec<NewEvent>, write: Write) -> Committed;
    /// Changes one workflow in one step.
    commit(commit: Commit, write: Write) -> Committed;
    /// Cancels a workflow's live rows.
    settle(workflow: &WorkflowId, write: Write) -> Vec<DispatchKey>;
    /// Puts rows back to pending.
    rearm(workflow: &WorkflowId, rows: Vec<NewRow>, write: Write) -> Vec<DispatchKey>;
    /// A workflow's projection and its shard.
    workflow(workflow: &WorkflowId, mode: ReadMode) -> WorkflowView;
    /// A range of a history.
    history(workflow: &WorkflowId, from_seq: u64, limit: u32, mode: ReadMode) -> Vec<HistoryEvent>;
    /// A range of a history, or the next event if there is none yet.
    next_events(
        workflow: &WorkflowId, from_seq: u64, limit: u32, wait: Duration, mode: ReadMode
    ) -> Vec<HistoryEvent>;
    /// A workflow's runs.
    runs(workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> Runs;
    /// Takes due rows.
    claim(call: ClaimCall, write: Write) -> Vec<Delivery>;
    /// Extends a lease.
    heartbeat(key: &DispatchKey, token: ClaimToken, lease_ms: u64, details: Payload, write: Write) -> Millis;
    /// Records a result.
    complete(key: &DispatchKey, token: Option<ClaimToken>, result: Payload, write: Write) -> Option<u64>;
    /// Records a failed attempt.
    fail(key: &DispatchKey, token: Option<ClaimToken>, failure: holdfast_client::Failure, write: Write) -> Option<Returned>;
    /// A page of the sessions.
    sessions(filter: &SessionFilter, page: &PageCall, mode: ReadMode) -> SessionPage;
    /// One session.
    session(session: &SessionId, mode: ReadMode) -> SessionWithRows;
    /// Hands a row back.
    retry(key: &DispatchKey, token: Option<ClaimToken>, delay_ms: u64, write: Write) -> Option<Returned>;
    /// Goes over old claims.
    reconcile(older_than_ms: u64, limit: u32, excluded: Vec<DispatchKey>, write: Write) -> Reconciled;
    /// Lists old claims.
    stale(older_than_ms: u64, page: &PageCall, mode: ReadMode) -> StaleRows;
    /// One row.
    row(key: &DispatchKey, mode: ReadMode) -> RowView;
    /// A page of a listing.
    list_workflows(call: &ListCall, mode: ReadMode) -> WorkflowList;
    /// How many workflows a filter takes.
    count_workflows(filter: &WorkflowFilter, mode: ReadMode) -> u64;
    /// Stages rows without events of their own.
    stage(workflow: &WorkflowId, namespace: Namespace, rows: Vec<NewRow>, write: Write) -> Vec<Staged>;
    /// Notes that a workflow has heard of a dead letter.
    mark_failure_delivered(key: &DispatchKey, write: Write) -> bool;
    /// Puts a dead letter back.
    redrive(key: &DispatchKey, mode: RedriveMode, write: Write) -> ();
    /// Dead letters of a workflow.
    dead_letters(workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> DeadLetterPage;
    /// Dead letters of a namespace.
    dead_letters_in(namespace: &Namespace, page: &PageCall, mode: ReadMode) -> DeadLetterPage;
    /// Workflows with live rows.
    unsettled(shard: Option<ShardId>, page: &PageCall, mode: ReadMode) -> UnsettledPage;
    /// What claims have to name to get something.
    pending_routes(page: &PageCall, mode: ReadMode) -> RoutePage;
    /// Live rows by namespace.
    row_counts(page: &PageCall, mode: ReadMode) -> CountPage;
    /// Where histories end.
    heads(shard: Option<ShardId>, open_only: bool, page: &PageCall, mode: ReadMode) -> HeadPage;
    /// A page of the namespaces.
    namespaces(page: &PageCall, mode: ReadMode) -> NamespacePage;
    /// One namespace.
    namespace(namespace: &Namespace, mode: ReadMode) -> NamespaceView;
    /// Creates a namespace, or gives it other settings.
    put_namespace(namespace: &Namespace, settings: &NamespaceSettings, write: Write) -> NamespaceState;
    /// Removes a finished workflow.
    delete(workflow: &WorkflowId, write: Write) -> ();
    /// Arms a timer.
    schedule_timer(workflow: &WorkflowId, arming: Arming, write: Write) -> ();
    /// Retires an arming of a timer.
    retire_timer(workflow: &WorkflowId, arming: Arming, write: Write) -> Retirement;
    /// A page of a workflow's timers.
    timers(workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> TimerPage;
    /// Timers that are due.
    expired_timers(call: ExpiredCall, mode: ReadMode) -> DueTimers;
    /// The directory.
    shards(mode: ReadMode) -> Directory;
    /// Moves a shard.
    transfer(shard: ShardId, to: &NodeName, expected_epoch: Epoch, write: Write) -> Moved;
    /// Takes a dead node's shard.
    adopt(shard: ShardId, from: &NodeName, by: &NodeName, expected_epoch: Epoch, write: Write) -> Adoption;
    /// Why a row is where it is.
    explain_row(key: &DispatchKey) -> Explanation<RowReason>;
    /// What a workflow waits for.
    explain_workflow(workflow: &WorkflowId) -> Explanation<WorkflowReason>;
    /// How a shard stands.
    explain_shard(shard: ShardId) -> Explanation<ShardReason>;
    /// The cluster as the node that answers sees it.
    cluster() -> ClusterView;
    /// Replaces a member that has lost its data.
    replace_member(name: &NodeName, dry_run: bool) -> Replacement;
}
