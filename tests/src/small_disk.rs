//! Small file systems for nodes, which a story can fill: each a tmpfs of its own.
//!
//! To mount one takes rights that not everybody has. Who has not may have them in a namespace of his own; [`told_apart`]
//! then tells the story there, in a process of its own. Where neither works the test says so and passes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Set in the process that tells a story in its own namespace.
const APART: &str = "HOLDFAST_TEST_APART";
const BALLAST: &str = "ballast";

/// A small file system; it is unmounted when this is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts an empty file system of this size.
    ///
    /// # Errors
    /// When that is not allowed here.
    pub fn mount(at: &Path, bytes: u64) -> Result<Self> {
        fs::create_dir_all(at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(at);
        let mounted = mount.stdin(Stdio::null()).output().context("mount")?;
        ensure!(mounted.status.success(), "mount: {}", String::from_utf8_lossy(&mounted.stderr));
        Ok(Self { at: at.to_path_buf() })
    }

    /// Free bytes.
    ///
    /// # Errors
    /// When the file system does not say.
    pub fn free(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.at)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Fills the file system with something that is not the node's, until this many bytes are free.
    ///
    /// # Errors
    /// When the ballast cannot be written.
    pub fn fill_up_to(&self, free: u64) -> Result<()> {
        let ballast = File::options().create(true).write(true).truncate(false).open(self.at.join(BALLAST))?;
        // The node writes meanwhile.
        for _ in 0..100 {
            let excess = self.free()?.saturating_sub(free);
            if excess == 0 {
                return Ok(());
            }
            let length = ballast.metadata()?.len();
            match rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), length, excess) {
                Ok(()) | Err(rustix::io::Errno::NOSPC) => {}
                Err(error) => return Err(error).context("ballast"),
            }
        }
        Ok(())
    }

    /// Takes the ballast away again.
    ///
    /// # Errors
    /// When there is none.
    pub fn clear(&self) -> Result<()> {
        fs::remove_file(self.at.join(BALLAST)).context("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What a process has just left may be in use for a moment longer; it goes with its last user.
        let unmounted = Command::new("umount").arg("-l").arg(&self.at).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.at.display());
        }
    }
}

/// True if file systems can be mounted here, without a namespace.
///
/// # Errors
/// When there is no place to try it.
pub fn can_mount() -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    Ok(SmallDisk::mount(&scratch.path().join("probe"), 1 << 20).is_ok())
}

/// True if the story `test` was told elsewhere, or cannot be told on this machine; false if it is to be told here.
///
/// # Errors
/// Those of the story.
pub fn told_apart(test: &str) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let Err(refused) = SmallDisk::mount(&scratch.path().join("probe"), 1 << 20) else { return Ok(false) };
    let mut probe = Command::new("unshare");
    let can = probe.args(["-Urm", "mount", "-t", "tmpfs", "tmpfs"]).arg(scratch.path()).output();
    if std::env::var_os(APART).is_some() || !can.is_ok_and(|output| output.status.success()) {
        eprintln!("{test}: not told, no file system can be mounted here: {refused:#}");
        return Ok(true);
    }
    let mut story = Command::new("unshare");
    story.arg("-Urm").arg(std::env::current_exe()?).args(["--exact", test, "--nocapture"]).env(APART, "1");
    let told = story.status().context("unshare")?;
    ensure!(told.success(), "{test}, told in a namespace of its own, has failed");
    Ok(true)
}
