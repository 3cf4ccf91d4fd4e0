//! `holdfast demo`: three nodes, and the work outlives its owner.
//!
//! The demo starts three nodes as processes of their own, each with a small engine inside
//! ([`engine`]), attaches workers to them, stages fan-out workflows over all shards, and kills the owner of
//! some of them in the middle of its work: first an owner that follows, then the one that leads. Each
//! time survivors adopt its shards, hand its work out again, and the dead node comes back and catches up.
//! At the end every outcome is read back from every node and held against what was seen from outside
//! ([`audit`]). It succeeds only if every promise was kept.
//!
//! [`story`] tells it in order; [`failover`] has the kill and its steps, [`nodes`] the processes,
//! [`workers`] and [`plan`] the work, [`ledger`] the book of executions and acknowledgements,
//! [`watch`] what is seen from outside, [`screen`] and [`picture`] the terminal, [`report`] the result.

mod audit;
mod engine;
mod engine_node;
mod failover;
mod ledger;
mod nodes;
mod picture;
mod plan;
mod readback;
mod report;
mod screen;
mod stage;
mod story;
mod watch;
mod workers;

pub use engine_node::{EngineNodeArgs, run_engine_node};
pub use story::{DemoArgs, run};
