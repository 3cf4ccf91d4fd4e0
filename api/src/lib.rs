//! What users hold: the typed [`Store`], and the same over HTTP ([`http::router`]).
//!
//! Both speak the types of `holdfast_client::wire` and of the state machine. A call is checked against the
//! limits before it is proposed, so that one over a limit costs the cluster nothing; what it means is
//! decided in the state machine alone. Here is only what a caller sees of it: how fresh a read is, how a
//! claim waits for work, how events become a stream, and which status an error has.
//!
//! - `store.rs` writes; `outbox.rs` and `rows.rs` the same for rows; `claim.rs` and `waiting.rs` claims that wait;
//!   `read.rs` and `listings.rs` read; `visibility.rs` finds workflows; `events.rs` the event stream;
//!   `growth.rs` who waits for histories to grow; `timers.rs` timers and who waits for them; `metrics.rs` what is
//!   counted.
//! - `http/` has a file for each group of routes. A handler takes a request apart, calls the store, and
//!   answers.

#![warn(missing_docs)]

mod claim;
mod error;
mod events;
mod growth;
pub mod http;
mod listings;
mod metrics;
mod namespaces;
mod outbox;
mod read;
mod rows;
mod store;
mod timers;
mod visibility;
mod waiting;

pub use error::StoreError;
pub use holdfast_client::{
    Adoption, Answer, ClaimCall, ClaimHolder, ClusterView, CountPage, DeadLetter, DeadLetterPage, Delivery, Directory,
    DueTimer, DueTimers, EventId, EventMessage, ExpiredCall, Failure, Head, HeadGrew, HeadMessage, HeadPage, HeadScope,
    ListCall, ListedRow, MemberView, PageCall, ReadMode, Reconciled, RedriveMode, RoutePage, RowView, RowsInNamespace,
    Runs, StaleRows, TimerPage, Topology, UnsettledPage, UnsettledWorkflow, WaitingRoute, WorkflowList, WorkflowView,
    Write,
};
pub use store::{Store, StoreOptions, StoreResult};
