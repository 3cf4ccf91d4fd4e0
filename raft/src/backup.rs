//! A copy of the whole state, as of one log entry, to be kept elsewhere.
//!
//! A backup is the node's newest snapshot behind a manifest. One that is not new enough is replaced first, as the log's
//! growth has it replaced anyway; commits go on meanwhile. The file is held open, so a later snapshot does not take it
//! away from under a slow reader.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use holdfast_machine::{NodeName, ReadMode};
use holdfast_storage::SnapshotFile;
use holdfast_storage::backup::Manifest;

use crate::handle::Handle;
use crate::log_store::blocking;
use crate::propose::ProposeError;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Between two looks at the newest snapshot.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A backup that is ready to be read.
#[derive(Debug, Clone)]
pub struct BackupFile {
    manifest: Bytes,
    snapshot: SnapshotFile,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The node's state is not fresh enough, or the node has stopped.
    #[error(transparent)]
    Unread(#[from] ProposeError),
    /// The snapshot cannot be read.
    #[error("the newest snapshot cannot be read: {0}")]
    Disk(#[from] io::Error),
}

impl Handle {
    /// A backup of the state as of an entry that is fresh enough for `mode`, or of a later one.
    ///
    /// # Errors
    /// See [`BackupError`]. Does not give up as long as the node runs and has space: a large state takes its time.
    pub async fn backup(&self, mode: ReadMode, node: &NodeName) -> Result<BackupFile, BackupError> {
        let index = self.read_index(mode).await?;
        let snapshot = self.snapshot_from(index).await?;
        let manifest = Manifest {
            cluster: self.storage().dir.identity().cluster.clone(),
            node: node.to_string(),
            created_at_ms: self.clock().now_ms(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(BackupFile { manifest: manifest.encode().into(), snapshot })
    }

    /// A snapshot that has all entries up to `index`.
    async fn snapshot_from(&self, index: u64) -> Result<SnapshotFile, BackupError> {
        let fatal = self.fatal();
        loop {
            let snapshots = self.storage().snapshots.clone();
            let newest = blocking(move || Ok(snapshots.newest()?)).await?;
            if let Some(snapshot) = newest.filter(|snapshot| snapshot.header.applied.index >= index) {
                return Ok(snapshot);
            }
            if self.storage().log.is_full() {
                return Err(ProposeError::StorageFull.into());
            }
            if fatal.borrow().is_some() {
                return Err(ProposeError::Stopped.into());
            }
            // Without effect while one is written, which may be older than what is wanted: hence again and again.
            self.take_snapshot().await?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl BackupFile {
    /// The log index of the last entry that is in it.
    pub fn index(&self) -> u64 {
        self.snapshot.header.applied.index
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.manifest.len() as u64 + self.snapshot.length
    }

    /// Its bytes. They are not checked here: whoever keeps them has to.
    pub fn into_chunks(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let BackupFile { manifest, snapshot } = self;
        let file = stream::try_unfold((snapshot, 0u64), |(snapshot, offset)| async move {
            if offset >= snapshot.length {
                return Ok(None);
            }
            let source = snapshot.clone();
            let chunk = blocking(move || source.read(offset, CHUNK_BYTES)).await?;
            let next = offset + chunk.len() as u64;
            Ok(Some((chunk, (snapshot, next))))
        });
        stream::StreamExt::chain(stream::once(async move { Ok(manifest) }), file)
    }
}
