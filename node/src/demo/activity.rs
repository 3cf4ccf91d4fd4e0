//! The demo's only activity, as engines and workers run it: it takes its time, waits for its gate, and tells the demo.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_machine::{ClaimToken, DispatchKey, Payload};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::ledger::Line;

/// Between two looks at a gate.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The activity's input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// How long it takes.
    pub work_ms: u64,
    /// It ends no sooner than this file exists.
    pub gate: Option<PathBuf>,
}

/// What an execution leaves in the history: enough to tell which of several executions it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityResult {
    /// The claim that it ran under.
    pub token: ClaimToken,
    /// Who ran it.
    pub by: String,
}

impl ActivityResult {
    /// The result in a payload, if it is one.
    pub fn read(payload: &Payload) -> Option<Self> {
        serde_json::from_slice(&payload.data).ok()
    }
}

/// Executes a row.
pub(crate) async fn simulate(by: String, key: DispatchKey, token: ClaimToken, task: Task) -> ActivityResult {
    tell(&Line::Began { key, token });
    sleep(Duration::from_millis(task.work_ms)).await;
    while task.gate.as_ref().is_some_and(|gate| !gate.exists()) {
        sleep(LOOK_EVERY).await;
    }
    ActivityResult { token, by }
}

/// An execution's result was answered: it is event `seq`, or it came too late.
pub(crate) fn ended(key: &DispatchKey, token: ClaimToken, seq: Option<u64>) {
    tell(&Line::Ended { key: key.clone(), token, seq });
}

/// Tells the demo, which reads this process's standard output.
fn tell(line: &Line) {
    let Ok(mut text) = serde_json::to_string(line) else { return };
    text.push('\n');
    // Without a reader there is nobody to tell, and the work goes on.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
