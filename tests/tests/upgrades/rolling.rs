//! A cluster is rolled, node by node and under load, from the program of the version before to this one. That program then
//! refuses the data, which has the format of this one, and harms nothing. `HOLDFAST_PREVIOUS_PROGRAM` names it;
//! `scripts/mixed-version.sh` builds it.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use holdfast_tests::check;
use holdfast_tests::cluster::Setup;
use holdfast_tests::load::{self, Load};
use holdfast_tests::wait::LONG;

/// Acknowledged writes between two steps.
const WRITES: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_rolled_from_the_version_before_to_this_one_and_its_data_is_not_for_that_version_any_more()
-> Result<()> {
    let Some(previous) = std::env::var_os("HOLDFAST_PREVIOUS_PROGRAM").map(PathBuf::from) else {
        eprintln!("skipped: no program of the version before; scripts/mixed-version.sh builds it and comes back");
        return Ok(());
    };
    ensure!(previous.exists(), "{} is not there", previous.display());
    let mut cluster = Setup::plain().set("HOLDFAST_RAFT_SNAPSHOT_AFTER", 150).prepare().await?;
    for node in &mut cluster.nodes {
        node.run(Some(previous.clone()));
        node.start()?;
    }
    cluster.whole().await?;
    let urls: Vec<String> = cluster.nodes.iter().map(|node| node.url.clone()).collect();
    let load = Load::start(&urls.iter().map(String::as_str).collect::<Vec<_>>(), 3)?;
    for node in 0..cluster.nodes.len() {
        load.goes_on(WRITES).await?;
        ensure!(cluster.nodes[node].stop(LONG).await?.success(), "a stop in good order");
        cluster.nodes[node].run(None);
        cluster.nodes[node].start()?;
        cluster.whole().await?;
    }
    load.goes_on(WRITES).await?;
    ensure!(cluster.nodes[0].stop(LONG).await?.success(), "a stop in good order");
    cluster.nodes[0].run(Some(previous));
    cluster.nodes[0].start()?;
    ensure!(!cluster.nodes[0].ended(LONG).await?.success(), "the version before opened data of a newer format");
    let words = cluster.nodes[0].log_text();
    ensure!(words.contains("has format version"), "it says something else: {}", cluster.nodes[0].last_words());
    cluster.nodes[0].run(None);
    cluster.nodes[0].start()?;
    cluster.whole().await?;
    load.goes_on(WRITES).await?;
    let client = cluster.any()?;
    let judged = load.stop(&client).await?;
    println!("rolled over three nodes: {:?}", judged.report);
    load::drain(&client, &judged.workflows).await?;
    let clients: Vec<_> = (0..cluster.nodes.len()).map(|node| cluster.client(node).clone()).collect();
    check::state::same_on_all(&clients).await?;
    cluster.finish().await
}
