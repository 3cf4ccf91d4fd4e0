//! What is recorded while a load runs: the times of calls by kind, how many there were at all, and the longest time
//! without an answer. Only what ends within the measured window is in the times.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Times are kept in microseconds, to three digits.
const DIGITS: u8 = 3;

/// Where a load stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmUp = 0,
    Measured = 1,
    Over = 2,
}

/// Records calls from many tasks.
#[derive(Debug)]
pub struct Meter {
    phase: AtomicU8,
    series: Mutex<BTreeMap<&'static str, Series>>,
}

/// One kind of calls.
#[derive(Debug)]
struct Series {
    times: Histogram<u64>,
    /// Acknowledged calls, those outside of the window too.
    all: u64,
    /// When the last one in the window was acknowledged, and the longest wait for one so far.
    last: Option<Instant>,
    gap: Duration,
}

/// The times of one kind of calls, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// Nine of ten took at most this long; and so on.
    pub p90: f64,
    /// See `p90`.
    pub p99: f64,
    /// See `p90`.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

impl Meter {
    /// A meter that is warming up.
    pub fn new() -> Self {
        Self { phase: AtomicU8::new(Phase::WarmUp as u8), series: Mutex::default() }
    }

    /// The measured window begins.
    pub fn begin(&self) {
        let now = Instant::now();
        for series in self.series.lock().values_mut() {
            series.last = Some(now);
        }
        self.phase.store(Phase::Measured as u8, Ordering::SeqCst);
    }

    /// The measured window ends; callers make no further call.
    pub fn end(&self) {
        self.phase.store(Phase::Over as u8, Ordering::SeqCst);
        for series in self.series.lock().values_mut() {
            series.gap = series.gap.max(series.last.map(|last| last.elapsed()).unwrap_or_default());
        }
    }

    /// True once the window has ended.
    pub fn is_over(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == Phase::Over as u8
    }

    /// A call of this kind, begun then, was acknowledged just now.
    pub fn record(&self, kind: &'static str, begun: Instant) {
        let now = Instant::now();
        let mut all = self.series.lock();
        let series = all.entry(kind).or_insert_with(Series::new);
        series.all += 1;
        if self.phase.load(Ordering::SeqCst) == Phase::Measured as u8 {
            add(&mut series.times, now.saturating_duration_since(begun));
            let waited = series.last.map(|last| now.saturating_duration_since(last)).unwrap_or_default();
            series.gap = series.gap.max(waited);
            series.last = Some(now);
        }
    }

    /// Acknowledged calls of this kind, over the whole run.
    pub fn acknowledged(&self, kind: &str) -> u64 {
        self.series.lock().get(kind).map_or(0, |series| series.all)
    }

    /// The longest time in the window without an acknowledged call of this kind.
    pub fn longest_gap(&self, kind: &str) -> Duration {
        self.series.lock().get(kind).map(|series| series.gap).unwrap_or_default()
    }

    /// The times of the window, by kind.
    pub fn times(&self) -> BTreeMap<String, Times> {
        let series = self.series.lock();
        series.iter().map(|(kind, series)| ((*kind).to_owned(), Times::of(&series.times))).collect()
    }
}

impl Series {
    fn new() -> Self {
        Self { times: histogram(), all: 0, last: None, gap: Duration::ZERO }
    }
}

impl Times {
    /// Those of single measurements.
    pub fn of_each(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut all = histogram();
        for time in times {
            add(&mut all, time);
        }
        Self::of(&all)
    }

    fn of(times: &Histogram<u64>) -> Self {
        // Exact below 2^53 microseconds.
        let ms = |micros: u64| micros as f64 / 1e3;
        let max = if times.is_empty() { 0 } else { times.max() };
        // The histogram gives the upper end of what it cannot tell apart.
        let at = |quantile| ms(times.value_at_quantile(quantile).min(max));
        Self { count: times.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: ms(max) }
    }
}

/// It grows with what is added to it.
#[allow(clippy::expect_used)] // Refused are more than five digits only.
fn histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are within the bounds")
}

fn add(times: &mut Histogram<u64>, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // One that grows takes any number.
    let taken = times.record(micros);
    debug_assert!(taken.is_ok(), "{taken:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_window_is_in_the_times_and_all_is_counted() {
        let meter = Meter::new();
        let before = |ms| Instant::now() - Duration::from_millis(ms);
        meter.record("call", before(500));
        meter.begin();
        for ms in 1..=100 {
            meter.record("call", before(ms));
        }
        meter.end();
        meter.record("call", before(500));
        let times = meter.times()["call"];
        assert_eq!((times.count, meter.acknowledged("call")), (100, 102));
        assert!((49.0..60.0).contains(&times.p50) && (99.0..120.0).contains(&times.max), "{times:?}");
        assert!(meter.is_over() && meter.longest_gap("call") < Duration::from_secs(1));
    }

    #[test]
    fn nothing_has_no_times() {
        let times = Times::of_each([]);
        assert_eq!((times.count, times.max), (0, 0.0));
    }
}
