//! The calls that stage rows by themselves, and those about dead letters.

use holdfast_machine::{DispatchKey, Namespace, NewRow, Staged, WorkflowId};

use crate::calls::{CallResult, row_path, workflow_path};
use crate::client::Client;
use crate::wire::{
    Answer, DeadLetterPage, FailureDelivered, FailureDeliveredBody, PageCall, ReadMode, RedriveBody, RedriveMode,
    Redriven, StageBody, StagedRows, Write,
};

impl Client {
    /// Stages rows without events of their own; a key that has a row is left as it is.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn stage(
        &self,
        workflow: &WorkflowId,
        namespace: Namespace,
        rows: Vec<NewRow>,
        write: Write,
    ) -> CallResult<Vec<Staged>> {
        let body = StageBody { namespace, rows };
        let answer: Answer<StagedRows> = self.post(workflow_path(workflow, "/stage")?, &body, write).await?;
        Ok(answer.map(|rows| rows.staged))
    }

    /// Dead letters of a workflow, by ordinal.
    pub async fn dead_letters(
        &self,
        workflow: &WorkflowId,
        page: &PageCall,
        mode: ReadMode,
    ) -> CallResult<DeadLetterPage> {
        self.list(workflow_path(workflow, "/dead-letters")?, Vec::new(), page, mode).await
    }

    /// Dead letters of a namespace, by workflow, then by ordinal.
    pub async fn dead_letters_in(
        &self,
        namespace: &Namespace,
        page: &PageCall,
        mode: ReadMode,
    ) -> CallResult<DeadLetterPage> {
        self.list("/v1/outbox/dead-letters".to_owned(), vec![("namespace", Some(namespace.to_string()))], page, mode)
            .await
    }

    /// Notes that a workflow has heard of a dead letter; false if there is no such row.
    pub async fn mark_failure_delivered(&self, key: &DispatchKey, write: Write) -> CallResult<bool> {
        let path = row_path(key, "/failure-delivered");
        let answer: Answer<FailureDelivered> = self.post(path, &FailureDeliveredBody {}, write).await?;
        Ok(answer.map(|marked| marked.found))
    }

    /// Puts a dead letter back to pending, with a delivery count of 0.
    pub async fn redrive(&self, key: &DispatchKey, mode: RedriveMode, write: Write) -> CallResult<()> {
        let answer: Answer<Redriven> = self.post(row_path(key, "/redrive"), &RedriveBody { mode }, write).await?;
        Ok(answer.map(|Redriven {}| ()))
    }
}
