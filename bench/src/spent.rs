//! What the nodes' processes have cost so far, as the kernel and their own counters say.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{major, minor};

const MIB: f64 = 1_048_576.0;
/// Where in `/proc/<pid>/stat`, behind the name, the CPU time of a process stands, and that of its children which have
/// ended: the 14th and the 16th field of the line.
const CPU_OF_ITSELF: usize = 11;
const CPU_OF_ENDED: usize = 13;
/// Where in a disk's `stat` the sectors stand that were written; they have this size whatever those of the disk have.
const SECTORS_WRITTEN: usize = 6;
const SECTOR_BYTES: u64 = 512;

/// What one node, or several together, have cost up to one moment. What is not known is none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// CPU time, of the process and the kernel for it.
    pub cpu: Option<Duration>,
    /// Bytes that were given to the disks.
    pub written: Option<u64>,
    /// Bytes in memory now.
    pub memory: Option<u64>,
    /// Flushes of the log to the disk: one write and one sync each.
    pub flushes: Option<u64>,
    /// Bytes that the disk under the data took, of whomever; of all nodes together only.
    pub disk: Option<u64>,
}

impl Spent {
    /// What this process has cost.
    ///
    /// # Errors
    /// When there is no such process, or this system has no such files.
    pub fn of_process(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        // Only the processes of the same user may be asked what they write.
        let written = read("io").ok().and_then(|io| field(&io, "write_bytes:"));
        Ok(Self {
            cpu: Some(cpu_time(&read("stat")?, CPU_OF_ITSELF)?),
            written,
            memory: field(&read("status")?, "VmRSS:").map(|kib| kib * 1024),
            flushes: None,
            disk: None,
        })
    }

    /// What this process has cost, with those that it has started: those that run, and those that have ended. Memory that
    /// several of them share counts once.
    ///
    /// # Errors
    /// As [`Spent::of_process`].
    pub fn of_family(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let children: Vec<u32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
        let mut all = Self::of_member(pid)?;
        for child in children {
            // One that ends meanwhile is counted with its parent from then on.
            if let Ok(spent) = Self::of_family(child) {
                all = all.and(spent);
            }
        }
        Ok(all)
    }

    /// One of a family. The kernel counts what ended children have written with their parent by itself.
    fn of_member(pid: u32) -> Result<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let (stat, itself) = (read("stat")?, Self::of_process(pid)?);
        let shared = field(&read("smaps_rollup")?, "Pss:").map(|kib| kib * 1024);
        Ok(Self {
            cpu: Some(itself.cpu.unwrap_or_default() + cpu_time(&stat, CPU_OF_ENDED)?),
            memory: shared,
            ..itself
        })
    }

    /// The two together; what is not known of one is not known of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Option<u64>, two: Option<u64>| Some(one? + two?);
        Self {
            cpu: self.cpu.zip(other.cpu).map(|(one, two)| one + two),
            written: sum(self.written, other.written),
            memory: sum(self.memory, other.memory),
            flushes: sum(self.flushes, other.flushes),
            disk: None,
        }
    }

    /// CPU time since then, in milliseconds.
    pub fn cpu_ms_since(&self, before: &Self) -> Option<f64> {
        Some(self.cpu?.saturating_sub(before.cpu?).as_secs_f64() * 1e3)
    }

    /// Bytes written since then.
    pub fn written_since(&self, before: &Self) -> Option<u64> {
        Some(self.written?.saturating_sub(before.written?))
    }

    /// Flushes since then.
    pub fn flushes_since(&self, before: &Self) -> Option<u64> {
        Some(self.flushes?.saturating_sub(before.flushes?))
    }

    /// Bytes that the disk took since then.
    pub fn disk_since(&self, before: &Self) -> Option<u64> {
        Some(self.disk?.saturating_sub(before.disk?))
    }

    /// MiB in memory.
    pub fn memory_mib(&self) -> Option<f64> {
        Some(self.memory? as f64 / MIB)
    }
}

/// Bytes that the disk under this folder has taken so far, of whomever, once it has all that was written before. None if
/// the disk has no such counter.
pub async fn disk_of(folder: &Path) -> Option<u64> {
    let folder = folder.to_owned();
    tokio::task::spawn_blocking(move || {
        let opened = File::open(folder).ok()?;
        rustix::fs::syncfs(&opened).ok()?;
        let device = opened.metadata().ok()?.dev();
        let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        let sectors: u64 = fs::read_to_string(path).ok()?.split_whitespace().nth(SECTORS_WRITTEN)?.parse().ok()?;
        Some(sectors * SECTOR_BYTES)
    })
    .await
    .ok()?
}

/// The number behind this name, where each line is a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// User and system time out of `/proc/<pid>/stat`, which begin at this field behind the name.
fn cpu_time(stat: &str, first: usize) -> Result<Duration> {
    // The name is in brackets and may have anything in it; behind it come the state, then numbers.
    let fields = stat.rsplit_once(')').context("no name of a process")?.1.split_whitespace().skip(first).take(2);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    ensure!(ticks.len() == 2, "a process without CPU time: {stat}");
    Ok(Duration::from_secs_f64(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The sum of a counter over its labels, out of a page of metrics; none if it is not there.
pub fn counter(page: &str, name: &str) -> Option<f64> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_it = rest.starts_with(' ') || rest.starts_with('{');
        is_it.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_costs_something() {
        let spent = Spent::of_process(std::process::id()).unwrap();
        assert!(spent.memory.unwrap() > 100_000 && spent.cpu.is_some());
        assert!(Spent::of_process(u32::MAX).is_err());
    }

    #[test]
    fn a_family_costs_what_its_members_do() {
        let children = (0..2).map(|_| Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap());
        let children: Vec<_> = children.collect();
        let (itself, all) = (std::process::id(), |pids: &[u32]| {
            pids.iter().map(|pid| Spent::of_family(*pid).unwrap().memory.unwrap()).sum::<u64>()
        });
        let of_children = all(&children.iter().map(|child| child.id()).collect::<Vec<_>>());
        // Threads of other tests allocate at the same time, but do not give back what the children have.
        let family = Spent::of_family(itself).unwrap();
        assert!(of_children > 0 && family.memory.unwrap() > of_children && family.cpu.is_some());
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[tokio::test]
    async fn a_disk_has_taken_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        // Not every file system is on a disk.
        let Some(before) = disk_of(folder.path()).await else { return };
        fs::write(folder.path().join("file"), vec![1; 1 << 20]).unwrap();
        assert!(disk_of(folder.path()).await.unwrap() >= before + (1 << 20));
    }

    #[test]
    fn the_kernels_words_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 30 10 20 0 4 0 100 1 2";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let time = |first| cpu_time(stat, first).unwrap();
        assert_eq!(time(CPU_OF_ITSELF), Duration::from_secs_f64(200.0 / ticks));
        assert_eq!(time(CPU_OF_ENDED), Duration::from_secs_f64(40.0 / ticks));
        assert!(cpu_time("7 (a) S 1", CPU_OF_ITSELF).is_err());
        assert_eq!(field("rchar: 1\nwrite_bytes: 4096\n", "write_bytes:"), Some(4096));
    }

    #[test]
    fn counters_are_summed_over_their_labels() {
        let page = "# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 9\nb 4\n";
        assert_eq!(counter(page, "a_total"), Some(5.0));
        assert_eq!((counter(page, "b"), counter(page, "c")), (Some(4.0), None));
    }
}
