//! Keeps the committed membership true to what is seen: who is up, who is down, with which data directory; and brings
//! replacements to their end.
//!
//! Only the leader writes, one change at a time, each guarded by the log id of the membership that it was made from.
//! A death touches node records only, never the voters, so a dead node does not shrink the quorum; voters change only
//! when one is replaced (see [`crate::replacement`]). What is to be done is worked out anew from the present state
//! each time, so nothing is lost when a leader dies over it: the next one comes to the same conclusion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{Liveness, NodeName};
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::{ChangeMembers, Precondition};
use tokio::sync::watch;

use crate::detector::Verdict;
use crate::options::MemberConfig;
use crate::peers::{Links, Verdicts};
use crate::replacement::{ReplaceError, Replacement, ReplacementStage, Situation, Step, change_of, under_way};
use crate::transport::registry::Registry;
use crate::types::{Core, Incarnation, Membership, PeerNode, StoredMembership, TypeConfig};

/// How long one change may take before the situation is looked at anew.
const CHANGE_LIMIT: Duration = Duration::from_millis(1_000);
/// Pause after a change that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at a learner that catches up, or at a node that waits.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How long another change of the members may hold a replacement up.
const BUSY_LIMIT: Duration = Duration::from_millis(1_500);
/// A node waits this long for others of lower rank to form the cluster first, times its rank.
const FORMATION_STEP: Duration = Duration::from_millis(300);

/// What the next look at the membership waits for.
enum Next {
    /// Something has to change first.
    Event,
    /// Nothing tells of what is waited for.
    Look,
}

/// The first membership: all configured members, none seen yet. The same on every node.
pub(crate) fn first_members(members: &[MemberConfig]) -> BTreeMap<u64, PeerNode> {
    let node = |member: &MemberConfig| PeerNode {
        name: member.name.clone(),
        peer_addr: member.peer_addr.clone(),
        http_addr: member.http_addr.clone(),
        liveness: Liveness::Joining,
        incarnation: None,
        replaces: None,
    };
    members.iter().map(|member| (member.id, node(member))).collect()
}

/// Forms the cluster if this node has no log yet. Every node may do it, with the same outcome; they take
/// turns only so that they do not campaign against each other.
pub(crate) async fn form(core: Core, members: Arc<[MemberConfig]>, node: u64) {
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

/// What keeps the membership; cheap to clone.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub core: Core,
    pub node: u64,
    pub links: Links,
    pub registry: Registry,
    pub configured: Arc<[MemberConfig]>,
    /// The leader replaces a member by itself when it comes back without its data.
    pub auto_replace: bool,
    pub verdicts: watch::Receiver<Verdicts>,
}

