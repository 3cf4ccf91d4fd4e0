//! How peers talk: one long-lived TCP connection in each direction, pipelined requests on it, and a
//! connection of its own for each snapshot.
//!
//! [`frame`] is what goes over the wire, [`handshake`] is how two nodes meet, [`registry`] decides
//! who may talk to whom, [`link`] is the calling side and the detector's evidence, [`server`] the
//! answering side, [`snapshot`] the transfer of a state, and [`network`] what openraft sees of all
//! this.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod network;
pub(crate) mod registry;
pub(crate) mod server;
pub(crate) mod snapshot;
