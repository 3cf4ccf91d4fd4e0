//! What goes wrong with an attempt, and what ends a worker.

use holdfast_client::ClientError;
use holdfast_machine::{ErrorType, Payload};

/// Why an attempt failed. `?` makes one that is worth another attempt of any error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityError {
    pub(crate) error: Payload,
    pub(crate) error_type: Option<ErrorType>,
    pub(crate) retryable: bool,
}

impl ActivityError {
    /// Another attempt may succeed; whether there is one is up to the row's retry policy.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { error: Payload::text(message), error_type: None, retryable: true }
    }

    /// No further attempt can succeed: the workflow hears of the failure at once.
    pub fn for_good(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::retryable(message) }
    }

    /// Names the kind of the error. A retry policy may say of some kinds that they are never tried again. A name that
    /// the store would not take (an empty one, more than 255 bytes, control characters) is left out.
    #[must_use]
    pub fn of_type(self, name: &str) -> Self {
        let error_type = ErrorType::new(name).inspect_err(|error| tracing::warn!(name, %error, "left out")).ok();
        Self { error_type, ..self }
    }

    /// Takes a payload in place of the message.
    #[must_use]
    pub fn with_payload(self, error: Payload) -> Self {
        Self { error, ..self }
    }
}

impl<E: std::error::Error> From<E> for ActivityError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::retryable(text)
    }
}

/// Why a worker ended without being told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// What it was set up with makes no sense.
    #[error("the worker is not set up well: {0}")]
    Invalid(String),
    /// Another process goes on with its session.
    #[error("another connection has taken the session over, again and again")]
    Moved,
    /// The nodes do not take it.
    #[error("the worker was refused: {0}")]
    Refused(#[source] ClientError),
    /// The process cannot hear signals.
    #[error("signals cannot be heard: {0}")]
    Signals(#[source] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_is_worth_another_attempt_and_tells_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("the card cannot be charged")]
        struct Outer(#[source] std::io::Error);
        let error = ActivityError::from(Outer(std::io::Error::other("no route")));
        assert_eq!(error, ActivityError::retryable("the card cannot be charged: no route"));
    }

    #[test]
    fn a_type_that_is_none_is_left_out() {
        let error = ActivityError::for_good("no");
        assert_eq!(error.clone().of_type(""), error);
        assert_eq!(error.of_type("declined").error_type, ErrorType::new("declined").ok());
    }
}
