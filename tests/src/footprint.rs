//! What nodes take of their machine while a story goes on: disk, memory, and the time that snapshots take.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cluster::Cluster;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Of a unit in which file systems count.
const BLOCK: u64 = 512;

/// What one node takes; the most of it where not said otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Footprint {
    /// Memory, over all starts of its process.
    pub memory: u64,
    /// The log on its disk.
    pub log: u64,
    /// The longest time that writing one snapshot took.
    pub snapshot: Duration,
    /// How many snapshots it was seen to write.
    pub snapshots: u32,
    /// Since when it writes one.
    writes_since: Option<Instant>,
}

/// How fast a load went with and without a snapshot being written somewhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    /// Bytes in a second; none if it was never so.
    pub fn per_second(&self) -> Option<u64> {
        (!self.time.is_zero()).then(|| (self.bytes as f64 / self.time.as_secs_f64()) as u64)
    }

    fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Watched {
    /// Of each node.
    pub nodes: Vec<Footprint>,
    /// The load while a snapshot was written.
    pub during_snapshots: Rate,
    /// The load while none was.
    pub otherwise: Rate,
}

/// Looks at a cluster all along; `load` tells how many bytes a load has written if it is at work.
///
/// # Errors
/// When a data directory cannot be looked at.
pub async fn watch(cluster: &Cluster, seen: &RefCell<Watched>, load: impl Fn() -> Option<u64>) -> Result<()> {
    seen.borrow_mut().nodes = vec![Footprint::default(); cluster.nodes.len()];
    let mut before: Option<(Instant, u64)> = None;
    loop {
        let (now, written) = (Instant::now(), load());
        {
            let mut seen = seen.borrow_mut();
            let mut is_writing = false;
            for (node, footprint) in cluster.nodes.iter().zip(&mut seen.nodes) {
                footprint.look(&node.data(), now)?;
                // A node that is not running has no memory.
                footprint.memory = footprint.memory.max(node.peak_memory().unwrap_or_default());
                is_writing |= footprint.writes_since.is_some();
            }
            if let (Some((then, had)), Some(has)) = (before, written) {
                let pace = if is_writing { &mut seen.during_snapshots } else { &mut seen.otherwise };
                pace.add(has.saturating_sub(had), now - then);
            }
        }
        before = written.map(|written| (now, written));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Footprint {
    fn look(&mut self, data: &Path, now: Instant) -> io::Result<()> {
        self.log = self.log.max(on_disk(&data.join("log"))?);
        // A snapshot has its name once it is whole.
        let is_writing = names(&data.join("snapshots"))?.iter().any(|name| name.ends_with(".tmp"));
        match (is_writing, self.writes_since) {
            (true, None) => (self.writes_since, self.snapshots) = (Some(now), self.snapshots + 1),
            (true, Some(since)) => self.snapshot = self.snapshot.max(now - since),
            (false, _) => self.writes_since = None,
        }
        Ok(())
    }
}

/// Bytes that a folder takes on the disk; one that is not there takes none.
///
/// # Errors
/// When it cannot be read.
pub fn on_disk(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for name in names(folder)? {
        let path = folder.join(name);
        // Files come and go while a node runs.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        bytes += if metadata.is_dir() { on_disk(&path)? } else { metadata.blocks() * BLOCK };
    }
    Ok(bytes)
}

/// The names in a folder; of one that is not there, none.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Bytes of a peer's snapshot that have come, and of the whole ones that a node has.
///
/// # Errors
/// When its folder cannot be read.
pub fn snapshots(data: &Path) -> io::Result<(u64, u64)> {
    let folder = data.join("snapshots");
    let length = |name: &String| fs::metadata(folder.join(name)).map_or(0, |metadata| metadata.len());
    let names = names(&folder)?;
    let of = |suffix: &str| names.iter().filter(|name| name.ends_with(suffix)).map(length).max().unwrap_or(0);
    Ok((of(".partial"), of(".snapshot")))
}
