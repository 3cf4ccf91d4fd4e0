//! Follows a replacement to its end, through whichever nodes answer.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures::future::join_all;
use holdfast_client::{Answer, Client, ClientError, ClusterView, Replacement, ReplacementStage};
use tokio::time::sleep;

use crate::cli::nodes::Nodes;

/// For one node to answer one look.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Where no node has answered for this long, nothing more is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// What has not changed for this long is said again.
const REMINDER: Duration = Duration::from_secs(30);

type Look = Result<Answer<ClusterView>, ClientError>;

/// How far a replacement is, as one node sees it.
enum Progress {
    /// It has ended, with this Raft id in the place of the old one.
    Done(u64),
    At(Replacement),
    Unknown,
}

/// Waits for the end of a replacement, and says what changes. Gives where it was last, and whether that is the end.
pub(super) async fn follow(
    nodes: &Nodes,
    begun: Replacement,
    limit: Duration,
    say: impl Fn(&str),
) -> anyhow::Result<(Replacement, bool)> {
    let clients = nodes.clients(LOOK_PATIENCE)?;
    let deadline = Instant::now() + limit;
    let (mut last, mut heard) = (begun, Instant::now());
    let mut said = (String::new(), Instant::now());
    while Instant::now() < deadline {
        let text = match best(join_all(clients.iter().map(Client::cluster)).await) {
            Ok(view) => {
                heard = Instant::now();
                match progress(&view, &last) {
                    Progress::Done(id) => return Ok((Replacement { new_id: Some(id), ..last }, true)),
                    Progress::At(now) => last = now,
                    Progress::Unknown => {}
                }
                step(&last, &view)
            }
            Err(problem) if heard.elapsed() < SILENCE_MAX => format!("no node answers, asking again: {problem}"),
            Err(problem) => bail!(
                "no node has answered for {} s, and how far the replacement is, is not known: {problem}. The cluster goes on \
                 with it by itself. The same command with the `--url` of other nodes follows it again",
                SILENCE_MAX.as_secs()
            ),
        };
        if text != said.0 || said.1.elapsed() > REMINDER {
            say(&text);
            said = (text, Instant::now());
        }
        sleep(LOOK_PAUSE).await;
    }
    Ok((last, false))
}

/// The view of the node that knows most, of those that take part; or why there is none.
fn best(looks: Vec<Look>) -> Result<ClusterView, String> {
    let (mut views, mut problems) = (Vec::new(), Vec::new());
    for look in looks {
        match look.map(|answer| answer.value) {
            Ok(view) => match &view.outside {
                None => views.push(view),
                Some(reason) => problems.push(format!("{} takes no part: {reason}", view.node)),
            },
            Err(error) => problems.push(error.to_string()),
        }
    }
    // A leader that was cut off may still take itself for one, in an older term.
    let knowledge = |view: &ClusterView| (view.leader.is_some(), view.term, view.leader.as_ref() == Some(&view.node));
    views.into_iter().max_by_key(knowledge).ok_or_else(|| problems.join("; "))
}

fn progress(view: &ClusterView, last: &Replacement) -> Progress {
    if let Some(now) = view.replacements.iter().find(|now| now.name == last.name) {
        return Progress::At(now.clone());
    }
    let member = view.members.iter().find(|member| member.member.name == last.name);
    match member {
        // If the data was lost once more meanwhile, it is a later id.
        Some(member) if last.new_id.is_some_and(|new| member.member.id >= new) => Progress::Done(member.member.id),
        _ => Progress::Unknown,
    }
}

fn step(replacement: &Replacement, view: &ClusterView) -> String {
    let reached = view.members.iter().filter(|member| member.connected != Some(false)).count();
    if view.leader.is_none() || reached * 2 <= view.members.len() {
        return format!("{} reaches no leader with a majority; it goes on once there is one", view.node);
    }
    match (replacement.stage, replacement.matched) {
        (ReplacementStage::Waiting, _) => "it waits".to_owned(),
        (ReplacementStage::CatchingUp, Some(matched)) => format!("it has {matched} of {} log entries", view.last),
        (ReplacementStage::CatchingUp, None) => "it receives the data".to_owned(),
        (ReplacementStage::TakingOver, _) => "it takes the vote over".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Millis, NodeName, RowCounts};

    use super::*;

    fn view(node: &str, leader: Option<&str>, term: u64, outside: Option<&str>) -> Look {
        let name = |text: &str| NodeName::new(text).unwrap();
        let value = ClusterView {
            node: name(node),
            leader: leader.map(name),
            term,
            last: 12,
            committed: 12,
            applied: 12,
            state_hash: String::new(),
            now: Millis(0),
            shard_count: 0,
            rows: RowCounts::default(),
            members: Vec::new(),
            replacements: Vec::new(),
            outside: outside.map(str::to_owned),
        };
        Ok(Answer { index: 0, value })
    }

    #[test]
    fn the_node_that_knows_most_is_believed() {
        let gone = || Err(ClientError::Unreachable("connection refused".to_owned()));
        let best_of = |looks| best(looks).map(|view: ClusterView| view.node.to_string());
        let cut_off = || view("node-a", Some("node-a"), 3, None);
        let follows = || view("node-b", Some("node-c"), 4, None);
        let leads = || view("node-c", Some("node-c"), 4, None);
        let votes = || view("node-d", None, 9, None);
        assert_eq!(best_of(vec![gone(), cut_off(), follows(), leads(), votes()]).unwrap(), "node-c");
        assert_eq!(best_of(vec![cut_off(), follows(), votes()]).unwrap(), "node-b");
        assert_eq!(best_of(vec![votes(), gone()]).unwrap(), "node-d");
        let nobody = best_of(vec![gone(), view("node-e", None, 0, Some("it lost its disk"))]).unwrap_err();
        assert!(nobody.contains("connection refused") && nobody.contains("node-e takes no part"), "{nobody}");
    }
}
