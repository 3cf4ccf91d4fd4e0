//! One handler at work.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_client::{Client, Write};
use holdfast_machine::{Payload, Reject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::activity::{Activity, Cancelled};
use crate::counters::Counters;
use crate::error::ActivityError;
use crate::outcome::Outcome;

/// What runs an activity.
pub(crate) type Handler = Arc<dyn Fn(Activity) -> BoxFuture<'static, Result<Payload, ActivityError>> + Send + Sync>;

/// How an execution is looked after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Care {
    /// How long a handler may go on once it is to stop.
    pub cancel_grace: Duration,
    /// The time between two heartbeats of one row.
    pub heartbeat_interval: Duration,
    /// The session's lease, which a row's heartbeat names.
    pub lease_ms: u64,
}

/// Runs a handler to its end, or to the end of the patience with it. None if there is nothing to be told.
pub(crate) async fn execute(
    handler: Option<Handler>,
    activity: Activity,
    client: &Client,
    care: Care,
    counters: &Counters,
    lost: impl Fn(),
) -> Option<Outcome> {
    let Some(handler) = handler else {
        tracing::error!(activity = %activity.activity_type(), "a row of a type that nobody registered");
        return Some(Outcome::HandedBack);
    };
    counters.started();
    // From before the handler begins, so that nothing it says is missed.
    let details = activity.details();
    let given = activity.clone();
    // The call itself may panic, too.
    let work = AssertUnwindSafe(async move { handler(given).await }).catch_unwind();
    let patience = async {
        let why = activity.cancelled().await;
        sleep(care.cancel_grace).await;
        why
    };
    let ended = tokio::select! {
        ended = work => ended,
        why = patience => {
            tracing::warn!(?why, "a handler did not stop by itself and is dropped");
            counters.cancelled();
            return None;
        }
        never = tell_heartbeats(&activity, details, client, care, lost) => match never {},
    };
    let ended = ended.unwrap_or_else(|panic| {
        counters.panicked();
        let text = panic_text(&*panic);
        tracing::error!(text, "a handler panicked");
        Err(ActivityError::retryable(text).of_type("panic"))
    });
    match (activity.is_cancelled(), ended) {
        (None, Ok(result)) | (Some(Cancelled::Stopping), Ok(result)) => Some(Outcome::Completed(result)),
        (None, Err(error)) => Some(Outcome::Failed(error)),
        (Some(why), _) => {
            counters.cancelled();
            let newest = activity.newest_details();
            if let (Cancelled::Stopping, Some(newest)) = (why, newest) {
                // How far it came is for whoever goes on with it.
                tell_heartbeat(&activity, client, care, newest).await;
            }
            None
        }
    }
}

/// Sends what [`Activity::heartbeat`] leaves, and says when the row turns out to be no longer the worker's.
async fn tell_heartbeats(
    activity: &Activity,
    mut details: watch::Receiver<Option<Payload>>,
    client: &Client,
    care: Care,
    lost: impl Fn(),
) -> Infallible {
    // The sender lives as long as the activity.
    while details.changed().await.is_ok() {
        let newest = details.borrow_and_update().clone().unwrap_or_default();
        if !tell_heartbeat(activity, client, care, newest).await {
            lost();
            break;
        }
        sleep(care.heartbeat_interval).await;
    }
    std::future::pending().await
}

/// False if the row is no longer the worker's.
async fn tell_heartbeat(activity: &Activity, client: &Client, care: Care, details: Payload) -> bool {
    let delivery = activity.delivery();
    let told = client.heartbeat(&delivery.key, delivery.token, care.lease_ms, details, Write::default()).await;
    match told {
        Ok(_) => true,
        Err(error) if error.reject().is_some_and(Reject::is_lost_claim) => false,
        Err(error) => {
            tracing::warn!(%error, "a heartbeat was not taken");
            true
        }
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("it did not say why"))
}

/// Reads an input: JSON, text, or nothing, which is read as `null`.
pub(crate) fn read_input<I: DeserializeOwned>(input: &Payload) -> Result<I, ActivityError> {
    let invalid = |problem: String| {
        let text = format!("the input cannot be read as what the handler takes: {problem}");
        ActivityError::for_good(text).of_type("invalid_input")
    };
    if input.is_empty() {
        return serde_json::from_slice(b"null").map_err(|error| invalid(error.to_string()));
    }
    if input.content_type.starts_with("text/") {
        let text = std::str::from_utf8(&input.data).map_err(|error| invalid(error.to_string()))?;
        return I::deserialize(serde::de::value::StrDeserializer::<serde_json::Error>::new(text))
            .map_err(|error| invalid(error.to_string()));
    }
    if input.content_type != holdfast_machine::JSON {
        return Err(invalid(format!("it is {}, not JSON", input.content_type)));
    }
    serde_json::from_slice(&input.data).map_err(|error| invalid(error.to_string()))
}

/// Writes an output as JSON.
pub(crate) fn write_output<O: Serialize>(output: &O) -> Result<Payload, ActivityError> {
    Payload::json(output).map_err(|error| {
        ActivityError::for_good(format!("the output cannot be written as JSON: {error}")).of_type("invalid_output")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn inputs_are_json_text_or_nothing() {
        assert_eq!(read_input::<u64>(&Payload::json(&7).unwrap()), Ok(7));
        assert_eq!(read_input::<String>(&Payload::text("a")), Ok("a".to_owned()));
        assert_eq!(read_input::<()>(&Payload::default()), Ok(()));
        assert_eq!(read_input::<Option<u64>>(&Payload::default()), Ok(None));
        for bad in [Payload::text("7"), Payload::default(), Payload::octets(vec![7]), Payload::json("7").unwrap()] {
            let error = read_input::<u64>(&bad).unwrap_err();
            assert!(!error.retryable, "{bad:?}");
            assert_eq!(error.error_type.unwrap().as_str(), "invalid_input");
        }
    }

    #[test]
    fn an_output_that_is_no_json_fails_for_good() {
        assert_eq!(write_output(&7), Ok(Payload::json(&7).unwrap()));
        let odd = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(!write_output(&odd).unwrap_err().retryable);
    }

    #[test]
    fn a_panic_is_told_in_its_own_words() {
        let panic = std::panic::catch_unwind(|| panic!("at {}", 7)).unwrap_err();
        assert_eq!(panic_text(&*panic), "the handler panicked: at 7");
    }
}
