//! What clients were told, held against what is there, by the witness and by the checker of linearizability: an
//! acknowledged write is there for ever, once, where its answer said; a refused one is not; and every read saw what it had
//! to see (invariants 5, 6, 9, 11, 12 and 18).
//!
//! `HOLDFAST_TEST_HISTORIES` names a folder in which the calls of each run are kept as lines of JSON.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, anyhow};
use holdfast_checkers::history::{Asked, Call, Recorder, save};
use holdfast_checkers::linearizability;
use holdfast_checkers::witness::{self, Histories, Report};
use holdfast_client::Client;
use holdfast_machine::WorkflowId;

use super::history;
use crate::recorded::Recorded;
use crate::wait::{LONG, wait_until};

/// A run whose calls contradict nothing.
#[derive(Debug)]
pub struct Judged {
    /// All calls.
    pub calls: Vec<Call>,
    /// What the witness followed.
    pub report: Report,
    /// The workflows that were written to.
    pub workflows: BTreeSet<WorkflowId>,
    /// Histories and rows whose calls have an order, and how many calls that took.
    pub ordered: (usize, usize),
}

/// Reads everything once more, and judges the calls.
///
/// # Errors
/// The first contradiction, or that the judges gave up.
pub async fn judge(client: &Client, recorder: Arc<Recorder>) -> Result<Judged> {
    let workflows = workflows(&recorder.history());
    let last = Recorded {
        number: u64::MAX,
        client: client.clone(),
        recorder: Arc::clone(&recorder),
        under_way: Arc::new(AtomicU64::new(0)),
    };
    let mut histories = Histories::new();
    for id in &workflows {
        let events = wait_until("a history is read at the end", LONG, async || {
            last.history(id).await?.with_context(|| format!("{id} could not be read"))
        })
        .await?;
        history::dense(id, &events)?;
        histories.extend((!events.is_empty()).then(|| (id.clone(), events)));
    }
    let calls = recorder.history();
    keep(&calls)?;
    let report = witness::judge(&calls, &histories)?;
    let judgement = linearizability::judge(&calls);
    judgement.passed().map_err(|why| anyhow!(why))?;
    let ordered = (judgement.linearizable, judgement.calls);
    Ok(Judged { calls, report, workflows, ordered })
}

/// Holds the acknowledged writes of these calls against what a cluster has, which may have gone on since, or come out of
/// a backup. Gives how many events they wrote.
///
/// # Errors
/// The first that is not there.
pub async fn are_there(client: &Client, calls: &[Call]) -> Result<usize> {
    let mut histories = Histories::new();
    for id in workflows(calls) {
        let events = history::read(client, &id).await?;
        history::dense(&id, &events)?;
        histories.insert(id, events);
    }
    Ok(witness::acknowledged(calls, &histories)?)
}

/// The workflows that calls wrote to, or tried to.
pub fn workflows(calls: &[Call]) -> BTreeSet<WorkflowId> {
    calls.iter().filter_map(written_to).cloned().collect()
}

fn written_to(call: &Call) -> Option<&WorkflowId> {
    match &call.asked {
        Asked::Write(request) => request.command.workflow(),
        Asked::History(_) | Asked::Row(_) => None,
    }
}

fn keep(calls: &[Call]) -> Result<()> {
    let Some(folder) = std::env::var_os("HOLDFAST_TEST_HISTORIES") else { return Ok(()) };
    let file = PathBuf::from(folder).join(format!("{}.jsonl", uuid::Uuid::new_v4()));
    save(calls, BufWriter::new(File::create(&file)?)).with_context(|| format!("writing {}", file.display()))
}
