//! What must hold, as code that no layer of tests writes twice.
//!
//! - [`invariants`]: properties of one state, of one step from a state to the next, and of several nodes, one file each.
//!   [`Snapshot`] looks at a machine and its archive, wherever they are: in memory, in a simulation, in a data directory.
//! - [`replay`]: a log played through a machine of its own, with the properties checked after each entry.
//!
//! Checks return [`Broken`] instead of panicking: a simulation wants to say its seed first.

#![warn(missing_docs)]

mod broken;
pub mod invariants;
mod observation;
pub mod replay;
mod snapshot;
mod step;

pub use broken::{Broken, Check};
pub use observation::Observation;
pub use snapshot::{DueTimers, Listings, Pending, Snapshot, Told};
pub use step::{Said, Step};

pub(crate) use broken::{broken, ensure, ensure_eq};
