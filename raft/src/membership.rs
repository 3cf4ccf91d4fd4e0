//! Keeps the committed membership true to what is seen: who is up, who is down, with which data directory.
//!
//! Only the leader writes, one change at a time, each guarded by the log id of the membership that it was
//! made from. A change touches node records only, never the voters, so a dead node does not shrink the
//! quorum. What is to be done is worked out anew from the present state each time, so nothing is lost when
//! a leader dies over it: the next one comes to the same conclusion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::Liveness;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::{ChangeMembers, Precondition};
use tokio::sync::watch;

use crate::detector::Verdict;
use crate::options::MemberConfig;
use crate::peers::{Links, Verdicts};
use crate::transport::handshake::Registry;
use crate::types::{Core, Membership, PeerNode, StoredMembership, TypeConfig};

/// How long one change may take before the situation is looked at anew.
const CHANGE_LIMIT: Duration = Duration::from_millis(1_000);
/// Pause after a change that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// A node waits this long for others of lower rank to form the cluster first, times its rank.
const FORMATION_STEP: Duration = Duration::from_millis(300);

/// The first membership: all configured members, none seen yet. The same on every node.
pub(crate) fn first_members(members: &[MemberConfig]) -> BTreeMap<u64, PeerNode> {
    let node = |member: &MemberConfig| PeerNode {
        name: member.name.clone(),
        peer_addr: member.peer_addr.clone(),
        http_addr: member.http_addr.clone(),
        liveness: Liveness::Joining,
        incarnation: None,
    };
    members.iter().map(|member| (member.id, node(member))).collect()
}

/// Forms the cluster if this node has no log yet. Every node may do it, with the same outcome; they take
/// turns only so that they do not campaign against each other.
pub(crate) async fn form(core: Core, members: Vec<MemberConfig>, node: u64) {
    let rank = members.iter().filter(|member| member.id < node).count() as u32;
    let pause = FORMATION_STEP * rank;
    tokio::time::sleep(pause).await;
    match core.is_initialized().await {
        Ok(false) => {}
        Ok(true) | Err(_) => return,
    }
    if let Err(error) = core.initialize(first_members(&members)).await {
        // A leader may have been faster.
        tracing::debug!(%error, "the cluster was formed by others");
    }
}

/// The task that keeps the membership.
pub(crate) struct Keeper {
    pub core: Core,
    pub node: u64,
    pub links: Links,
    pub registry: Registry,
    pub configured: Vec<MemberConfig>,
    pub verdicts: watch::Receiver<Verdicts>,
}

