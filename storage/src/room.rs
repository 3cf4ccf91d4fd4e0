//! How much room the file system has left, and who may still take of it.
//!
//! A part of the disk, the reserve, is for what finishes work and frees space. Below it the node is low on space: nothing
//! new should be begun (raft refuses it). The last quarter is for the log alone, which can wait for space without harm.
//! sled cannot: a write of it that fails is the end of the state until the next start. So layers, snapshots and whatever
//! else is large is not begun when it would go below that quarter; it waits.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::disk::{Disk, DiskSpace};

/// The reserve is never more than this part of the file system, so that small ones can be used too.
const PART_OF_DISK_MAX: u64 = 8;

/// The part of the reserve that is the log's alone.
pub(crate) const LOG_PART: u64 = 4;

/// A level is left for a better one only when a quarter more than its bound is free, so that it does not flutter.
const RECOVERY_PART: u64 = 4;

/// How often a full disk is looked at again.
const RETRY: Duration = Duration::from_millis(100);

/// How much room there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoomLevel {
    /// More than the reserve.
    #[default]
    Plenty,
    /// Only the reserve is left.
    Low,
    /// Only the log's part of the reserve is left, or less.
    Out,
}

/// The room in one data directory's file system; clones share it. The default is without bounds.
#[derive(Debug, Clone, Default)]
pub struct Room(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    reserve_bytes: u64,
    level: AtomicU8,
    free: AtomicU64,
    closed: AtomicBool,
}

impl Room {
    /// The room in `dir`'s file system, with a reserve of this many bytes at most; without one there are no bounds.
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, reserve_bytes: u64) -> Room {
        if reserve_bytes == 0 {
            return Room::default();
        }
        let (level, free, closed) = (AtomicU8::new(0), AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Room(Some(Arc::new(Inner { disk, dir: dir.to_path_buf(), reserve_bytes, level, free, closed })))
    }

    /// Looks at the disk; gives the level, which stays until the next look.
    ///
    /// # Errors
    /// When the file system does not say.
    pub fn look(&self) -> io::Result<RoomLevel> {
        let Some(inner) = &self.0 else { return Ok(RoomLevel::Plenty) };
        let space = inner.disk.space(&inner.dir)?;
        let level = next_level(self.level(), space.free, inner.reserve(space));
        inner.level.store(level as u8, Ordering::Relaxed);
        inner.free.store(space.free, Ordering::Relaxed);
        Ok(level)
    }

    /// The level at the last look.
    pub fn level(&self) -> RoomLevel {
        match self.0.as_ref().map_or(0, |inner| inner.level.load(Ordering::Relaxed)) {
            0 => RoomLevel::Plenty,
            1 => RoomLevel::Low,
            _ => RoomLevel::Out,
        }
    }

    /// The largest piece that a write of `pieces` of them may take out of the reserve in one go, at most `bytes`.
    pub(crate) fn piece(&self, pieces: u64, bytes: u64) -> u64 {
        let space = self.0.as_ref().and_then(|inner| Some((inner, inner.disk.space(&inner.dir).ok()?)));
        match space.map(|(inner, space)| inner.reserve(space)) {
            None | Some(0) => bytes,
            Some(reserve) => bytes.min(reserve / pieces),
        }
    }

    /// At most `bytes`, and on a small disk this part of it.
    pub fn part(&self, bytes: u64, part: u64) -> u64 {
        let space = self.0.as_ref().and_then(|inner| inner.disk.space(&inner.dir).ok());
        space.map_or(bytes, |space| bytes.min(space.total / part))
    }

    /// Free bytes at the last look, if the file system has been looked at.
    pub fn free(&self) -> Option<u64> {
        let free = self.0.as_ref()?.free.load(Ordering::Relaxed);
        (free != u64::MAX).then_some(free)
    }

    /// Whether `bytes` more can be written without touching what is the log's.
    ///
    /// # Errors
    /// Of kind `StorageFull` when they cannot.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let Some(inner) = &self.0 else { return Ok(()) };
        // A file system that does not say is written to until it refuses.
        let Ok(space) = inner.disk.space(&inner.dir) else { return Ok(()) };
        let needed = bytes.saturating_add(inner.reserve(space) / LOG_PART);
        if space.free >= needed {
            return Ok(());
        }
        let what = format!("{} bytes are free, {needed} are needed", space.free);
        Err(io::Error::new(io::ErrorKind::StorageFull, what))
    }

    /// Waits until [`Room::check`] has nothing against `bytes`.
    ///
    /// # Errors
    /// When the room is closed meanwhile.
    pub fn wait(&self, bytes: u64) -> io::Result<()> {
        let mut checked = self.check(bytes);
        if let Err(error) = &checked {
            tracing::warn!(%error, "waiting for space on the disk");
        }
        while checked.is_err() && !self.is_closed() {
            thread::sleep(RETRY);
            checked = self.check(bytes);
        }
        checked
    }

    /// Ends all waiting: the node stops.
    pub fn close(&self) {
        if let Some(inner) = &self.0 {
            inner.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the node stops; nobody should wait for space any more.
    pub fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| inner.closed.load(Ordering::Relaxed))
    }
}

impl Inner {
    fn reserve(&self, space: DiskSpace) -> u64 {
        self.reserve_bytes.min(space.total / PART_OF_DISK_MAX)
    }
}

fn next_level(now: RoomLevel, free: u64, reserve: u64) -> RoomLevel {
    let above = |bound: u64, is_worse: bool| free >= if is_worse { bound + bound / RECOVERY_PART } else { bound };
    if !above(reserve / LOG_PART, now == RoomLevel::Out) {
        RoomLevel::Out
    } else if !above(reserve, now != RoomLevel::Plenty) {
        RoomLevel::Low
    } else {
        RoomLevel::Plenty
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_level_is_left_only_with_some_room_to_spare() {
        use RoomLevel::{Low, Out, Plenty};
        let steps = [
            (400, Plenty),
            (399, Low),
            (499, Low),
            (500, Plenty),
            (99, Out),
            (124, Out),
            (125, Low),
            (400, Low),
            (0, Out),
            (500, Plenty),
        ];
        let mut level = Plenty;
        for (free, expected) in steps {
            level = next_level(level, free, 400);
            assert_eq!(level, expected, "with {free} bytes free");
        }
    }

    #[test]
    fn without_a_reserve_there_are_no_bounds() {
        let room = Room::new(Arc::new(RealDisk), Path::new("/"), 0);
        assert_eq!((room.look().unwrap(), room.free()), (RoomLevel::Plenty, None));
        assert!(Room::default().check(u64::MAX).is_ok());
    }

    #[test]
    fn the_reserve_leaves_most_of_a_small_disk_to_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let space = RealDisk.space(dir.path()).unwrap();
        assert!(space.free <= space.total && space.total > 0, "{space:?}");
        let room = Room::new(Arc::new(RealDisk), dir.path(), u64::MAX);
        let inner = room.0.as_ref().unwrap();
        assert_eq!(inner.reserve(DiskSpace { free: 0, total: 800 }), 100);
        let error = room.check(space.total).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        room.close();
        assert_eq!(room.wait(space.total).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
