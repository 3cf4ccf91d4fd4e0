//! What the state and its flusher share, and the one way that rows get into the tree.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use holdfast_machine::{ArchiveError, ArchiveResult, Writes};

use super::StateSummary;
use super::cursor::Cursor;
use super::generation::Generation;
use super::layer_file::{self, StoredLayer};
use super::overlay::{Flushed, LAYER_BYTES, Layer, Overlay, Slot};
use crate::disk::{Disk, Poison};
use crate::error::StorageError;
use crate::frame::{self, FrameKind};
use crate::ids::LogId;
use crate::keys;
use crate::room::{LOG_PART, Room};
use crate::rows::{self, LargeRows, Write};

/// How often a full disk is tried again.
const FULL_DISK_RETRY: Duration = Duration::from_secs(1);
/// Space that a layer takes for a while, as a multiple of its memory: once in its file, and in sled with what sled
/// leaves behind of older rows.
const LAYER_SPACE: u64 = 3;

/// Places whose rows are written while a snapshot's cursor has to wait.
const PLACES_PER_CURSOR_LOCK: usize = 32;

#[derive(Debug)]
pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub root: PathBuf,
    pub poison: Poison,
    room: Room,
    overlay: Mutex<Overlay>,
    /// A layer is due, or the state is being closed.
    due: Condvar,
    /// A layer has been written.
    written: Condvar,
    base: Mutex<Base>,
    current: RwLock<Arc<Generation>>,
}

/// What changes when rows get into the tree; whoever writes them holds its lock, after it the overlay's.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// The last entry whose rows are in the tree.
    pub applied: Option<LogId>,
    pub large: LargeRows,
    pub cursor: Option<Arc<Mutex<Cursor>>>,
}