impl Keeper {
    /// Runs until the node stops.
    pub async fn run(mut self) {
        let mut metrics = self.core.server_metrics();
        let mut guests = self.registry.guests();
        loop {
            let pause = match self.reconcile().await {
                Ok(Next::Event) => Duration::from_secs(3_600),
                Ok(Next::Look) => LOOK_PAUSE,
                Err(error) => {
                    tracing::debug!(error, "a membership change did not get through");
                    RETRY_PAUSE
                }
            };
            tokio::select! {
                changed = self.verdicts.changed() => if changed.is_err() { return },
                changed = metrics.changed() => if changed.is_err() { return },
                changed = guests.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn reconcile(&self) -> Result<Next, String> {
        // The same watch that woke this task: openraft publishes its larger sibling a moment later.
        let metrics: RaftServerMetrics<TypeConfig> = self.core.server_metrics().borrow_watched().clone();
        let effective = metrics.membership_config;
        let settled = effective.log_id() == metrics.committed_membership_config.log_id();
        if !metrics.state.is_leader() || !settled {
            // A change of either is a change of the metrics.
            return Ok(Next::Event);
        }
        if effective.get_joint_config().len() > 1 {
            tracing::warn!("finishing a change of voters that was left half done");
            return self.change(&effective, ChangeMembers::AddVoterIds(Default::default())).await.map(|()| Next::Event);
        }
        let seen = self.verdicts.borrow().clone();
        let changes = self.changes(effective.membership(), &seen);
        if changes.is_empty() {
            return self.replace_further(&effective).await;
        }
        if !self.quorum_in_sight(&effective, &seen) {
            // An entry made now would be committed only later, when it may be wrong.
            return Err("no quorum in sight".to_owned());
        }
        self.change(&effective, ChangeMembers::SetNodes(changes)).await.map(|()| Next::Event)
    }

    /// Lets a learner vote that has caught up, and begins replacements where the leader is to do that by itself.
    async fn replace_further(&self, effective: &Arc<StoredMembership>) -> Result<Next, String> {
        let situation = self.situation(effective);
        if let Some(voters) = situation.next_voters() {
            self.change(effective, ChangeMembers::ReplaceAllVoters(voters)).await?;
            return Ok(Next::Event);
        }
        let guests: BTreeSet<NodeName> = self.waiting(effective.membership()).map(|(_, name)| name).collect();
        let mut next = if situation.replacements().next().is_some() { Next::Look } else { Next::Event };
        for name in guests.iter().filter(|_| self.auto_replace) {
            next = Next::Look;
            match self.replace(name, false).await {
                Ok(replacement) => {
                    tracing::info!(node = %name, id = ?replacement.new, "a member lost its data; it is being replaced");
                    return Ok(Next::Look);
                }
                Err(refusal) => tracing::debug!(node = %name, %refusal, "a member that lost its data waits"),
            }
        }
        Ok(next)
    }

    /// Begins the replacement of a member that lost its data; on the leader. What follows the leader does by itself.
    pub async fn replace(&self, name: &NodeName, dry_run: bool) -> Result<Replacement, ReplaceError> {
        let mut metrics = self.core.server_metrics();
        let begun = tokio::time::Instant::now();
        loop {
            let (leads, effective) = {
                let metrics = metrics.borrow_watched();
                (metrics.state.is_leader(), metrics.membership_config.clone())
            };
            if !leads {
                return Err(ReplaceError::NoLeader);
            }
            let guest = self.registry.guest(name);
            let (mut replacement, step) = match self.situation(&effective).plan(name, guest) {
                Err(ReplaceError::Busy(_)) if begun.elapsed() < BUSY_LIMIT => {
                    // A change of a record takes a moment; anything longer is a reason to refuse.
                    let _ = tokio::time::timeout(LOOK_PAUSE, metrics.changed()).await;
                    continue;
                }
                planned => planned?,
            };
            let Step::Admit { dropped, new, node } = step else { return Ok(replacement) };
            if dry_run {
                return Ok(replacement);
            }
            match self.change(&effective, change_of(new, dropped, node)).await {
                Ok(()) => {
                    replacement.stage = ReplacementStage::CatchingUp;
                    return Ok(replacement);
                }
                // The membership has changed meanwhile, or the change hangs: it is looked at anew.
                Err(error) if begun.elapsed() < BUSY_LIMIT => tracing::debug!(error, "replacing a member"),
                Err(error) => return Err(ReplaceError::Busy(error)),
            }
        }
    }

    fn situation<'a>(&self, membership: &'a StoredMembership) -> Situation<'a> {
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        let seen = self.verdicts.borrow();
        let matched = metrics.replication.iter().flatten();
        Situation {
            node: self.node,
            settled: membership.log_id() == metrics.committed_membership_config.log_id(),
            reached: membership.nodes().map(|(id, _)| *id).filter(|id| self.is_reached(*id, &seen)).collect(),
            matched: matched.filter_map(|(id, last)| Some((*id, last.as_ref()?.index))).collect(),
            last: metrics.last_log_index.unwrap_or(0),
            membership: membership.membership(),
        }
    }

    /// The members that are being replaced, and those that wait for it, as far as this node knows.
    pub fn replacements(&self) -> Vec<Replacement> {
        let effective = self.core.server_metrics().borrow_watched().membership_config.clone();
        let mut all: Vec<Replacement> = under_way(effective.membership()).collect();
        for (old, name) in self.waiting(effective.membership()) {
            if !all.iter().any(|other| other.name == name) {
                all.push(Replacement { name, old, new: None, stage: ReplacementStage::Waiting, others: Vec::new() });
            }
        }
        all
    }

    /// The members whose node waits, with a data directory that no member is known with.
    fn waiting<'a>(&'a self, membership: &'a Membership) -> impl Iterator<Item = (u64, NodeName)> + 'a {
        let known = |guest: Option<Incarnation>| membership.nodes().any(|(_, node)| node.incarnation == guest);
        membership.nodes().filter_map(move |(id, node)| {
            let guest = self.registry.guest(&node.name);
            (guest.is_some() && node.incarnation.is_some() && !known(guest)).then(|| (*id, node.name.clone()))
        })
    }

    /// Why no leader decides on a replacement: so many have lost their data that there can be none, or there is none
    /// now.
    pub fn why_no_leader(&self) -> ReplaceError {
        let effective = self.core.server_metrics().borrow_watched().membership_config.clone();
        let voters: BTreeSet<u64> = effective.voter_ids().collect();
        let waiting = self
            .replacements()
            .into_iter()
            .filter(|replacement| replacement.stage == ReplacementStage::Waiting && voters.contains(&replacement.old));
        let lost: Vec<NodeName> = waiting.map(|replacement| replacement.name).collect();
        if (voters.len() - lost.len()) * 2 > voters.len() {
            ReplaceError::NoLeader
        } else {
            ReplaceError::MajorityLost { lost }
        }
    }

    /// True if the member can be talked to, and is not held for dead.
    fn is_reached(&self, id: u64, seen: &Verdicts) -> bool {
        let alive = !matches!(seen.get(&id), Some(Verdict::Down(_)));
        alive && self.links.get(id).is_some_and(|link| link.state().borrow().is_connected())
    }

    async fn change(&self, from: &Arc<StoredMembership>, change: ChangeMembers<u64, PeerNode>) -> Result<(), String> {
        tracing::info!(%change, "membership");
        let guard = Precondition::LastMembershipLogId { last_membership_log_id: *from.log_id() };
        // A voter that has been replaced is of no more use to anybody.
        let change = self.core.change_membership_if(change, false, [guard]);
        match tokio::time::timeout(CHANGE_LIMIT, change).await {
            Err(_) => Err("no quorum".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// True if a majority of the voters can be talked to.
    fn quorum_in_sight(&self, membership: &StoredMembership, seen: &Verdicts) -> bool {
        let voters: Vec<u64> = membership.voter_ids().collect();
        let in_sight = |id: &&u64| **id == self.node || self.is_reached(**id, seen);
        voters.iter().filter(in_sight).count() * 2 > voters.len()
    }

    /// The records that are to be other than they are.
    fn changes(&self, membership: &Membership, seen: &Verdicts) -> BTreeMap<u64, PeerNode> {
        let wanted = |(id, node): (&u64, &PeerNode)| {
            let configured = self.configured.iter().find(|member| member.name == node.name);
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
            replaces: None,
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
