//! Processes of a story, nodes and workers: started, killed, paused and started again by their own pids.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_machine::NodeName;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::engine::{Execution, Order, Record};
use crate::program::Program;
use crate::wait::wait_until;

/// The last lines of a log that a failed test prints.
const LOG_LINES_SHOWN: usize = 60;

/// A process, running or not.
#[derive(Debug)]
pub struct Process {
    /// What it is called in messages.
    pub label: String,
    folder: PathBuf,
    program: Program,
    /// Another executable than the program's own.
    executable: Option<PathBuf>,
    environment: BTreeMap<String, String>,
    life: Arc<Life>,
    child: Mutex<Option<Child>>,
}

/// A node's process; all that can be done with a process can be done with it.
#[derive(Debug)]
pub struct NodeProcess {
    /// Its name.
    pub name: NodeName,
    /// Where its API is, as a base URL.
    pub url: String,
    process: Process,
}

/// Counts the processes that a [`Process`] has been, and the disks that a node has had.
#[derive(Debug, Default)]
pub struct Life {
    disks: AtomicU64,
    boots: AtomicU64,
}

impl Life {
    /// The numbers of its disk and of its process. They grow before the new one does anything.
    pub fn numbers(&self) -> (u64, u64) {
        (self.disks.load(Ordering::SeqCst), self.boots.load(Ordering::SeqCst))
    }
}

