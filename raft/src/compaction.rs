//! Shortens the log, by entries and by bytes: an entry has between a few bytes and many megabytes.
//!
//! openraft takes a snapshot after so many entries; one is due as well once the log behind the last one has the bytes that
//! are allowed, or as many as that snapshot has: so a large state is not written out over and over for little. What a
//! snapshot covers is kept up to a number of entries and of bytes, and for as long as a peer that is being sent a snapshot
//! will need what comes behind that. openraft knows nothing of the latter, so it purges nothing by itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_storage::{RoomLevel, Storage};
use openraft::async_runtime::WatchReceiver;

use crate::log_store::blocking;
use crate::options::Compaction;
use crate::transfers::Transfers;
use crate::types::Core;

/// How often the log is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The part of a small disk that the log behind a snapshot may have, and the part that is kept of what one covers.
const SNAPSHOT_PART: u64 = 8;
const KEPT_PART: u64 = 16;

/// Takes snapshots and shortens the log by its bytes, until the node stops.
pub(crate) async fn shorten_log(core: Core, storage: Arc<Storage>, transfers: Transfers, limits: Compaction) {
    let snapshot_bytes = storage.room.part(limits.snapshot_bytes, SNAPSHOT_PART);
    let kept_bytes = storage.room.part(limits.keep_bytes, KEPT_PART);
    let mut asked = None;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let covered = core.metrics().borrow_watched().snapshot.map(|id| id.index);
        let behind = storage.log.bytes_after(covered);
        // One is asked for at a time; it may take long.
        if behind >= snapshot_bytes && asked != Some(covered) && behind >= last_snapshot(&storage).await {
            tracing::debug!(behind, "a snapshot is due by the size of the log");
            asked = Some(covered);
            if core.trigger().snapshot().await.is_err() {
                return;
            }
        }
        let Some(covered) = covered else { continue };
        let next = storage.log.purged().map_or(0, |purged| purged.index + 1);
        let by_entries =
            covered.checked_sub(limits.keep).filter(|upto| *upto >= next.saturating_add(limits.purge_batch));
        let by_bytes = storage.log.before_last(kept_bytes).map(|upto| upto.min(covered));
        let held = transfers.held(storage.room.level() != RoomLevel::Plenty);
        let purgeable = by_entries.max(by_bytes).map(|upto| upto.min(held.unwrap_or(upto)));
        if let Some(upto) = purgeable.filter(|upto| *upto >= next)
            && core.trigger().purge_log(upto).await.is_err()
        {
            return;
        }
    }
}

/// Bytes of the newest snapshot; one that cannot be looked at stands in nobody's way.
async fn last_snapshot(storage: &Storage) -> u64 {
    let snapshots = storage.snapshots.clone();
    let newest = blocking(move || snapshots.newest().map_err(io::Error::from)).await;
    newest.ok().flatten().map_or(0, |snapshot| snapshot.length)
}
