//! Processes of this very program, for whatever starts some to look at them: the nodes of a benchmark, and those of the
//! demo with its workers.
//!
//! Standard input is a pipe that the starter holds: when it closes, for whatever reason, the process ends (see
//! [`input_ended`]). Standard output is for the starter to read, standard error goes to a file.

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Where ports are looked for: below the range that the kernel gives to outgoing connections, so that a node which
/// starts again finds its port free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A running process. Dropping it ends it.
#[derive(Debug)]
pub struct OwnProcess(Child);

/// What a process says, line by line.
pub type Said = Lines<BufReader<ChildStdout>>;

impl OwnProcess {
    /// Starts this program with these arguments and without any of its variables; it logs to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(arguments: &[String], log: &Path) -> Result<(Self, Said)> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C on the terminal is for the starter alone; it ends its processes itself.
        command.process_group(0).kill_on_drop(true);
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("HOLDFAST_")) {
            command.env_remove(key);
        }
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().context("a process's output is not a pipe")?;
        Ok((Self(child), BufReader::new(stdout).lines()))
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

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// How it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            Some(status) => bail!("it stopped by itself ({status})"),
            None => Ok(()),
        }
    }

    /// Tells it to stop in good order.
    pub fn tell_to_stop(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Waits until it has stopped, and ends it if that takes too long.
    ///
    /// # Errors
    /// When it took too long.
    pub async fn stopped(mut self, within: Duration) -> Result<ExitStatus> {
        Ok(timeout(within, self.0.wait()).await.with_context(|| format!("it does not stop within {within:?}"))??)
    }
}

/// In such a process: completes when its standard input ends.
pub async fn input_ended() {
    let (ended, wait) = oneshot::channel();
    // A thread of its own: the runtime would wait for a blocking read when it stops.
    std::thread::spawn(move || {
        let mut nothing = [0; 64];
        while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        let _ = ended.send(());
    });
    let _ = wait.await;
}

/// Loopback addresses with ports that nobody uses now.
///
/// # Errors
/// When there are not so many.
pub fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let first = PORTS.start + u16::try_from(std::process::id() % u32::from(PORTS.end - PORTS.start))?;
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports = (first..PORTS.end).chain(PORTS.start..first).filter(free);
    let addresses: Vec<SocketAddr> = ports.take(count).map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect();
    if addresses.len() < count {
        bail!("127.0.0.1 has no {count} free ports between {} and {}", PORTS.start, PORTS.end);
    }
    Ok(addresses)
}
