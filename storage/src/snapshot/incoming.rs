//! Taking in a peer's snapshot, which may need more than one connection.
//!
//! What has come is kept under a name made of the snapshot's id, over a restart as well, and the next transfer of that
//! snapshot goes on behind it. Nothing is believed of it: the whole file is checked when its last byte is there, and one that
//! is not in order is thrown away, so that the next transfer begins anew.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::writer::SYNC_BYTES;
use super::{SnapshotFile, Snapshots, file_name};
use crate::disk::DiskFile;
use crate::error::StorageError;
use crate::ids::LogId;

pub(super) const PARTIAL_SUFFIX: &str = ".partial";
/// From either end of a file as much as has the header's beginning and the whole trailer, which tells of all rows.
const TOLD_BYTES: u64 = 64;

/// Tells the bytes of one snapshot file from those of every other, whichever node has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotId {
    /// The last entry that is in it.
    pub applied: LogId,
    /// Length of the file in bytes.
    pub length: u64,
    /// Of its header and its trailer.
    pub digest: u64,
}

impl SnapshotId {
    /// Of a file of which nothing but its length is known. It is equal to no other.
    pub fn unknown(length: u64) -> SnapshotId {
        let (digest, _) = Uuid::new_v4().as_u64_pair();
        SnapshotId { applied: LogId { term: 0, index: 0 }, length, digest }
    }

    /// The name of what has come; it sorts before the whole snapshot's and behind older ones.
    fn partial_name(&self) -> String {
        let SnapshotId { applied, length, digest } = self;
        format!("{:020}-{:020}-{length:016x}-{digest:016x}{PARTIAL_SUFFIX}", applied.index, applied.term)
    }
}

impl SnapshotFile {
    /// Which snapshot this is.
    pub fn id(&self) -> io::Result<SnapshotId> {
        let mut digest = Xxh3::new();
        for from in [0, self.length.saturating_sub(TOLD_BYTES)] {
            digest.update(&self.read(from, TOLD_BYTES as usize)?);
        }
        Ok(SnapshotId { applied: self.header.applied, length: self.length, digest: digest.digest() })
    }
}

impl Snapshots {
    fn incoming(&self) -> MutexGuard<'_, u64> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot that comes in from a peer, piece by piece. Dropped, it leaves what has come for the next one.
#[derive(Debug)]
pub struct SnapshotReceiver {
    snapshots: Arc<Snapshots>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    length: u64,
    end: u64,
    synced: u64,
    /// Only the receiver that began last may write.
    turn: u64,
}

impl SnapshotReceiver {
    pub(super) fn begin(snapshots: Arc<Snapshots>, id: &SnapshotId) -> Result<SnapshotReceiver, StorageError> {
        let name = id.partial_name();
        let path = snapshots.dir.join(&name);
        // An earlier receiver is not in the middle of anything while this is held.
        let mut incoming = snapshots.incoming();
        *incoming += 1;
        let turn = *incoming;
        let open = || {
            let names = snapshots.disk.list(&snapshots.dir)?;
            for other in names.iter().filter(|other| other.ends_with(PARTIAL_SUFFIX) && **other != name) {
                snapshots.disk.remove(&snapshots.dir.join(other))?;
            }
            let file = match names.contains(&name) {
                true => snapshots.disk.open(&path)?,
                false => snapshots.disk.create(&path)?,
            };
            let end = file.len()?;
            Ok((file, end))
        };
        let (mut file, mut end) = open().map_err(|error| StorageError::io("receiving the snapshot", &path, error))?;
        if end > id.length {
            let again = snapshots.disk.create(&path);
            (file, end) = (again.map_err(|error| StorageError::io("receiving the snapshot", &path, error))?, 0);
        }
        drop(incoming);
        Ok(SnapshotReceiver { snapshots, path, file, length: id.length, end, synced: end, turn })
    }

    /// Bytes that are there, with those of earlier receivers.
    pub fn received(&self) -> u64 {
        self.end
    }

    /// Adds the next bytes of the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let (snapshots, mut synced) = (&self.snapshots, self.synced);
        let end = self.end + bytes.len() as u64;
        let incoming = snapshots.incoming();
        let written =
            self.check(*incoming, end).and_then(|()| snapshots.room.check(bytes.len() as u64)).and_then(|()| {
                snapshots.poison.guard("receiving a snapshot", self.file.write_at(self.end, bytes))?;
                if end - synced >= SYNC_BYTES {
                    snapshots.poison.guard("receiving a snapshot", self.file.sync_data())?;
                    synced = end;
                }
                Ok(())
            });
        if let Err(error) = written {
            if error.kind() == io::ErrorKind::StorageFull {
                // The space is of more use to others.
                self.discard();
            }
            return Err(StorageError::io("receiving the snapshot", &self.path, error));
        }
        drop(incoming);
        (self.end, self.synced) = (end, synced);
        Ok(())
    }

    /// Checks the whole file and gives it its name; durable on return, older snapshots are removed.
    pub fn finish(self) -> Result<SnapshotFile, StorageError> {
        let receiving = |error| StorageError::io("receiving the snapshot", &self.path, error);
        let Snapshots { disk, poison, dir, .. } = &*self.snapshots;
        let incoming = self.snapshots.incoming();
        self.check(*incoming, self.end).map_err(receiving)?;
        poison.guard("receiving a snapshot", self.file.sync_data()).map_err(receiving)?;
        let received = SnapshotFile::open(&**disk, &self.path).and_then(|file| file.verify().map(|_| file));
        // Whatever is wrong with it: it would be wrong again.
        let received = received.inspect_err(|_| self.discard())?;
        let path = dir.join(file_name(received.header.applied));
        self.snapshots.keep(&self.path, &path).map_err(receiving)?;
        SnapshotFile::open(&**disk, &path)
    }

    /// Whether this receiver may still write, up to `end`.
    fn check(&self, incoming: u64, end: u64) -> io::Result<()> {
        if incoming != self.turn {
            return Err(io::Error::other("another transfer has taken over"));
        }
        match end > self.length {
            true => Err(io::Error::other(format!("more came than the {} bytes that were announced", self.length))),
            false => Ok(()),
        }
    }

    fn discard(&self) {
        // What cannot be removed now is overwritten, or removed by a newer snapshot.
        let _ = self.snapshots.disk.remove(&self.path);
    }
}
