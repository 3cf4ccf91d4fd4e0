//! Stopping: what asks for it, and the order in which a node lets go.

use std::future::Future;
use std::time::Duration;

use holdfast_machine::Liveness;
use holdfast_raft::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at the link to the heir of a leader that stops.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
        tokio::select! {
            handed_over = handle.transfer_leader(heir.id) => match handed_over {
                Ok(()) => {
                    tracing::info!(to = %heir.name, "leadership handed over");
                    return;
                }
                Err(error) => tracing::info!(to = %heir.name, %error, "leadership was not handed over"),
            },
            // An heir that stops as well, as when the whole cluster does, is not waited for.
            () = link_closed(handle, heir.id) => tracing::info!(to = %heir.name, "the heir is gone"),
        }
    }
}

/// Completes when the link to this peer is closed.
async fn link_closed(handle: &Handle, peer: u64) {
    let linked = || handle.status().members.iter().any(|member| member.id == peer && member.linked);
    while linked() {
        sleep(LOOK_EVERY).await;
    }
}
