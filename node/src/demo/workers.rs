//! Workers: programs of their own that execute activities. Each is attached to one node, the first of its list, and
//! goes on at the next one when that node dies.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use super::ledger::{Executor, Ledger};
use super::process::Process;

/// How many workers there are; worker number n is attached to node n modulo the number of nodes.
const WORKERS: usize = 6;

/// Running workers. Dropping them ends their processes.
#[derive(Debug)]
pub(crate) struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    number: usize,
    log: PathBuf,
    process: Process,
}

impl Workers {
    /// Starts the workers on the nodes at these URLs.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(urls: &[String], folder: &Path, ledger: &Ledger) -> anyhow::Result<Self> {
        let mut workers = Vec::with_capacity(WORKERS);
        for number in 1..=WORKERS {
            let (by, log) = (Executor::Worker(number), folder.join(format!("worker-{number}.log")));
            let mut arguments = vec!["demo-worker".to_owned(), "--name".to_owned(), by.to_string()];
            // Its own node comes first; the others are where it moves on to.
            for position in 0..urls.len() {
                arguments.extend(["--url".to_owned(), urls[(number + position) % urls.len()].clone()]);
            }
            let process = Process::start(&arguments, by, &log, ledger)?;
            workers.push(Worker { number, log, process });
        }
        Ok(Self(workers))
    }

    /// Ends a worker with SIGKILL and returns when that was.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn kill(&mut self, number: usize) -> anyhow::Result<Instant> {
        let position = self.0.iter().position(|worker| worker.number == number);
        let worker = self.0.remove(position.with_context(|| format!("worker-{number} is not running"))?);
        worker.process.kill().await
    }

    /// Fails if a worker has ended by itself.
    ///
    /// # Errors
    /// Names the worker and its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for Worker { number, log, process } in &mut self.0 {
            process.check().with_context(|| format!("worker-{number}, whose log is {}", log.display()))?;
        }
        Ok(())
    }

    /// Stops all workers in good order.
    pub async fn stop(&mut self) {
        let mut workers = std::mem::take(&mut self.0);
        workers.iter_mut().for_each(|worker| worker.process.tell_to_stop());
        for worker in workers {
            worker.process.stopped().await;
        }
    }
}
