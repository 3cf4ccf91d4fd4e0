//! One process of the demo: a node with an engine inside, or a worker.
//!
//! Its standard input is a pipe that the demo holds: when it closes, for whatever reason, the process stops. Its
//! standard output carries the lines of what it executes (see [`Line`]), its standard error goes to a file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ledger::{Executor, Ledger, Line};

/// How long a process may take to stop at the end.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: JoinHandle<()>,
}

impl Process {
    /// Starts this program with these arguments, as the executor that `by` says. It logs to `log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(arguments: &[String], by: Executor, log: &Path, ledger: &Ledger) -> anyhow::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C on the terminal is for the demo alone; it ends its processes itself.
        command.process_group(0).kill_on_drop(true);
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("HOLDFAST_")) {
            command.env_remove(key);
        }
        let mut child = command.spawn().with_context(|| format!("{by} cannot be started"))?;
        let stdout = child.stdout.take().context("a process's output is not a pipe")?;
        let lines = tokio::spawn(read_lines(stdout, by, ledger.clone()));
        Ok(Self { child, lines })
    }

    /// Ends it with SIGKILL and returns when that was. All that it had written is in the ledger afterwards.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(mut self) -> anyhow::Result<Instant> {
        let killed_at = Instant::now();
        self.child.start_kill()?;
        self.child.wait().await?;
        self.lines.await?;
        Ok(killed_at)
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// How it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("it stopped by itself ({status})"),
            None => Ok(()),
        }
    }

    /// Tells it to stop in good order.
    pub fn tell_to_stop(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits until it has stopped; ends it if that takes too long.
    pub async fn stopped(mut self) {
        // Dropping the process ends it if it is still there.
        let _ = timeout(STOP_WITHIN, self.child.wait()).await;
    }
}

async fn read_lines(stdout: ChildStdout, by: Executor, ledger: Ledger) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // The last line of a killed process may be cut off.
        if let Ok(line) = serde_json::from_str::<Line>(&line) {
            ledger.enter(&by, line);
        }
    }
}

/// In a process that another one holds by its standard input: completes when that ends.
pub(crate) async fn input_ended() {
    let (ended, wait) = oneshot::channel();
    // A thread of its own: the runtime would wait for a blocking read when it stops.
    std::thread::spawn(move || {
        let mut nothing = [0; 64];
        while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}
