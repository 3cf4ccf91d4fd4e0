//! Turns for stories that start clusters, so that they do not starve each other: a cluster of processes
//! takes one seat, a story that needs the machine for itself takes all.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A seat; free again when it is dropped.
pub type Turn = OwnedSemaphorePermit;

/// Two clusters even on a small machine: their stories mostly wait.
fn seats() -> u32 {
    std::thread::available_parallelism().map_or(2, |cores| cores.get() as u32 / 2).max(2)
}

fn room() -> Arc<Semaphore> {
    static ROOM: OnceLock<Arc<Semaphore>> = OnceLock::new();
    Arc::clone(ROOM.get_or_init(|| Arc::new(Semaphore::new(seats() as usize))))
}

/// Waits for one seat.
///
/// # Errors
/// Never, as long as the room is open, which it always is.
pub async fn one() -> Result<Turn> {
    Ok(room().acquire_owned().await?)
}

/// Waits for all seats.
///
/// # Errors
/// As [`one`].
pub async fn alone() -> Result<Turn> {
    Ok(room().acquire_many_owned(seats()).await?)
}
