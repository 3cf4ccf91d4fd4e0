//! Calls that are made until they are answered.

use std::future::Future;
use std::time::Duration;

use holdfast_api::{StoreError, StoreResult, Write};
use holdfast_machine::{IdempotencyKey, Reject};
use tokio::time::sleep;

/// The pause before a call is repeated, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Makes a write until it is answered or refused. All tries carry one idempotency key: a try whose answer was lost is
/// not made twice.
pub(crate) async fn until_answered<T, F>(call: impl Fn(Write) -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    let key = IdempotencyKey::new(uuid::Uuid::now_v7().to_string())
        // A uuid is always a valid key; should that change, it is a refusal like any other.
        .map_err(|invalid| Reject::InvalidArgument { what: invalid.to_string() })?;
    until_read(|| call(Write::keyed(key.clone()))).await
}

/// Makes a call that changes nothing until it is answered or refused.
pub(crate) async fn until_read<T, F>(call: impl Fn() -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    let mut pause = PAUSE.0;
    loop {
        match call().await {
            // The node stops; whoever goes on is another engine.
            Err(StoreError::Stopped) => return Err(StoreError::Stopped),
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, "asking again");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            answer => return answer,
        }
    }
}
