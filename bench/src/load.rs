//! A load with a window in it: tasks that call without a pause, first unmeasured, then measured, then to their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::args::LoadArgs;
use crate::meter::Meter;
use crate::report::Case;
use crate::spent::Spent;

/// A part of a load: calls until [`Meter::is_over`].
pub type Calls = BoxFuture<'static, Result<()>>;

/// How often the progress bar moves.
const TICK: Duration = Duration::from_millis(100);

/// The measured window.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// How long it was.
    pub length: Duration,
    before: Spent,
    after: Spent,
}

/// Runs these calls, and measures as long as it was told to: them, and what the servers have spent meanwhile.
///
/// # Errors
/// The first error of any of the calls: a benchmark that was refused something has measured something else.
pub async fn run(
    args: &LoadArgs,
    spent: impl AsyncFn() -> Result<Spent>,
    meter: &Arc<Meter>,
    title: &str,
    calls: Vec<Calls>,
) -> Result<Window> {
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(call);
    }
    let bar = bar(title, args.before() + args.measured());
    pass(&mut tasks, args.before(), &bar).await?;
    let before = spent().await?;
    let begun = Instant::now();
    meter.begin();
    pass(&mut tasks, args.measured(), &bar).await?;
    meter.end();
    let length = begun.elapsed();
    let after = spent().await?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    bar.finish_and_clear();
    Ok(Window { length, before, after })
}

/// Lets time pass, unless a call fails.
async fn pass(tasks: &mut JoinSet<Result<()>>, time: Duration, bar: &ProgressBar) -> Result<()> {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        let tick = left.min(TICK);
        tokio::select! {
            () = sleep(tick) => bar.inc(u64::try_from(tick.as_millis())?),
            Some(ended) = tasks.join_next() => ended??,
        }
    }
    Ok(())
}

/// A bar for so long. It shows itself on a terminal only, and on standard error, as standard output may be for JSON.
pub fn bar(title: &str, time: Duration) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {wide_bar} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).with_style(style);
    bar.set_message(title.to_owned());
    bar
}

impl Window {
    /// Puts the times of the window into a case, and what the servers have spent on each operation: each call of this
    /// kind is one.
    ///
    /// # Errors
    /// When there was none.
    pub fn measured(&self, case: &mut Case, meter: &Meter, operation: &str) -> Result<()> {
        case.times_ms.extend(meter.times());
        let operations = case.times(operation).map_or(0, |times| times.count);
        ensure!(operations > 0, "{}: no {operation} ended in {:?}; nothing was measured", case.name, self.length);
        case.count("operations", operations);
        let (each, seconds) = (operations as f64, self.length.as_secs_f64());
        case.figure("per_second", Some(each / seconds));
        case.figure("longest_gap_ms", Some(meter.longest_gap(operation).as_secs_f64() * 1e3));
        let Self { before, after, .. } = self;
        case.figure("server_cpu_ms_per_operation", after.cpu_ms_since(before).map(|ms| ms / each));
        case.figure("written_bytes_per_operation", after.written_since(before).map(|bytes| bytes as f64 / each));
        case.figure("disk_bytes_per_operation", after.disk_since(before).map(|bytes| bytes as f64 / each));
        case.figure("server_memory_mib", after.memory_mib());
        case.figure("flushes_per_second", after.flushes_since(before).map(|flushes| flushes as f64 / seconds));
        Ok(())
    }
}

/// Goes through work of which each piece is numbered, `at_a_time` pieces under way.
///
/// # Errors
/// The first error of a piece.
pub async fn fill<F>(title: &str, pieces: u64, at_a_time: usize, piece: impl Fn(u64) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let bar = bar(title, Duration::from_millis(pieces));
    let mut tasks = JoinSet::new();
    for number in 0..pieces {
        if tasks.len() >= at_a_time {
            tasks.join_next().await.context("a piece of work")???;
            bar.inc(1);
        }
        tasks.spawn(piece(number));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}
