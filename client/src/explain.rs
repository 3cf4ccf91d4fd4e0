//! The calls that ask why something does not move.

use holdfast_machine::{DispatchKey, RowReason, ShardId, ShardReason, WorkflowId, WorkflowReason};

use crate::calls::{CallResult, name_segment, segment};
use crate::client::Client;
use crate::send::Call;
use crate::wire::Explanation;

impl Client {
    /// Why a row is where it is. Answered without a quorum as well; the reason is then that.
    ///
    /// # Errors
    /// What kept the call from being answered; so with all calls here.
    pub async fn explain_row(&self, key: &DispatchKey) -> CallResult<Explanation<RowReason>> {
        self.send(Call::get(format!("/v1/explain/rows/{}", segment(&key.to_string())))).await
    }

    /// What a workflow waits for.
    pub async fn explain_workflow(&self, workflow: &WorkflowId) -> CallResult<Explanation<WorkflowReason>> {
        let id = name_segment("workflow id", workflow.as_str())?;
        self.send(Call::get(format!("/v1/explain/workflows/{id}"))).await
    }

    /// How a shard stands.
    pub async fn explain_shard(&self, shard: ShardId) -> CallResult<Explanation<ShardReason>> {
        self.send(Call::get(format!("/v1/explain/shards/{shard}"))).await
    }
}
