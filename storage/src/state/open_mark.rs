//! Tells a killed process from a machine that went down.
//!
//! A killed process leaves the kernel's pages, so sled finds all it wrote. When the machine goes down, pages reach the
//! disk in any order, and sled 0.34.7 (which relies on `sync_file_range`) can lose rows in the middle and not notice.
//! So while a state is open, a small file holds the machine's boot id; a file with another boot id at the next
//! open says that the state cannot be trusted.

use std::fs;
use std::io;
use std::path::Path;

use crate::disk::{Disk, read_file, replace_file};

const MARK_FILE: &str = "open";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub(super) struct OpenMark;

impl OpenMark {
    /// Notes that the state in `root` is open; returns whether the machine went down while it last was.
    pub(super) fn set(disk: &dyn Disk, root: &Path) -> io::Result<bool> {
        let path = root.join(MARK_FILE);
        // Where there is no boot id, all boots look alike, and only sled's own checks remain.
        let boot = fs::read(BOOT_ID).unwrap_or_default();
        let cut_off = read_file(disk, &path)?.is_some_and(|before| before != boot);
        // A cut-off state stays marked until it is restored or closed in good order.
        if !cut_off {
            replace_file(disk, &path, &boot)?;
        }
        Ok(cut_off)
    }

    /// Notes that the state in `root` was closed in good order, or made anew.
    pub(super) fn remove(disk: &dyn Disk, root: &Path) -> io::Result<()> {
        match disk.remove(&root.join(MARK_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => disk.sync_dir(root),
        }
    }
}
