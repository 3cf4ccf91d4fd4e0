//! What was written once is written the same for ever: the bytes of commands, replies and stored rows.
//!
//! `formats/workload.txt` is played, and everything that goes to a log, a peer or a disk on the way is held against
//! `formats/bytes.txt`. Nodes of two versions in one cluster write the same bytes for the same entry, or their states
//! differ. So a line there may not change once a version has been released that writes it; docs/upgrades.md says how a
//! type grows instead. `UPDATE_FORMATS=1` adds the lines of what is new.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use holdfast_machine::{ClaimToken, Command, DispatchKey, Entry, Machine, Member, MemoryArchive, Millis};

use crate::{first_difference, parse, play};

/// The letters of the tables; see `keys.rs`. `J` is left out: only a removal of thousands of events shows it, and its
/// values are plain numbers.
const TABLES: &str = "MNSQACcLFKUBEWROIDTGHVZPYX";

#[test]
fn what_was_written_once_is_written_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let workload = fs::read_to_string(folder.join("workload.txt")).unwrap();
    let kept = fs::read_to_string(folder.join("bytes.txt")).unwrap_or_default();
    let mut written = Writer::default();
    workload.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).for_each(|line| written.line(line));

    let tables: BTreeSet<char> = written.tables.iter().map(|table| *table as char).collect();
    assert_eq!(tables, TABLES.chars().collect(), "the workload has to write to every table");
    assert_eq!(written.commands, COMMANDS.into(), "the workload has to have every command");
    if kept != written.text && std::env::var_os("UPDATE_FORMATS").is_some() {
        assert!(written.text.starts_with(&kept), "{}", advice(&kept, &written.text));
        fs::write(folder.join("bytes.txt"), &written.text).unwrap();
        return;
    }
    assert!(kept == written.text, "{}", advice(&kept, &written.text));
}

fn advice(kept: &str, written: &str) -> String {
    format!(
        "the bytes of a log entry, a reply or a stored row are not what they were: {}\n\
         If a released version writes them, this breaks rolling upgrades: read docs/upgrades.md and add a variant or a \
         version instead. If they are new (a line more at the end of workload.txt), or no released version has them \
         yet (remove the lines from bytes.txt), run this again with UPDATE_FORMATS=1.",
        first_difference(kept, written)
    )
}

/// Plays lines and notes what is written.
#[derive(Default)]
struct Writer {
    machine: Machine,
    archive: MemoryArchive,
    index: u64,
    tokens: BTreeMap<DispatchKey, Vec<ClaimToken>>,
    text: String,
    tables: BTreeSet<u8>,
    commands: BTreeSet<&'static str>,
}

impl Writer {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "# {line}").unwrap();
        self.index += 1;
        if let Some(members) = line.strip_prefix("members ") {
            let members: Vec<Member> = members.split_whitespace().enumerate().map(play::member).collect();
            self.machine.apply_members(self.index, &members, &self.archive).unwrap();
            return self.rows();
        }
        let (at, rest) = line.strip_prefix('@').and_then(|line| line.split_once(' ')).unwrap();
        let tokens = &self.tokens;
        let token = |key: &DispatchKey, number: usize| tokens[key][number - 1];
        let request = parse::request(rest, &token);
        self.commands.insert(name(&request.command));
        let entry = Entry { at: Millis(at.parse().unwrap()), requests: vec![request] };
        self.note("entry", &postcard::to_stdvec(&entry).unwrap());
        assert_eq!(postcard::from_bytes::<Entry>(&postcard::to_stdvec(&entry).unwrap()).unwrap(), entry);
        let applied = self.machine.apply(self.index, entry, &self.archive).unwrap();
        for reply in &applied.replies {
            self.note("reply", &postcard::to_stdvec(reply).unwrap());
        }
        for (key, row) in self.machine.live_rows() {
            row.claim.iter().for_each(|claim| play::note(&mut self.tokens, key, claim.token));
        }
        self.rows();
    }

    fn rows(&mut self) {
        let writes = self.machine.take_writes();
        for (key, value) in &writes {
            let shown = key.escape_ascii().to_string();
            match value {
                Some(value) => {
                    self.tables.insert(key[0]);
                    self.note(&format!("row {shown}"), value);
                }
                None => writeln!(self.text, "gone {shown}").unwrap(),
            }
        }
        self.archive.commit(writes);
        let loaded = Machine::load(&self.archive).unwrap();
        assert_eq!(loaded.state_hash(), self.machine.state_hash());
    }

    fn note(&mut self, what: &str, bytes: &[u8]) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(self.text, "{what} {hex}").unwrap();
    }
}

const COMMANDS: [&str; 24] = [
    "Create",
    "Boot",
    "Assign",
    "Adopt",
    "Transfer",
    "Commit",
    "Claim",
    "Heartbeat",
    "Complete",
    "Fail",
    "Retry",
    "Settle",
    "Rearm",
    "Reconcile",
    "Tick",
    "Stage",
    "Timer",
    "MarkFailureDelivered",
    "Redrive",
    "PutNamespace",
    "Purge",
    "Delete",
    "Session",
    "Checkpoint",
];

/// A new command has to be named here, in [`COMMANDS`], and in a line of the workload.
fn name(command: &Command) -> &'static str {
    match command {
        Command::Create { .. } => "Create",
        Command::Boot { .. } => "Boot",
        Command::Assign { .. } => "Assign",
        Command::Adopt { .. } => "Adopt",
        Command::Transfer { .. } => "Transfer",
        Command::Commit(_) => "Commit",
        Command::Claim(_) => "Claim",
        Command::Heartbeat { .. } => "Heartbeat",
        Command::Complete { .. } => "Complete",
        Command::Fail { .. } => "Fail",
        Command::Retry { .. } => "Retry",
        Command::Settle { .. } => "Settle",
        Command::Rearm { .. } => "Rearm",
        Command::Reconcile { .. } => "Reconcile",
        Command::Tick => "Tick",
        Command::Stage { .. } => "Stage",
        Command::Timer { .. } => "Timer",
        Command::MarkFailureDelivered { .. } => "MarkFailureDelivered",
        Command::Redrive { .. } => "Redrive",
        Command::PutNamespace { .. } => "PutNamespace",
        Command::Purge { .. } => "Purge",
        Command::Delete { .. } => "Delete",
        Command::Session { .. } => "Session",
        Command::Checkpoint { .. } => "Checkpoint",
    }
}
