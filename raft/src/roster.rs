//! Follows the membership: whom this node talks to, whom it watches, whom it lets in, and who leads.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_machine::{ClusterEvent, NodeName};
use openraft::async_runtime::WatchReceiver;

use crate::feed::Feed;
use crate::options::MemberConfig;
use crate::peers::{Links, Lookout};
use crate::progress::Progress;
use crate::transport::link::AddressBook;
use crate::transport::registry::Registry;
use crate::types::{Core, Membership};

/// The task that follows the membership and the leadership.
pub(crate) struct Roster {
    pub core: Core,
    pub node: u64,
    pub registry: Registry,
    pub links: Links,
    pub addresses: AddressBook,
    pub lookout: Lookout,
    pub configured: Arc<[MemberConfig]>,
    pub feed: Feed,
    pub progress: Progress,
}

impl Roster {
    /// Runs until the node stops.
    pub async fn follow(self) {
        let mut metrics = self.core.server_metrics();
        let mut known = None;
        loop {
            let (leader, term, effective, committed) = {
                let metrics = metrics.borrow_watched();
                let (effective, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
                (metrics.current_leader, metrics.vote.leader_id().term, effective.clone(), committed.clone())
            };
            self.registry.learn(effective.membership(), committed.membership());
            self.talk_to(effective.membership());
            let now = leader.map(|leader| (leader, term));
            if now != known {
                known = now;
                let leader = leader.and_then(|leader| self.name(effective.membership(), leader));
                self.feed.push_local(ClusterEvent::LeaderChanged { leader, term });
            }
            if metrics.changed().await.is_err() {
                break;
            }
        }
        // Not reached when the node is stopped on purpose.
        match &self.core.metrics().borrow_watched().running_state {
            Ok(()) => self.progress.fail(&"Raft ended"),
            Err(fatal) => self.progress.fail(fatal),
        }
    }

    /// Before there is a membership, those that are configured are talked to.
    fn talk_to(&self, membership: &Membership) {
        let mut peers: BTreeSet<u64> = membership.nodes().map(|(id, _)| *id).collect();
        if peers.is_empty() {
            peers = self.configured.iter().map(|member| member.id).collect();
        }
        peers.remove(&self.node);
        // What this node was before it was replaced is at its own address.
        peers.retain(|id| self.name(membership, *id).as_ref() != Some(&self.registry.name));
        for id in &peers {
            if let Some(address) = self.address(membership, *id) {
                self.addresses.note(*id, address);
            }
        }
        for (link, end) in self.links.keep(&peers) {
            if let Some(name) = self.name(membership, link.peer()) {
                self.lookout.watch(link, name, end);
            }
        }
    }

    fn name(&self, membership: &Membership, id: u64) -> Option<NodeName> {
        let configured = || self.configured.iter().find(|member| member.id == id).map(|member| member.name.clone());
        membership.get_node(&id).map(|node| node.name.clone()).or_else(configured)
    }

    /// The configuration's word counts before the membership's.
    fn address(&self, membership: &Membership, id: u64) -> Option<String> {
        let name = self.name(membership, id)?;
        let configured = self.configured.iter().find(|member| member.name == name);
        let recorded = || membership.get_node(&id).map(|node| node.peer_addr.clone());
        configured.map(|member| member.peer_addr.clone()).or_else(recorded)
    }
}
