//! Faults that take more than one call, and what mends them, for all stories that draw theirs.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use holdfast_machine::{NodeName, ShardId};
use serde_json::Value;

use crate::cluster::{Cluster, SHARDS};
use crate::process::NodeProcess;
use crate::program::Program;
use crate::wait::{LONG, wait_until};

impl Cluster {
    /// Starts all nodes that do not run.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start_all(&self) -> Result<()> {
        self.nodes.iter().filter(|node| !node.is_running()).try_for_each(|node| node.start())
    }

    /// Waits until a node takes traffic.
    ///
    /// # Errors
    /// When it never does, with what it says.
    pub async fn ready(&self, node: &NodeProcess) -> Result<()> {
        wait_until(&format!("{} is ready", node.name), LONG, async || {
            let ready = self.http().get(format!("{}/readyz", node.url)).send().await?;
            ensure!(ready.status().is_success(), "{}", ready.text().await?);
            Ok(())
        })
        .await
    }

    /// Kills a node that owns shards, and then the one that has just taken one of them over. A node that has been away owns
    /// nothing until shards are moved to it; then it is one that has some. Gives the two.
    ///
    /// # Errors
    /// When nobody takes over.
    pub async fn kill_with_adopter(&self, node: usize) -> Result<[usize; 2]> {
        let directory = wait_until("all shards have an owner", LONG, async || {
            let directory = self.directory(node).await?;
            ensure!(directory.len() == SHARDS as usize, "{} have", directory.len());
            Ok(directory)
        })
        .await?;
        let name = &self.nodes[node].name;
        let owns = |owner: &NodeName| directory.values().any(|entry| entry.owner == *owner);
        let owner =
            if owns(name) { name } else { directory.values().next().map(|entry| &entry.owner).context("12")? };
        let orphans: BTreeSet<ShardId> =
            directory.values().filter(|entry| entry.owner == *owner).map(|entry| entry.shard).collect();
        let victim = self.place(owner)?;
        self.nodes[victim].kill()?;
        let adopter = wait_until("a shard is adopted", LONG, async || {
            for survivor in self.running() {
                let directory = self.directory(survivor).await?;
                let adopted = |shard| directory.get(shard).filter(|entry| entry.owner != *owner);
                if let Some(entry) = orphans.iter().find_map(adopted) {
                    return self.place(&entry.owner);
                }
            }
            Err(anyhow!("the {} of {owner} are orphans", orphans.len()))
        })
        .await?;
        self.nodes[adopter].kill()?;
        Ok([victim, adopter])
    }

    /// Runs `holdfast member replace` for a node against another one; gives its exit code and what it says in JSON.
    ///
    /// # Errors
    /// When it says something else.
    pub async fn member_replace(&self, of: usize, asked: usize, flags: &[&str]) -> Result<(Option<i32>, Value)> {
        let mut command = Command::new(Program::Holdfast.path()?);
        command.args(["member", "replace", self.nodes[of].name.as_str(), "--url", &self.nodes[asked].url, "--json"]);
        command.args(flags);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{output:?}: {}", String::from_utf8_lossy(&output.stderr)))?;
        Ok((output.status.code(), said))
    }

    /// Starts a node whose disk was emptied, has it replaced as an operator does, and waits until it takes traffic: it is a
    /// voter then, under a Raft id that it did not have before.
    ///
    /// # Errors
    /// When it is not let in.
    pub async fn come_back_replaced(&self, node: usize) -> Result<()> {
        let asked = (node + 1) % self.nodes.len();
        self.nodes[node].start()?;
        let said = wait_until("a node that lost its disk is replaced", LONG, async || {
            let (code, said) = self.member_replace(node, asked, &[]).await?;
            ensure!(code == Some(0) && said["outcome"] == "replaced", "{code:?} {said}");
            Ok(said)
        })
        .await?;
        self.ready(&self.nodes[node]).await?;
        let under_way = self.view(node).await?.replacements;
        let is_own = under_way.iter().any(|one| one.name == self.nodes[node].name);
        ensure!(!is_own, "it takes traffic before it has the vote: {under_way:?}");
        let (old, new) = (&said["replacement"]["old_id"], &said["replacement"]["new_id"]);
        ensure!(new.as_u64() > old.as_u64(), "{said}");
        let members = self.view(asked).await?.members;
        let member =
            members.iter().find(|view| view.member.name == self.nodes[node].name).context("it is no member")?;
        ensure!(Some(member.member.id) == new.as_u64(), "{member:?}, and {said}");
        Ok(())
    }
}
