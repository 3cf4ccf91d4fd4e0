//! A workflow engine on Holdfast: small enough to read in an hour, whole enough to run, made to be copied from.
//!
//! Workflows are Rust async functions. What they await is in the history, or is decided anew and committed:
//!
//! ```
//! use std::time::Duration;
//!
//! use futures::future::try_join_all;
//! use holdfast_engine::{Programs, Workflow, WorkflowError};
//!
//! async fn order(workflow: Workflow, items: Vec<String>) -> Result<u64, WorkflowError> {
//!     let prices = items.iter().map(|item| workflow.activity::<u64>("price", item));
//!     let total = try_join_all(prices).await?.iter().sum();
//!     workflow.sleep(Duration::from_secs(60)).await;
//!     workflow.activity::<()>("charge", &total).await?;
//!     Ok(total)
//! }
//!
//! let programs = Programs::new().with("order", order)?;
//! # Ok::<(), holdfast_machine::InvalidId>(())
//! ```
//!
//! An [`Engine`] drives the workflows of the shards that its node owns. Embedding it is this:
//!
//! ```text
//! let engine = Engine::new(node.store(), programs);
//! let mut shards = node.shards();
//! while let Some(change) = shards.next().await {
//!     match change {
//!         ShardChange::Acquired { shard, epoch, .. } => engine.acquire(shard, epoch),
//!         ShardChange::Lost { shard, .. } => engine.lose(shard),
//!     }
//! }
//! ```
//!
//! # How it works, in the order to read it
//!
//! - `program.rs`: which function runs for which workflow type.
//! - `workflow.rs`: what a workflow function holds. Awaiting something new leaves a decision behind in `steps.rs`,
//!   and waits there for its answer.
//! - `decision.rs`: a decision as events, rows and timers of a commit, and whether an event of the history is it.
//! - `replay.rs`: feeds a history to a function, event by event. **This is the heart, and it has no I/O.**
//! - `driver.rs`: one workflow's loop: read, replay, commit, wait. `facts.rs` is what it hears of besides the history
//!   (a timer is due, a row was given up, a child has ended) and writes into it first.
//! - `engine.rs`: which drivers there are: shards come and go, histories grow, timers fall due.
//! - `child.rs`: starts children and waits for their ends.
//! - `workflows.rs`: starting, signalling, pausing and asking from outside.
//! - `local.rs`: activities that the engine's process runs itself.
//!
//! Nothing that is not in the store has to survive. A driver may be dropped at any moment, between any two calls: the
//! next one replays the history and stands where the last one stood.

#![warn(missing_docs)]

mod child;
mod decision;
mod driver;
mod engine;
mod facts;
mod local;
mod program;
mod replay;
mod retry;
mod steps;
mod workflow;
mod workflows;

pub use engine::{Engine, EngineOptions};
pub use local::{Attempt, LocalActivities};
pub use program::{ActivityError, ChildError, Programs, WorkflowError};
pub use workflow::{Activity, Child, Signal, Sleep, Workflow};
pub use workflows::{NoResult, Workflows};
