//! `holdfast backup`: a copy of everything from a running node, checked before it has its name; `holdfast backup verify`
//! checks one again.

use std::fs::{self, File};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use holdfast_client::{Client, ClientOptions, ReadMode};
use holdfast_raft::{BackupReport, verify_backup};
use serde::Serialize;

use super::{DEFAULT_URL, block_on};

/// How a backup that is still on its way is called.
const PARTIAL: &str = "partial";

/// What to do.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BackupArgs {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// A node's base URL; may be repeated. Of those that answer, one that does not lead is asked
    #[arg(long, default_value = DEFAULT_URL, value_delimiter = ',')]
    url: Vec<String>,
    /// The file to make, or a directory for it
    #[arg(long, required = true, value_name = "FILE")]
    to: Option<PathBuf>,
    /// The state as the node has it, without asking the others; works without a quorum, and may be a little old
    #[arg(long)]
    stale: bool,
    /// One JSON object instead of a text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Checks every byte of a backup, and that its state can be loaded
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// One JSON object instead of a text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &BackupArgs) -> anyhow::Result<()> {
    let (file, report, json) = match (&args.command, &args.to) {
        (Some(BackupCommand::Verify(verify)), _) => (verify.file.clone(), verify_backup(&verify.file)?, verify.json),
        (None, Some(to)) => {
            let (file, report) = block_on(take(args, to))?;
            (file, report, args.json)
        }
        // clap asks for it.
        (None, None) => anyhow::bail!("`--to` says where the backup goes"),
    };
    let shown = Shown::of(&file, &report);
    if json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&shown)?)?;
    } else {
        write!(stdout(), "{}", shown.text())?;
    }
    Ok(())
}

async fn take(args: &BackupArgs, to: &Path) -> anyhow::Result<(PathBuf, BackupReport)> {
    let mode = if args.stale { ReadMode::Stale } else { ReadMode::Linearizable };
    let (client, cluster) = choose(&args.url).await?;
    let mut download = client.backup(mode).await.context("no backup")?;
    let file = match to.is_dir() {
        true => to.join(format!("{}-{}.holdfast-backup", file_name(&cluster), download.index())),
        false => to.to_path_buf(),
    };
    ensure!(!file.exists(), "{} is there already; choose another name", file.display());
    let partial = with_suffix(&file, PARTIAL);
    let writing = || format!("writing {}", partial.display());
    let kept = async {
        let mut target = File::create(&partial).with_context(writing)?;
        while let Some(bytes) = download.next().await? {
            target.write_all(&bytes).with_context(writing)?;
        }
        target.sync_all().with_context(writing)?;
        let report = verify_backup(&partial).context("what came is no sound backup")?;
        ensure!(report.applied.index == download.index(), "the node announced index {}", download.index());
        fs::rename(&partial, &file).with_context(writing)?;
        sync_folder(&file).with_context(writing)?;
        anyhow::Ok(report)
    };
    let kept = kept.await;
    if kept.is_err() {
        // What is left of it is of no use; it is not there at all if it could not be made.
        let _ = fs::remove_file(&partial);
    }
    Ok((file, kept?))
}

/// A client of one of these nodes, and the name of its node: one that follows, because a leader has enough to do.
async fn choose(urls: &[String]) -> anyhow::Result<(Client, String)> {
    let patience = Duration::from_secs(3);
    let options = || ClientOptions { deadline: patience, attempt_timeout: patience, ..ClientOptions::default() };
    let (mut leader, mut problem) = (None, None);
    for url in urls {
        let client = Client::with_options([url], options())?;
        match client.cluster().await {
            Ok(view) if view.value.leader.as_ref() == Some(&view.value.node) => {
                leader = Some((client, view.value.node.to_string()));
            }
            Ok(view) => return Ok((client, view.value.node.to_string())),
            Err(error) => problem = Some(anyhow::Error::from(error).context(format!("{url} does not answer"))),
        }
    }
    match (leader, problem) {
        (Some(leader), _) => Ok(leader),
        (None, Some(problem)) => Err(problem),
        (None, None) => anyhow::bail!("`--url` says which node to ask"),
    }
}

/// The text without what has a meaning in paths.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    file.with_file_name(name)
}

fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// A report as it is printed.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    file: String,
    cluster: &'a str,
    node: &'a str,
    created_at_ms: u64,
    program: &'a str,
    index: u64,
    term: u64,
    log_time: u64,
    state_hash: String,
    state_version: u32,
    shards: u32,
    members: Vec<&'a str>,
    pending_rows: u64,
    claimed_rows: u64,
    stored_rows: u64,
    stored_bytes: u64,
    file_bytes: u64,
}

impl<'a> Shown<'a> {
    fn of(file: &Path, report: &'a BackupReport) -> Self {
        Self {
            file: file.display().to_string(),
            cluster: &report.manifest.cluster,
            node: &report.manifest.node,
            created_at_ms: report.manifest.created_at_ms,
            program: &report.manifest.program,
            index: report.applied.index,
            term: report.applied.term,
            log_time: report.log_time.0,
            state_hash: format!("{:016x}", report.state_hash),
            state_version: report.machine,
            shards: report.shard_count,
            members: report.members.iter().map(|name| name.as_str()).collect(),
            pending_rows: report.live_rows.pending,
            claimed_rows: report.live_rows.claimed,
            stored_rows: report.rows,
            stored_bytes: report.row_bytes,
            file_bytes: report.file_bytes,
        }
    }

    fn text(&self) -> String {
        format!(
            "{}: sound, {} bytes\n\
             of cluster {}, by {} with version {}, at {} (Unix time in ms)\n\
             log index {} of term {}, log time {}, state hash {}, state version {}\n\
             {} shards, members {}; {} rows pending, {} claimed; {} stored rows of {} bytes\n",
            self.file,
            self.file_bytes,
            self.cluster,
            self.node,
            self.program,
            self.created_at_ms,
            self.index,
            self.term,
            self.log_time,
            self.state_hash,
            self.state_version,
            self.shards,
            self.members.join(", "),
            self.pending_rows,
            self.claimed_rows,
            self.stored_rows,
            self.stored_bytes,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(file_name("node-a"), "node-a");
        assert_eq!(file_name("../a b/c"), ".._a_b_c");
        assert_eq!(with_suffix(Path::new("x/y.z"), PARTIAL), Path::new("x/y.z.partial"));
    }
}
