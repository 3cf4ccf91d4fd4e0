//! The command against a real server: its lines, its JSON and its exit codes.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};
use std::time::Duration;

use holdfast_node::{Config, Node};

async fn command(arguments: Vec<String>) -> Output {
    tokio::task::spawn_blocking(|| {
        Command::new(env!("CARGO_BIN_EXE_holdfast-conformance")).args(arguments).output().unwrap()
    })
    .await
    .unwrap()
}

fn arguments(text: &str, url: &str) -> Vec<String> {
    text.split_whitespace().map(|word| word.replace("URL", url)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_checked_and_the_exit_code_tells() {
    let folder = tempfile::tempdir().unwrap();
    let any = ([127, 0, 0, 1], 0).into();
    let data_dir = folder.path().join("data");
    let node = Node::start(Config { http_listen: any, peer_listen: any, data_dir, ..Config::default() }).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(60), node.ready()).await.unwrap());
    let url = format!("http://{}", node.http_addr());

    let text = command(arguments("URL --filter pausing", &url)).await;
    let lines = String::from_utf8(text.stdout).unwrap();
    assert!(text.status.success(), "{lines}");
    assert!(lines.contains("kept         pausing: work that was under way"), "{lines}");
    assert!(lines.trim_end().ends_with("6 kept, 0 broken, 0 skipped, 0 unavailable"), "{lines}");

    let json = command(arguments("URL --filter pausing --json", &url)).await;
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 6);
    assert!(findings.iter().all(|finding| finding["topic"] == "pausing" && finding["verdict"] == "kept"), "{report}");

    node.shutdown().await;
    let gone = command(vec![url, "--filter".into(), "a paused workflow does not hold up".into()]).await;
    let lines = String::from_utf8(gone.stderr).unwrap();
    assert_eq!(gone.status.code(), Some(1), "{lines}");
    assert!(lines.contains("the server does not answer"), "{lines}");
}

#[tokio::test]
async fn what_cannot_be_checked_is_said() {
    let nothing = command(arguments("URL --filter no-such-promise", "http://127.0.0.1:1")).await;
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8(nothing.stderr).unwrap().contains("see --list"));
    let list = command(vec!["--list".into()]).await;
    let lines = String::from_utf8(list.stdout).unwrap();
    assert!(list.status.success() && lines.contains("shards: a transfer") && lines.contains("(disturbing)"), "{lines}");
    assert_eq!(command(Vec::new()).await.status.code(), Some(2), "without a URL");
}
