//! `holdfast member replace`, for those who wait for it: it ends or says why not, whichever nodes die meanwhile.

use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;
use holdfast_tests::wait::{LONG, wait_until};

/// `holdfast member replace` for a node, asking others; what it says on standard error goes into a file.
fn replace(cluster: &Cluster, of: usize, asked: &[usize], words: &Path) -> Result<Child> {
    let mut command = Command::new(Program::Holdfast.path()?);
    command.args(["member", "replace", cluster.nodes[of].name.as_str()]);
    for node in asked {
        command.args(["--url", &cluster.nodes[*node].url]);
    }
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(words)?).spawn()?)
}

/// Waits until a command has said this on standard error.
async fn says(child: &mut Child, words: &Path, wanted: &str) -> Result<()> {
    let child = std::cell::RefCell::new(child);
    wait_until(&format!("it says {wanted:?}"), LONG, async || {
        let said = read_to_string(words)?;
        if said.contains(wanted) {
            return Ok(());
        }
        let ended = child.borrow_mut().try_wait()?;
        ensure!(ended.is_none(), "it has ended, as {ended:?}: {said}");
        anyhow::bail!("so far: {said}")
    })
    .await
}

/// The exit code, and what is on standard output.
async fn end(child: Child) -> Result<(Option<i32>, String)> {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

/// Has the replacement of a node begin and not end: it is killed before it has received anything.
async fn begun(cluster: &Cluster, wiped: usize, asked: usize) -> Result<()> {
    let node = &cluster.nodes[wiped];
    node.kill()?;
    node.wipe()?;
    wait_until("its replacement begins", LONG, async || {
        if !node.is_running() {
            node.start()?;
        }
        let (code, said) = cluster.member_replace(wiped, asked, &["--dry-run"]).await?;
        ensure!(code == Some(0), "{said}");
        node.kill()?;
        // It is remembered for some seconds that it waits.
        let (code, said) = cluster.member_replace(wiped, asked, &["--no-wait"]).await?;
        ensure!(code == Some(0) && said["outcome"] == "begun", "{code:?} {said}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_is_followed_through_whichever_node_answers() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let folder = tempfile::tempdir()?;
    let words = folder.path().join("words");
    let (leader, wiped) = (cluster.leader().await?, cluster.follower().await?);
    let other = 3 - leader - wiped;
    begun(&cluster, wiped, other).await?;

    let mut command = replace(&cluster, wiped, &[leader, other], &words)?;
    says(&mut command, &words, "it receives the data").await?;
    // The one that was asked dies, and leaves one without a majority.
    cluster.nodes[leader].kill()?;
    says(&mut command, &words, "reaches no leader with a majority").await?;
    cluster.nodes[other].kill()?;
    says(&mut command, &words, "no node answers, asking again").await?;
    for node in [other, leader, wiped] {
        cluster.nodes[node].start()?;
    }
    let (code, said) = end(command).await?;
    ensure!(code == Some(0) && said.contains("Raft id 4 in the place of"), "{code:?} {said}");
    cluster.whole().await?;

    // Where nobody answers any more it is not waited for an hour.
    begun(&cluster, wiped, other).await?;
    let mut command = replace(&cluster, wiped, &[leader], &words)?;
    says(&mut command, &words, "it receives the data").await?;
    cluster.nodes[leader].kill()?;
    let (code, _) = end(command).await?;
    let said = read_to_string(&words)?;
    ensure!(code == Some(2) && said.contains("no node has answered for"), "{code:?} {said}");
    ensure!(said.contains(&cluster.nodes[leader].url), "{said}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_cannot_decide_on_a_replacement_says_who_can() -> Result<()> {
    let cluster = Setup::plain().start().await?;
    let folder = tempfile::tempdir()?;
    let words = folder.path().join("words");
    let (leader, wiped) = (cluster.leader().await?, cluster.follower().await?);
    let other = 3 - leader - wiped;
    cluster.nodes[wiped].kill()?;
    cluster.nodes[wiped].wipe()?;
    cluster.nodes[wiped].start()?;
    wait_until("it waits", LONG, async || {
        cluster.view(wiped).await?.outside.context("it does not know yet")?;
        let (code, said) = cluster.member_replace(wiped, other, &["--dry-run"]).await?;
        ensure!(code == Some(0), "{said}");
        Ok(())
    })
    .await?;
    let (code, _) = end(replace(&cluster, wiped, &[wiped], &words)?).await?;
    let said = read_to_string(&words)?;
    ensure!(code == Some(2) && said.contains("cannot have anybody replaced; ask another one"), "{code:?} {said}");

    // One voter with data is left: nobody can decide.
    cluster.nodes[leader].kill()?;
    let (code, _) = end(replace(&cluster, wiped, &[wiped, other], &words)?).await?;
    let said = read_to_string(&words)?;
    ensure!(code == Some(2) && said.contains("ask a node that reaches them"), "{code:?} {said}");

    // With the leader back it is done, and whoever waits is passed over.
    cluster.nodes[leader].start()?;
    wait_until("it can be replaced", LONG, async || {
        let (code, said) = cluster.member_replace(wiped, other, &["--dry-run"]).await?;
        ensure!(code == Some(0), "{said}");
        Ok(())
    })
    .await?;
    let (code, said) = end(replace(&cluster, wiped, &[wiped, leader], &words)?).await?;
    ensure!(code == Some(0), "{code:?} {said}");
    let members = cluster.view(wiped).await?;
    ensure!(members.replacements.is_empty(), "{members:?}");
    cluster.finish().await
}
