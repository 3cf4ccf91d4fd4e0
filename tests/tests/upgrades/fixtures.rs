//! Data directories of every released version, kept in `tests/fixtures/data-*`: a node's data as it was after a stop in good
//! order, a backup of it, and what is in them. `scripts/keep-fixture.sh` makes one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{
    Arming, EventKind, Machine, Millis, NamespaceSettings, NewEvent, NodeName, Payload, RowStatus, STATE_VERSION,
};
use holdfast_raft::verify_backup;
use holdfast_storage::{Expected, Storage};
use holdfast_tests::ports::free_port;
use holdfast_tests::process::NodeProcess;
use holdfast_tests::program::Program;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::{check, turn, work};
use serde::{Deserialize, Serialize};

const CLUSTER: &str = "fixture";
const NODE: &str = "node-a";
/// What to do while the version that a fixture is of has not been released.
const REFRESH: &str = "if no released version has written this format, scripts/keep-fixture.sh makes the fixture anew";
/// Workflows of a fixture; every second one has ended.
const WORKFLOWS: u64 = 40;

/// What a fixture has to hold.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    /// The last applied log index.
    applied: u64,
    /// The state hash with it, in hex.
    state_hash: String,
    /// The same of the backup.
    backup_index: u64,
    backup_hash: String,
    /// Number of events by workflow.
    histories: BTreeMap<String, u64>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn tar(arguments: &[&str], folder: &Path) -> Result<()> {
    let done = Command::new("tar").args(arguments).current_dir(folder).status().context("tar does not start")?;
    ensure!(done.success(), "tar {arguments:?}: {done}");
    Ok(())
}

/// A node of its own in this folder, with its data in `data`.
fn node(folder: &Path) -> Result<NodeProcess> {
    let http = free_port()?;
    let settings = [
        ("HOLDFAST_NODE_NAME", NODE.to_owned()),
        ("HOLDFAST_CLUSTER_ID", CLUSTER.to_owned()),
        ("HOLDFAST_HTTP_LISTEN", format!("127.0.0.1:{http}")),
        ("HOLDFAST_PEER_LISTEN", format!("127.0.0.1:{}", free_port()?)),
        ("HOLDFAST_RAFT_SNAPSHOT_AFTER", "60".to_owned()),
        ("HOLDFAST_RAFT_LOGS_KEPT", "20".to_owned()),
        ("HOLDFAST_SHARD_COUNT", "4".to_owned()),
    ];
    let environment = settings.map(|(key, value)| (key.to_owned(), value)).into();
    NodeProcess::new(NodeName::new(NODE)?, http, folder.to_path_buf(), Program::Holdfast, environment)
}

