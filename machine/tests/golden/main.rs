//! Golden scripts: commands on paper, and what the state machine makes of them.
//!
//! A script (`scripts/*.txt`) is a list of paragraphs. A paragraph holds comments (`#`) and commands, one
//! log entry to a line, then `---`, then what follows from them: replies, events (`!`), what the owners'
//! engines are told (`*`), and the workflows, rows and shards that are not what they were before the
//! paragraph. The words are in `parse.rs`. `UPDATE_GOLDEN=1 cargo test -p holdfast-machine --test
//! golden` writes the second halves anew; read the difference before you commit it.

#![allow(clippy::unwrap_used)]

mod find;
mod formats;
mod parse;
mod play;
mod script;
mod show;

use std::fs;
use std::path::{Path, PathBuf};

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

/// The first line in which two texts differ, with both versions.
fn first_difference(expected: &str, actual: &str) -> String {
    let (mut left, mut right) = (expected.lines(), actual.lines());
    for number in 1.. {
        let (l, r) = (left.next(), right.next());
        if l != r {
            let shown = |line: Option<&str>| line.unwrap_or("(end)").to_owned();
            return format!("line {number}\n  expected: {}\n  actual:   {}", shown(l), shown(r));
        }
    }
    String::new()
}

#[test]
fn every_script_reads_as_it_was_written() {
    let rewrite = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut offences = Vec::new();
    let paths = scripts();
    assert!(!paths.is_empty(), "no scripts found");
    for path in paths {
        let expected = fs::read_to_string(&path).unwrap();
        let actual = script::run(&expected);
        if actual != expected && rewrite {
            fs::write(&path, &actual).unwrap();
        } else if actual != expected {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            offences.push(format!("{name}, {}", first_difference(&expected, &actual)));
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}
