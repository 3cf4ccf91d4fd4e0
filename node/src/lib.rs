//! A Holdfast node: configuration, start and stop, and everything with a side effect.
//!
//! An engine embeds a [`Node`] in its process, and keeps its shards, histories and outstanding work there. Nodes of a
//! cluster find each other by the `members` of their [`Config`]; when one dies, the others adopt its shards and hear
//! so as [`ShardChange::Acquired`].
//!
//! ```no_run
//! use holdfast_node::api::{ClaimCall, ClaimHolder, Write};
//! use holdfast_node::machine::{Payload, Scope};
//! use holdfast_node::{Config, Node, ShardChange};
//!
//! # async fn engine() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::start(Config { data_dir: "data".into(), ..Config::default() }).await?;
//! let mut shards = node.shards();
//! tokio::spawn(async move {
//!     while let Some(change) = shards.next().await {
//!         match change {
//!             ShardChange::Acquired { shard, epoch, .. } => println!("{shard} is ours under epoch {epoch}"),
//!             ShardChange::Lost { shard, new_owner, .. } => println!("{shard} is {new_owner}'s now"),
//!         }
//!     }
//! });
//! let store = node.store();
//! loop {
//!     let (scope, holder) = (Scope::default(), ClaimHolder::Node);
//!     let call = ClaimCall { scope, limit: 10, holder, hold: Vec::new(), wait_ms: 10_000 };
//!     for work in store.claim(call, Write::default()).await?.value {
//!         let result = Payload::text(format!("{} is done", work.activity_type));
//!         store.complete(&work.key, Some(work.token), result, Write::default()).await?;
//!     }
//! }
//! # }
//! ```
//!
//! # How it works here
//!
//! - `run.rs` starts and stops a node in the order that lets nothing go wrong half way.
//! - `boot.rs` says in the log that this process has started; before that it serves nothing.
//! - `create.rs` gives a new cluster's shards their first owners, `adopt.rs` takes over those of a dead node,
//!   `ticker.rs` does what falls due by the clock, `parked.rs` tells which rows nobody takes. The first three work from the committed state, and any of them may be
//!   interrupted anywhere: the next look at the state leads to the same conclusion.
//! - `shards.rs` and `membership.rs` are what an engine hears.
//! - `cli/` is the `holdfast` program.

#![warn(missing_docs)]

mod adopt;
mod boot;
pub mod cli;
pub mod config;
mod create;
mod demo;
mod membership;
mod parked;
mod run;
mod shards;
mod shutdown;
pub mod telemetry;
mod ticker;

pub use holdfast_api as api;
pub use holdfast_machine as machine;
pub use holdfast_raft as raft;

pub use config::{Config, ConfigError};
pub use membership::{MembershipChange, MembershipChanges};
pub use run::{Node, StartError};
pub use shards::{ShardChange, ShardChanges};
pub use shutdown::signalled;
