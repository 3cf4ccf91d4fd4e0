//! Each refusal has a test: the sentence has to name the key and say what to do.

#![allow(clippy::unwrap_used)]

use std::io::Write;

use confique::Layer;

use super::load::layered;
use super::*;

type ConfigLayer = <Config as confique::Config>::Layer;

fn of_file(text: &str) -> Result<Config, ConfigError> {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    layered(toml::Table::new(), ConfigLayer::empty(), Some(file.path()))
}

fn refused(text: &str) -> String {
    match of_file(text) {
        Ok(config) => panic!("{text} was taken as {config:?}"),
        Err(error) => error.to_string(),
    }
}

fn assert_says(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{sentence:?} does not say {part:?}");
    }
    assert_eq!(sentence.lines().count(), 1, "{sentence:?} is more than a sentence");
}

#[test]
fn defaults_are_complete() {
    let config = Config::default();
    let identity = config.check().unwrap();
    assert_eq!((identity.name.as_str(), identity.id), ("node-a", 1));
    assert_eq!(identity.members.len(), 1);
    assert_eq!(config.shard_count, 64);
    assert_eq!(config.limits.limits(), holdfast_machine::Limits::default());
    assert_eq!(of_file("").unwrap(), config);
}

#[test]
fn flags_stand_above_the_file() {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(b"shard_count = 8\n[detector]\nconfirmations = 5\nsilence_ms = 700\n").unwrap();
    let mut flags = toml::Table::new();
    parse_setting("detector.confirmations=9", &mut flags).unwrap();
    parse_setting("cluster_id=blue", &mut flags).unwrap();
    parse_setting("members=node-a=127.0.0.1:7700", &mut flags).unwrap();
    parse_setting("node_name=node-a", &mut flags).unwrap();
    let config = layered(flags, ConfigLayer::empty(), Some(file.path())).unwrap();
    assert_eq!((config.shard_count, config.detector.confirmations, config.detector.silence_ms), (8, 9, 700));
    assert_eq!(config.cluster_id, "blue");
    assert_eq!(config.check().unwrap().members[0].2, "127.0.0.1:7700");
}

#[test]
fn a_table_of_members_gives_the_identity() {
    let text = "node_name = \"node-b\"\n[members]\nnode-a = \"127.0.0.1:7701\"\nnode-b = \"127.0.0.1:7702\"\n";
    let identity = of_file(text).unwrap().check().unwrap();
    assert_eq!((identity.name.as_str(), identity.id, identity.members.len()), ("node-b", 2, 2));
}

#[test]
fn unknown_keys_are_named_with_the_nearest_known_one() {
    assert_says(&refused("shard_cout = 8"), &["`shard_cout`", "did you mean `shard_count`?"]);
    assert_says(
        &refused("[detector]\nconfirmation = 8"),
        &["`detector.confirmation`", "did you mean `detector.confirmations`?"],
    );
    assert_says(&refused("confirmations = 8"), &["`confirmations`", "`detector.confirmations`"]);
    assert_says(&refused("[zzz]\nqqq = 1"), &["`zzz`", "holdfast config example"]);
    assert!(!refused("[zzz]\nqqq = 1").contains("did you mean"));
}

#[test]
fn values_of_the_wrong_kind_are_named_with_their_line() {
    assert_says(&refused("\nshard_count = \"many\""), &["line 2", "many"]);
    assert_says(&refused("shard_count = "), &["line 1"]);
    assert_says(&refused("http_listen = \"here\""), &["line 1", "socket address"]);
    assert_says(&refused("[members]\nnode-a = \"here\""), &["line 1", "\"here\" is no peer address"]);
    assert_says(&refused("[log]\nformat = \"xml\""), &["line 2", "xml", "json"]);
}

#[test]
fn zeros_are_refused_by_key() {
    for key in ["poll_interval_ms", "confirmations", "silence_ms"] {
        assert_says(&refused(&format!("[detector]\n{key} = 0")), &[&format!("`detector.{key}` is 0"), "at least 1"]);
    }
    for key in ["interval_ms", "older_than_ms"] {
        assert_says(&refused(&format!("[reconcile]\n{key} = 0")), &[&format!("`reconcile.{key}` is 0")]);
    }
    assert_says(&refused("shard_count = 0"), &["`shard_count` is 0"]);
    assert_says(&refused("parked_after_ms = 0"), &["`parked_after_ms` is 0"]);
    assert_says(&refused("shard_count = 100000"), &["`shard_count` is 100000", "at most 4096"]);
}

#[test]
fn elections_that_cannot_work_are_refused() {
    assert_says(
        &refused("[raft]\nelection_min_ms = 60"),
        &["`raft.election_min_ms` is 60", "twice `raft.heartbeat_ms`"],
    );
    assert_says(
        &refused("[raft]\nelection_max_ms = 200"),
        &["`raft.election_max_ms` is 200", "`raft.election_min_ms`"],
    );
    assert_says(&refused("[detector]\nsilence_ms = 60"), &["`detector.silence_ms` is 60"]);
}

#[test]
fn addresses_beyond_loopback_need_a_word() {
    for key in ["http_listen", "peer_listen"] {
        let text = format!("{key} = \"0.0.0.0:7000\"");
        assert_says(&refused(&text), &[&format!("`{key}` is 0.0.0.0:7000"), "insecure_allow_remote = true"]);
        assert!(of_file(&format!("{text}\ninsecure_allow_remote = true")).is_ok());
    }
    assert!(of_file("http_listen = \"[::1]:7600\"").is_ok());
}

#[test]
fn a_node_needs_its_place_among_the_members() {
    let members = "[members]\nnode-a = \"127.0.0.1:7701\"\n";
    assert_says(&refused(members), &["`node_name` is not set", "(node-a)"]);
    assert_says(&refused(&format!("node_name = \"node-x\"\n{members}")), &["`node_name` is \"node-x\"", "(node-a)"]);
}

#[test]
fn other_texts_are_checked() {
    assert_says(&refused("cluster_id = \"\""), &["`cluster_id`"]);
    assert_says(&refused("[log]\nlevel = \"holdfast=loud\""), &["`log.level`", "info"]);
    let missing = layered(toml::Table::new(), ConfigLayer::empty(), Some("/nowhere/holdfast.toml".as_ref()));
    assert_says(&missing.unwrap_err().to_string(), &["/nowhere/holdfast.toml", "--config"]);
}

/// The checked-in example is what `holdfast config example` prints. After a change of a key:
/// `cargo run -- config example > node/config.example.toml`.
#[test]
fn the_example_file_has_not_drifted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");
    assert_eq!(std::fs::read_to_string(path).unwrap(), example(), "see the comment of this test");
}

#[test]
fn the_example_file_changes_nothing() {
    assert_eq!(of_file(&example()).unwrap(), Config::default());
}
