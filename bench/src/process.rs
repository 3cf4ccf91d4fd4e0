//! One node that is measured, as a process. Its standard output names the rows that it holds itself (see `failover`).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_machine::DispatchKey;
use parking_lot::Mutex;

use crate::own_process::{OwnProcess, Said};

/// How long a node may take to stop in good order.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The rows that nodes said they hold: when, which node, which row.
pub type Held = Arc<Mutex<Vec<(Instant, usize, DispatchKey)>>>;

/// Starts node number `number` with these arguments.
///
/// # Errors
/// When the process cannot be started.
pub fn start(arguments: &[String], log: &Path, number: usize, held: Held) -> Result<OwnProcess> {
    let (process, said) = OwnProcess::start(arguments, log).context("a node cannot be started")?;
    tokio::spawn(read_rows(said, number, held));
    Ok(process)
}

/// Has a node stop in good order.
///
/// # Errors
/// When it fails, or does not end.
pub async fn stop(mut process: OwnProcess) -> Result<()> {
    process.tell_to_stop();
    let status = process.stopped(STOP_WITHIN).await.context("a node")?;
    if !status.success() {
        bail!("a node stopped with {status}");
    }
    Ok(())
}

async fn read_rows(mut said: Said, number: usize, held: Held) {
    while let Ok(Some(line)) = said.next_line().await {
        // The last line of a killed process may be cut off; a key that is cut off is another key, which nobody waits for.
        if let Ok(key) = line.parse() {
            held.lock().push((Instant::now(), number, key));
        }
    }
}
