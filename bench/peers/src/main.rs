//! `bench-peers`: the load of `holdfast bench` on what a user would pick instead, and on Holdfast, in turn.
//!
//! Each system is a file: `floor` (bare synced files), `postgres`, `etcd`, `nats`, `holdfast`. They share how a system
//! is told to be one (`peer`), how its processes live and what they cost (`server`), what is stored for a workflow
//! (`content`), and the report (`report`). The load, and what it records, is that of `holdfast-bench`.
//!
//! `docs/benchmarks.md` says how each system is set up, and why that is its best.

mod args;
mod content;
mod document;
mod etcd;
mod floor;
mod floor_node;
mod holdfast;
mod nats;
mod peer;
mod postgres;
mod report;
mod rounds;
mod server;

use anyhow::{Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use args::{Args, Command};

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Command::Run(args) => {
            let mut terminated = signal(SignalKind::terminate())?;
            // Whatever ends it drops the servers, and with them their processes.
            tokio::select! {
                done = rounds::run(*args) => done,
                _ = terminated.recv() => bail!("terminated; all servers are ended"),
                _ = tokio::signal::ctrl_c() => bail!("interrupted; all servers are ended"),
            }
        }
        Command::Document(args) => document::write(&args),
        Command::FloorNode(args) => floor_node::run(&args).await,
    }
}
