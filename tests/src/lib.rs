//! The harness of the integration tests: clusters to break, workflows to break them under, and the
//! invariants that must hold all the same.
//!
//! - `cluster`, `process`, `program`, `links`, `ports`, `turn`: three real nodes, their links, and the
//!   order in which stories get the machine;
//! - `bare`: three nodes of the consensus layer alone, in the test's own process;
//! - `embedded`: whole nodes in the test's own process;
//! - `work`, `load`: what an engine and its workers do, `recorded` with every call taken down; `engine`, `programs`, `story`: engines and workers that do as
//!   they are told, and their workflows; `bulk`: history by the gigabyte;
//! - `troupe`: a cluster with engines inside, and workers beside it; `crew`: workers in the test's own process;
//!   `stream`: sessions by hand;
//! - `door`: what cuts one of them off;
//! - `check`: what must be true whatever happened; `disk`: whether anything was written; `footprint`: how much of disk and
//!   memory, and how fast;
//! - `dice`: what faults a seed draws; `faults`: those that take more than one call;
//! - `wait`: the only way in which a test waits.

#![warn(missing_docs)]

pub mod bare;
pub mod bulk;
pub mod check;
pub mod cluster;
pub mod crew;
pub mod dice;
pub mod disk;
pub mod door;
pub mod embedded;
pub mod engine;
pub mod faults;
pub mod footprint;
pub mod links;
pub mod load;
pub mod ports;
pub mod process;
pub mod program;
pub mod programs;
pub mod recorded;
pub mod small_disk;
pub mod story;
pub mod stream;
pub mod troupe;
pub mod turn;
pub mod wait;
pub mod wall_clock;
pub mod work;

/// The README, so that its Rust examples are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The guide for authors of engines; its examples are compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines.md")]
pub struct Engines;

/// The guide for authors of workers.
#[cfg(doctest)]
#[doc = include_str!("../../docs/workers.md")]
pub struct Workers;