impl Shared {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        root: PathBuf,
        poison: Poison,
        room: Room,
        generation: Generation,
    ) -> Result<Shared, StorageError> {
        let (base, mut overlay) = recover(&*disk, &root, &generation, &poison)?;
        overlay.layer_bytes = layer_bytes(&room);
        Ok(Shared {
            disk,
            root,
            poison,
            room,
            overlay: Mutex::new(overlay),
            due: Condvar::new(),
            written: Condvar::new(),
            base: Mutex::new(base),
            current: RwLock::new(Arc::new(generation)),
        })
    }

    pub(super) fn current(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn base(&self) -> MutexGuard<'_, Base> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a commit; waits while the tree is two layers behind. True when a layer is due.
    pub(super) fn commit(&self, writes: Writes, applied: LogId, membership: Option<Vec<u8>>) -> io::Result<bool> {
        let mut overlay = self.until_not_full();
        self.poison.check()?;
        if let Some(last) = overlay.applied.filter(|last| applied.index < last.index) {
            return Err(io::Error::other(format!("{applied} was committed after {last}")));
        }
        overlay.commit(writes, applied, membership);
        let is_due = overlay.is_due();
        if is_due {
            self.due.notify_one();
        }
        Ok(is_due)
    }

    /// Waits while the tree is behind and can catch up.
    pub(super) fn until_not_full(&self) -> MutexGuard<'_, Overlay> {
        let mut overlay = self.overlay();
        while overlay.is_full() && !overlay.closing && self.poison.reason().is_none() {
            overlay = self.written.wait(overlay).unwrap_or_else(PoisonError::into_inner);
        }
        overlay
    }

    /// The flusher's thread: writes layers that are due until the state is closed or has failed.
    pub(super) fn run(&self) {
        loop {
            let mut overlay = self.overlay();
            while !overlay.is_due() && !overlay.closing {
                overlay = self.due.wait(overlay).unwrap_or_else(PoisonError::into_inner);
            }
            let closing = overlay.closing;
            let space = space_for(&overlay.active);
            drop(overlay);
            // What is not written waits in memory, and then commits wait; sled does not bear a disk that is full.
            if closing || self.room.wait(space).is_err() {
                return;
            }
            match self.flush(&mut self.base()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => self.wait_for_space(),
                Err(_) => return,
            }
        }
    }

    fn wait_for_space(&self) {
        tracing::error!("the disk is full: the state waits for space");
        let overlay = self.overlay();
        if !overlay.closing {
            drop(self.due.wait_timeout(overlay, FULL_DISK_RETRY).unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) fn close(&self) {
        self.room.close();
        self.overlay().closing = true;
        self.due.notify_all();
        self.written.notify_all();
    }

    /// Writes everything that is committed to the tree; durable on return. A failure poisons, except that nothing is tried
    /// and an error of kind `StorageFull` returned when the disk has no room.
    pub(super) fn flush(&self, base: &mut Base) -> io::Result<Flushed> {
        self.poison.check()?;
        self.room.check(space_for(&self.overlay().active))?;
        // A layer that had to wait for space is first.
        let waiting = self.overlay().frozen.clone();
        if let Some((layer, flushed)) = waiting {
            self.write_frozen(base, &layer, &flushed)?;
        }
        match self.freeze() {
            (Some(layer), flushed) => self.write_frozen(base, &layer, &flushed).map(|()| flushed),
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
        overlay.frozen = Some((Arc::clone(&layer), flushed.clone()));
        self.written.notify_all();
        (Some(layer), flushed)
    }

    pub(super) fn write_frozen(&self, base: &mut Base, layer: &Layer, flushed: &Flushed) -> io::Result<()> {
        // sled meets some failures with a panic; waiting commits must hear of those too.
        let work = AssertUnwindSafe(|| self.write_layer(base, layer, flushed));
        let result = catch_unwind(work).unwrap_or_else(|_| Err(io::Error::other("sled has given up")));
        // After a failure the layer stays readable; after one for want of space it is written again later.
        if result.is_ok() {
            self.overlay().frozen = None;
        }
        let result = self.poison.guard("writing rows", result);
        self.written.notify_all();
        result
    }

    fn write_layer(&self, base: &mut Base, layer: &Layer, flushed: &Flushed) -> io::Result<()> {
        let Some(applied) = flushed.applied else { return Ok(()) };
        let generation = self.current();
        let membership = flushed.membership.as_deref();
        layer_file::save(&*self.disk, &self.root, generation.number, layer, base.applied, applied, membership)?;
        let written = self.trusting(&generation, || write_rows(&generation, base, layer, applied, membership));
        written.map_err(io::Error::other)?;
        generation.sync()?;
        base.applied = Some(applied);
        Ok(())
    }

    /// Lets another generation take over, with nothing of the old one left.
    pub(super) fn replace(&self, generation: Generation) -> Result<(), StorageError> {
        let (new_base, mut new_overlay) = recover(&*self.disk, &self.root, &generation, &self.poison)?;
        let mut base = self.base();
        let mut overlay = self.overlay();
        (new_overlay.layer_bytes, new_overlay.has_flusher) = (overlay.layer_bytes, overlay.has_flusher);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, Arc::new(generation)).retire();
        *base = new_base;
        *overlay = new_overlay;
        Ok(())
    }
}

/// Opens a generation for use: finishes the layer whose writing was cut off, and makes durable what is there (a
/// killed process leaves it to the kernel).
fn recover(
    disk: &dyn Disk,
    root: &Path,
    generation: &Generation,
    poison: &Poison,
) -> Result<(Base, Overlay), StorageError> {
    let recovered = read_back(disk, root, generation)?;
    let synced = poison.guard("syncing a state", generation.sync());
    synced.map_err(|error| StorageError::io("syncing", &generation.path, error))?;
    Ok(recovered)
}

/// What a generation and the layer beside it say together; the layer's rows are in the tree on return.
fn read_back(disk: &dyn Disk, root: &Path, generation: &Generation) -> Result<(Base, Overlay), StorageError> {
    let path = &generation.path;
    let unreadable = |error: ArchiveError| StorageError::damaged(path, 0, error.0);
    bundle_rows(generation).map_err(unreadable)?;
    let (mut base, mut overlay) = load(generation).map_err(unreadable)?;
    let stored = layer_file::load(disk, root, generation.number)?;
    if stored.is_none() && overlay.applied != overlay.installed {
        let what = "the file is missing, and with it what would show that no rows are";
        return Err(StorageError::damaged(&layer_file::path(root, generation.number), 0, what));
    }
    if let Some(StoredLayer { layer, follows, applied, membership }) = stored
        && Some(applied) != overlay.applied
    {
        if overlay.applied != follows {
            let name = |id: Option<LogId>| id.map_or_else(|| "nothing".to_owned(), |id| id.to_string());
            let (has, had) = (name(overlay.applied), name(follows));
            let what = format!("it has rows up to {has}, and had them up to {had}: rows were lost");
            return Err(StorageError::damaged(path, 0, what));
        }
        write_rows(generation, &mut base, &layer, applied, membership.as_deref()).map_err(unreadable)?;
        base.applied = Some(applied);
        (overlay.applied, overlay.membership) = (Some(applied), membership);
    }
    Ok((base, overlay))
}

/// Writes the rows of a layer, and after them what the state says of itself. A running snapshot gets the old values.
fn write_rows(
    generation: &Generation,
    base: &mut Base,
    layer: &Layer,
    applied: LogId,
    membership: Option<&[u8]>,
) -> ArchiveResult<()> {
    // A builder that was dropped leaves a cursor that nobody moves any more.
    if base.cursor.as_ref().is_some_and(|cursor| Arc::strong_count(cursor) == 1) {
        base.cursor = None;
    }
    let rows = layer.rows.iter();
    let writes: Vec<_> =
        rows.map(|(key, Slot { index, value })| Write { key, index: *index, value: value.as_deref() }).collect();
    let places: Vec<_> = rows::by_place(&writes).collect();
    for some in places.chunks(PLACES_PER_CURSOR_LOCK) {
        // Held until the rows are in: the cursor must not move between the saving and the change.
        let mut cursor = base.cursor.as_ref().map(|cursor| cursor.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(cursor) = &mut cursor {
            cursor.save(&generation.tree, some.iter().copied().flatten().map(|write| write.key))?;
        }
        for writes in some {
            rows::put(&generation.tree, &mut base.large, writes)?;
        }
    }
    if let Some(membership) = membership {
        let membership = frame::encode(FrameKind::Membership, membership);
        generation.tree.insert(keys::MEMBERSHIP.to_vec(), membership)?;
    }
    generation.tree.insert(keys::APPLIED.to_vec(), frame::encode_value(FrameKind::Applied, &applied))
}

/// Bytes after which a layer goes to sled: few enough that two layers, with all that they take for a while, fit into the
/// reserve besides the log's part.
fn layer_bytes(room: &Room) -> usize {
    let pieces = LAYER_SPACE * 2 * LOG_PART / (LOG_PART - 1);
    usize::try_from(room.piece(pieces, LAYER_BYTES as u64)).unwrap_or(LAYER_BYTES)
}

/// Free space with which writing a layer may begin.
fn space_for(layer: &Layer) -> u64 {
    (layer.bytes() as u64).saturating_mul(LAYER_SPACE)
}

/// Brings a generation that an earlier version made into the form of this one. A new one has nothing that would change.
fn bundle_rows(generation: &Generation) -> ArchiveResult<()> {
    if generation.tree.get(keys::BUNDLED)?.is_some() {
        return Ok(());
    }
    rows::bundle_all(&generation.tree)?;
    generation.tree.insert(keys::BUNDLED.to_vec(), Vec::new())
}

/// What a generation says of itself.
fn load(generation: &Generation) -> ArchiveResult<(Base, Overlay)> {
    let id = |key| read_meta(generation, key, |bytes| frame::decode_value::<LogId>(FrameKind::Applied, bytes));
    let membership = |bytes: &[u8]| frame::decode(FrameKind::Membership, bytes).map(<[u8]>::to_vec);
    let overlay = Overlay {
        applied: id(keys::APPLIED)?,
        installed: id(keys::INSTALLED)?,
        membership: read_meta(generation, keys::MEMBERSHIP, membership)?,
        ..Overlay::default()
    };
    Ok((Base { applied: overlay.applied, large: LargeRows::load(&generation.tree)?, cursor: None }, overlay))
}

fn read_meta<T>(
    generation: &Generation,
    key: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, frame::FrameError>,
) -> ArchiveResult<Option<T>> {
    let bytes = generation.tree.get(key)?;
    let value = bytes.map(|bytes| decode(&bytes)).transpose();
    value.map_err(|flaw| ArchiveError(format!("{} is damaged: {flaw}", key.escape_ascii())))
}

/// What an offline check finds: opens as a start would, and reads every row.
pub(super) fn check(disk: &dyn Disk, root: &Path, generation: &Generation) -> Result<StateSummary, StorageError> {
    let damaged = |error: ArchiveError| StorageError::damaged(&generation.path, 0, error.0);
    let (_, overlay) = read_back(disk, root, generation)?;
    let mut cursor = Cursor::new(u64::MAX);
    let mut rows = 0;
    while let Some(step) = cursor.step(&generation.tree).map_err(damaged)? {
        rows += step.len() as u64;
    }
    Ok(StateSummary { applied: overlay.applied, installed: overlay.installed, rows, lacks: None })
}
