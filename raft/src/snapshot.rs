//! A snapshot as openraft passes it around: storage's file with what openraft wants to know of it.

use std::io;

use holdfast_storage::SnapshotFile;

use crate::types::{LogId, Snapshot, SnapshotMeta, StoredMembership, from_storage, membership_of, record_of};
use crate::wire::{StoredMembershipRecord, WireError, WireLogId, decode};

/// A stored snapshot, as openraft wants it.
pub(crate) fn load(stored: SnapshotFile) -> io::Result<Snapshot> {
    let header = &stored.header;
    let membership = read_membership(header.membership.as_deref()).map_err(io::Error::other)?;
    let meta = SnapshotMeta { last_log_id: Some(from_storage(header.applied)), last_membership: membership };
    Ok(Snapshot { meta, snapshot: stored })
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
