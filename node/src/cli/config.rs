//! `holdfast config`: the example file, and a check that touches nothing.

use std::io::{Write, stdout};

use clap::{Args, Subcommand};

use super::Settings;
use crate::config::example;

/// What is asked about configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints a configuration file with every key, its meaning and its default.
    Example,
    /// Checks a configuration as `serve` would, and changes nothing.
    Check(Box<Settings>),
}

pub fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    match &args.command {
        ConfigCommand::Example => write!(stdout(), "{}", example())?,
        ConfigCommand::Check(settings) => {
            let identity = settings.load()?.check()?;
            let others = identity.members.len() - 1;
            writeln!(stdout(), "fine: {} is member {} with {others} others", identity.name, identity.id)?;
        }
    }
    Ok(())
}
