//! Whether a node may be sent traffic, and whoever restarts nodes one after the other may go on with the next one.

use holdfast_raft::{Replacement, ReplacementStage, Status};

use crate::members::outside;
use crate::store::Store;

/// A node that is further behind than this, in log entries, is not ready.
const LAG_MAX: u64 = 1_000;

impl Store {
    /// Why the node should not be sent traffic yet; none if it may: its boot is applied, it knows a leader, it votes, it is
    /// connected to a majority, and it is not far behind.
    pub fn unreadiness(&self) -> Option<String> {
        if let Some(reason) = self.fatal().or_else(|| unreadiness(&self.shared.raft.status())) {
            return Some(reason);
        }
        let boot = &self.shared.options.boot;
        let booted = self
            .shared
            .raft
            .view(|machine, _| machine.member(self.node()).is_some_and(|member| member.boot.as_ref() == Some(boot)));
        (!booted).then(|| "the start of this node is not committed yet".to_owned())
    }
}

/// What a node's picture of itself and of the cluster says against it.
fn unreadiness(status: &Status) -> Option<String> {
    if let Some(reason) = outside(status) {
        return Some(reason);
    }
    if status.leader.is_none() {
        return Some("this node knows no leader".to_owned());
    }
    let (committed, applied) = (status.committed.unwrap_or(0), status.applied.unwrap_or(0));
    // While the old id has its vote, one node less is left that may fail.
    if let Some(Replacement { old, stage, .. }) = status.replacements.iter().find(|one| one.new == Some(status.node)) {
        let stage = if *stage == ReplacementStage::TakingOver { "takes the vote over" } else { "gets the data" };
        return Some(format!(
            "this node replaces member {old}, which lost its data, and {stage}: it has applied {applied} of {committed} log \
             entries"
        ));
    }
    let voters = || status.members.iter().filter(|member| member.voter);
    if !voters().any(|voter| voter.id == status.node) {
        return Some("this node does not vote, as far as its log goes".to_owned());
    }
    // A leader that is alone goes on taking itself for the leader.
    let (linked, all) = (voters().filter(|voter| voter.linked).count(), voters().count());
    if linked * 2 <= all {
        return Some(format!("this node is connected to {linked} of {all} voters, itself counted"));
    }
    let is_behind = committed.saturating_sub(applied) > LAG_MAX;
    is_behind.then(|| format!("this node has applied {applied} of {committed} log entries"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Liveness, NodeName};
    use holdfast_raft::{MemberStatus, Standing};

    use super::*;

    /// As node `own` sees it, with these voters; the new member in the place of the third one is number 4.
    fn status(own: u64, voters: &[u64], stage: Option<ReplacementStage>) -> Status {
        let name = |id: u64| NodeName::new(format!("node-{}", if id == 4 { 3 } else { id })).unwrap();
        let member = |id: u64| MemberStatus {
            id,
            name: name(id),
            peer_addr: String::new(),
            http_addr: String::new(),
            liveness: Liveness::Up,
            voter: voters.contains(&id),
            linked: id != 3,
            link_problem: None,
            unlinked_for: None,
            matched: None,
            room: None,
        };
        let others = Vec::new();
        let replacement = stage.map(|stage| Replacement { name: name(4), old: 3, new: Some(4), stage, others });
        Status {
            standing: Standing::Member,
            node: own,
            leader: Some(1),
            term: 1,
            last: Some(90),
            committed: Some(90),
            applied: Some(80),
            purged: None,
            snapshot: None,
            members: [1, 2, 3, 4].map(member).into(),
            replacements: replacement.into_iter().collect(),
            fatal: None,
            storage_full: false,
            disk_free: None,
            log: Default::default(),
        }
    }

    #[test]
    fn a_node_that_replaces_another_is_ready_once_it_alone_has_the_vote() {
        let said = |own, voters: &[u64], stage| unreadiness(&status(own, voters, stage)).unwrap_or_default();
        assert_eq!(said(4, &[1, 2, 3], None), "this node does not vote, as far as its log goes");
        let catching_up = said(4, &[1, 2, 3], Some(ReplacementStage::CatchingUp));
        assert!(catching_up.ends_with("gets the data: it has applied 80 of 90 log entries"), "{catching_up}");
        let taking_over = said(4, &[1, 2, 3, 4], Some(ReplacementStage::TakingOver));
        assert!(
            taking_over.contains("replaces member 3") && taking_over.contains("takes the vote over"),
            "{taking_over}"
        );
        assert_eq!(said(4, &[1, 2, 4], None), "");
        assert_eq!(said(1, &[1, 2, 3], Some(ReplacementStage::CatchingUp)), "", "the others serve meanwhile");
    }

    #[test]
    fn a_node_that_reaches_no_majority_or_is_far_behind_is_not_ready() {
        let healthy = || status(1, &[1, 2, 4], None);
        let said = |status: Status| unreadiness(&status).unwrap_or_default();
        assert_eq!(said(healthy()), "");
        assert_eq!(said(Status { leader: None, ..healthy() }), "this node knows no leader");
        let behind = said(Status { committed: Some(81 + LAG_MAX), ..healthy() });
        assert_eq!(behind, "this node has applied 80 of 1081 log entries");
        assert_eq!(said(status(1, &[1, 3], None)), "this node is connected to 1 of 2 voters, itself counted");
    }
}
