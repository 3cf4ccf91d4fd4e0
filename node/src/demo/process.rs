//! One process of the demo: a node with an engine inside, or a worker. Its standard output carries the lines of what it
//! executes (see [`Line`]).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use holdfast_bench::own_process::{OwnProcess, Said};
use tokio::task::JoinHandle;

use super::ledger::{Executor, Ledger, Line};

/// How long a process may take to stop at the end.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Process {
    process: OwnProcess,
    lines: JoinHandle<()>,
}

impl Process {
    /// Starts this program with these arguments, as the executor that `by` says. It logs to `log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(arguments: &[String], by: Executor, log: &Path, ledger: &Ledger) -> anyhow::Result<Self> {
        let (process, said) = OwnProcess::start(arguments, log).with_context(|| format!("{by} cannot be started"))?;
        let lines = tokio::spawn(read_lines(said, by, ledger.clone()));
        Ok(Self { process, lines })
    }

    /// Ends it with SIGKILL and returns when that was. All that it had written is in the ledger afterwards.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(self) -> anyhow::Result<Instant> {
        let killed_at = self.process.kill().await?;
        self.lines.await?;
        Ok(killed_at)
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// How it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.process.check()
    }

    /// Tells it to stop in good order.
    pub fn tell_to_stop(&mut self) {
        self.process.tell_to_stop();
    }

    /// Waits until it has stopped; ends it if that takes too long.
    pub async fn stopped(self) {
        // One that takes too long is ended by then, which is all that is asked for.
        let _ = self.process.stopped(STOP_WITHIN).await;
    }
}

async fn read_lines(mut said: Said, by: Executor, ledger: Ledger) {
    while let Ok(Some(line)) = said.next_line().await {
        // The last line of a killed process may be cut off.
        if let Ok(line) = serde_json::from_str::<Line>(&line) {
            ledger.enter(&by, line);
        }
    }
}
