//! The two small files beside the segments.
//!
//! `vote` is replaced atomically and durably. Besides the vote it keeps what the segments alone cannot prove:
//! the purged id, and the *durable mark*: an index that is known to be synced, and the newest segment that is
//! known to exist. A log that ends before its mark has lost acknowledged entries.
//!
//! `committed` is written in place and never synced: losing it costs nothing but a later commit.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskFile, read_file, replace_file};
use crate::error::StorageError;
use crate::frame::{self, FrameError, FrameKind};
use crate::ids::{LogId, Vote};

pub(crate) const VOTE_FILE: &str = "vote";
pub(crate) const COMMITTED_FILE: &str = "committed";

/// What the vote file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    pub vote: Option<Vote>,
    /// Entries up to here are gone on purpose.
    pub purged: Option<LogId>,
    /// Entries up to this index were synced once.
    pub durable: Option<u64>,
    /// First index of the newest segment that must exist.
    pub newest: Option<u64>,
}

/// The encoding of [`Mark`]: variants are added at the end, none is changed.
#[derive(Serialize, Deserialize)]
enum Stored {
    V1 { vote: Option<Vote>, purged: Option<LogId>, durable: Option<u64>, newest: Option<u64> },
}

impl Mark {
    /// Writes the mark; durable on return.
    pub(crate) fn save(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let Mark { vote, purged, durable, newest } = *self;
        let stored = Stored::V1 { vote, purged, durable, newest };
        replace_file(disk, &dir.join(VOTE_FILE), &frame::encode_value(FrameKind::LogMark, &stored))
    }

    /// Reads the mark; `None` when there is no vote file.
    pub(crate) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Mark>, StorageError> {
        let path = dir.join(VOTE_FILE);
        let Some(bytes) = read_file(disk, &path).map_err(|e| StorageError::io("reading", &path, e))? else {
            return Ok(None);
        };
        match frame::decode_value(FrameKind::LogMark, &bytes) {
            Ok(Stored::V1 { vote, purged, durable, newest }) => Ok(Some(Mark { vote, purged, durable, newest })),
            Err(FrameError::Contents) => Err(StorageError::NewerFormat { file: path, found: 2, supported: 1 }),
            Err(flaw) => Err(StorageError::flawed(&path, &flaw)),
        }
    }
}

/// The committed id: one small block, written over and over.
#[derive(Debug)]
pub(crate) struct Committed {
    file: Arc<dyn DiskFile>,
    id: Option<LogId>,
}

impl Committed {
    /// Opens the file; contents that do not check out count as nothing.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path) -> io::Result<Committed> {
        let path = dir.join(COMMITTED_FILE);
        let file = match disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path)?,
            other => other?,
        };
        let mut block = [0; Committed::BLOCK];
        let count = file.read_at(0, &mut block)?;
        let id = frame::decode(FrameKind::Committed, &block[..count]).ok().and_then(Committed::parse);
        Ok(Committed { file, id })
    }

    /// Whether the file is there with contents that check out, or with none: then nothing was committed yet.
    pub(crate) fn can_be_read(disk: &dyn Disk, dir: &Path) -> Result<bool, StorageError> {
        let path = dir.join(COMMITTED_FILE);
        let bytes = read_file(disk, &path).map_err(|error| StorageError::io("reading", &path, error))?;
        Ok(bytes.is_some_and(|bytes| bytes.is_empty() || frame::decode(FrameKind::Committed, &bytes).is_ok()))
    }

    const CONTENTS: usize = 17;
    const BLOCK: usize = frame::FRAME_HEADER + Committed::CONTENTS;

    fn parse(contents: &[u8]) -> Option<LogId> {
        let (present, rest) = contents.split_first()?;
        let (term, index) = rest.split_first_chunk::<8>()?;
        let index = index.first_chunk::<8>()?;
        (*present == 1).then(|| LogId { term: u64::from_le_bytes(*term), index: u64::from_le_bytes(*index) })
    }

    pub(crate) fn get(&self) -> Option<LogId> {
        self.id
    }

    /// Writes the id, without a sync.
    pub(crate) fn set(&mut self, id: Option<LogId>) -> io::Result<()> {
        let mut contents = [0; Committed::CONTENTS];
        if let Some(id) = id {
            contents[0] = 1;
            contents[1..9].copy_from_slice(&id.term.to_le_bytes());
            contents[9..17].copy_from_slice(&id.index.to_le_bytes());
        }
        self.file.write_at(0, &frame::encode(FrameKind::Committed, &contents))?;
        self.id = id;
        Ok(())
    }
}
