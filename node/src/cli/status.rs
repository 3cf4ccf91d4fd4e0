//! `holdfast status`: the cluster as one node sees it, for people or as JSON.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use holdfast_client::{ClusterView, Directory, DiskSpace, MemberView, ReadMode, Replacement, ReplacementStage};
use holdfast_machine::{Evidence, Liveness, NodeName};
use serde::Serialize;

use super::block_on;
use super::nodes::Nodes;

/// For one node to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Which node is asked, and how it is shown.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    nodes: Nodes,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Status {
    cluster: ClusterView,
    directory: Directory,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let status = block_on(ask(&args.nodes)).with_context(|| format!("no status from {}", args.nodes))?;
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&status)?)?;
    } else {
        write!(stdout(), "{}", shown(&status))?;
    }
    Ok(())
}

async fn ask(nodes: &Nodes) -> anyhow::Result<Status> {
    let client = nodes.client(PATIENCE)?;
    let cluster = client.cluster().await?.value;
    // As the node itself has it, so that there is an answer without a quorum too.
    let directory = client.shards(ReadMode::Stale).await?.value;
    Ok(Status { cluster, directory })
}

fn shown(status: &Status) -> String {
    let Status { cluster, directory } = status;
    let leader = cluster.leader.as_ref().map_or("no leader", NodeName::as_str);
    let unowned = directory.shard_count as usize - directory.shards.len().min(directory.shard_count as usize);
    let rows = cluster.rows;
    let mut text = format!(
        "as {} sees it: leader {leader}, term {}, applied {} of {} committed\n\
         rows: {} pending, {} claimed; shards: {}, {unowned} without an owner\n\n",
        cluster.node,
        cluster.term,
        cluster.applied,
        cluster.committed,
        rows.pending,
        rows.claimed,
        directory.shard_count,
    );
    text.push_str(&members(cluster, directory).to_string());
    text.push('\n');
    for replacement in &cluster.replacements {
        text.push_str(&shown_replacement(replacement, cluster.last));
    }
    if let Some(reason) = &cluster.outside {
        text.push_str(&format!("\n{} takes no part: {reason}\n", cluster.node));
    }
    text
}

fn shown_replacement(replacement: &Replacement, last: u64) -> String {
    let Replacement { name, old_id, new_id, stage, matched, .. } = replacement;
    let new = new_id.map_or_else(|| "another id".to_owned(), |id| format!("id {id}"));
    match (stage, matched) {
        (ReplacementStage::Waiting, _) => format!(
            "\n{name} came back without its data and waits; it votes nowhere. Put its data directory back, or run\n\
             `holdfast member replace {name}`\n"
        ),
        (ReplacementStage::CatchingUp, Some(matched)) => {
            format!(
                "\n{name} is being replaced: {new} has {matched} of {last} log entries, and then the vote of id {old_id}\n"
            )
        }
        (ReplacementStage::CatchingUp, None) => {
            format!("\n{name} is being replaced: {new} receives the data, and then the vote of id {old_id}\n")
        }
        (ReplacementStage::TakingOver, _) => {
            format!("\n{name} is being replaced: {new} takes over the vote of id {old_id}\n")
        }
    }
}

fn members(cluster: &ClusterView, directory: &Directory) -> Table {
    let mut owned: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for entry in &directory.shards {
        *owned.entry(&entry.owner).or_insert(0) += 1;
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["node", "id", "state", "role", "shards", "disk", "connected", "peers at"]);
    for view in &cluster.members {
        let name = &view.member.name;
        let leads = cluster.leader.as_ref() == Some(name);
        table.add_row([
            name.to_string(),
            view.member.id.to_string(),
            state(view).to_owned(),
            role(view, leads).to_owned(),
            owned.get(name).copied().unwrap_or(0).to_string(),
            disk(view).to_owned(),
            link(view),
            view.member.peer_addr.clone(),
        ]);
    }
    for column in [1, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn role(view: &MemberView, leads: bool) -> &'static str {
    match view.member.liveness {
        _ if leads => "leader",
        Liveness::Up => "follower",
        _ => "-",
    }
}

fn link(view: &MemberView) -> String {
    match (view.connected, &view.link_problem) {
        (None, _) => "-".to_owned(),
        (Some(true), _) => "yes".to_owned(),
        (Some(false), None) => "no".to_owned(),
        (Some(false), Some(problem)) => format!("no: {problem}"),
    }
}

fn disk(view: &MemberView) -> &'static str {
    match view.disk {
        None => "-",
        Some(DiskSpace::Plenty) => "ok",
        Some(DiskSpace::Low) => "low",
        Some(DiskSpace::Out) => "full",
    }
}

fn state(view: &MemberView) -> &'static str {
    match view.member.liveness {
        Liveness::Joining => "never seen",
        Liveness::Up if view.boot.is_none() => "starting",
        Liveness::Up => "up",
        Liveness::Down { evidence: Evidence::LinkClosed } => "down (link closed)",
        Liveness::Down { evidence: Evidence::Silent } => "down (silent)",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{BootId, Epoch, Member, Millis, RowCounts, ShardEntry, ShardId};

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn member(id: u64, text: &str, liveness: Liveness) -> MemberView {
        let member =
            Member { id, name: name(text), peer_addr: format!("{text}:7700"), http_addr: String::new(), liveness };
        let (boot, since) = (BootId::new("b").ok(), Millis(0));
        let connected = (id > 1).then_some(liveness == Liveness::Up);
        let link_problem = (connected == Some(false)).then(|| "connection refused".to_owned());
        MemberView {
            member,
            boot,
            since,
            connected,
            link_problem,
            matched: None,
            disk: (id > 1).then_some(DiskSpace::Low),
        }
    }

    #[test]
    fn a_cluster_is_shown_on_a_screen() {
        let down = Liveness::Down { evidence: Evidence::LinkClosed };
        let cluster = ClusterView {
            node: name("node-a"),
            leader: Some(name("node-a")),
            term: 3,
            last: 12,
            committed: 12,
            applied: 11,
            state_hash: "00".to_owned(),
            now: Millis(5),
            shard_count: 4,
            rows: RowCounts { pending: 7, claimed: 2 },
            members: vec![member(1, "node-a", Liveness::Up), member(2, "node-b", down)],
            replacements: vec![Replacement {
                name: name("node-b"),
                old_id: 2,
                new_id: Some(3),
                stage: ReplacementStage::CatchingUp,
                matched: Some(5),
                others: Vec::new(),
            }],
            outside: None,
        };
        let entry =
            ShardEntry { shard: ShardId(1), owner: name("node-a"), epoch: Epoch(1), since: Millis(0), previous: None };
        let text = shown(&Status { cluster, directory: Directory { shard_count: 4, shards: vec![entry] } });
        for part in [
            "leader node-a, term 3, applied 11 of 12 committed",
            "7 pending, 2 claimed; shards: 4, 3 without an owner",
            "down (link closed)",
            "no: connection refused",
            "low",
            "node-b:7700",
            "node-b is being replaced: id 3 has 5 of 12 log entries, and then the vote of id 2",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
