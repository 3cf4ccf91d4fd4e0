//! What was found, as JSON for programs and as tables for people.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use holdfast_bench::place::Place;
use holdfast_bench::report::Case;
use holdfast_bench::{lifecycle, stage};
use serde::{Deserialize, Serialize};

use crate::args::{Kind, RunArgs, SystemName};

/// One run of the program.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The commit that this program was built from, if it is known.
    pub git_revision: String,
    /// What it ran on.
    pub place: Place,
    /// What it was told.
    pub settings: RunArgs,
    /// What it found, by system.
    pub systems: Vec<Figures>,
}

/// What was found of one system.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The system.
    pub name: SystemName,
    /// Its version, as it says itself.
    pub version: String,
    /// Each case of each round, then the medians over the rounds.
    pub cases: Vec<Case>,
}

/// What a table shows of a case.
#[derive(Debug, Clone, Copy)]
struct Line {
    per_second: f64,
    p50: f64,
    p99: f64,
    cpu_ms: f64,
    written: f64,
    memory_mib: f64,
}

impl Figures {
    /// The median of a case; with one round, its only run.
    fn line(&self, kind: Kind, clients: usize) -> Option<Line> {
        let is_it = |case: &&Case| case.name == kind.title() && case.clients == Some(clients);
        let case = self.cases.iter().filter(is_it).min_by_key(|case| case.run)?;
        let times = case.times(if kind == Kind::Stage { stage::STAGE } else { lifecycle::LIFECYCLE })?;
        let figure = |name: &str| case.figures.get(name).copied().unwrap_or(f64::NAN);
        Some(Line {
            per_second: figure("per_second"),
            p50: times.p50,
            p99: times.p99,
            cpu_ms: figure("server_cpu_ms_per_operation"),
            written: figure("disk_bytes_per_operation"),
            memory_mib: figure("server_memory_mib"),
        })
    }
}

impl Report {
    /// Where and how it was made, and the tables, as Markdown.
    pub fn text(&self) -> String {
        let Place { cores, kernel, load_average, file_system, .. } = &self.place;
        let RunArgs { rounds, load, .. } = &self.settings;
        let versions = self.systems.iter().map(|system| format!("{}: {}", system.name.title(), system.version));
        let mut text = format!(
            "Revision {}. {cores} cores, Linux {kernel}, load average {load_average} before, data on {file_system}. \
             {rounds} rounds, the systems in turn, {} s each after {} s of warm-up; medians. Payloads of {} bytes.\n\n\
             Versions: {}.\n",
            self.git_revision,
            load.seconds,
            load.warm_up,
            load.payload_bytes,
            versions.collect::<Vec<_>>().join("; "),
        );
        for kind in [Kind::Stage, Kind::Lifecycle, Kind::OneByOne] {
            if let Some(table) = self.table(kind) {
                text += &format!("\n`{}`:\n\n{table}\n", kind.title());
            }
        }
        text
    }

    fn table(&self, kind: Kind) -> Option<Table> {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header([
            "system",
            "clients",
            "per second",
            "p50 ms",
            "p99 ms",
            "CPU ms",
            "bytes",
            "MiB",
            "Holdfast : it, per second",
            "p50",
            "p99",
            "CPU",
            "bytes",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let holdfast = self.systems.iter().find(|system| system.name == SystemName::Holdfast);
        for clients in self.settings.clients_of(kind) {
            let holdfast = holdfast.and_then(|system| system.line(kind, *clients));
            for system in &self.systems {
                let Some(line) = system.line(kind, *clients) else { continue };
                let mut row = vec![system.name.title().to_owned(), clients.to_string()];
                row.extend([shown(line.per_second, 0), shown(line.p50, 2), shown(line.p99, 2)]);
                row.extend([shown(line.cpu_ms, 3), shown(line.written, 0), shown(line.memory_mib, 0)]);
                let ratios: [fn(&Line) -> f64; 5] =
                    [|line| line.per_second, |line| line.p50, |line| line.p99, |line| line.cpu_ms, |line| line.written];
                let others = holdfast.filter(|_| system.name != SystemName::Holdfast);
                let ratio = |of: fn(&Line) -> f64| others.as_ref().map_or(f64::NAN, |others| of(others) / of(&line));
                row.extend(ratios.map(|of| shown(ratio(of), 2)));
                table.add_row(row);
            }
        }
        (!table.is_empty()).then_some(table)
    }
}

/// A figure to so many digits; nothing where there is none.
fn shown(figure: f64, digits: usize) -> String {
    if figure.is_finite() { format!("{figure:.digits$}") } else { String::new() }
}
