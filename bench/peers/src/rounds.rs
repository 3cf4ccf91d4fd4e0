//! The rounds: in each of them all systems are measured once, one after the other, so that whatever else happens on the
//! machine happens to all of them.

use std::fs;
use std::io::{Write, stderr, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use holdfast_bench::place::{Place, git_revision};
use holdfast_bench::report::{Case, medians};

use crate::args::{Kind, RunArgs, SystemName};
use crate::etcd::Etcd;
use crate::floor::Floor;
use crate::nats::Nats;
use crate::peer::Measurement;
use crate::postgres::Postgres;
use crate::report::{Figures, Report};
use crate::{holdfast, server};

/// Measures all that was asked for, and tells of it.
pub async fn run(args: RunArgs) -> Result<()> {
    args.check()?;
    let parent = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    fs::create_dir_all(&parent)?;
    let parent = parent.canonicalize()?;
    let place = Place::here(&parent);
    let mut systems = Vec::new();
    for name in args.systems.iter().copied().filter(|name| *name != SystemName::Holdfast || args.holdfast.is_some()) {
        systems.push(Figures { name, version: version(&args, name)?, cases: Vec::new() });
    }
    for round in 1..=args.rounds {
        for kind in &args.loads {
            for system in &mut systems {
                let measured = measure(&args, &parent, system.name, *kind, round).await;
                let cases = measured.with_context(|| format!("{}, {}", system.name.title(), kind.title()))?;
                for case in &cases {
                    writeln!(stderr(), "round {round}, {}: {}", system.name.title(), in_short(case))?;
                }
                system.cases.extend(cases);
            }
        }
    }
    for system in &mut systems {
        system.cases.extend(medians(&system.cases));
    }
    let report = Report { git_revision: git_revision(), place, settings: args, systems };
    ensure!(report.systems.iter().any(|system| !system.cases.is_empty()), "nothing was measured");
    if let Some(file) = &report.settings.json {
        fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(write!(stdout(), "{}", report.text())?)
}

/// One kind of load on one system, in a folder of its own.
async fn measure(args: &RunArgs, parent: &Path, name: SystemName, kind: Kind, round: u32) -> Result<Vec<Case>> {
    let folder = tempfile::Builder::new().prefix("bench-peers-").tempdir_in(parent)?;
    // Other users than this one have their data in it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let measurement = Measurement { args, name, kind, round, folder: folder.path() };
    match name {
        SystemName::Floor if kind == Kind::Stage => measurement.stages::<Floor>().await,
        // It has no rows.
        SystemName::Floor => Ok(Vec::new()),
        SystemName::Postgres | SystemName::PostgresStandbys => measurement.any::<Postgres>().await,
        SystemName::Etcd => measurement.any::<Etcd>().await,
        SystemName::Nats => measurement.any::<Nats>().await,
        SystemName::Holdfast => holdfast::measure(&measurement).await,
    }
}

fn version(args: &RunArgs, name: SystemName) -> Result<String> {
    match name {
        SystemName::Floor => Ok("this program".to_owned()),
        SystemName::Postgres | SystemName::PostgresStandbys => {
            server::version(&args.postgres_programs.join("postgres"))
        }
        SystemName::Etcd => server::version(&args.etcd),
        SystemName::Nats => crate::nats::version(args),
        SystemName::Holdfast => server::version(args.holdfast.as_deref().context("--holdfast")?),
    }
}

fn in_short(case: &Case) -> String {
    let per_second = case.figures.get("per_second").copied().unwrap_or_default();
    format!("{}, {} clients: {per_second:.0} a second", case.name, case.clients.unwrap_or_default())
}
