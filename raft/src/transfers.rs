//! Snapshots on their way to peers, and what of the log has to stay for them.
//!
//! What a peer lacks behind its snapshot has to be in the log when it has got it. Were that purged meanwhile, the peer would
//! need the next snapshot, and so on for as long as more is written during a transfer than is kept. And a transfer that was
//! broken off can go on where it was only if the same snapshot is sent again, though there may be a newer one by then.
//! Both end soon after the last attempt that reached the peer, and at once when the disk runs low. A peer that is not there is
//! tried again and again: were those attempts to count, the log would grow for as long as it is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::types::{LogId, Snapshot};

/// How long a transfer that was broken off may take to go on, and a peer to take in the log behind its snapshot.
const PATIENCE: Duration = Duration::from_secs(60);

/// The transfers to all peers; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Transfers(Arc<Mutex<BTreeMap<u64, Transfer>>>);

struct Transfer {
    snapshot: Snapshot,
    /// Attempts that are under way.
    attempts: usize,
    arrived: bool,
    /// When the last attempt that reached the peer ended; none if none did.
    ended: Option<Instant>,
}

impl Transfer {
    fn applied(&self) -> Option<LogId> {
        self.snapshot.meta.last_log_id
    }

    fn index(&self) -> Option<u64> {
        self.applied().map(|id| id.index)
    }

    fn is_awaited(&self) -> bool {
        self.attempts > 0 || self.ended.is_some_and(|ended| ended.elapsed() < PATIENCE)
    }
}

/// Ends an attempt when it is dropped.
pub(crate) struct Attempt {
    transfers: Transfers,
    peer: u64,
    applied: Option<LogId>,
    reached: AtomicBool,
}

impl Transfers {
    /// Notes that an attempt begins to send this to a peer.
    pub fn begin(&self, peer: u64, snapshot: &Snapshot) -> Attempt {
        let applied = snapshot.meta.last_log_id;
        let mut all = self.0.lock();
        match all.get_mut(&peer).filter(|transfer| transfer.applied() == applied) {
            Some(transfer) => transfer.attempts += 1,
            None => {
                let snapshot = snapshot.clone();
                all.insert(peer, Transfer { snapshot, attempts: 1, arrived: false, ended: None });
            }
        }
        Attempt { transfers: self.clone(), peer, applied, reached: AtomicBool::new(false) }
    }

    /// The snapshot that broken transfers go on with: the oldest, if the log goes on behind it.
    pub fn unfinished(&self, purged: Option<u64>) -> Option<Snapshot> {
        let all = self.0.lock();
        let sound = |transfer: &&Transfer| !transfer.arrived && transfer.is_awaited() && transfer.index() >= purged;
        all.values().filter(sound).min_by_key(|transfer| transfer.index()).map(|transfer| transfer.snapshot.clone())
    }

    /// The index behind which the log has to stay, if any. On a disk that is low on space it has to nowhere.
    pub fn held(&self, low: bool) -> Option<u64> {
        let mut all = self.0.lock();
        all.retain(|_, transfer| transfer.is_awaited() && !low);
        all.values().filter_map(Transfer::index).min()
    }
}

impl Attempt {
    fn with_transfer(&self, change: impl FnOnce(&mut Transfer)) {
        let mut all = self.transfers.0.lock();
        if let Some(transfer) = all.get_mut(&self.peer).filter(|transfer| transfer.applied() == self.applied) {
            change(transfer);
        }
    }

    /// The peer is there and takes it.
    pub fn reached(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// The peer has it.
    pub fn arrived(self) {
        self.with_transfer(|transfer| transfer.arrived = true);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.with_transfer(|transfer| {
            transfer.attempts = transfer.attempts.saturating_sub(1);
            if self.reached.load(Ordering::Relaxed) {
                transfer.ended = Some(Instant::now());
            }
        });
    }
}
