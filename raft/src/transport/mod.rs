//! How peers talk: two long-lived TCP connections in each direction, pipelined requests on them, one for what must not
//! wait and one for what may be large, and a connection of its own for each snapshot.
//!
//! [`frame`] is what goes over the wire, [`handshake`] is how two nodes meet, [`registry`] decides
//! who may talk to whom, [`link`] is the calling side and the detector's evidence, [`lane`] one of its connections,
//! [`server`] the answering side, [`snapshot`] the transfer of a state, and [`network`] what openraft sees of all
//! this.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod network;
pub(crate) mod registry;
pub(crate) mod server;
pub(crate) mod snapshot;
