//! The conformance suite: what every implementation of Holdfast's interface must do, as checks that run against
//! any of them. A new backend, a new client, or a server that is up and running is held against the same list.
//!
//! - `backend.rs` is the seam: the calls of a store as a trait, implemented for the HTTP client and (with the
//!   feature `store`) for the embedded `Store`; `workers.rs` is the same for a worker's session.
//! - `checks/` has a file for each topic. A check is a promise in a sentence and a small async function; it
//!   makes all that it looks at itself, under names that nobody else uses, so that checks run in any order, side
//!   by side, and against a store that is in use. It waits for conditions, never for time to pass.
//! - `trial.rs` is what a check works with, `run.rs` runs them, `report.rs` tells.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use std::sync::Arc;
//! let client = holdfast_client::Client::new(["http://127.0.0.1:7600"])?;
//! let options = holdfast_conformance::Options::default();
//! let report = holdfast_conformance::run(Arc::new(client), &options, |finding| println!("{finding}")).await;
//! assert!(report.is_ok(), "{}", report.summary());
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod backend;
mod checks;
mod report;
mod run;
mod trial;
mod workers;

pub use backend::{Backend, Called, Failure, Layer, Layered};
pub use checks::{Check, all};
pub use report::{Finding, Report, Verdict};
pub use run::{Options, run};
pub use trial::Trial;
pub use workers::Attachment;
