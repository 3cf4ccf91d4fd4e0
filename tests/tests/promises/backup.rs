//! A backup is taken while everything goes on, is consistent as of one log index, and shows any damage; a new cluster
//! goes on from it, and nothing of the old one can meddle with that.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use holdfast_checkers::history::Call;
use holdfast_client::{ClientError, ReadMode, Write};
use holdfast_machine::{Payload, Reject};
use holdfast_tests::check::calls;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::load::{self, Load};
use holdfast_tests::process::NodeProcess;
use holdfast_tests::wait::{LONG, wait_until};
use holdfast_tests::work;
use serde_json::Value;

/// Acknowledged writes before the first backup, between the two, and after them.
const WRITES: u64 = 60;

/// Takes a backup from any of the nodes; what the command printed.
fn back_up(cluster: &Cluster, to: &Path) -> Result<Value> {
    let urls: Vec<&str> = cluster.nodes.iter().flat_map(|node| ["--url", node.url.as_str()]).collect();
    let to = to.to_str().context("a path of text")?;
    let printed = cluster.nodes[0].succeeds(&[&["backup", "--json", "--to", to], urls.as_slice()].concat())?;
    Ok(serde_json::from_str(&printed)?)
}

fn verify(node: &NodeProcess, file: &Path) -> Result<Value> {
    let file = file.to_str().context("a path of text")?;
    Ok(serde_json::from_str(&node.succeeds(&["backup", "verify", "--json", file])?)?)
}

/// Makes a node's data from a backup; what it begins with.
fn restore(node: &NodeProcess, file: &Path) -> Result<String> {
    let printed = node.succeeds(&["restore", file.to_str().context("a path of text")?])?;
    let begins = printed.lines().find_map(|line| line.strip_prefix("begins with "));
    Ok(begins.and_then(|line| line.split(';').next()).with_context(|| format!("no base in {printed}"))?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_goes_on_from_a_backup_that_was_taken_under_load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, later) = (folder.path().join("first.backup"), folder.path().join("later.backup"));
    let old = Setup::plain().set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 150).start().await?;
    let any = old.any()?;
    // Somebody holds a row when the backup is taken, and will be back.
    let held = work::id("held")?;
    work::open(&any, &held, 1, "work", "held").await?;
    let delivery = work::claim(&any, "held", 1, "a worker of the old cluster").await?.remove(0);
    let (fenced, fence) = old.workflow_of(0, "fenced").await?;
    work::open(&any, &fenced, 0, "work", "fenced").await?;

    let urls: Vec<&str> = old.nodes.iter().map(|node| node.url.as_str()).collect();
    let load = Load::start(&urls, 3)?;
    load.goes_on(WRITES).await?;
    let (written, acknowledged) = (load.written(), load.calls());
    let taken = back_up(&old, &file)?;
    ensure!(taken["cluster"] == "test" && taken["index"].as_u64() > Some(0), "{taken}");
    let under_way = load.written() - written;
    load.goes_on(WRITES).await?;
    let second = back_up(&old, &later)?;
    ensure!(second["index"].as_u64() > taken["index"].as_u64(), "{taken} and then {second}");
    load.stop(&any).await?;
    println!("{written} writes acknowledged before, {under_way} while the backup was taken: {taken}");
    ensure!(under_way > 0, "nothing was written while the backup was taken, so nothing was tried");
    let checked = verify(&old.nodes[0], &file)?;
    ensure!(checked == taken, "{checked} instead of {taken}");
    old.finish().await?;

    let new = Setup::plain().set("HOLDFAST_CLUSTER_ID", "restored").prepare().await?;
    let bases = [restore(&new.nodes[0], &file)?, restore(&new.nodes[1], &file)?, restore(&new.nodes[2], &later)?];
    ensure!(bases[0] == bases[1] && bases[0] != bases[2], "{bases:?}");
    let again = new.nodes[0].fails(&["restore", file.to_str().context("a path of text")?])?;
    ensure!(again.contains("holds the data of node `node-a` of cluster `restored`"), "{again}");
    for node in &new.nodes {
        node.start()?;
    }
    refused_for_its_base(&new, 2).await?;
    ensure!(new.nodes[2].stop(LONG).await?.success(), "a stop in good order");
    new.nodes[2].wipe()?;
    ensure!(restore(&new.nodes[2], &file)? == bases[0], "the third node begins with something else");
    new.nodes[2].start()?;
    new.whole().await?;

    nothing_is_lost(&new, &acknowledged, taken["index"].as_u64().context("an index")?).await?;
    let client = new.any()?;
    let late = client.complete(&delivery.key, Some(delivery.token), Payload::text("late"), Write::default()).await;
    let refused = matches!(&late, Err(ClientError::Reject(Reject::ClaimLost { .. })));
    ensure!(refused, "an old claim token was taken: {late:?}");
    let old_fence = Write { fence: Some(fence), ..Write::default() };
    let late = client.append(&fenced, 1, vec![work::note("late")], old_fence).await;
    ensure!(matches!(&late, Err(ClientError::Reject(Reject::NotOwner { .. }))), "an old fence was taken: {late:?}");
    let delivery = work::claim(&client, "held", 1, "a worker of the new cluster").await?.remove(0);
    work::complete(&client, &delivery, "done").await?;
    load::drain(&client, &calls::workflows(&acknowledged)).await?;
    let view = client.workflow(&fenced, ReadMode::Linearizable).await?.value;
    let own = Write { fence: view.fence, ..Write::default() };
    client.append(&fenced, 1, vec![work::note("under the new owner")], own).await?;
    new.finish().await
}

