//! Section 10 and issue 1: what cannot work is refused at the start with a sentence that says what to do, an exit
//! code that is not 0, and nothing changed on the disk.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, Write};
use holdfast_machine::NodeName;
use holdfast_tests::ports::free_port;
use holdfast_tests::process::NodeProcess;
use holdfast_tests::program::Program;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{disk, turn, work};
use tempfile::TempDir;

/// A cluster of one node.
struct Lone {
    node: NodeProcess,
    folder: TempDir,
}

impl Lone {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let http = free_port()?;
        let settings = [
            ("HOLDFAST_NODE_NAME", "node-a".to_owned()),
            ("HOLDFAST_CLUSTER_ID", "test".to_owned()),
            ("HOLDFAST_HTTP_LISTEN", format!("127.0.0.1:{http}")),
            ("HOLDFAST_PEER_LISTEN", format!("127.0.0.1:{}", free_port()?)),
        ];
        let environment: BTreeMap<_, _> = settings.map(|(key, value)| (key.to_owned(), value)).into();
        let home = folder.path().join("node");
        let node = NodeProcess::new(NodeName::new("node-a")?, http, home, Program::Holdfast, environment)?;
        Ok(Self { node, folder })
    }

    /// Runs the node once, writes something, and stops it in good order.
    async fn live_once(&self) -> Result<()> {
        self.node.start()?;
        let client = Client::new([&self.node.url])?;
        let id = work::id("order-1")?;
        wait_until("the node takes a write", LONG, async || {
            work::open(&client, &id, 0, "work", "default").await.map(drop)
        })
        .await?;
        client.append(&id, 1, vec![work::note("kept")], Write::default()).await?;
        ensure!(self.node.stop(LONG).await?.success(), "a stop in good order");
        Ok(())
    }

    /// Starts the node, which is refused with a line that has all of `words`; gives the line.
    async fn refused(&self, words: &[&str]) -> Result<String> {
        let before = disk::picture(&self.node.data())?;
        let said = self.node.log_text().len();
        self.node.start()?;
        let status = self.node.ended(LONG).await?;
        let log = self.node.log_text().split_off(said);
        ensure!(status.code().is_some_and(|code| code != 0), "{status} after:\n{log}");
        let line = log.lines().last().context("it ended without a word")?.to_owned();
        for word in words {
            ensure!(line.contains(word), "no word of {word:?} in: {line}\nall of it:\n{log}");
        }
        ensure!(!log.contains("panicked"), "a panic is no sentence:\n{log}");
        let after = disk::picture(&self.node.data())?;
        let changed: Vec<_> =
            after.keys().chain(before.keys()).filter(|path| after.get(*path) != before.get(*path)).collect();
        ensure!(changed.is_empty(), "changed on disk: {changed:?}");
        Ok(line)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_work_are_refused_by_name() -> Result<()> {
    let _turn = turn::one().await?;
    for (variable, value, words) in [
        ("HOLDFAST_DETECTOR_CONFIRMATIONS", "0", &["detector.confirmations", "0"][..]),
        ("HOLDFAST_DETECTOR_POLL_INTERVAL_MS", "0", &["detector.poll_interval_ms", "0"]),
        ("HOLDFAST_RAFT_HEARTBEAT_MS", "0", &["raft.heartbeat_ms", "0"]),
        ("HOLDFAST_RECONCILE_INTERVAL_MS", "0", &["reconcile.interval_ms", "0"]),
        ("HOLDFAST_SHARD_COUNT", "0", &["shard_count", "0"]),
        ("HOLDFAST_SHARD_COUNT", "many", &["HOLDFAST_SHARD_COUNT"]),
        ("HOLDFAST_MEMBERS", "node-b=127.0.0.1:1,node-c=127.0.0.1:2", &["node-a", "members"]),
        ("HOLDFAST_HTTP_LISTEN", "0.0.0.0:7600", &["http_listen", "insecure_allow_remote"]),
        ("HOLDFAST_CONFIG", "/nowhere/holdfast.toml", &["/nowhere/holdfast.toml", "--config"]),
    ] {
        let mut lone = Lone::new()?;
        lone.node.set(variable, value);
        lone.refused(words).await.with_context(|| format!("{variable}={value}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_key_is_refused_and_the_known_one_is_offered() -> Result<()> {
    let _turn = turn::one().await?;
    let mut lone = Lone::new()?;
    let file = lone.folder.path().join("holdfast.toml");
    fs::write(&file, "shard_count = 8\n\n[detector]\nconfirmation = 5\n")?;
    lone.node.set("HOLDFAST_CONFIG", file.to_str().context("a path in UTF-8")?);
    lone.refused(&["detector.confirmation", "did you mean", "detector.confirmations"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_refused_by_its_key() -> Result<()> {
    let _turn = turn::one().await?;
    for (variable, key) in [("HOLDFAST_HTTP_LISTEN", "http_listen"), ("HOLDFAST_PEER_LISTEN", "peer_listen")] {
        let mut lone = Lone::new()?;
        lone.live_once().await?;
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        lone.node.set(variable, &address);
        lone.refused(&[key, &address, "choose another"]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_of_somebody_else_is_refused() -> Result<()> {
    let _turn = turn::one().await?;
    let mut lone = Lone::new()?;
    lone.live_once().await?;
    lone.node.set("HOLDFAST_CLUSTER_ID", "another");
    lone.refused(&["cluster `test`", "`another`", "Nothing was changed"]).await?;

    // The node again, under the name of another member of its cluster.
    lone.node.set("HOLDFAST_CLUSTER_ID", "test");
    lone.node.set("HOLDFAST_NODE_NAME", "node-b");
    lone.node.set("HOLDFAST_MEMBERS", "node-a=127.0.0.1:1,node-b=127.0.0.1:2");
    lone.refused(&["belongs to node `node-a`", "`node-b`", "Nothing was changed"]).await?;

    // A folder with files of some other program.
    let mut lone = Lone::new()?;
    fs::create_dir_all(lone.node.data())?;
    fs::write(lone.node.data().join("letter.txt"), "dear diary")?;
    lone.refused(&["letter.txt", "Choose an empty directory"]).await?;

    // One that a running node has open.
    lone = Lone::new()?;
    lone.node.start()?;
    let mut second = Lone::new()?;
    wait_until("the first node has its folder", LONG, async || {
        ensure!(lone.node.data().join("identity").exists(), "not yet");
        Ok(())
    })
    .await?;
    second.node.set("HOLDFAST_DATA_DIR", lone.node.data().to_str().context("a path in UTF-8")?);
    second.refused(&["in use by another process"]).await?;
    ensure!(lone.node.is_running(), "the first one has ended");
    lone.node.stop(LONG).await?;
    Ok(())
}

/// The same frame with contents of the next version: their first byte counts versions, from 0. A frame is a
/// version, a kind, a length and a checksum over these and the contents.
fn with_next_version(frame: &[u8]) -> Vec<u8> {
    let (head, contents) = frame.split_at(10);
    let mut contents = contents.to_vec();
    contents[0] += 1;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head[..6]), &contents);
    [&head[..6], &checksum.to_le_bytes(), &contents].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused() -> Result<()> {
    let _turn = turn::one().await?;
    let lone = Lone::new()?;
    lone.live_once().await?;
    let identity = lone.node.data().join("identity");
    let written = fs::read(&identity)?;
    fs::write(&identity, with_next_version(&written))?;
    lone.refused(&["identity", "version 2", "newer version of the program"]).await?;
    fs::write(&identity, &written)?;
    lone.node.start()?;
    let client = Client::new([&lone.node.url])?;
    let history = wait_until("the node is back", LONG, async || {
        Ok(client.history(&work::id("order-1")?, 1, 10, Default::default()).await?.value)
    })
    .await?;
    ensure!(history.len() == 2, "{history:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_piece_of_the_log_is_refused() -> Result<()> {
    let _turn = turn::one().await?;
    let lone = Lone::new()?;
    lone.live_once().await?;
    let mut log =
        disk::files(&lone.node.data())?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "log"));
    let segment = log.next_back().context("a segment")?;
    let aside = lone.folder.path().join("aside");
    fs::rename(&segment, &aside)?;
    lone.refused(&["peers", "Nothing on disk was changed"]).await?;
    fs::rename(&aside, &segment)?;

    // The vote, which is what a node must never forget.
    let vote = segment.with_file_name("vote");
    fs::rename(&vote, &aside)?;
    lone.refused(&["vote", "Nothing on disk was changed"]).await?;
    fs::rename(&aside, &vote)?;
    lone.node.start()?;
    let client = Client::new([&lone.node.url])?;
    wait_until("the node is back", LONG, async || client.cluster().await.map(drop).map_err(Into::into)).await?;
    Ok(())
}
