//! What is told of an execution, and to whom: to any node, until one answers.

use std::time::Duration;

use holdfast_client::{Client, ClientError, Delivery, Failure, Write};
use holdfast_machine::{IdempotencyKey, Payload, Reject};
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use crate::activity::{Cancelled, Standing};
use crate::counters::Counters;
use crate::error::ActivityError;

/// The pause after a round in which no node answered; the client has been patient before that.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a row stays out of sight that this worker cannot execute or whose outcome the store does not take.
const HANDED_BACK_MS: u64 = 5_000;

/// What came of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed(Payload),
    Failed(ActivityError),
    /// Not executed; somebody else may.
    HandedBack,
}

/// Tells an outcome until it is answered, or the row is no longer the worker's. The number of the event that a result has
/// become; none if it counts for nothing, and for whatever else there is to tell.
pub(crate) async fn tell(
    client: &Client,
    delivery: &Delivery,
    mut outcome: Outcome,
    mut standing: watch::Receiver<Standing>,
    counters: &Counters,
) -> Option<u64> {
    let mut write = fresh();
    loop {
        let error = match call(client, delivery, &outcome, write.clone()).await {
            Ok(seq) => {
                count(&outcome, counters);
                return seq;
            }
            Err(error) => error,
        };
        match error {
            // Under the same key, so that a try that had landed is not a second one.
            error if error.is_retryable() => {
                tracing::warn!(key = %delivery.key, %error, "an outcome was not answered yet");
                tokio::select! {
                    () = sleep(PAUSE) => {}
                    () = taken_away(&mut standing) => break,
                }
            }
            error if error.reject().is_some_and(Reject::is_lost_claim) => {
                tracing::info!(key = %delivery.key, %error, "an outcome counts for nothing");
                break;
            }
            error => {
                tracing::error!(key = %delivery.key, %error, "the store does not take an outcome");
                let Some(instead) = after_refusal(&outcome, &error) else { break };
                (outcome, write) = (instead, fresh());
            }
        }
    }
    counters.absorbed();
    None
}

/// What to say when the store does not take what was said, a result that is too large for instance. Otherwise the row
/// would stay with the session and nobody would be at work on it.
fn after_refusal(outcome: &Outcome, error: &ClientError) -> Option<Outcome> {
    match outcome {
        Outcome::Completed(_) => {
            Some(Outcome::Failed(ActivityError::for_good(error.to_string()).of_type("invalid_output")))
        }
        Outcome::Failed(_) => Some(Outcome::HandedBack),
        Outcome::HandedBack => None,
    }
}

async fn call(
    client: &Client,
    delivery: &Delivery,
    outcome: &Outcome,
    write: Write,
) -> Result<Option<u64>, ClientError> {
    let (key, token) = (&delivery.key, Some(delivery.token));
    match outcome.clone() {
        Outcome::Completed(result) => return Ok(client.complete(key, token, result, write).await?.value),
        Outcome::Failed(ActivityError { error, error_type, retryable }) => {
            client.fail(key, token, Failure { error, error_type, retryable }, write).await?;
        }
        Outcome::HandedBack => {
            client.retry(key, token, HANDED_BACK_MS, write).await?;
        }
    }
    Ok(None)
}

fn count(outcome: &Outcome, counters: &Counters) {
    match outcome {
        Outcome::Completed(_) => counters.completed(),
        Outcome::Failed(_) => counters.failed(),
        Outcome::HandedBack => counters.handed_back(),
    }
}

fn fresh() -> Write {
    // A UUID is a valid key; without one the client makes one up, and only a repetition here would be another write.
    IdempotencyKey::new(Uuid::new_v4().to_string()).map(Write::keyed).unwrap_or_default()
}

/// Waits until the row is somebody else's affair.
async fn taken_away(standing: &mut watch::Receiver<Standing>) {
    let is_taken = |standing: &Standing| !matches!(standing.cancelled, None | Some(Cancelled::Stopping));
    // Without the worker there is nobody left who could hear of it; the task ends together with it.
    if standing.wait_for(is_taken).await.is_err() {
        std::future::pending().await
    }
}
