//! What the state and its flusher share, and the one way that rows get into sled.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use holdfast_machine::{ArchiveError, ArchiveResult, Writes};
use sled::Batch;

use super::cursor::Cursor;
use super::generation::Generation;
use super::overlay::{Layer, Overlay};
use crate::disk::Poison;
use crate::frame::{self, FrameKind};
use crate::ids::LogId;
use crate::keys;
use crate::rows::{self, LargeRows};

#[derive(Debug)]
pub(super) struct Shared {
    pub root: PathBuf,
    pub poison: Poison,
    overlay: Mutex<Overlay>,
    /// A layer is due, or the state is being closed.
    due: Condvar,
    /// A layer has been written.
    written: Condvar,
    sled: Mutex<Sled>,
    current: RwLock<Arc<Generation>>,
}

/// What changes when rows get into sled; whoever writes them holds its lock, after it the overlay's.
#[derive(Debug, Default)]
pub(super) struct Sled {
    pub large: LargeRows,
    pub cursor: Option<Arc<Mutex<Cursor>>>,
}

/// What sled holds after a flush.
#[derive(Debug, Clone, Default)]
pub(super) struct Flushed {
    pub applied: Option<LogId>,
    pub membership: Option<Vec<u8>>,
}

impl Shared {
    pub(super) fn new(root: PathBuf, poison: Poison, generation: Generation) -> ArchiveResult<Shared> {
        let (sled, overlay) = load(&generation)?;
        Ok(Shared {
            root,
            poison,
            overlay: Mutex::new(overlay),
            due: Condvar::new(),
            written: Condvar::new(),
            sled: Mutex::new(sled),
            current: RwLock::new(Arc::new(generation)),
        })
    }

    pub(super) fn current(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sled(&self) -> MutexGuard<'_, Sled> {
        self.sled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a commit; waits while sled is two layers behind.
    pub(super) fn commit(&self, writes: Writes, applied: LogId, membership: Option<Vec<u8>>) -> io::Result<()> {
        let mut overlay = self.overlay();
        while overlay.is_full() && self.poison.reason().is_none() {
            overlay = self.written.wait(overlay).unwrap_or_else(PoisonError::into_inner);
        }
        self.poison.check()?;
        if let Some(last) = overlay.applied.filter(|last| applied.index < last.index) {
            return Err(io::Error::other(format!("{applied} was committed after {last}")));
        }
        overlay.commit(writes, applied, membership);
        if overlay.is_due() {
            self.due.notify_one();
        }
        Ok(())
    }

    /// The flusher's thread: writes layers that are due until the state is closed or has failed.
    pub(super) fn run(&self) {
        loop {
            let mut overlay = self.overlay();
            while !overlay.is_due() && !overlay.closing {
                overlay = self.due.wait(overlay).unwrap_or_else(PoisonError::into_inner);
            }
            let closing = overlay.closing;
            drop(overlay);
            if closing || self.flush(&mut self.sled()).is_err() {
                return;
            }
        }
    }

    pub(super) fn close(&self) {
        self.overlay().closing = true;
        self.due.notify_all();
    }

    /// Writes everything that is committed to sled (not yet durable). A failure poisons.
    pub(super) fn flush(&self, sled: &mut Sled) -> io::Result<Flushed> {
        self.poison.check()?;
        match self.freeze() {
            (Some(layer), flushed) => self.write_frozen(sled, &layer, &flushed).map(|()| flushed),
            (None, flushed) => Ok(flushed),
        }
    }

    /// Begins a new layer; the old one, if it has anything, is the caller's to write.
    pub(super) fn freeze(&self) -> (Option<Arc<Layer>>, Flushed) {
        let mut overlay = self.overlay();
        let flushed = Flushed { applied: overlay.applied, membership: overlay.membership.clone() };
        if !overlay.is_ahead {
            return (None, flushed);
        }
        overlay.is_ahead = false;
        let layer = Arc::new(std::mem::take(&mut overlay.active));
        overlay.frozen = Some(Arc::clone(&layer));
        (Some(layer), flushed)
    }

    pub(super) fn write_frozen(&self, sled: &mut Sled, layer: &Layer, flushed: &Flushed) -> io::Result<()> {
        let result = write(&self.current(), sled, layer, flushed);
        match &result {
            // After a failure the layer stays readable.
            Err(error) => self.poison.strike("writing rows", error),
            Ok(()) => self.overlay().frozen = None,
        }
        self.written.notify_all();
        result
    }

    /// Lets another generation take over, with nothing of the old one left.
    pub(super) fn replace(&self, generation: Generation) -> ArchiveResult<()> {
        let (new_sled, new_overlay) = load(&generation)?;
        let mut sled = self.sled();
        let mut overlay = self.overlay();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, Arc::new(generation)).retire();
        *sled = new_sled;
        *overlay = new_overlay;
        Ok(())
    }
}

/// Writes a layer in one batch, after saving for a running snapshot what it changes.
fn write(generation: &Generation, sled: &mut Sled, layer: &Layer, flushed: &Flushed) -> io::Result<()> {
    let mut batch = Batch::default();
    for (key, slot) in &layer.rows {
        rows::stage(&generation.db, &mut sled.large, &mut batch, slot.index, key, slot.value.as_deref())
            .map_err(io::Error::other)?;
    }
    if let Some(applied) = &flushed.applied {
        batch.insert(keys::APPLIED, frame::encode_value(FrameKind::Applied, applied));
    }
    if let Some(membership) = &flushed.membership {
        batch.insert(keys::MEMBERSHIP, frame::encode(FrameKind::Membership, membership));
    }
    // A builder that was dropped leaves a cursor that nobody moves any more.
    if sled.cursor.as_ref().is_some_and(|cursor| Arc::strong_count(cursor) == 1) {
        sled.cursor = None;
    }
    // Held until the batch is applied: the cursor must not move between the saving and the change.
    let mut cursor = sled.cursor.as_ref().map(|cursor| cursor.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(cursor) = &mut cursor {
        cursor.save(&generation.db, layer.rows.keys()).map_err(io::Error::other)?;
    }
    generation.apply(batch, layer.rows.len())
}

/// What a generation says of itself.
pub(super) fn load(generation: &Generation) -> ArchiveResult<(Sled, Overlay)> {
    let id = |key| read_meta(generation, key, |bytes| frame::decode_value::<LogId>(FrameKind::Applied, bytes));
    let membership = |bytes: &[u8]| frame::decode(FrameKind::Membership, bytes).map(<[u8]>::to_vec);
    let overlay = Overlay {
        applied: id(keys::APPLIED)?,
        installed: id(keys::INSTALLED)?,
        membership: read_meta(generation, keys::MEMBERSHIP, membership)?,
        ..Overlay::default()
    };
    Ok((Sled { large: LargeRows::load(&generation.db)?, cursor: None }, overlay))
}

fn read_meta<T>(
    generation: &Generation,
    key: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, frame::FrameError>,
) -> ArchiveResult<Option<T>> {
    let bytes = generation.db.get(key).map_err(|error| rows::unreadable(&error))?;
    let value = bytes.map(|bytes| decode(&bytes)).transpose();
    value.map_err(|flaw| ArchiveError(format!("{} is damaged: {flaw}", key.escape_ascii())))
}
