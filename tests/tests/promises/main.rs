//! One story for each promise of the contract, named after it. A story is told in phases, and ends with the
//! cluster whole and every invariant checked.

#![allow(clippy::unwrap_used)]

mod adoption;
mod any_node;
mod backup;
mod bad_starts;
mod big_history;
mod capstone;
mod chaos;
mod coming_and_going;
mod durability;
mod engine;
mod events;
mod explain;
mod failover;
mod full_disk;
mod histories;
mod idempotency;
mod live_install;
mod log_time;
mod namespaces;
mod outbox;
mod overload;
mod peers;
mod quorum;
mod replacing;
mod sessions;
mod timeouts;
mod timers;
mod workers;
