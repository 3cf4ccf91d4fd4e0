//! What came of a run: one verdict for each check, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::checks::Check;

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "reason")]
pub enum Verdict {
    /// The store did as promised.
    Kept,
    /// It did not, and what it did instead.
    Broken(String),
    /// The check does not apply to this store, and why.
    Skipped(String),
    /// The store could not be asked: it was overloaded, or had no leader. Counts as a failure.
    Unavailable(String),
}

/// One check and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What the check is about.
    pub topic: &'static str,
    /// The promise.
    pub promise: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

impl Finding {
    pub(crate) fn new(check: &Check, verdict: Verdict, took: Duration) -> Self {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self { topic: check.topic, promise: check.promise, verdict, took_ms }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, promise, verdict, took_ms } = self;
        match verdict {
            Verdict::Kept => write!(f, "kept         {topic}: {promise} ({took_ms} ms)"),
            Verdict::Broken(reason) => write!(f, "BROKEN       {topic}: {promise}\n             {reason}"),
            Verdict::Skipped(reason) => write!(f, "skipped      {topic}: {promise} ({reason})"),
            Verdict::Unavailable(reason) => write!(f, "UNAVAILABLE  {topic}: {promise}\n             {reason}"),
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One for each check that was selected, in the order of the registry.
    pub findings: Vec<Finding>,
}

impl Report {
    /// True if no promise was found broken and the store could be asked about each.
    pub fn is_ok(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What was found broken or could not be asked.
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Broken(_) | Verdict::Unavailable(_)))
    }

    /// The counts in one line.
    pub fn summary(&self) -> String {
        let count = |is: fn(&Verdict) -> bool| self.findings.iter().filter(|finding| is(&finding.verdict)).count();
        let kept = count(|verdict| matches!(verdict, Verdict::Kept));
        let broken = count(|verdict| matches!(verdict, Verdict::Broken(_)));
        let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        let unavailable = count(|verdict| matches!(verdict, Verdict::Unavailable(_)));
        format!("{kept} kept, {broken} broken, {skipped} skipped, {unavailable} unavailable")
    }
}
