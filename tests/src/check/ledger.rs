//! An acknowledged write is there for ever, once, and a refused one is not (invariant 5).
//!
//! Writers enter each write with its answer. Each write carries a mark of its own in an event, so that it is
//! found again wherever it stands.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use holdfast_client::Client;
use holdfast_machine::{HistoryEvent, Payload, WorkflowId};
use parking_lot::Mutex;

use super::history;

/// What a writer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is written, as this event.
    Written(u64),
    /// It is not written.
    Refused,
    /// It may be or not.
    Unknown,
}

/// All writes of a story, by workflow and mark.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<WorkflowId, BTreeMap<String, Told>>>);

/// How many writes had which answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Acknowledged and found.
    pub written: u64,
    /// Refused and not found.
    pub refused: u64,
    /// Unknown and found.
    pub unknown_found: u64,
    /// Unknown and not found.
    pub unknown_absent: u64,
}

impl Ledger {
    /// Enters a write.
    pub fn enter(&self, workflow: &WorkflowId, mark: &str, told: Told) {
        self.0.lock().entry(workflow.clone()).or_default().insert(mark.to_owned(), told);
    }

    /// The writes that are entered so far.
    pub fn copy(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }

    /// How many acknowledged writes there are.
    pub fn written(&self) -> usize {
        let entries = self.0.lock();
        entries.values().flat_map(BTreeMap::values).filter(|told| matches!(told, Told::Written(_))).count()
    }

    /// The workflows that were written to.
    pub fn workflows(&self) -> Vec<WorkflowId> {
        self.0.lock().keys().cloned().collect()
    }

    /// Looks every write up.
    ///
    /// # Errors
    /// The first write that is missing, doubled, or there although it was refused.
    pub async fn check(&self, client: &Client) -> Result<Tally> {
        let entries = self.0.lock().clone();
        let mut tally = Tally::default();
        for (workflow, writes) in entries {
            let events = history::read(client, &workflow).await?;
            history::dense(&workflow, &events)?;
            for (mark, told) in writes {
                tally.count(&events, &workflow, &mark, told)?;
            }
        }
        Ok(tally)
    }
}

impl Tally {
    fn count(&mut self, events: &[HistoryEvent], workflow: &WorkflowId, mark: &str, told: Told) -> Result<()> {
        let wanted = Payload::text(mark);
        let found: Vec<u64> = events.iter().filter(|event| event.payload == wanted).map(|event| event.seq).collect();
        ensure!(found.len() <= 1, "{workflow}: {mark} is written twice, as {found:?}");
        match (told, found.first()) {
            (Told::Written(seq), at) => {
                ensure!(at == Some(&seq), "{workflow}: {mark} was acknowledged as {seq} and stands at {at:?}");
                self.written += 1;
            }
            (Told::Refused, at) => {
                ensure!(at.is_none(), "{workflow}: {mark} was refused and stands at {at:?}");
                self.refused += 1;
            }
            (Told::Unknown, Some(_)) => self.unknown_found += 1,
            (Told::Unknown, None) => self.unknown_absent += 1,
        }
        Ok(())
    }
}
