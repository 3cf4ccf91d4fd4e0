//! What an engine hears about the other nodes: committed changes of the members' liveness, in log order.

use std::collections::{BTreeMap, VecDeque};

use holdfast_machine::{BootId, ClusterEvent, Evidence, Liveness, NodeName};
use holdfast_raft::{FeedItem, Handle, Since, Subscription};
use tokio_util::sync::CancellationToken;

/// A committed change of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// A member joined the configuration.
    Added {
        /// The member.
        node: NodeName,
    },
    /// A member left the configuration.
    Removed {
        /// The member.
        node: NodeName,
    },
    /// A member is committed as up.
    Up {
        /// The member.
        node: NodeName,
    },
    /// A member is committed as down; its shards are being adopted.
    Down {
        /// The member.
        node: NodeName,
        /// What the leader saw.
        evidence: Evidence,
    },
    /// A member's process has started.
    Booted {
        /// The member.
        node: NodeName,
        /// This start of it.
        boot: BootId,
    },
}

/// One subscriber's stream of [`MembershipChange`]s. It begins with what is known: an `Added` for each member,
/// followed by its `Booted`, `Up` or `Down` where there is one.
pub struct MembershipChanges {
    handle: Handle,
    feed: Subscription,
    stop: CancellationToken,
    known: BTreeMap<NodeName, Known>,
    ready: VecDeque<MembershipChange>,
    /// Events up to this log index are in `known`.
    seen: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    liveness: Liveness,
    boot: Option<BootId>,
}

impl MembershipChanges {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let feed = handle.feed().subscribe(Since::Now);
        let (known, ready) = (BTreeMap::new(), VecDeque::new());
        let mut changes = Self { handle, feed, stop, known, ready, seen: 0 };
        changes.compare();
        changes
    }

    /// The next change; waits for it. None when the node has stopped. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<MembershipChange> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Some(change);
            }
            let item = tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                item = self.feed.next() => item?,
            };
            match item {
                FeedItem::Event { id, local: false, event } if id.index > self.seen => {
                    self.ready.extend(change_of(event).inspect(|change| note(&mut self.known, change)));
                }
                FeedItem::Event { .. } => {}
                FeedItem::Lagged { .. } => self.compare(),
            }
        }
    }

    /// Tells the difference between what is known and the members as they are now.
    fn compare(&mut self) {
        let (index, members) = self.handle.view(|machine, _| {
            let members = machine.members().map(|state| {
                let known = Known { liveness: state.member.liveness, boot: state.boot.clone() };
                (state.member.name.clone(), known)
            });
            (machine.applied(), members.collect::<BTreeMap<_, _>>())
        });
        self.ready.extend(differences(&self.known, &members));
        self.known = members;
        self.seen = self.seen.max(index);
    }
}

fn change_of(event: ClusterEvent) -> Option<MembershipChange> {
    Some(match event {
        ClusterEvent::PeerAdded { node } => MembershipChange::Added { node },
        ClusterEvent::PeerRemoved { node } => MembershipChange::Removed { node },
        ClusterEvent::PeerUp { node } => MembershipChange::Up { node },
        ClusterEvent::PeerDown { node, evidence } => MembershipChange::Down { node, evidence },
        ClusterEvent::PeerBooted { node, boot } => MembershipChange::Booted { node, boot },
        _ => return None,
    })
}

fn note(known: &mut BTreeMap<NodeName, Known>, change: &MembershipChange) {
    let (MembershipChange::Added { node }
    | MembershipChange::Removed { node }
    | MembershipChange::Up { node }
    | MembershipChange::Down { node, .. }
    | MembershipChange::Booted { node, .. }) = change;
    let of_node = known.entry(node.clone()).or_insert(Known { liveness: Liveness::Joining, boot: None });
    match change {
        MembershipChange::Added { .. } => {}
        MembershipChange::Up { .. } => of_node.liveness = Liveness::Up,
        MembershipChange::Down { evidence, .. } => of_node.liveness = Liveness::Down { evidence: *evidence },
        MembershipChange::Booted { boot, .. } => of_node.boot = Some(boot.clone()),
        MembershipChange::Removed { .. } => _ = known.remove(node),
    }
}

fn differences(known: &BTreeMap<NodeName, Known>, now: &BTreeMap<NodeName, Known>) -> Vec<MembershipChange> {
    let gone = known.keys().filter(|name| !now.contains_key(*name));
    let mut changes: Vec<_> = gone.map(|node| MembershipChange::Removed { node: node.clone() }).collect();
    for (node, state) in now {
        let before = known.get(node);
        if before.is_none() {
            changes.push(MembershipChange::Added { node: node.clone() });
        }
        if let Some(boot) = &state.boot
            && before.is_none_or(|before| before.boot.as_ref() != Some(boot))
        {
            changes.push(MembershipChange::Booted { node: node.clone(), boot: boot.clone() });
        }
        if before.is_some_and(|before| before.liveness == state.liveness) {
            continue;
        }
        match state.liveness {
            Liveness::Up => changes.push(MembershipChange::Up { node: node.clone() }),
            Liveness::Down { evidence } => changes.push(MembershipChange::Down { node: node.clone(), evidence }),
            Liveness::Joining => {}
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn boot(text: &str) -> BootId {
        BootId::new(text).unwrap()
    }

    #[test]
    fn a_gap_is_closed_by_the_difference() {
        let mut known = BTreeMap::new();
        for node in ["a", "b", "c"] {
            for change in [
                MembershipChange::Added { node: name(node) },
                MembershipChange::Booted { node: name(node), boot: boot("1") },
                MembershipChange::Up { node: name(node) },
            ] {
                note(&mut known, &change);
            }
        }
        let mut now = known.clone();
        let evidence = Evidence::Silent;
        let expected = [
            MembershipChange::Removed { node: name("a") },
            MembershipChange::Booted { node: name("b"), boot: boot("2") },
            MembershipChange::Down { node: name("c"), evidence },
        ];
        for change in &expected {
            note(&mut now, change);
        }
        assert_eq!(differences(&known, &now), expected);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn other_events_are_no_changes_of_members() {
        assert_eq!(change_of(ClusterEvent::SnapshotTaken { index: 1 }), None);
        let up = change_of(ClusterEvent::PeerUp { node: name("a") });
        assert_eq!(up, Some(MembershipChange::Up { node: name("a") }));
    }
}
