//! Wall clocks of nodes that a story can step, while the time by which they wait goes on: libfaketime, loaded into the
//! process, adds to every reading what a file says. Where it is not installed (Debian: `libfaketime`) there is none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where Debian has the library, on all its machines.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The wall clock of one node.
#[derive(Debug)]
pub struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// A clock that is right; what it is ahead is kept in `file`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(file: PathBuf) -> Result<Self> {
        let clock = Self { file };
        clock.set_ahead(0)?;
        Ok(clock)
    }

    /// True if clocks can be stepped on this machine.
    pub fn can_step() -> bool {
        library().is_some()
    }

    /// What a process needs to go by this clock.
    ///
    /// # Errors
    /// When the library is not installed.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let library = library().context("libfaketime is not installed")?;
        let set = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            // Seconds after which the file is read again.
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ];
        Ok(set.map(|(variable, value)| (variable.to_owned(), value)).into())
    }

    /// Steps the clock to so many seconds ahead of the right time, or behind it. The node sees it within a second.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_ahead(&self, seconds: i64) -> Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n"))?;
        fs::rename(&next, &self.file).with_context(|| format!("stepping {}", self.file.display()))
    }
}

fn library() -> Option<PathBuf> {
    let of_machine =
        fs::read_dir(Path::new(LIBRARIES)).ok()?.filter_map(|entry| Some(entry.ok()?.path().join(LIBRARY)));
    of_machine.into_iter().find(|path| path.exists())
}
