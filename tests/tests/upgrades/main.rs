//! Data and programs of earlier versions: what is kept of them opens, and clusters are rolled from them to this one.

#![allow(clippy::unwrap_used)]

mod fixtures;
mod rolling;
