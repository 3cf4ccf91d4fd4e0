//! Running checks: side by side where they do not disturb each other, one by one where they do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_machine::Limits;

use crate::backend::{Backend, Failure};
use crate::checks::{Check, all};
use crate::report::{Finding, Report, Verdict};
use crate::trial::{Skip, Trial};

/// A check that takes this many times the patience for a single condition hangs.
const PATIENCES_PER_CHECK: u32 = 5;
/// How often a check is tried on a store that is overloaded or has no leader.
const TRIES: u32 = 3;

/// What to check, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only checks with this text in their topic or promise.
    pub filter: Option<String>,
    /// Also those that disturb what others are doing with the store.
    pub disturbing: bool,
    /// How many checks run side by side.
    pub jobs: usize,
    /// How long a single condition may take to come true.
    pub patience: Duration,
    /// The limits that the store is configured with.
    pub limits: Limits,
    /// Where the store is spoken to by HTTP; without it the forms of HTTP itself are not checked.
    pub url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let patience = Duration::from_secs(30);
        Self { filter: None, disturbing: false, jobs: 8, patience, limits: Limits::default(), url: None }
    }
}

impl Options {
    /// The checks that these options select, in the order of the registry.
    pub fn selected(&self) -> Vec<Check> {
        let wanted = |check: &Check| {
            let name = format!("{}: {}", check.topic, check.promise);
            self.filter.as_ref().is_none_or(|text| name.contains(text.as_str()))
        };
        all().filter(|check| wanted(check) && (self.disturbing || !check.disturbs)).collect()
    }
}

/// Checks a store, and tells of each check as it ends.
pub async fn run(store: Arc<dyn Backend>, options: &Options, told: impl Fn(&Finding)) -> Report {
    let selected: Vec<(usize, Check)> = options.selected().into_iter().enumerate().collect();
    let (alone, beside): (Vec<_>, Vec<_>) = selected.into_iter().partition(|(_, check)| check.disturbs);
    let mut findings = Vec::new();
    for (checks, jobs) in [(beside, options.jobs.max(1)), (alone, 1)] {
        let one = |(place, check): (usize, Check)| {
            let store = Arc::clone(&store);
            async move { (place, judge(store, options, check).await) }
        };
        let mut ended = futures::stream::iter(checks.into_iter().map(one)).buffer_unordered(jobs);
        while let Some((place, finding)) = ended.next().await {
            told(&finding);
            findings.push((place, finding));
        }
    }
    findings.sort_by_key(|(place, _)| *place);
    Report { findings: findings.into_iter().map(|(_, finding)| finding).collect() }
}

async fn judge(store: Arc<dyn Backend>, options: &Options, check: Check) -> Finding {
    let begun = Instant::now();
    let mut verdict = attempt(&store, options, &check).await;
    for _ in 1..TRIES {
        if !matches!(verdict, Verdict::Unavailable(_)) {
            break;
        }
        verdict = attempt(&store, options, &check).await;
    }
    Finding::new(&check, verdict, begun.elapsed())
}

async fn attempt(store: &Arc<dyn Backend>, options: &Options, check: &Check) -> Verdict {
    let trial = Trial::new(Arc::clone(store), options);
    let limit = options.patience * PATIENCES_PER_CHECK;
    let outcome = tokio::time::timeout(limit, (check.run)(&trial)).await;
    // A store that hangs is not asked for more.
    let Ok(outcome) = outcome else { return Verdict::Broken(format!("the check did not end within {limit:?}")) };
    trial.tidy().await;
    match outcome {
        Ok(()) => Verdict::Kept,
        Err(error) if error.is::<Skip>() => Verdict::Skipped(error.to_string()),
        Err(error) if is_unavailable(&error) => Verdict::Unavailable(format!("{error:#}")),
        Err(error) => Verdict::Broken(format!("{error:#}")),
    }
}

fn is_unavailable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Failure>().is_some_and(Failure::is_retryable))
}
