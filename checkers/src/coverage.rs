//! What a run has tried. A run that met no fault, or none while something was under way, has shown nothing, and is
//! rejected for that.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Call, Outcome};

/// Counts by name: faults by kind, what they met, what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<String, u64>,
}

impl Coverage {
    /// Adds to a count.
    pub fn add(&mut self, what: impl Into<String>, times: u64) {
        *self.counts.entry(what.into()).or_default() += times;
    }

    /// Counts the outcomes of calls.
    pub fn add_calls(&mut self, calls: &[Call]) {
        for call in calls {
            let outcome = match call.outcome {
                Outcome::Ok { .. } => "calls ok",
                Outcome::Refused { .. } => "calls refused",
                Outcome::NotDone => "calls not done",
                Outcome::Unknown => "calls of unknown outcome",
            };
            self.add(outcome, 1);
        }
    }

    /// A count; 0 if nothing was added to it.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Passes if each of these was met.
    ///
    /// # Errors
    /// What was not.
    pub fn met(&self, wanted: &[&str]) -> Result<(), String> {
        let missing: Vec<&&str> = wanted.iter().filter(|what| self.count(what) == 0).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("this run has shown nothing: no {missing:?}; {self}")) }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        f.write_str(&counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_met_nothing_is_rejected() {
        let mut coverage = Coverage::default();
        coverage.add("kills", 2);
        coverage.add("adoptions", 0);
        assert_eq!(coverage.met(&["kills"]), Ok(()));
        let said = coverage.met(&["kills", "adoptions", "pauses"]).unwrap_err();
        assert!(said.contains(r#"no ["adoptions", "pauses"]; 0 adoptions, 2 kills"#), "{said}");
    }
}
