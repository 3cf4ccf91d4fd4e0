//! `holdfast restore`: makes the data directory of a new cluster's node from a backup.

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::Args;
use holdfast_raft::{NewNode, restore};

use super::Settings;
use crate::run::first_members;

/// Which backup, and which node.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The configuration that the node will be started with. Its `cluster_id` must be new
    #[command(flatten)]
    settings: Settings,
}

pub fn run(args: &RestoreArgs) -> anyhow::Result<()> {
    let config = args.settings.load()?;
    let identity = config.check()?;
    let members = first_members(&identity);
    let new = NewNode { data_dir: &config.data_dir, cluster: &config.cluster_id, node: identity.id, members: &members };
    let report = restore(&args.file, &new)?;
    writeln!(
        stdout(),
        "{} is ready for {} of cluster {}: it begins at log index {}, state hash {:016x}\n\
         begins with {:032x}; each node of the cluster must say the same here. Start them when all are made.",
        config.data_dir.display(),
        identity.name,
        config.cluster_id,
        report.applied.index,
        report.state_hash,
        report.base,
    )?;
    Ok(())
}
