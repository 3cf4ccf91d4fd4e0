//! Where a benchmark ran, and of which version: without that its figures say little.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

/// What it ran on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Place {
    /// Cores that the processes share.
    pub cores: usize,
    /// The kernel's version.
    pub kernel: String,
    /// The load average of the last minute before it began: what else was going on.
    pub load_average: String,
    /// The file system that the nodes' data is on. On `tmpfs` nothing is ever synced.
    pub file_system: String,
    /// True for a build that was not made to be fast.
    pub debug_build: bool,
}

impl Place {
    /// This machine, and the file system of this folder.
    pub fn here(folder: &Path) -> Self {
        let word = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().next().unwrap_or("unknown").to_owned()
        };
        Self {
            cores: available_parallelism().map_or(0, usize::from),
            kernel: word("/proc/sys/kernel/osrelease"),
            load_average: word("/proc/loadavg"),
            file_system: file_system(folder, &fs::read_to_string("/proc/mounts").unwrap_or_default()),
            debug_build: cfg!(debug_assertions),
        }
    }
}

/// The type of the file system that this folder is on, out of the table of mounts.
fn file_system(folder: &Path, mounts: &str) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let above = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        folder.starts_with(point).then_some((point.len(), kind))
    });
    // Of those at the same place the last one counts.
    above.max_by_key(|(length, _)| *length).map_or("unknown", |(_, kind)| kind).to_owned()
}

/// The commit that this program was built from: as the build was told in `HOLDFAST_GIT_REVISION`, or as the sources say
/// that it was built from, if they are still there.
pub fn git_revision() -> String {
    if let Some(revision) = option_env!("HOLDFAST_GIT_REVISION") {
        return revision.to_owned();
    }
    let asked = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    let said = asked.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let said = said.and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| text.trim().to_owned());
    said.filter(|revision| !revision.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_on_the_innermost_mount() {
        let mounts = "overlay / overlay rw 0 0\ntmpfs /no-such tmpfs rw 0 0\ndisk /no-such/data ext4 rw 0 0\n";
        let of = |folder: &str| file_system(Path::new(folder), mounts);
        assert_eq!([of("/no-such/data/x"), of("/no-such/database"), of("/other")], ["ext4", "tmpfs", "overlay"]);
    }
}
