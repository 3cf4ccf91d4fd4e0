//! A snapshot as openraft passes it around: storage's file, held open. It stays readable while it is
//! sent, even if a newer snapshot has replaced it meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_storage::snapshot as stored;

use crate::types::{LogId, Snapshot, SnapshotMeta, StoredMembership, from_storage, membership_of, record_of};
use crate::wire::{StoredMembershipRecord, WireError, WireLogId, decode};

/// An open snapshot file.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    stored: stored::SnapshotFile,
    file: Arc<File>,
}

impl SnapshotFile {
    /// Holds a stored snapshot open.
    pub fn open(stored: stored::SnapshotFile) -> io::Result<Self> {
        let file = Arc::new(File::open(&stored.path)?);
        Ok(Self { stored, file })
    }

    /// What storage knows of it.
    pub fn stored(&self) -> &stored::SnapshotFile {
        &self.stored
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.stored.length
    }

    /// The bytes from `offset` on, at most `limit`; blocks on the disk.
    pub fn read(&self, offset: u64, limit: usize) -> io::Result<Bytes> {
        let left = self.length().saturating_sub(offset);
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(limit);
        let mut chunk = vec![0; size];
        self.file.read_exact_at(&mut chunk, offset)?;
        Ok(chunk.into())
    }
}

/// A stored snapshot, as openraft wants it.
pub(crate) fn load(stored: stored::SnapshotFile) -> io::Result<Snapshot> {
    let header = &stored.header;
    let membership = read_membership(header.membership.as_deref()).map_err(io::Error::other)?;
    let meta = SnapshotMeta { last_log_id: Some(from_storage(header.applied)), last_membership: membership };
    Ok(Snapshot { meta, snapshot: SnapshotFile::open(stored)? })
}

/// A membership as it is stored with the state.
pub(crate) fn stored_record(membership: &StoredMembership) -> StoredMembershipRecord {
    StoredMembershipRecord::V1 {
        log_id: membership.log_id().map(WireLogId::from),
        membership: record_of(membership.membership()),
    }
}

/// The membership that stored bytes stand for; none before the first membership entry.
pub(crate) fn read_membership(bytes: Option<&[u8]>) -> Result<StoredMembership, WireError> {
    let Some(bytes) = bytes else { return Ok(StoredMembership::default()) };
    let StoredMembershipRecord::V1 { log_id, membership } = decode(bytes)?;
    Ok(StoredMembership::new(log_id.map(LogId::from), membership_of(membership)?))
}
