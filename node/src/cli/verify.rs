//! `holdfast verify`: is all that a stopped node has on its disk as it was written?

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use holdfast_storage::LogId;
use holdfast_storage::verify::{Report, verify};
use serde_json::{Value, json};

/// What is checked.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The data directory
    #[arg(value_name = "DIR")]
    data_dir: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &VerifyArgs) -> ExitCode {
    let report = match verify(&args.data_dir) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("holdfast: {error}");
            return ExitCode::from(2);
        }
    };
    match args.json {
        true => println!("{:#}", as_json(&report)),
        false => println!("{report}"),
    }
    ExitCode::from(u8::from(!report.is_sound()))
}

fn as_json(report: &Report) -> Value {
    let id = |id: LogId| json!({ "term": id.term, "index": id.index });
    json!({
        "sound": report.is_sound(),
        "identity": report.identity.as_ref().map(|identity| json!({
            "cluster": identity.cluster,
            "node": identity.node,
            "incarnation": identity.incarnation.to_string(),
            "base": identity.base.map(|base| format!("{base:032x}")),
        })),
        "log": report.log.as_ref().map(|log| json!({
            "purged": log.purged.map(id),
            "last": log.last.map(id),
            "segments": log.segments,
            "torn_bytes": log.torn_bytes,
        })),
        "state": report.state.as_ref().map(|state| json!({ "applied": state.applied.map(id), "rows": state.rows })),
        "snapshots": report.snapshots.iter().map(|snapshot| json!({
            "file": snapshot.path,
            "applied": id(snapshot.applied),
            "rows": snapshot.rows,
            "bytes": snapshot.bytes,
        })).collect::<Vec<_>>(),
        "problems": report.problems,
        "notes": report.notes,
    })
}
