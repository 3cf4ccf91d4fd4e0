//! What users hold: the typed [`Store`], and the same over HTTP ([`http::router`]).
//!
//! Both speak the types of `holdfast_client::wire` and of the state machine. A call is checked against the
//! limits before it is proposed, so that one over a limit costs the cluster nothing; what it means is
//! decided in the state machine alone. Here is only what a caller sees of it: how fresh a read is, how a
//! claim waits for work, how events become a stream, and which status an error has.
//!
//! - `store.rs` writes; `outbox.rs` and `rows.rs` the same for rows; `claim.rs` and `waiting.rs` claims that wait;
//!   `read.rs` and `listings.rs` read; `visibility.rs` finds workflows; `events.rs` the event stream;
//!   `growth.rs` who waits for histories to grow; `timers.rs` timers and who waits for them; `attachment.rs` and
//!   `attachments.rs` the sessions of workers that are attached here, `sessions.rs` all of them; `explain.rs`
//!   why something does not move; `metrics.rs` what is
//!   counted; `backup.rs` a copy of everything; `batch.rs` many calls in one.
//! - `http/` has a file for each group of routes. A handler takes a request apart, calls the store, and
//!   answers.

#![warn(missing_docs)]

mod attachment;
mod attachments;
mod backup;
mod batch;
mod claim;
mod deliveries;
mod error;
mod events;
mod explain;
mod growth;
pub mod http;
mod listings;
mod members;
mod metrics;
mod namespaces;
mod outbox;
mod read;
mod readiness;
mod rows;
mod sessions;
mod store;
mod timers;
mod visibility;
mod waiting;

pub use attachment::Attachment;
pub use backup::Backup;
pub use error::StoreError;
pub use holdfast_client::{
    Adoption, Answer, ClaimCall, ClaimHolder, ClusterView, CountPage, DeadLetter, DeadLetterPage, Delivery, Directory,
    DueTimer, DueTimers, Ended, EventId, EventMessage, ExpiredCall, Explanation, Failure, Head, HeadGrew, HeadMessage,
    HeadPage, HeadScope, HeldRow, ListCall, ListedRow, MemberView, NodeMessage, PageCall, ReadMode, Reconciled,
    RedriveMode, RoutePage, RowResult, RowView, RowsInNamespace, Runs, SessionFilter, SessionPage, SessionView,
    SessionWithRows, StaleRows, TimerPage, Topology, UnsettledPage, UnsettledWorkflow, WaitingRoute, WithdrawnRow,
    WorkflowList, WorkflowView, Write,
};
pub use store::{Store, StoreOptions, StoreResult};
