//! `holdfast explain`: why something does not move, for people or as JSON.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use holdfast_client::{Answer, ClientError, Explanation};
use holdfast_machine::{ActivityType, Census, DispatchKey, Outlook, ShardId, WorkflowId};
use serde::Serialize;

use super::block_on;
use super::nodes::Nodes;

/// A node without a majority takes a moment to be sure of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Workers that are shown; JSON has more of them.
const WORKERS_SHOWN: usize = 10;

/// What is asked about, and whom.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    subject: Subject,
    #[command(flatten)]
    nodes: Nodes,
    /// One JSON object, as the node answers it
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// A row of the outbox: why is it not delivered, or not done?
    Row {
        /// The row's key, as in `order-1:3`
        key: DispatchKey,
    },
    /// A workflow: what does it wait for?
    Workflow {
        /// The workflow's id
        id: WorkflowId,
    },
    /// A shard: who owns it, and if nobody does, why?
    Shard {
        /// The shard's number
        number: u32,
    },
}

/// An explanation without the type of its reason.
struct Told {
    /// What the program prints.
    text: String,
    outlook: Outlook,
}

pub fn run(args: &ExplainArgs) -> ExitCode {
    let told = block_on(ask(args)).and_then(|told| {
        stdout().write_all(told.text.as_bytes()).context("the answer could not be printed")?;
        Ok(told.outlook)
    });
    match told {
        Ok(Outlook::Moving | Outlook::Finished) => ExitCode::SUCCESS,
        Ok(Outlook::HeldUp) => ExitCode::from(1),
        Ok(Outlook::Unknown) => ExitCode::from(2),
        Err(error) => {
            eprintln!("holdfast: {}", super::told(&error));
            ExitCode::from(2)
        }
    }
}

async fn ask(args: &ExplainArgs) -> anyhow::Result<Told> {
    let client = args.nodes.client(PATIENCE)?;
    match &args.subject {
        Subject::Row { key } => told(args, "row", client.explain_row(key).await),
        Subject::Workflow { id } => told(args, "workflow", client.explain_workflow(id).await),
        Subject::Shard { number } => told(args, "shard", client.explain_shard(ShardId(*number)).await),
    }
}

fn told<R: Serialize>(
    args: &ExplainArgs,
    kind: &str,
    answer: Result<Answer<Explanation<R>>, ClientError>,
) -> anyhow::Result<Told> {
    let explanation = answer.with_context(|| format!("no explanation from {}", args.nodes))?.value;
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&explanation)?)
    } else {
        shown(kind, &explanation)
    };
    Ok(Told { text, outlook: explanation.outlook })
}

fn shown<R>(kind: &str, explanation: &Explanation<R>) -> String {
    let Explanation { subject, outlook, sentence, advice, census, node, fresh, .. } = explanation;
    let outlook = match outlook {
        Outlook::Moving => "moves",
        Outlook::Finished => "has ended",
        Outlook::HeldUp => "is held up",
        Outlook::Unknown => "is not known",
    };
    let mut text = format!("{kind} {subject} {outlook}, as {node} sees it\n\n{sentence}\n{advice}\n");
    if let Some(census) = census {
        text.push('\n');
        text.push_str(&shown_census(census));
    }
    if !fresh {
        text.push_str("\nThe node does not reach a majority: what it knows may be old.\n");
    }
    text
}

fn shown_census(census: &Census) -> String {
    let Census { namespace, task_queue, workers, sessions, polls_here, elsewhere } = census;
    let mut text =
        format!("queue {namespace}/{task_queue}: {workers} workers, {polls_here} claims wait on this node\n");
    for of in sessions.iter().take(WORKERS_SHOWN) {
        let place = of.attached.as_ref().map_or_else(|| "not connected".to_owned(), |node| format!("on {node}"));
        let draining = if of.draining { ", draining" } else { "" };
        let types = types(&of.activity_types);
        let (identity, rows, slots) = (&of.identity, of.rows, of.max_concurrency);
        text.push_str(&format!("  {identity} {place}: {rows} of {slots} rows{draining}; takes {types}\n"));
    }
    let more = workers.saturating_sub(sessions.len().min(WORKERS_SHOWN) as u64);
    if more > 0 {
        text.push_str(&format!("  and {more} more\n"));
    }
    for of in elsewhere {
        let (namespace, task_queue, workers) = (&of.namespace, &of.task_queue, of.workers);
        text.push_str(&format!(
            "queue {namespace}/{task_queue}: {workers} workers; they take {}\n",
            types(&of.activity_types)
        ));
    }
    text
}

fn types(types: &[ActivityType]) -> String {
    match types {
        [] => "all activity types".to_owned(),
        types => types.iter().map(ActivityType::as_str).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{CensusSession, Millis, QueueCensus, RowReason};

    use super::*;

    #[test]
    fn an_explanation_is_shown_on_a_screen() {
        let (namespace, task_queue) = ("default".parse().unwrap(), "mail".parse().unwrap());
        let reason = RowReason::NoWorkerForActivity { task_queue, activity_type: "send".parse().unwrap(), workers: 1 };
        let session = CensusSession {
            session: "s-1".parse().unwrap(),
            identity: "mailer@host".parse().unwrap(),
            attached: None,
            node: None,
            activity_types: vec!["read".parse().unwrap()],
            draining: true,
            rows: 2,
            max_concurrency: 4,
        };
        let elsewhere = QueueCensus {
            namespace: "default".parse().unwrap(),
            task_queue: "orders".parse().unwrap(),
            workers: 3,
            activity_types: Vec::new(),
        };
        let census = Census {
            namespace,
            task_queue: "mail".parse().unwrap(),
            workers: 12,
            sessions: vec![session],
            polls_here: 1,
            elsewhere: vec![elsewhere],
        };
        let explanation = Explanation {
            subject: "order-1:3".to_owned(),
            outlook: reason.outlook(),
            sentence: reason.sentence(Millis(0)),
            advice: reason.advice(),
            reason,
            census: Some(census),
            timeout: None,
            node: "node-a".parse().unwrap(),
            fresh: false,
            at: Millis(0),
        };
        let text = shown("row", &explanation);
        for part in [
            "row order-1:3 is held up, as node-a sees it",
            "1 worker serves task queue mail, and none takes activity type send.",
            "queue default/mail: 12 workers, 1 claims wait on this node",
            "mailer@host not connected: 2 of 4 rows, draining; takes read",
            "and 11 more",
            "queue default/orders: 3 workers; they take all activity types",
            "may be old",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
