//! What must hold, as code that no layer of tests writes twice.
//!
//! - [`invariants`]: properties of one state, of one step from a state to the next, and of several nodes, one file each.
//!   [`Snapshot`] looks at a machine and its archive, wherever they are: in memory, in a simulation, in a data directory.
//! - [`replay`]: a log played through a machine of its own, with the properties checked after each entry.
//! - [`oracle`]: the contract once more, as naive as it can be: what the machine is compared with, step by step.
//! - [`history`]: calls, as clients made them and were answered; [`witness`] judges them by the log indexes and tokens of their
//!   answers and by what is there at the end, [`linearizability`] by nothing but their order in time.
//! - [`coverage`]: what a run has tried; one that tried nothing has shown nothing.
//!
//! Checks return [`Broken`] instead of panicking: a simulation wants to say its seed first.

#![warn(missing_docs)]

mod broken;
pub mod coverage;
pub mod history;
pub mod invariants;
pub mod linearizability;
mod observation;
// Its fields and functions are called as in the machine, and a panic of a model is a finding.
#[allow(missing_docs, clippy::unwrap_used)]
pub mod oracle;
pub mod replay;
mod snapshot;
mod step;
pub mod witness;

pub use broken::{Broken, Check};
pub use observation::Observation;
pub use snapshot::{DueTimers, Listings, Pending, Snapshot, Told};
pub use step::{Said, Step};

pub(crate) use broken::{broken, ensure, ensure_eq};
