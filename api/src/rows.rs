//! Rows that are staged by themselves, and dead letters: listed, marked, redriven.

use holdfast_client::wire::{DeadLetterPage, ListedRow, PageCall, RedriveMode};
use holdfast_machine::{
    Archive, ArchiveResult, Command, DeadLetters, DispatchKey, Machine, Namespace, NewRow, Reply, Staged, WorkflowId,
};
use serde::Serialize;

use crate::listings::{cut, one_more};
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode, Write};

/// Dead letters that are read under one look, so that apply does not wait for long.
const ROWS_PER_LOOK: usize = 64;

impl Store {
    /// Stages rows without events of their own; a key that has a row, or an activity that has its outcome, is left
    /// as it is. `namespace` is for a workflow without a history; one with a history has its own.
    ///
    /// # Errors
    /// `workflow_ended`, or another [`crate::StoreError`]; so with all calls here.
    pub async fn stage(
        &self,
        workflow: &WorkflowId,
        namespace: Namespace,
        rows: Vec<NewRow>,
        write: Write,
    ) -> StoreResult<Vec<Staged>> {
        let command = Command::Stage { workflow: workflow.clone(), namespace, rows };
        self.propose(command, write).await?.answer("stage", |reply| match reply {
            Reply::Staged { rows } => Some(rows),
            _ => None,
        })
    }

    /// Notes that a workflow has heard of a dead letter; false if there is no such row.
    pub async fn mark_failure_delivered(&self, key: &DispatchKey, write: Write) -> StoreResult<bool> {
        let proposed = self.propose(Command::MarkFailureDelivered { key: key.clone() }, write).await?;
        proposed.answer("mark", |reply| match reply {
            Reply::FailureDelivered => Some(true),
            Reply::NoSuchRow => Some(false),
            _ => None,
        })
    }

    /// Puts a dead letter back to pending, with a delivery count of 0.
    pub async fn redrive(&self, key: &DispatchKey, mode: RedriveMode, write: Write) -> StoreResult<()> {
        let forced = mode == RedriveMode::Forced;
        let proposed = self.propose(Command::Redrive { key: key.clone(), forced }, write).await?;
        proposed.answer("redrive", |reply| matches!(reply, Reply::Redriven).then_some(()))
    }

    /// Dead letters of a workflow, by ordinal.
    ///
    /// # Errors
    /// `invalid_argument` for a limit of 0 and for a cursor of another listing.
    pub async fn dead_letters(
        &self,
        workflow: &WorkflowId,
        page: &PageCall,
        mode: ReadMode,
    ) -> StoreResult<DeadLetterPage> {
        let query = ("dead letters of", workflow);
        self.dead_letter_page(&query, page, mode, |machine, archive, after, limit| {
            machine.dead_letters_of(archive, workflow, after.map(|key| key.ordinal), limit)
        })
        .await
    }

    /// Dead letters of a namespace, by workflow, then by ordinal.
    ///
    /// # Errors
    /// As [`Store::dead_letters`].
    pub async fn dead_letters_in(
        &self,
        namespace: &Namespace,
        page: &PageCall,
        mode: ReadMode,
    ) -> StoreResult<DeadLetterPage> {
        let query = ("dead letters in", namespace);
        self.dead_letter_page(&query, page, mode, |machine, archive, after, limit| {
            machine.dead_letters_in(archive, namespace, after, limit)
        })
        .await
    }

    async fn dead_letter_page(
        &self,
        query: &impl Serialize,
        page: &PageCall,
        mode: ReadMode,
        look: impl Fn(&Machine, &dyn Archive, Option<&DispatchKey>, usize) -> ArchiveResult<DeadLetters>,
    ) -> StoreResult<DeadLetterPage> {
        let after: Option<DispatchKey> = self.place(query, page)?;
        let wanted = |found: usize| (one_more(page) - found).min(ROWS_PER_LOOK);
        let first = self.read(mode, |machine, archive| look(machine, archive, after.as_ref(), wanted(0)));
        let Answer { index, value: DeadLetters { rows: mut letters, mut next } } = first.await?;
        // A row that is redriven between two looks is not missed: it is no dead letter any more.
        while next.is_some() && letters.len() < one_more(page) {
            tokio::task::yield_now().await;
            let wanted = wanted(letters.len());
            let more = self.shared.raft.view(|machine, archive| look(machine, archive, next.as_ref(), wanted))?;
            letters.extend(more.rows);
            next = more.next;
        }
        let next_cursor = cut(query, page, &mut letters, |(key, _)| key);
        let rows = letters.into_iter().map(|(key, row)| ListedRow { key, row }).collect();
        Ok(Answer { index, value: DeadLetterPage { rows, next_cursor } })
    }
}
