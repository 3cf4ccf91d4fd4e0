//! `holdfast member`: a member that has lost its data gets it back from its peers.

mod follow;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use holdfast_client::{ClientError, Replacement};
use holdfast_machine::NodeName;
use serde::Serialize;

use super::block_on;
use super::nodes::Nodes;
use follow::follow;

/// A node without a majority takes a moment to be sure of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// What to do where nodes answer, and none of them can decide.
const NO_MAJORITY: &str = "a leader with a majority of the members has to decide on it. Start the other members that have \
                           their data, or ask a node that reaches them, with `--url`";

/// What is done with a member, and whom to ask.
#[derive(Debug, Args)]
pub struct MemberArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Gives a member that has lost its data a new Raft id, and the data from its peers.
    ///
    /// The node has to run, with an empty data directory and its old name. Waits until the new member votes.
    Replace(ReplaceArgs),
}

#[derive(Debug, Args)]
struct ReplaceArgs {
    /// The member's name
    name: NodeName,
    /// Any of the other nodes; where the one that was asked dies, the next one tells how far it is
    #[command(flatten)]
    nodes: Nodes,
    /// Says what would happen, or why it would be refused, and changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Returns as soon as it has begun; the cluster goes on by itself
    #[arg(long, conflicts_with = "dry_run")]
    no_wait: bool,
    /// How long to wait for the end, in seconds; the cluster goes on by itself all the same
    #[arg(long, default_value_t = 3_600, value_name = "SECONDS")]
    wait_s: u64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// Nothing was changed, and nothing stands against it.
    Possible,
    /// It is under way.
    Begun,
    /// The new member has the data, and votes.
    Replaced,
    /// It is under way, but did not end in time.
    NotYet,
    /// Nothing was changed.
    Refused,
}

impl Outcome {
    fn exit_code(self) -> u8 {
        match self {
            Self::Possible | Self::Begun | Self::Replaced => 0,
            Self::Refused => 1,
            Self::NotYet => 3,
        }
    }
}

/// What is said at the end.
#[derive(Debug, Serialize)]
struct Told {
    outcome: Outcome,
    /// What the cluster made of it; null if it was refused.
    replacement: Option<Replacement>,
    /// Why it was refused; null if it was not.
    reason: Option<String>,
}

pub fn run(args: &MemberArgs) -> ExitCode {
    let Action::Replace(args) = &args.action;
    let told = block_on(replace(args)).and_then(|told| {
        let text = if args.json { format!("{}\n", serde_json::to_string_pretty(&told)?) } else { shown(args, &told) };
        stdout().write_all(text.as_bytes()).context("the answer could not be printed")?;
        Ok(told.outcome)
    });
    match told {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            eprintln!("holdfast: {}", super::told(&error));
            ExitCode::from(2)
        }
    }
}

async fn replace(args: &ReplaceArgs) -> anyhow::Result<Told> {
    let client = args.nodes.client(PATIENCE)?;
    let replacement = match client.replace_member(&args.name, args.dry_run).await {
        Ok(answer) => answer.value,
        Err(ClientError::Reject(reject)) => {
            return Ok(Told { outcome: Outcome::Refused, replacement: None, reason: Some(reject.to_string()) });
        }
        Err(error) if ["no_quorum", "not_ready"].contains(&error.code()) => return Err(error).context(NO_MAJORITY),
        Err(error @ ClientError::Unreachable(_)) => {
            return Err(error).with_context(|| format!("no answer from {}", args.nodes));
        }
        Err(error) => return Err(error.into()),
    };
    let told = |outcome, replacement| Ok(Told { outcome, replacement: Some(replacement), reason: None });
    if args.dry_run {
        return told(Outcome::Possible, replacement);
    }
    if args.no_wait {
        return told(Outcome::Begun, replacement);
    }
    let say = |text: &str| eprintln!("{text}");
    let (last, is_done) = follow(&args.nodes, replacement, Duration::from_secs(args.wait_s), say).await?;
    told(if is_done { Outcome::Replaced } else { Outcome::NotYet }, last)
}

fn shown(args: &ReplaceArgs, told: &Told) -> String {
    let name = &args.name;
    let ids = told.replacement.as_ref().map(|replacement| {
        let new = replacement.new_id.map_or_else(|| "another one".to_owned(), |id| id.to_string());
        (replacement.old_id, new)
    });
    let (old, new) = ids.unwrap_or_default();
    match told.outcome {
        Outcome::Refused => format!("refused: {}\n", told.reason.as_deref().unwrap_or_default()),
        Outcome::Possible => {
            let others = told.replacement.iter().flat_map(|replacement| &replacement.others);
            let others: Vec<&str> = others.map(NodeName::as_str).collect();
            format!(
                "{name} can be replaced: its Raft id {old} goes, {new} takes its place, gets the data, and then the vote; \
                 {} agree to it. Nothing was changed\n",
                others.join(" and ")
            )
        }
        Outcome::Begun => format!("{name} is being replaced: Raft id {new} takes the place of {old}\n"),
        Outcome::Replaced => format!("{name} is a member with all data again: Raft id {new} in the place of {old}\n"),
        Outcome::NotYet => {
            format!(
                "{name} is still being replaced, and the cluster goes on with it; `holdfast status` shows how far\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;
    use holdfast_client::ReplacementStage;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReplaceArgs,
    }

    fn args(dry_run: bool) -> ReplaceArgs {
        let dry_run = if dry_run { &["--dry-run"][..] } else { &[] };
        Line::parse_from([&["member", "node-c"], dry_run].concat()).args
    }

    #[test]
    fn the_end_is_told_in_a_sentence_and_an_exit_code() {
        let replacement = Replacement {
            name: NodeName::new("node-c").unwrap(),
            old_id: 3,
            new_id: Some(4),
            stage: ReplacementStage::Waiting,
            matched: None,
            others: vec![NodeName::new("node-a").unwrap(), NodeName::new("node-b").unwrap()],
        };
        let told = |outcome| Told { outcome, replacement: Some(replacement.clone()), reason: None };
        let possible = shown(&args(true), &told(Outcome::Possible));
        assert!(possible.contains("Raft id 3 goes, 4 takes its place"), "{possible}");
        assert!(possible.contains("node-a and node-b agree"), "{possible}");
        assert!(shown(&args(false), &told(Outcome::Replaced)).contains("4 in the place of 3"));
        let refused =
            Told { outcome: Outcome::Refused, replacement: None, reason: Some("node node-c is alive".to_owned()) };
        assert_eq!(shown(&args(false), &refused), "refused: node node-c is alive\n");
        let codes = [Outcome::Possible, Outcome::Begun, Outcome::Replaced, Outcome::Refused, Outcome::NotYet];
        assert_eq!(codes.map(Outcome::exit_code), [0, 0, 0, 1, 3]);
    }
}
