//! The `holdfast` program from outside: help, refusals, exit codes.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Output};

fn holdfast(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("HOLDFAST_")) {
        command.env_remove(key);
    }
    command.args(arguments).output().unwrap()
}

/// The one line that a refusal consists of.
fn refusal(arguments: &[&str]) -> String {
    let output = holdfast(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let refused: Vec<&str> = said.lines().filter(|line| line.starts_with("holdfast: ")).collect();
    assert_eq!(refused.len(), 1, "{said}");
    refused[0].to_owned()
}

#[test]
fn with_nothing_it_helps() {
    let output = holdfast(&[]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    for command in ["serve", "config", "healthcheck", "status"] {
        assert!(said.contains(command), "{said}");
    }
}

#[test]
fn the_example_is_a_configuration_that_passes_the_check() {
    let example = holdfast(&["config", "example"]);
    assert!(example.status.success());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("holdfast.toml");
    std::fs::write(&file, &example.stdout).unwrap();
    let checked = holdfast(&["config", "check", "--config", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    for (setting, part) in [
        ("detector.confirmations=0", "`detector.confirmations` is 0"),
        ("detector.poll_interval_ms=0", "`detector.poll_interval_ms` is 0"),
        ("detector.confirmation=3", "did you mean `detector.confirmations`?"),
        ("http_listen=0.0.0.0:0", "insecure_allow_remote"),
        ("members=node-a=127.0.0.1:7700", "`node_name` is not set"),
    ] {
        let said = refusal(&["serve", "--data-dir", data, "--set", setting]);
        assert!(said.contains(part), "{said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{setting}");
    }
}

#[test]
fn a_damaged_log_stops_the_node_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = ["--http-listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"];
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = holdfast_node::Config {
            http_listen: "127.0.0.1:0".parse().unwrap(),
            peer_listen: support::free_address(),
            data_dir: data.clone(),
            ..holdfast_node::Config::default()
        };
        let node = holdfast_node::Node::start(config).await.unwrap();
        assert!(support::within("the node is ready", node.ready()).await);
        node.shutdown().await;
    });
    drop(runtime);
    let sound = holdfast(&["verify", data.to_str().unwrap()]);
    assert!(sound.status.success(), "{sound:?}");
    assert!(String::from_utf8(sound.stdout).unwrap().ends_with("all sound\n"));

    let segment = std::fs::read_dir(data.join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.metadata().unwrap().len() > 4_096)
        .unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();

    let said = refusal(&[&["serve", "--data-dir", data.to_str().unwrap()], &settings[..]].concat());
    assert!(said.contains("damaged") && said.contains("other nodes still have the data"), "{said}");
    let damaged = holdfast(&["verify", data.to_str().unwrap(), "--json"]);
    assert_eq!(damaged.status.code(), Some(1), "{damaged:?}");
    let report: serde_json::Value = serde_json::from_slice(&damaged.stdout).unwrap();
    let problem = report["problems"][0].as_str().unwrap();
    assert!(report["sound"] == false && problem.contains(segment.to_str().unwrap()), "{report}");
    let nowhere = folder.path().join("nothing");
    let nothing = holdfast(&["verify", nowhere.to_str().unwrap()]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    assert!(String::from_utf8(nothing.stderr).unwrap().contains("no data directory"));
    let said = refusal(&["backup", "verify", nowhere.to_str().unwrap()]);
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    assert_eq!(std::fs::read(&segment).unwrap(), bytes);
}

#[test]
fn a_node_that_is_not_there_is_not_healthy() {
    let nobody = format!("http://{}", support::free_address());
    let said = refusal(&["healthcheck", "--url", &nobody]);
    assert!(said.contains("does not answer"), "{said}");
    let said = refusal(&["status", "--url", &nobody]);
    assert!(said.contains(&nobody), "{said}");
}
