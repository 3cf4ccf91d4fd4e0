//! A backup of the whole state, taken while everything goes on.

use std::io;

use bytes::Bytes;
use futures::Stream;
use holdfast_machine::ArchiveError;
use holdfast_raft::{BackupError, BackupFile};

use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::{Answer, ReadMode};

/// A backup that is ready to be read. It is a file of its own kind: `holdfast backup verify` checks it, `holdfast
/// restore` makes a new cluster of it.
#[derive(Debug)]
pub struct Backup(BackupFile);

impl Backup {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.0.length()
    }

    /// Its bytes, from the first to the last. They are checked where they are kept, not here.
    pub fn into_chunks(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        self.0.into_chunks()
    }
}

impl Store {
    /// A consistent backup of everything, from this node's disk: as of a log index that is fresh enough for `mode`, or
    /// a later one. The answer's index is the backup's.
    ///
    /// # Errors
    /// [`StoreError::NoQuorum`] or [`StoreError::IndexNotReached`] if the state does not get fresh enough in time,
    /// [`StoreError::StorageFull`] if a snapshot has to be written and there is no space.
    pub async fn backup(&self, mode: ReadMode) -> StoreResult<Backup> {
        match self.shared.raft.backup(mode, self.node()).await {
            Ok(file) => Ok(Answer { index: file.index(), value: Backup(file) }),
            Err(BackupError::Unread(error)) => Err(error.into()),
            Err(BackupError::Disk(error)) => Err(StoreError::Read(ArchiveError(error.to_string()))),
        }
    }
}
