//! Rules of the code base that no compiler checks: sizes, names, who may depend on whom, links that lead somewhere.
//! Each test lists every offence, so that one run tells all that is to be mended.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A file that needs more than this is two files.
const LINES_MAX: usize = 450;

/// Names that say nothing about what a thing is for.
const EMPTY_NAMES: [&str; 7] = ["manager", "helper", "util", "processor", "context", "common", "misc"];

/// Crate, and the packages it must not name: the layers of the architecture, each knowing only those below.
const FORBIDDEN: [(&str, &[&str]); 10] = [
    ("machine", &["tokio", "axum", "openraft", "sled", "rand", "holdfast-storage", "holdfast-raft", "holdfast-api"]),
    ("checkers", &["tokio", "axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-api"]),
    ("storage", &["openraft", "tokio", "axum", "holdfast-raft", "holdfast-api"]),
    ("raft", &["axum", "holdfast-api", "holdfast-node"]),
    ("api", &["openraft", "sled", "holdfast-node"]),
    ("client", &["axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-api"]),
    ("worker", &["axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-api", "holdfast-node"]),
    ("bench", &["axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-api", "holdfast-node"]),
    ("examples/engine", &["axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-node"]),
    ("conformance", &["axum", "openraft", "sled", "holdfast-storage", "holdfast-raft", "holdfast-node"]),
];

/// Packages that only tests build on.
const FOR_TESTS_ALONE: [&str; 4] =
    ["holdfast-conformance", "holdfast-tests", "holdfast-checkers", "holdfast-simulation"];

#[test]
fn source_files_are_short_and_say_why_they_exist() {
    let mut offences = Vec::new();
    for path in files_ending(".rs") {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        if lines > LINES_MAX {
            offences.push(format!("{}: {lines} lines, at most {LINES_MAX}", shown(&path)));
        }
        // `tests.rs` is the test module of the file that it stands beside.
        if !text.starts_with("//!") && !path.ends_with("tests.rs") {
            offences.push(format!("{}: does not start with what it is for (//!)", shown(&path)));
        }
    }
    assert_none(&offences);
}

#[test]
fn nothing_is_left_to_be_done_later() {
    // Put together here, so that this file does not offend.
    let marks = ["todo", "unimplemented", "dbg"].map(|mark| format!("{mark}!("));
    let words = ["FIX", "XX"].map(|word| format!("{word}{}", if word == "FIX" { "ME" } else { "X" }));
    let mut offences = Vec::new();
    for path in files_ending(".rs") {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if marks.iter().chain(&words).any(|mark| line.contains(mark.as_str())) {
                offences.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn names_say_something() {
    let mut offences = Vec::new();
    for path in files_ending(".rs") {
        let stem = path.file_stem().unwrap().to_string_lossy().to_lowercase();
        if EMPTY_NAMES.iter().any(|empty| stem.trim_end_matches('s') == *empty) {
            offences.push(format!("{}: a name for anything", shown(&path)));
        }
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if declared_name(line).is_some_and(|name| is_empty_name(&name)) {
                offences.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn crates_know_only_the_layers_below_them() {
    let mut offences = Vec::new();
    for (name, forbidden) in FORBIDDEN {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for dependency in dependencies(&manifest) {
            if forbidden.contains(&dependency) {
                offences.push(format!("{name} depends on {dependency}"));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn nothing_but_tests_builds_on_tests() {
    let mut offences = Vec::new();
    let is_for_tests = |path: &PathBuf| path.ends_with("tests/Cargo.toml") || path.ends_with("simulation/Cargo.toml");
    for path in files_ending("Cargo.toml").into_iter().filter(|path| !is_for_tests(path)) {
        let manifest = fs::read_to_string(&path).unwrap();
        for dependency in dependencies(&manifest).into_iter().filter(|name| FOR_TESTS_ALONE.contains(name)) {
            offences.push(format!("{} depends on {dependency}", shown(&path)));
        }
    }
    assert_none(&offences);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let mut offences = Vec::new();
    // These are outside of the workspace, and so have nothing to take them from.
    let is_outside = |path: &PathBuf| path.ends_with("fuzz/Cargo.toml") || path.ends_with("peers/Cargo.toml");
    for path in files_ending("Cargo.toml").into_iter().filter(|path| !is_outside(path)) {
        let text = fs::read_to_string(&path).unwrap();
        if text.contains("[package]") && !text.contains("[lints]\nworkspace = true") {
            offences.push(format!("{}: no `[lints] workspace = true`", shown(&path)));
        }
    }
    assert_none(&offences);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut offences = Vec::new();
    for path in files_ending(".md") {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            if !path.parent().unwrap().join(file).exists() {
                offences.push(format!("{}: {target}", shown(&path)));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn each_planted_bug_has_a_layer_that_must_see_it() {
    let script = fs::read_to_string(root().join("scripts/planted-bugs.sh")).unwrap();
    let listed: BTreeSet<&str> = script
        .lines()
        .filter(|line| line.matches(" | ").count() == 3)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let mut planted = BTreeSet::new();
    for path in files_ending(".rs") {
        let text = fs::read_to_string(&path).unwrap();
        // Put together here, so that this file plants nothing.
        let ask = format!("is_planted({}", '"');
        planted.extend(text.split(&ask).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    assert_eq!(planted.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
}

/// The name that a line declares, if it declares a type or a function.
fn declared_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let keyword = words.find(|word| !word.starts_with("pub") && !matches!(*word, "async" | "const"))?;
    if !matches!(keyword, "struct" | "enum" | "trait" | "fn" | "mod") {
        return None;
    }
    let name = words.next()?;
    Some(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

fn is_empty_name(name: &str) -> bool {
    let lower = name.to_lowercase();
    name.starts_with("handle_") || EMPTY_NAMES.iter().any(|empty| lower == *empty || lower.ends_with(empty))
}

/// The packages under `[dependencies]`; those for tests and builds may be anything.
fn dependencies(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

/// Every file of the project with that ending, without what builds and tools leave behind.
fn files_ending(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty() || ending == ".md", "no file ends with {ending}");
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn assert_none(offences: &[String]) {
    assert!(offences.is_empty(), "{} offences:\n  {}", offences.len(), offences.join("\n  "));
}
