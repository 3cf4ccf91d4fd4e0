//! The calls about namespaces, and the removal of workflows.

use holdfast_machine::{Namespace, NamespaceSettings, NamespaceState, WorkflowId};

use crate::calls::{CallResult, name_segment, with_query, workflow_path};
use crate::client::Client;
use crate::error::ClientError;
use crate::send::Call;
use crate::wire::{Answer, Deleted, NamespacePage, NamespaceView, PageCall, ReadMode, Write};

impl Client {
    /// Namespaces, by name.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn namespaces(&self, page: &PageCall, mode: ReadMode) -> CallResult<NamespacePage> {
        self.list("/v1/namespaces".to_owned(), Vec::new(), page, mode).await
    }

    /// One namespace, with what lives in it.
    pub async fn namespace(&self, namespace: &Namespace, mode: ReadMode) -> CallResult<NamespaceView> {
        self.send(Call::get(with_query(namespace_path(namespace)?, &[], mode))).await
    }

    /// Creates a namespace or gives it other settings, all at once.
    pub async fn put_namespace(
        &self,
        namespace: &Namespace,
        settings: &NamespaceSettings,
        write: Write,
    ) -> CallResult<NamespaceState> {
        self.send(Call::put(namespace_path(namespace)?, settings, &self.guard(write))?).await
    }

    /// Removes a finished workflow before its retention runs out.
    pub async fn delete(&self, workflow: &WorkflowId, write: Write) -> CallResult<()> {
        let call = Call::delete(workflow_path(workflow, "")?, &self.guard(write))?;
        let answer: Answer<Deleted> = self.send(call).await?;
        Ok(answer.map(|Deleted {}| ()))
    }
}

fn namespace_path(namespace: &Namespace) -> Result<String, ClientError> {
    Ok(format!("/v1/namespaces/{}", name_segment("namespace", namespace.as_str())?))
}