impl Deref for NodeProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl NodeProcess {
    /// A node that is not started yet; `folder` is made and gets its data, its log and its records.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(
        name: NodeName,
        http_port: u16,
        folder: PathBuf,
        program: Program,
        mut environment: BTreeMap<String, String>,
    ) -> Result<Self> {
        environment.insert("HOLDFAST_DATA_DIR".to_owned(), folder.join("data").display().to_string());
        let url = format!("http://127.0.0.1:{http_port}");
        let process = Process::new(name.to_string(), folder, program, environment)?;
        Ok(Self { name, url, process })
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Empties the data directory of a stopped node. The directory itself stays: a file system may be mounted there.
    ///
    /// # Errors
    /// When it runs, or its directory cannot be emptied.
    pub fn wipe(&self) -> Result<()> {
        ensure!(!self.is_running(), "{} runs; its disk is not pulled from under it", self.name);
        for entry in fs::read_dir(self.data()).context("wiping")? {
            let entry = entry?;
            let removed = if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
            removed.with_context(|| format!("wiping {}", entry.path().display()))?;
        }
        self.process.life.disks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Which disk and which process it has, for whoever watches it.
    pub fn life(&self) -> Arc<Life> {
        Arc::clone(&self.process.life)
    }

    /// Has the next start run this executable, or (`None`) the one under test.
    pub fn run(&mut self, executable: Option<PathBuf>) {
        self.process.executable = executable;
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, variable: &str, value: &str) {
        self.process.environment.insert(variable.to_owned(), value.to_owned());
    }
}

impl Process {
    /// A process that is not started yet; `folder` is made and gets its log and its records.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(
        label: String,
        folder: PathBuf,
        program: Program,
        environment: BTreeMap<String, String>,
    ) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            label,
            folder,
            program,
            executable: None,
            environment,
            life: Arc::default(),
            child: Mutex::new(None),
        })
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn records_file(&self) -> PathBuf {
        self.folder.join("records")
    }

    /// Starts the process. Its stderr goes to its log, its stdout to its records, both appended to.
    ///
    /// # Errors
    /// When it runs already or cannot be started.
    pub fn start(&self) -> Result<()> {
        let mut child = self.child.lock();
        ensure!(child.is_none(), "{} runs already", self.label);
        let program = self.executable.clone().map_or_else(|| self.program.path(), Ok)?;
        let mut command = Command::new(&program);
        command
            .args(self.program.arguments())
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(append_to(&self.records_file())?)
            .stderr(append_to(&self.log())?);
        self.life.boots.fetch_add(1, Ordering::SeqCst);
        *child = Some(command.spawn().with_context(|| format!("{} does not start", program.display()))?);
        Ok(())
    }

    /// Runs `holdfast` to its end with this process's settings, as an operator does beside it; what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn succeeds(&self, arguments: &[&str]) -> Result<String> {
        let output = self.perform(arguments)?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `holdfast` to its end, which has to fail; what it said.
    ///
    /// # Errors
    /// When it succeeds, or is killed.
    pub fn fails(&self, arguments: &[&str]) -> Result<String> {
        let output = self.perform(arguments)?;
        let failed = output.status.code().is_some_and(|code| code != 0);
        ensure!(failed, "{arguments:?}: {}, {}", output.status, String::from_utf8_lossy(&output.stdout));
        Ok(String::from_utf8(output.stderr)?)
    }

    fn perform(&self, arguments: &[&str]) -> Result<Output> {
        let program = Program::Holdfast.path()?;
        let mut command = Command::new(&program);
        command.args(arguments).envs(&self.environment).current_dir(&self.folder).stdin(Stdio::null());
        command.output().with_context(|| format!("{} does not start", program.display()))
    }

    /// SIGKILL, and waits until the process is gone.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.child.lock().take().with_context(|| format!("{} does not run", self.label))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGSTOP: the process keeps its connections and does nothing.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it does not run.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, and waits until the process has ended by itself.
    ///
    /// # Errors
    /// When it does not run or does not end.
    pub async fn stop(&self, deadline: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(deadline).await
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// When it goes on.
    pub async fn ended(&self, deadline: Duration) -> Result<ExitStatus> {
        wait_until(&format!("{} ends", self.label), deadline, async || {
            let mut running = self.child.lock();
            let child = running.as_mut().context("it was not running")?;
            let status = child.try_wait()?.context("it still runs")?;
            *running = None;
            Ok(status)
        })
        .await
    }

    /// True while the process runs (paused ones do).
    pub fn is_running(&self) -> bool {
        self.child.lock().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Gives a puppet an order.
    ///
    /// # Errors
    /// When it does not run or does not read.
    pub fn tell(&self, order: &Order) -> Result<()> {
        let mut running = self.child.lock();
        let child = running.as_mut().with_context(|| format!("{} does not run", self.label))?;
        let stdin = child.stdin.as_mut().context("stdin is a pipe")?;
        writeln!(stdin, "{}", serde_json::to_string(order)?)?;
        Ok(stdin.flush()?)
    }

    /// What a puppet told over all its starts.
    ///
    /// # Errors
    /// When a line is something else. A last line that was cut off by a kill is left out.
    pub fn records(&self) -> Result<Vec<Record>> {
        let Ok(text) = fs::read_to_string(self.records_file()) else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            records.push(serde_json::from_str(line).with_context(|| format!("record of {}: {line}", self.label))?);
        }
        Ok(records)
    }

    /// The executions that a puppet has begun, over all its starts.
    ///
    /// # Errors
    /// As [`Process::records`].
    pub fn executions(&self) -> Result<Vec<Execution>> {
        let began = |record| match record {
            Record::Began { key, token } => Some(Execution { by: self.label.clone(), key, token }),
            _ => None,
        };
        Ok(self.records()?.into_iter().filter_map(began).collect())
    }

    /// The most memory that it has had so far, in bytes.
    ///
    /// # Errors
    /// When it does not run.
    pub fn peak_memory(&self) -> Result<u64> {
        let running = self.child.lock();
        let child = running.as_ref().with_context(|| format!("{} does not run", self.label))?;
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(peak.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
    }

    /// Its whole log so far.
    pub fn log_text(&self) -> String {
        fs::read(self.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Its name and the last lines of its log, for people.
    pub fn last_words(&self) -> String {
        let log = self.log_text();
        let lines: Vec<&str> = log.lines().collect();
        let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        format!("---- {} ({} lines, the last {})\n{}", self.label, lines.len(), shown.len(), shown.join("\n"))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let running = self.child.lock();
        let Some(child) = running.as_ref() else { bail!("{} does not run", self.label) };
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a pid is not 0")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            // It may have ended by itself; there is nobody left to tell if the kill fails.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn append_to(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(path).with_context(|| format!("opening {}", path.display()))
}
