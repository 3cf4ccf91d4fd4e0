//! Waiting for conditions. No test sleeps and hopes: it says what must become true, and gets the last
//! reason why it was not if it does not.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Enough for anything that takes milliseconds on an idle machine and seconds on a busy one.
pub const SOON: Duration = Duration::from_secs(30);

/// Enough for starts of processes and for failovers while a build runs beside them.
pub const LONG: Duration = Duration::from_secs(90);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Tries `condition` until it gives a value. An error means "not yet, because".
///
/// # Errors
/// After `deadline`, with `what` was waited for and the last error.
pub async fn wait_until<T>(what: &str, deadline: Duration, condition: impl AsyncFn() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let mut reason = anyhow!("the first look did not come back");
    while begin.elapsed() < deadline {
        // A single look may hang on a node that is paused; the deadline holds all the same.
        match tokio::time::timeout(deadline, condition()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => reason = error,
            Err(_) => break,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(reason.context(format!("waited {deadline:?} in vain until {what}")))
}

/// Checks that `condition` holds at every look for as long as `span`.
///
/// # Errors
/// The first error of `condition`.
pub async fn holds_for(span: Duration, condition: impl AsyncFn() -> Result<()>) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < span {
        condition().await?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    condition().await
}
