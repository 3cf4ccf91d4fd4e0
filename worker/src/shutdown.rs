//! What tells a worker to end: signals, for one that is a program of its own.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::WorkerError;

/// SIGTERM and SIGINT, which count alike.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> Result<Self, WorkerError> {
        let listen = |kind| signal(kind).map_err(WorkerError::Signals);
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
