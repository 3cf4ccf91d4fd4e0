//! The processes of servers, which end with this one.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_bench::spent::Spent;
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// How long servers may take to become ready, and to agree in the end.
pub const READY_WITHIN: Duration = Duration::from_secs(60);
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a server may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
}

/// A command that this user runs, or root for another one, as servers may refuse to be root's.
pub fn command(program: &Path, user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    // However this process ends, the server does.
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user.filter(|_| geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.arg("--").arg(program).stdin(Stdio::null());
    command
}

/// A command whose end is waited for.
pub fn run(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// The version that a program says it has, in its first line.
pub fn version(program: &Path) -> Result<String> {
    let said = run(command_with(program, &["--version"]))?;
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

fn command_with(program: &Path, arguments: &[&str]) -> Command {
    let mut command = command(program, None);
    command.args(arguments);
    command
}

/// A folder for a server's data, that of its user.
pub fn folder(path: &Path, user: Option<&str>) -> Result<()> {
    let mut install = command_with(Path::new("install"), &["-d", "-m", "700"]);
    if let Some(user) = user.filter(|_| geteuid().is_root()) {
        install.args(["-o", user, "-g", user]);
    }
    install.arg(path);
    run(install).map(|_| ())
}

impl Server {
    /// Starts it; what it says goes to `log`.
    pub fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let said = File::options().create(true).append(true).open(&log)?;
        // Ctrl-C on the terminal is for this process alone.
        command.stdout(said.try_clone()?).stderr(said).process_group(0);
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        Ok(Self { child, log })
    }

    /// Starts one that ends when its standard input does.
    pub fn start_held(mut command: Command, log: PathBuf) -> Result<Self> {
        command.stdin(Stdio::piped());
        Self::start(command, log)
    }

    /// What it has spent so far, with all its processes.
    pub fn spent(&self) -> Result<Spent> {
        Spent::of_family(self.child.id()).with_context(|| self.last_words())
    }

    /// Fails if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "a server has ended by itself: {}", self.last_words());
        Ok(())
    }

    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(5).collect();
        format!("{}: {}", self.log.display(), lines.into_iter().rev().collect::<Vec<_>>().join(" | "))
    }
}

/// What all of these have spent so far.
pub fn spent(servers: &[Server]) -> Result<Spent> {
    let each: Vec<Spent> = servers.iter().map(Server::spent).collect::<Result<_>>()?;
    each.into_iter().reduce(Spent::and).context("there is no server")
}

impl Drop for Server {
    fn drop(&mut self) {
        // All of them take this as "stop in good order, without waiting for clients".
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| matches!(self.child.try_wait(), Ok(None))) {
            let _ = kill_process(pid, Signal::INT);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > STOP_WITHIN {
                let _ = self.child.kill();
            }
            sleep(LOOK_EVERY);
        }
    }
}

/// Waits until something is so, as long as all of these run.
pub async fn wait_until(
    servers: &mut [Server],
    what: &str,
    mut is_so: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let begun = Instant::now();
    loop {
        let last = is_so().await;
        if matches!(last, Ok(true)) {
            return Ok(());
        }
        servers.iter_mut().try_for_each(Server::check)?;
        if begun.elapsed() > READY_WITHIN {
            last?;
            anyhow::bail!("waited {READY_WITHIN:?} in vain until {what}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
