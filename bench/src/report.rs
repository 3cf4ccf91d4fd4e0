//! What was measured, as JSON for programs and as tables for people.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::{Deserialize, Serialize};

use crate::args::BenchArgs;
use crate::meter::Times;
use crate::place::Place;

/// One run of the program.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of Holdfast.
    pub version: &'static str,
    /// The commit that this program was built from, if it is known.
    pub git_revision: String,
    /// What it ran on.
    pub place: Place,
    /// What it was told.
    pub settings: BenchArgs,
    /// What it found.
    pub cases: Vec<Case>,
}

/// One measurement. The names in it are those of `docs/benchmarks.md`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Case {
    /// What was measured.
    pub name: String,
    /// Calls under way at a time, where that is one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<usize>,
    /// Which of several measurements it is, from 1; none for the median of them.
    pub run: Option<u32>,
    /// What was counted, exactly.
    pub counts: BTreeMap<String, u64>,
    /// Times of calls and of steps, in milliseconds.
    pub times_ms: BTreeMap<String, Times>,
    /// All else; the unit is in the name.
    pub figures: BTreeMap<String, f64>,
}

impl Case {
    /// A case without results yet.
    pub fn new(name: impl Into<String>, run: u32) -> Self {
        Self { name: name.into(), run: Some(run), ..Self::default() }
    }

    /// Adds something that was counted.
    pub fn count(&mut self, name: &str, count: u64) {
        self.counts.insert(name.to_owned(), count);
    }

    /// Adds a figure, if it is known.
    pub fn figure(&mut self, name: &str, figure: Option<f64>) {
        if let Some(figure) = figure.filter(|figure| figure.is_finite()) {
            self.figures.insert(name.to_owned(), figure);
        }
    }

    /// Adds what share `one` is of `other`, if the latter is anything.
    pub fn ratio(&mut self, name: &str, one: f64, other: f64) {
        self.figure(name, (other > 0.0).then(|| one / other));
    }

    /// Times of this name; none if nothing was measured under it.
    pub fn times(&self, name: &str) -> Option<Times> {
        self.times_ms.get(name).copied().filter(|times| times.count > 0)
    }
}

impl Report {
    /// Puts the median behind measurements that were made several times.
    pub fn add_medians(&mut self) {
        let medians = medians(&self.cases);
        self.cases.extend(medians);
    }

    /// The tables.
    pub fn tables(&self) -> String {
        let mut times = table(["", "clients", "run", "", "count", "p50 ms", "p90", "p99", "p99.9", "max"]);
        let mut figures = table(["", "clients", "run", "", "figure"]);
        for case in &self.cases {
            let clients = case.clients.map_or_else(|| "-".to_owned(), |clients| clients.to_string());
            let run = case.run.map_or_else(|| "median".to_owned(), |run| run.to_string());
            for (kind, Times { count, p50, p90, p99, p99_9, max }) in &case.times_ms {
                let mut row = vec![case.name.clone(), clients.clone(), run.clone(), kind.clone(), count.to_string()];
                row.extend([p50, p90, p99, p99_9, max].map(|ms| format!("{ms:.2}")));
                times.add_row(row);
            }
            let counts = case.counts.iter().map(|(name, count)| (name, count.to_string()));
            for (name, value) in case.figures.iter().map(|(name, value)| (name, shown(*value))).chain(counts) {
                figures.add_row([case.name.clone(), clients.clone(), run.clone(), name.clone(), value]);
            }
        }
        let Place { cores, kernel, load_average, file_system, .. } = &self.place;
        format!(
            "holdfast {} ({}), {cores} cores, Linux {kernel}, load average {load_average} before, data on {file_system}\n\
             {times}\n{figures}\n",
            self.version, self.git_revision
        )
    }
}

/// The medians of measurements that were made several times.
pub fn medians(cases: &[Case]) -> Vec<Case> {
    let mut groups: Vec<Vec<&Case>> = Vec::new();
    for case in cases {
        let is_same = |group: &&mut Vec<&Case>| group[0].name == case.name && group[0].clients == case.clients;
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    let several = groups.into_iter().filter(|runs| runs.len() > 1);
    several.map(|runs| Case { name: runs[0].name.clone(), clients: runs[0].clients, ..median_of(&runs) }).collect()
}

/// Each figure by itself in the middle of what the runs have.
fn median_of(runs: &[&Case]) -> Case {
    let mut median = Case::default();
    for name in runs.iter().flat_map(|case| case.figures.keys()) {
        median.figure(name, middle(runs.iter().filter_map(|case| case.figures.get(name).copied())));
    }
    for name in runs.iter().flat_map(|case| case.times_ms.keys()) {
        let of = |pick: fn(&Times) -> f64| {
            middle(runs.iter().filter_map(|case| case.times_ms.get(name)).map(pick)).unwrap_or_default()
        };
        let count = runs.iter().filter_map(|case| case.times_ms.get(name)).map(|times| times.count).sum();
        let times = Times {
            count,
            p50: of(|times| times.p50),
            p90: of(|times| times.p90),
            p99: of(|times| times.p99),
            p99_9: of(|times| times.p99_9),
            max: of(|times| times.max),
        };
        median.times_ms.insert(name.clone(), times);
    }
    median
}

fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    for column in [1, 2].into_iter().chain(4..COLUMNS) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// As many digits as say something.
fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middling if middling >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_of_each_figure() {
        let runs: Vec<Case> = [3.0, 1.0, 2.0]
            .into_iter()
            .enumerate()
            .map(|(run, value)| {
                let mut case = Case::new("stage", run as u32 + 1);
                case.figure("per_second", Some(value));
                case.figure("nothing", Some(f64::NAN));
                case
            })
            .collect();
        let median = median_of(&runs.iter().collect::<Vec<_>>());
        assert_eq!((median.figures.len(), median.figures["per_second"], median.run), (1, 2.0, None));
    }

    #[test]
    fn figures_are_shown_with_what_digits_they_need() {
        assert_eq!([1234.5, 12.345, 0.123_45].map(shown), ["1234", "12.35", "0.1235"]);
    }
}
