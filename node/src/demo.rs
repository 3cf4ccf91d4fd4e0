//! `holdfast demo`: three nodes, and the work outlives its owner.
//!
//! The demo starts three nodes as processes of their own, each with the reference engine inside ([`engine_node`]),
//! and workers, processes as well, that are attached to them ([`worker`]). It starts fan-out workflows ([`fan_out`])
//! on all shards, and kills the owner of some of them in the middle of its work: first an owner that follows, then
//! the one that leads. Each time survivors adopt its shards, replay its workflows, hand its work out again, and the
//! dead node comes back and catches up. Then a worker is killed. At the end every outcome is read back from every
//! node and held against what was seen from outside ([`audit`]). It succeeds only if every promise was kept.
//!
//! [`story`] tells it in order; [`failover`] and [`worker_death`] have the kills and their steps, [`gate`] what makes
//! them come at the right moment, [`process`], [`nodes`] and [`workers`] the processes, [`stage`], [`plan`] and
//! [`activity`] the work, [`ledger`] the book of executions and acknowledgements, [`watch`] what is seen from
//! outside, [`screen`] and [`picture`] the terminal, [`readback`] and [`report`] the result.

mod activity;
mod audit;
mod engine_node;
mod failover;
mod fan_out;
mod gate;
mod ledger;
mod nodes;
mod picture;
mod plan;
mod process;
mod readback;
mod report;
mod screen;
mod stage;
mod story;
mod watch;
mod worker;
mod worker_death;
mod workers;

pub use engine_node::{EngineNodeArgs, run_engine_node};
pub use story::{DemoArgs, run};
pub use worker::{WorkerArgs, run_worker};
