//! Bounds the log in bytes; openraft counts entries only, and an entry has between a few bytes and many megabytes.
//!
//! A snapshot is due once the log behind the last one has the bytes that are allowed, or as many as that snapshot has: so
//! a large state is not written out over and over for little. What a snapshot covers is kept up to a number of bytes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_storage::Storage;
use openraft::async_runtime::WatchReceiver;

use crate::log_store::blocking;
use crate::options::Compaction;
use crate::types::Core;

/// How often the log is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The part of a small disk that the log behind a snapshot may have, and the part that is kept of what one covers.
const SNAPSHOT_PART: u64 = 8;
const KEPT_PART: u64 = 16;

/// Takes snapshots and shortens the log by its bytes, until the node stops.
pub(crate) async fn bound_bytes(core: Core, storage: Arc<Storage>, limits: Compaction) {
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
        let purgeable = storage.log.before_last(kept_bytes).min(covered);
        if let Some(upto) = purgeable.filter(|upto| storage.log.purged().is_none_or(|purged| purged.index < *upto))
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