impl Keeper {
    /// Runs until the node stops.
    pub async fn run(mut self) {
        let mut metrics = self.core.server_metrics();
        loop {
            let pause = match self.reconcile().await {
                Ok(()) => Duration::from_secs(3_600),
                Err(error) => {
                    tracing::debug!(error, "a membership change did not get through");
                    RETRY_PAUSE
                }
            };
            tokio::select! {
                changed = self.verdicts.changed() => if changed.is_err() { return },
                changed = metrics.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn reconcile(&self) -> Result<(), String> {
        // The same watch that woke this task: openraft publishes its larger sibling a moment later.
        let metrics: RaftServerMetrics<TypeConfig> = self.core.server_metrics().borrow_watched().clone();
        let effective = metrics.membership_config;
        let settled = effective.log_id() == metrics.committed_membership_config.log_id();
        if !metrics.state.is_leader() || !settled {
            // A change of either is a change of the metrics.
            return Ok(());
        }
        if effective.get_joint_config().len() > 1 {
            tracing::warn!("finishing a change of voters that was left half done");
            return self.change(&effective, ChangeMembers::AddVoterIds(Default::default())).await;
        }
        let seen = self.verdicts.borrow().clone();
        let changes = self.changes(effective.membership(), &seen);
        if changes.is_empty() {
            return Ok(());
        }
        if !self.quorum_in_sight(&effective, &seen) {
            // An entry made now would be committed only later, when it may be wrong.
            return Err("no quorum in sight".to_owned());
        }
        self.change(&effective, ChangeMembers::SetNodes(changes)).await
    }

    async fn change(&self, from: &Arc<StoredMembership>, change: ChangeMembers<u64, PeerNode>) -> Result<(), String> {
        tracing::info!(%change, "membership");
        let guard = Precondition::LastMembershipLogId { last_membership_log_id: *from.log_id() };
        let change = self.core.change_membership_if(change, true, [guard]);
        match tokio::time::timeout(CHANGE_LIMIT, change).await {
            Err(_) => Err("no quorum".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// True if a majority of the voters can be talked to.
    fn quorum_in_sight(&self, membership: &StoredMembership, seen: &Verdicts) -> bool {
        let voters: Vec<u64> = membership.voter_ids().collect();
        let in_sight = |id: &&u64| {
            let alive = !matches!(seen.get(id), Some(Verdict::Down(_)));
            let linked = || self.links.get(**id).is_some_and(|link| link.state().borrow().is_connected());
            **id == self.node || (alive && linked())
        };
        voters.iter().filter(in_sight).count() * 2 > voters.len()
    }

    /// The records that are to be other than they are.
    fn changes(&self, membership: &Membership, seen: &Verdicts) -> BTreeMap<u64, PeerNode> {
        let wanted = |(id, node): (&u64, &PeerNode)| {
            let configured = self.configured.iter().find(|member| member.id == *id);
            let wanted = if *id == self.node {
                own_record(node, self.registry.incarnation)
            } else {
                let found = self.registry.incarnation_of(*id);
                peer_record(node, seen.get(id).copied(), found)
            };
            let wanted = with_addresses(wanted, configured);
            (wanted != *node).then_some((*id, wanted))
        };
        membership.nodes().filter_map(wanted).collect()
    }
}

/// A leader is up, whatever was committed about it before.
fn own_record(node: &PeerNode, incarnation: u128) -> PeerNode {
    let incarnation = node.incarnation.or(Some(incarnation));
    PeerNode { liveness: Liveness::Up, incarnation, ..node.clone() }
}

fn peer_record(node: &PeerNode, verdict: Option<Verdict>, found: Option<u128>) -> PeerNode {
    let mut wanted = node.clone();
    match (verdict, node.liveness) {
        (Some(Verdict::Up), _) => {
            wanted.liveness = Liveness::Up;
            wanted.incarnation = node.incarnation.or(found);
        }
        (Some(Verdict::Down(evidence)), Liveness::Up) => {
            wanted.liveness = Liveness::Down { evidence };
        }
        // One that was never seen cannot be missed, and one that is down stays as it went down.
        (Some(Verdict::Down(_)), Liveness::Joining | Liveness::Down { .. }) | (None, _) => {}
    }
    wanted
}

fn with_addresses(mut node: PeerNode, configured: Option<&MemberConfig>) -> PeerNode {
    if let Some(member) = configured {
        node.peer_addr.clone_from(&member.peer_addr);
        node.http_addr.clone_from(&member.http_addr);
    }
    node
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Evidence, NodeName};

    use super::*;

    fn node(liveness: Liveness, incarnation: Option<u128>) -> PeerNode {
        PeerNode {
            name: NodeName::new("node-b").unwrap(),
            peer_addr: "b:1".to_owned(),
            http_addr: String::new(),
            liveness,
            incarnation,
        }
    }

    #[test]
    fn records_follow_verdicts() {
        let down = Verdict::Down(Evidence::LinkClosed);
        let dead = Liveness::Down { evidence: Evidence::LinkClosed };
        let cases = [
            (Liveness::Joining, None, Liveness::Joining),
            (Liveness::Joining, Some(down), Liveness::Joining),
            (Liveness::Joining, Some(Verdict::Up), Liveness::Up),
            (Liveness::Up, None, Liveness::Up),
            (Liveness::Up, Some(down), dead),
            (dead, Some(Verdict::Down(Evidence::Silent)), dead),
            (dead, Some(Verdict::Up), Liveness::Up),
        ];
        for (before, verdict, after) in cases {
            assert_eq!(peer_record(&node(before, None), verdict, None).liveness, after);
        }
    }

    #[test]
    fn the_first_data_directory_stays() {
        let up = Some(Verdict::Up);
        assert_eq!(peer_record(&node(Liveness::Up, None), up, Some(7)).incarnation, Some(7));
        assert_eq!(peer_record(&node(Liveness::Up, Some(6)), up, Some(7)).incarnation, Some(6));
        assert_eq!(peer_record(&node(Liveness::Joining, None), None, Some(7)).incarnation, None);
        assert_eq!(own_record(&node(Liveness::Joining, None), 5).incarnation, Some(5));
        assert_eq!(own_record(&node(Liveness::Up, Some(6)), 5).incarnation, Some(6));
    }
}
