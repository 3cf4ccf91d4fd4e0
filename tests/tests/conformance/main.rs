//! The conformance suite against everything that has the store's interface, and against stores that are wrong
//! on purpose: a suite that finds nothing wrong with those would find nothing.

#![allow(clippy::unwrap_used)]

mod backends;
mod sabotage;
