//! Stopping: what asks for it, and the order in which a node lets go.

use std::future::Future;
use std::time::Duration;

use holdfast_machine::Liveness;
use holdfast_raft::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

/// Completes at the first SIGTERM or SIGINT and names it.
///
/// # Errors
/// When the operating system does not let the process listen for signals.
pub async fn signalled() -> std::io::Result<&'static str> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// Time that is left until a deadline, so that several steps share one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// The step's output, or none if the time was over first.
    pub async fn bound<T>(self, step: impl Future<Output = T>) -> Option<T> {
        timeout(self.0.saturating_duration_since(Instant::now()), step).await.ok()
    }
}

/// Hands leadership to the peer whose log is the furthest, so that the cluster does without an election's wait.
pub(crate) async fn hand_over_leadership(handle: &Handle) {
    let status = handle.status();
    if !handle.is_leader() {
        return;
    }
    let mut heirs: Vec<_> = status
        .members
        .iter()
        .filter(|member| member.id != status.node && member.voter && member.linked && member.liveness == Liveness::Up)
        .collect();
    heirs.sort_by_key(|member| std::cmp::Reverse(member.matched));
    for heir in heirs {
        match handle.transfer_leader(heir.id).await {
            Ok(()) => {
                tracing::info!(to = %heir.name, "leadership handed over");
                return;
            }
            Err(error) => tracing::info!(to = %heir.name, %error, "leadership was not handed over"),
        }
    }
}
