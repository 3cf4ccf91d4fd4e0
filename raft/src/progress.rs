//! How far this node has come, as three rules need it: apply never passes what the node's own log has on
//! disk, a purge never passes what the state has on disk, and after a failed write nothing more is
//! acknowledged.
//!
//! The first rule is stricter than Raft asks (a quorum elsewhere is enough to commit). It keeps the state
//! from getting ahead of the log across a crash, which at start could not be told from damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_storage::disk::Poison;
use tokio::sync::watch;

/// The progress of one node; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The index after the last entry that the log has on disk.
    flushed_end: watch::Sender<u64>,
    /// The index after the last applied entry that the state has on disk.
    durable_end: AtomicU64,
    applied: watch::Sender<Option<u64>>,
    fatal: watch::Sender<Option<Arc<str>>>,
    /// Why storage has stopped.
    poison: Poison,
}

impl Progress {
    /// Nothing but the applied index is known at first.
    pub fn new(applied: Option<u64>, poison: Poison) -> Self {
        Self(Arc::new(Inner {
            flushed_end: watch::Sender::new(0),
            durable_end: AtomicU64::new(0),
            applied: watch::Sender::new(applied),
            fatal: watch::Sender::new(None),
            poison,
        }))
    }

    /// The log is on disk up to `last`.
    pub fn flushed_to(&self, last: Option<u64>) {
        let end = last.map_or(0, |last| last + 1);
        self.0.flushed_end.send_if_modified(|flushed| {
            let further = end > *flushed;
            *flushed = end.max(*flushed);
            further
        });
    }

    /// The log was cut after `last`.
    pub fn truncated_to(&self, last: Option<u64>) {
        let end = last.map_or(0, |last| last + 1);
        self.0.flushed_end.send_modify(|flushed| *flushed = end.min(*flushed));
    }

    /// Waits until the log is on disk up to `index`; an error once the node has failed.
    pub async fn flushed(&self, index: u64) -> std::io::Result<()> {
        if *self.0.flushed_end.borrow() > index {
            return Ok(());
        }
        let (mut flushed, mut fatal) = (self.0.flushed_end.subscribe(), self.fatal());
        tokio::select! {
            _ = flushed.wait_for(|end| *end > index) => Ok(()),
            _ = fatal.wait_for(Option::is_some) => {
                Err(std::io::Error::other("the node has failed"))
            }
        }
    }

    /// The state is on disk up to the applied index `last`.
    pub fn durable_to(&self, last: Option<u64>) {
        self.0.durable_end.fetch_max(last.map_or(0, |last| last + 1), Ordering::AcqRel);
    }

    /// True if the state is on disk up to `index`.
    pub fn is_durable(&self, index: u64) -> bool {
        self.0.durable_end.load(Ordering::Acquire) > index
    }

    /// Entries up to `index` are applied and can be read.
    pub fn applied_to(&self, index: u64) {
        self.0.applied.send_replace(Some(index));
    }

    /// Follows the index of the last applied entry.
    pub fn applied(&self) -> watch::Receiver<Option<u64>> {
        self.0.applied.subscribe()
    }

    /// The node cannot go on. The first reason stays; why storage has stopped says more than what failed for it.
    pub fn fail(&self, error: &dyn std::fmt::Display) {
        self.0.fatal.send_if_modified(|fatal| {
            let first = fatal.is_none();
            if first {
                let reason = self.0.poison.reason().map_or_else(|| error.to_string(), str::to_owned);
                tracing::error!(reason, "the node stops");
                *fatal = Some(reason.into());
            }
            first
        });
    }

    /// Follows whether, and why, the node cannot go on.
    pub fn fatal(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.fatal.subscribe()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn apply_waits_for_the_disk_and_for_nothing_after_a_failure() {
        let progress = Progress::new(None, Poison::default());
        progress.flushed_to(Some(4));
        progress.flushed(4).await.unwrap();
        let waiting = tokio::spawn({
            let progress = progress.clone();
            async move { progress.flushed(6).await }
        });
        progress.flushed_to(Some(5));
        progress.flushed_to(Some(6));
        waiting.await.unwrap().unwrap();
        progress.truncated_to(Some(3));
        progress.fail(&"disk");
        progress.fail(&"second");
        assert!(progress.flushed(4).await.is_err());
        assert_eq!(progress.fatal().borrow().as_deref(), Some("disk"));
    }

    #[test]
    fn durable_never_goes_back() {
        let progress = Progress::new(None, Poison::default());
        assert!(!progress.is_durable(0));
        progress.durable_to(Some(0));
        assert!(progress.is_durable(0));
        progress.durable_to(None);
        assert!(progress.is_durable(0));
        assert!(!progress.is_durable(1));
    }
}
