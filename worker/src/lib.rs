//! Workers: programs that are given activities and execute them.
//!
//! A worker names the activities that it knows, and is pushed rows of them over one connection, to any node of the
//! cluster. This is a whole one:
//!
//! ```no_run
//! use holdfast_client::Client;
//! use holdfast_worker::{ActivityError, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Charge { amount: u64 }
//! #[derive(serde::Serialize)]
//! struct Receipt { number: String }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(["http://127.0.0.1:7601", "http://127.0.0.1:7602", "http://127.0.0.1:7603"])?;
//! Worker::new(client)
//!     .identity("w-1")
//!     .task_queue("default")
//!     .max_concurrency(8)
//!     .activity("charge", |activity, input: Charge| async move {
//!         if input.amount == 0 {
//!             return Err(ActivityError::for_good("there is nothing to charge").of_type("no_amount"));
//!         }
//!         Ok(Receipt { number: format!("receipt of {}", activity.key()) })
//!     })
//!     .run()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! An activity is executed at least once and has one outcome. It may be executed again when its worker or the worker's
//! connection dies for longer than the session's lease, so what must not be done twice outside needs a key of its own;
//! [`Activity::key`] is a good one.
//!
//! Inside: `rows` and `session` decide, without a clock or a connection; `link` is the connection, `execution` one
//! handler at work, `outcome` what is told of it, and `runner` brings them together.

#![warn(missing_docs)]

mod activity;
mod counters;
mod error;
mod execution;
mod link;
mod outcome;
mod rows;
mod runner;
mod session;
mod shutdown;
mod worker;

pub use activity::{Activity, Cancelled};
pub use counters::{Counters, Tally};
pub use error::{ActivityError, WorkerError};
pub use worker::Worker;
