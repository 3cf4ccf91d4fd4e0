//! The calls that find workflows.

use holdfast_machine::WorkflowFilter;

use crate::calls::{CallResult, with_query};
use crate::client::Client;
use crate::send::Call;
use crate::wire::{Answer, Counted, ListCall, ReadMode, WorkflowList};

impl Client {
    /// A page of a listing. The listing is at its end only when there is no `next_cursor`.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered.
    pub async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> CallResult<WorkflowList> {
        self.send(Call::ask(with_query("/v1/workflows/list".to_owned(), &[], mode), call)?).await
    }

    /// How many workflows a filter takes.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered.
    pub async fn count_workflows(&self, filter: &WorkflowFilter, mode: ReadMode) -> CallResult<u64> {
        let call = Call::ask(with_query("/v1/workflows/count".to_owned(), &[], mode), filter)?;
        let answer: Answer<Counted> = self.send(call).await?;
        Ok(answer.map(|counted| counted.count))
    }
}
