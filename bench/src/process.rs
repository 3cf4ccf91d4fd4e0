//! One node as a process of this very program. It ends with the benchmark: its standard input is a pipe that the
//! benchmark holds. Its standard output names the rows that it holds itself (see `failover`), its log is a file.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_machine::DispatchKey;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// How long a node may take to stop in good order.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The rows that nodes said they hold: when, which node, which row.
pub type Held = Arc<Mutex<Vec<(Instant, usize, DispatchKey)>>>;

/// A running node. Dropping it ends it.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts node number `number` with these arguments.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(arguments: &[String], log: &Path, number: usize, held: Held) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C on the terminal is for the benchmark alone; it ends its processes itself.
        command.process_group(0).kill_on_drop(true);
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("HOLDFAST_")) {
            command.env_remove(key);
        }
        let mut child = command.spawn().context("a node cannot be started")?;
        let stdout = child.stdout.take().context("a node's output is no pipe")?;
        tokio::spawn(read_rows(stdout, number, held));
        Ok(Self(child))
    }

    /// Its process id; none once it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.0.id()
    }

    /// Ends it with SIGKILL and returns when that was.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(mut self) -> Result<Instant> {
        let at = Instant::now();
        self.0.start_kill()?;
        self.0.wait().await?;
        Ok(at)
    }

    /// Has it stop in good order.
    ///
    /// # Errors
    /// When it fails, or does not end.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = timeout(STOP_WITHIN, self.0.wait()).await.context("a node does not stop")??;
        if !status.success() {
            bail!("a node stopped with {status}");
        }
        Ok(())
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// How it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            Some(status) => bail!("a node stopped by itself ({status})"),
            None => Ok(()),
        }
    }
}

async fn read_rows(stdout: ChildStdout, number: usize, held: Held) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // The last line of a killed process may be cut off; a key that is cut off is another key, which nobody waits for.
        if let Ok(key) = line.parse() {
            held.lock().push((Instant::now(), number, key));
        }
    }
}