/// Index and hash of a stopped node's state.
fn state_of(data: &Path) -> Result<(u64, String)> {
    let expected = Expected { cluster: CLUSTER.to_owned(), name: NODE.to_owned() };
    let mut options = holdfast_storage::Options::default();
    options.state.machine_version = STATE_VERSION.into();
    let storage = Storage::open(data, &expected, &options)?;
    let machine = Machine::load(&*Arc::clone(&storage.state))?;
    let applied = storage.state.applied().context("nothing is applied")?;
    ensure!(storage.log.last() == Some(applied), "the log ends at {:?}, the state at {applied}", storage.log.last());
    ensure!(storage.snapshots.newest()?.is_some(), "no snapshot was taken: the fixture is too small");
    Ok((applied.index, format!("{:016x}", machine.state_hash())))
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_every_version_opens_as_it_was_left_and_goes_on() -> Result<()> {
    let mut found = 0;
    for entry in fs::read_dir(fixtures())? {
        let kept = entry?.path();
        if !kept.is_dir() {
            continue;
        }
        found += 1;
        opens(&kept)
            .await
            .with_context(|| format!("{}: docs/upgrades.md says what this means; {REFRESH}", kept.display()))?;
    }
    ensure!(found > 0, "there is no fixture in {}", fixtures().display());
    Ok(())
}

async fn opens(kept: &Path) -> Result<()> {
    let _turn = turn::one().await?;
    let contents: Contents = serde_json::from_slice(&fs::read(kept.join("contents.json"))?)?;
    let folder = tempfile::tempdir()?;
    let archive = kept.join("data.tar.gz");
    tar(&["-xzf", archive.to_str().context("a path of text")?], folder.path())?;
    let data = folder.path().join("data");
    ensure!(state_of(&data)? == (contents.applied, contents.state_hash.clone()), "another state than was left");

    let backup = verify_backup(&kept.join("backup"))?;
    let found = (backup.applied.index, format!("{:016x}", backup.state_hash));
    ensure!(found == (contents.backup_index, contents.backup_hash.clone()), "another backup: {found:?}");

    let node = node(folder.path())?;
    node.start()?;
    let client = Client::new([&node.url])?;
    wait_until("the node serves", LONG, async || {
        for (id, events) in &contents.histories {
            let history = check::workflow(&client, &work::id(id)?).await?;
            ensure!(history.len() as u64 == *events, "{id} has {} events, not {events}", history.len());
        }
        Ok(())
    })
    .await?;
    for delivery in work::claim(&client, "left", (WORKFLOWS / 2) as usize, "a worker of today").await? {
        work::complete(&client, &delivery, "done today").await?;
    }
    let id = work::id("of-today")?;
    work::open(&client, &id, 1, "work", "today").await?;
    ensure!(node.stop(LONG).await?.success(), "a stop in good order");
    let (applied, _) = state_of(&data)?;
    ensure!(applied > contents.applied, "nothing was written");
    Ok(())
}

/// Makes a fixture of this version in the folder that `HOLDFAST_KEEP_FIXTURE` names.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a fixture: scripts/keep-fixture.sh"]
async fn keep() -> Result<()> {
    let kept = PathBuf::from(std::env::var_os("HOLDFAST_KEEP_FIXTURE").context("HOLDFAST_KEEP_FIXTURE is not set")?);
    let folder = tempfile::tempdir()?;
    let node = node(folder.path())?;
    node.start()?;
    let client = Client::new([&node.url])?;
    let namespace = "tenant".parse()?;
    wait_until("the node takes a write", LONG, async || {
        let settings = NamespaceSettings { claimed_max: Some(1_000), ..NamespaceSettings::default() };
        client.put_namespace(&namespace, &settings, Write::default()).await?;
        Ok(())
    })
    .await?;
    write(&client).await?;
    fs::create_dir_all(&kept)?;
    let backup = kept.join("backup");
    let path = backup.to_str().context("a path of text")?;
    node.succeeds(&["backup", "--url", &node.url, "--to", path])?;
    let histories = histories(&client).await?;
    ensure!(node.stop(LONG).await?.success(), "a stop in good order");

    let (applied, state_hash) = state_of(&node.data())?;
    let archive = kept.join("data.tar.gz");
    tar(&["-czf", archive.to_str().context("a path of text")?, "data"], folder.path())?;
    let report = verify_backup(&backup)?;
    let (backup_index, backup_hash) = (report.applied.index, format!("{:016x}", report.state_hash));
    let contents = Contents { applied, state_hash, backup_index, backup_hash, histories };
    fs::write(kept.join("contents.json"), serde_json::to_string_pretty(&contents)? + "\n")?;
    Ok(())
}

async fn write(client: &Client) -> Result<()> {
    for number in 0..WORKFLOWS {
        let id = work::id(&format!("order-{number:02}"))?;
        let rows = vec![work::row(1, "work", "done")?, work::row(2, "work", "left")?];
        client.commit(work::opening(&id, rows)?, Write::default()).await?;
        let delivery = work::claim(client, "done", 1, "a worker of then").await?.remove(0);
        work::complete(client, &delivery, "done then").await?;
        let status = work::status(client, &work::key(&id, 1)).await?;
        ensure!(status == RowStatus::Done, "{status:?}");
        if number % 2 == 0 {
            let head = client.workflow(&id, ReadMode::Linearizable).await?.value.workflow.context("no workflow")?.head;
            let ended = NewEvent::of(EventKind::WorkflowCompleted);
            client.append(&id, head, vec![ended.with(Payload::text("over"))], Write::default()).await?;
        } else {
            let arming = Arming { timer: "reminder".parse()?, fire_at: Millis(u64::MAX), armed_seq: 1 };
            client.schedule_timer(&id, arming, Write::default()).await?;
        }
    }
    Ok(())
}

async fn histories(client: &Client) -> Result<BTreeMap<String, u64>> {
    let mut histories = BTreeMap::new();
    for number in 0..WORKFLOWS {
        let id = work::id(&format!("order-{number:02}"))?;
        histories.insert(id.to_string(), check::workflow(client, &id).await?.len() as u64);
    }
    Ok(histories)
}
