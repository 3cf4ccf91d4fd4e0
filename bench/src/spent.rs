//! What the nodes' processes have cost so far, as the kernel and their own counters say.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

const MIB: f64 = 1_048_576.0;

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
            cpu: Some(cpu_time(&read("stat")?).with_context(|| format!("process {pid} has no CPU time"))?),
            written,
            memory: field(&read("status")?, "VmRSS:").map(|kib| kib * 1024),
            flushes: None,
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

    /// MiB in memory.
    pub fn memory_mib(&self) -> Option<f64> {
        Some(self.memory? as f64 / MIB)
    }
}

/// The number behind this name, where each line is a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// User and system time out of `/proc/<pid>/stat`.
fn cpu_time(stat: &str) -> Option<Duration> {
    // The name is in brackets and may have anything in it; behind it come the state, then numbers. The 14th and the
    // 15th field of the line are the 12th and the 13th behind the name.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
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

    use super::*;

    #[test]
    fn this_process_costs_something() {
        let spent = Spent::of_process(std::process::id()).unwrap();
        assert!(spent.memory.unwrap() > 100_000 && spent.cpu.is_some());
        assert!(Spent::of_process(u32::MAX).is_err());
    }

    #[test]
    fn the_kernels_words_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 100 1 2";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(cpu_time(stat), Some(Duration::from_secs_f64(200.0 / ticks)));
        assert_eq!(field("rchar: 1\nwrite_bytes: 4096\n", "write_bytes:"), Some(4096));
    }

    #[test]
    fn counters_are_summed_over_their_labels() {
        let page = "# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 9\nb 4\n";
        assert_eq!(counter(page, "a_total"), Some(5.0));
        assert_eq!((counter(page, "b"), counter(page, "c")), (Some(4.0), None));
    }
}
