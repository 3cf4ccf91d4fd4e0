//! The store over HTTP, version 1.
//!
//! [`router`] is all that a node needs. Errors are RFC 9457 problem documents, whoever refuses: the state
//! machine, a limit, or the router itself. Every success says which log index it reflects. `docs/http.md` is
//! what users read; it has an example for each route.

mod answer;
mod backup;
mod batch;
mod cluster;
mod document;
mod error;
mod errors;
mod events;
mod explain;
mod extract;
mod health;
mod listings;
mod namespaces;
mod outbox;
mod payload;
mod router;
mod rows;
mod sessions;
mod shards;
mod swagger_ui;
mod timers;
mod unread;
mod visibility;
mod worker_socket;
mod workflows;

pub use router::{HttpOptions, openapi, router};
