//! Workflow functions by type, and what they end with.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_machine::{InvalidId, Payload, WorkflowStatus, WorkflowType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::workflow::Workflow;

/// A function's run: it ends with a result, an error, or the wish to begin anew.
pub(crate) type Running = BoxFuture<'static, Result<Payload, WorkflowError>>;
type Program = Arc<dyn Fn(Workflow, Payload) -> Running + Send + Sync>;

/// Which function runs for which workflow type.
///
/// A function has to be deterministic: it awaits nothing but what its [`Workflow`] gives it, takes time and randomness
/// from there, and where it waits for several things at once it does so in a fixed order (`futures::select_biased!`,
/// `join_all`; `tokio::select!` draws lots unless it is `biased`).
#[derive(Clone, Default)]
pub struct Programs(BTreeMap<WorkflowType, Program>);

impl Programs {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one more function.
    ///
    /// # Errors
    /// When the name is no workflow type.
    pub fn with<I, O, F, R>(mut self, workflow_type: &str, function: F) -> Result<Self, InvalidId>
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize,
        F: Fn(Workflow, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, WorkflowError>> + Send + 'static,
    {
        let program = move |workflow: Workflow, input: Payload| match read::<I>(&input) {
            Ok(input) => {
                let running = function(workflow, input);
                async move { written(&running.await?).map_err(|e| WorkflowError::failed(format!("the result: {e}"))) }
                    .boxed()
            }
            Err(error) => async move { Err(WorkflowError::failed(format!("the input: {error}"))) }.boxed(),
        };
        self.0.insert(WorkflowType::new(workflow_type)?, Arc::new(program));
        Ok(self)
    }

    pub(crate) fn has(&self, workflow_type: &WorkflowType) -> bool {
        self.0.contains_key(workflow_type)
    }

    pub(crate) fn run(&self, workflow_type: &WorkflowType, workflow: Workflow, input: Payload) -> Option<Running> {
        self.0.get(workflow_type).map(|program| program(workflow, input))
    }
}

/// What a workflow function ends with if not with a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WorkflowError {
    /// The workflow fails.
    #[error("{message}")]
    Failed {
        /// Why, for people.
        message: String,
    },
    /// The workflow begins anew, with this input and an empty history: [`Workflow::continue_as_new`].
    #[error("the workflow goes on in its next run")]
    ContinueAsNew(Payload),
}

impl WorkflowError {
    /// A failure with a sentence for people.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into() }
    }
}

impl From<ActivityError> for WorkflowError {
    fn from(error: ActivityError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ChildError> for WorkflowError {
    fn from(error: ChildError) -> Self {
        Self::failed(error.to_string())
    }
}

/// An activity that has no result: it failed for good, its attempts are spent, or it was cancelled.
#[derive(Debug, Clone, thiserror::Error)]
#[error("activity {activity}: {message}")]
pub struct ActivityError {
    /// What was to be run.
    pub activity: String,
    /// Why, for people.
    pub message: String,
    /// What the activity said.
    pub error: Payload,
}

/// A child that has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("child {child} is {status}: {message}")]
pub struct ChildError {
    /// Its id.
    pub child: String,
    /// How it ended.
    pub status: WorkflowStatus,
    /// Why, for people.
    pub message: String,
}

/// The value in a payload: JSON as it is, a text as a text, nothing as null.
pub(crate) fn value_of(payload: &Payload) -> Result<Value, serde_json::Error> {
    if payload.data.is_empty() {
        return Ok(Value::Null);
    }
    if payload.content_type.starts_with("text/") {
        return Ok(Value::String(String::from_utf8_lossy(&payload.data).into_owned()));
    }
    serde_json::from_slice(&payload.data)
}

pub(crate) fn read<T: DeserializeOwned>(payload: &Payload) -> Result<T, serde_json::Error> {
    serde_json::from_value(value_of(payload)?)
}

/// A value as a payload. Nothing (`()`, `None`) is no payload.
pub(crate) fn written<T: Serialize + ?Sized>(value: &T) -> Result<Payload, serde_json::Error> {
    let payload = Payload::json(value)?;
    Ok(if &*payload.data == b"null" { Payload::default() } else { payload })
}

/// What an error's payload says to people.
pub(crate) fn message_in(error: &Payload) -> String {
    match value_of(error) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(fields)) => match fields.get("message") {
            Some(Value::String(text)) => text.clone(),
            _ => Value::Object(fields).to_string(),
        },
        Ok(Value::Null) => "no reason was given".to_owned(),
        Ok(other) => other.to_string(),
        Err(_) => format!("{} bytes of {}", error.data.len(), error.content_type),
    }
}
