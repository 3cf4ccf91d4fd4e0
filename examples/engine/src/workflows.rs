//! Workflows from outside: starting them, telling them something, and asking what came of them.
//!
//! These are appends and reads that anybody can make, over HTTP as well; the README has them as `curl` commands.

use holdfast_api::{Answer, ReadMode, Store, StoreError};
use holdfast_machine::{
    EventKind, Namespace, NewEvent, Payload, Reject, WorkflowId, WorkflowStart, WorkflowStatus, WorkflowType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::wait_for_end;
use crate::decision::{SignalBody, body};
use crate::program::{message_in, read, value_of, written};
use crate::retry::{until_answered, until_read};

/// Workflows of one namespace, through any node.
#[derive(Debug, Clone)]
pub struct Workflows {
    store: Store,
    namespace: Namespace,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    /// The workflow ended otherwise.
    #[error("the workflow is {status}: {message}")]
    Ended {
        /// How.
        status: WorkflowStatus,
        /// Why, for people.
        message: String,
    },
    /// The result is of another type.
    #[error("the result is of another type: {0}")]
    Type(#[from] serde_json::Error),
    /// It could not be asked for.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Workflows {
    /// Workflows of the default namespace.
    pub fn new(store: Store) -> Self {
        Self { store, namespace: Namespace::default() }
    }

    /// Workflows of another namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: Namespace) -> Self {
        Self { namespace, ..self }
    }

    /// Starts a workflow.
    ///
    /// # Errors
    /// `sequence_conflict` if the id is taken; another [`StoreError`].
    pub async fn start(
        &self,
        workflow_type: &WorkflowType,
        id: &WorkflowId,
        input: &(impl Serialize + ?Sized),
    ) -> Result<(), StoreError> {
        let (namespace, workflow_type) = (self.namespace.clone(), workflow_type.clone());
        let start = Some(WorkflowStart { namespace, workflow_type, run_id: None });
        let started = NewEvent { start, ..NewEvent::of(EventKind::WorkflowStarted) }.with(payload(input)?);
        until_answered(|write| self.store.append(id, 0, vec![started.clone()], write)).await?;
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `workflow_not_found`, `workflow_ended`, or another [`StoreError`].
    pub async fn signal(
        &self,
        id: &WorkflowId,
        name: &str,
        input: &(impl Serialize + ?Sized),
    ) -> Result<(), StoreError> {
        let input = payload(input).and_then(|input| value_of(&input).map_err(invalid))?;
        let signal = SignalBody { signal: name.to_owned(), id: uuid::Uuid::now_v7().to_string(), input };
        self.append(id, NewEvent::of(EventKind::SignalReceived).with(body(&signal))).await
    }

    /// Stops a workflow where it is: nothing of it is handed out, no timer is due, nothing is decided.
    ///
    /// # Errors
    /// As [`Workflows::signal`].
    pub async fn pause(&self, id: &WorkflowId) -> Result<(), StoreError> {
        self.append(id, NewEvent::of(EventKind::WorkflowPaused)).await
    }

    /// Lets a paused workflow go on.
    ///
    /// # Errors
    /// As [`Workflows::signal`].
    pub async fn resume(&self, id: &WorkflowId) -> Result<(), StoreError> {
        self.append(id, NewEvent::of(EventKind::WorkflowResumed)).await
    }

    /// Ends a workflow at once; its rows and timers go with it.
    ///
    /// # Errors
    /// As [`Workflows::signal`].
    pub async fn cancel(&self, id: &WorkflowId) -> Result<(), StoreError> {
        self.append(id, NewEvent::of(EventKind::WorkflowCancelled)).await
    }

    /// Waits for a workflow's end, and for its result.
    ///
    /// # Errors
    /// [`NoResult`].
    pub async fn result<T: DeserializeOwned>(&self, id: &WorkflowId) -> Result<T, NoResult> {
        let (status, end) = wait_for_end(&self.store, id).await?;
        let payload = end.map(|end| end.payload).unwrap_or_default();
        match status {
            WorkflowStatus::Completed => Ok(read(&payload)?),
            status => Err(NoResult::Ended { status, message: message_in(&payload) }),
        }
    }

    /// Appends at the head of an open workflow, wherever that is.
    async fn append(&self, id: &WorkflowId, event: NewEvent) -> Result<(), StoreError> {
        loop {
            let Answer { value: view, .. } = until_read(|| self.store.workflow(id, ReadMode::Linearizable)).await?;
            let Some(workflow) = view.workflow else {
                return Err(Reject::WorkflowNotFound { workflow: id.clone() }.into());
            };
            if workflow.status.is_terminal() {
                return Err(Reject::WorkflowEnded { workflow: id.clone(), status: workflow.status }.into());
            }
            match until_answered(|write| self.store.append(id, workflow.head, vec![event.clone()], write)).await {
                Err(StoreError::Reject(Reject::SequenceConflict { .. })) => {}
                answer => return answer.map(drop),
            }
        }
    }
}

fn payload(input: &(impl Serialize + ?Sized)) -> Result<Payload, StoreError> {
    written(input).map_err(invalid)
}

fn invalid(error: serde_json::Error) -> StoreError {
    Reject::InvalidArgument { what: format!("the input: {error}") }.into()
}
