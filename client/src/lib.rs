//! The async HTTP client, and the types that HTTP speaks where the state machine's do not fit as they are.
//!
//! [`Client`] has the method names of the embedded `Store`. It knows all nodes of the cluster: any node
//! takes any request, so when one does not answer, the next one is asked under the same idempotency key,
//! and a change that was made is not made twice.
//!
//! ```no_run
//! # async fn example() -> Result<(), holdfast_client::ClientError> {
//! use holdfast_client::{Client, ReadMode, Write};
//! use holdfast_machine::{NewEvent, WorkflowId, WorkflowType};
//! # let (id, kind) = (WorkflowId::new("order-1").unwrap(), WorkflowType::new("order").unwrap());
//! let client = Client::new(["http://127.0.0.1:7101", "http://127.0.0.1:7102"])?;
//! client.append(&id, 0, vec![NewEvent::started(kind)], Write::default()).await?;
//! let history = client.history(&id, 1, 100, ReadMode::Linearizable).await?;
//! assert_eq!(history.value[0].seq, 1);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod backup;
mod batch;
mod calls;
mod client;
mod error;
mod events;
mod explain;
mod listings;
mod namespaces;
mod problem;
mod rows;
mod send;
mod sessions;
mod sse;
mod timers;
mod visibility;
pub mod wire;
mod worker_stream;

pub use backup::BackupDownload;
pub use client::{Client, ClientOptions};
pub use error::ClientError;
pub use events::{EventStream, HeadStream};
pub use problem::Problem;
pub use wire::{
    Adoption, Answer, ClaimCall, ClaimHolder, ClusterView, CountPage, DeadLetter, DeadLetterPage, Delivery, Directory,
    DiskSpace, DueTimer, DueTimers, Encoding, Ended, EventId, EventMessage, ExpiredCall, Explanation, Failure, Head,
    HeadGrew, HeadMessage, HeadPage, HeadScope, HeldRow, ListCall, ListedRow, MemberView, NodeMessage, PageCall,
    ReadMode, Reconciled, RedriveMode, Replacement, ReplacementStage, RoutePage, RowResult, RowView, RowsInNamespace,
    Runs, SessionFilter, SessionPage, SessionView, SessionWithRows, StaleRows, TimerPage, Topology, UnsettledPage,
    UnsettledWorkflow, WaitingRoute, WithdrawnRow, WorkflowList, WorkflowView, Write,
};
pub use worker_stream::{WorkerReceiver, WorkerSender, WorkerStream};
