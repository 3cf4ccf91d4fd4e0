//! A whole cluster in one thread: the real `node`, `raft`, `machine` and `storage` on a simulated network, clock and disk.
//! Everything that is left to chance is drawn from a seed, so a run that finds something finds it again.
//!
//! - [`run`] forms a cluster, lets clients work and faults come, heals everything, and demands that the work is finished.
//! - `host` is a machine, `process` the node on it, `network` what lies between nodes; `rpc` is how clients get in,
//!   `sessions` is what becomes of a worker's connection.
//! - `faults` is what goes wrong, `clients` is who calls, `watch` is what must hold all the while (see `holdfast-checkers`).
//! - `record` remembers: a digest over all events, counts, and what was broken first.
//!
//! Time is tokio's, paused and moved on by turmoil; a thread's chance (hash maps, ids, Raft's timeouts, `select!`) is seeded
//! by the program, which replaces the operating system's source of it. So only the program repeats itself to the letter.

#![warn(missing_docs)]

mod clients;
mod draw;
mod faults;
mod host;
mod network;
mod process;
mod record;
mod rpc;
mod run;
mod sessions;
mod watch;
mod world;

pub use run::{Plan, Report, run};