/// Waits until node 0 says that it does not talk to `other`, which began with something else.
async fn refused_for_its_base(cluster: &Cluster, other: usize) -> Result<()> {
    wait_until("the node from another backup is refused", LONG, async || {
        let members = cluster.view(0).await?.members;
        let member = members.iter().find(|member| member.member.name == cluster.nodes[other].name);
        let problem = member.and_then(|member| member.link_problem.clone()).context("no problem")?;
        // It may be either of the two that is the wrong one.
        ensure!(problem.contains("were not restored from the same backup"), "{problem}");
        Ok(())
    })
    .await
}

/// Every write that was acknowledged before the backup was asked for is there, and log and time have gone on.
async fn nothing_is_lost(cluster: &Cluster, acknowledged: &[Call], index: u64) -> Result<()> {
    let events = calls::are_there(&cluster.any()?, acknowledged).await?;
    println!("of the restored cluster: {events} events were acknowledged before");
    ensure!(events as u64 >= WRITES, "{events} events");
    let view = cluster.view(0).await?;
    ensure!(view.applied > index, "log index {} after a backup at {index}", view.applied);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_backup_is_refused_with_its_place_and_nothing_is_made_of_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = Setup::plain().start().await?;
    let any = cluster.any()?;
    for number in 0..20 {
        work::open(&any, &work::id(&format!("order-{number}"))?, 2, "work", "default").await?;
    }
    let taken = back_up(&cluster, folder.path())?;
    let file = Path::new(taken["file"].as_str().context("a file")?).to_path_buf();
    ensure!(file.starts_with(folder.path()), "{taken}");
    ensure!(fs::read_dir(folder.path())?.count() == 1, "something is left besides the backup");
    let node = &cluster.nodes[0];
    let path = file.to_str().context("a path of text")?;
    let elsewhere = folder.path().join("never-made");
    let never_made = elsewhere.to_str().context("a path of text")?;

    let again = node.fails(&["backup", "--url", &node.url, "--to", path])?;
    ensure!(again.contains("is there already"), "{again}");
    let bytes = fs::read(&file)?;
    let refused = |what: &str| -> Result<()> {
        let said = node.fails(&["backup", "verify", path])?;
        ensure!(said.contains("is damaged at byte") && said.contains("another backup"), "{what}: {said}");
        let said = node.fails(&["restore", path, "--cluster-id", "new", "--data-dir", never_made])?;
        ensure!(said.contains("is damaged at byte"), "{what}: {said}");
        ensure!(!elsewhere.exists(), "{what}: a directory was made");
        Ok(())
    };
    for place in [2, 12, 40, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        fs::write(&file, damaged)?;
        refused(&format!("byte {place} is another"))?;
    }
    for length in [0, 5, 30, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&file, &bytes[..length])?;
        refused(&format!("cut after {length} bytes"))?;
    }
    fs::write(&file, [bytes.as_slice(), &[0]].concat())?;
    refused("one byte more")?;

    fs::write(&file, &bytes)?;
    ensure!(verify(node, &file)? == taken, "the file is as it was");
    let said = node.fails(&["restore", path, "--data-dir", never_made])?;
    ensure!(said.contains("A restored cluster needs a name of its own"), "{said}");
    ensure!(!elsewhere.exists(), "a directory was made");
    cluster.finish().await
}
