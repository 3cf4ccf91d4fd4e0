//! Rows that cannot be read: the state is not trusted any more.
//!
//! sled checks a page when it reads it, so damage may come up at any time: as a client reads, in apply, in a snapshot.
//! Whoever comes across it leaves a mark beside the generation and stops storage. A generation with a mark is not opened
//! again: the next start makes the state anew, as it does with one that cannot be opened at all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use holdfast_machine::{ArchiveError, ArchiveResult};

use super::StateConfig;
use super::generation::Generation;
use super::shared::Shared;
use crate::disk::{Disk, read_file, replace_file};
use crate::error::StorageError;

/// What the names of marks begin with; the number of the generation follows.
pub(super) const PREFIX: &str = "damaged-";

fn mark(root: &Path, number: u64) -> PathBuf {
    root.join(format!("{PREFIX}{number:010}"))
}

/// An error if rows of generation `number` could not be read once.
pub(super) fn check(disk: &dyn Disk, root: &Path, number: u64, config: &StateConfig) -> Result<(), StorageError> {
    let mark = mark(root, number);
    let found = read_file(disk, &mark).map_err(|error| StorageError::io("reading", &mark, error))?;
    found.map_or(Ok(()), |what| {
        Err(StorageError::damaged(&Generation::path(config.kind, root, number), 0, String::from_utf8_lossy(&what)))
    })
}

impl Shared {
    /// Runs what reads or changes rows of `generation`. After an error, or a panic of sled's, nothing is acknowledged any
    /// more, and the generation is marked.
    pub(super) fn trusting<T>(
        &self,
        generation: &Generation,
        work: impl FnOnce() -> ArchiveResult<T>,
    ) -> ArchiveResult<T> {
        let done = catch_unwind(AssertUnwindSafe(work));
        let done = done.unwrap_or_else(|_| Err(ArchiveError("sled has given up".to_owned())));
        done.map_err(|error| self.distrust(generation, error.0))
    }

    fn distrust(&self, generation: &Generation, what: String) -> ArchiveError {
        let error = StorageError::StateDamaged { file: generation.path.clone(), what: what.clone() };
        if self.poison.stop(error.to_string())
            && let Err(error) = replace_file(&*self.disk, &mark(&self.root, generation.number), what.as_bytes())
        {
            tracing::error!(%error, "the damaged state could not be marked: the next start may not know of it");
        }
        ArchiveError(format!("{} is damaged: {what}", generation.path.display()))
    }
}
