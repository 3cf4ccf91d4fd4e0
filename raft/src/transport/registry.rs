//! The members that may talk to this node, with the data directories they were first seen with.
//!
//! The rule that matters most: a member that comes with another data directory than the one it was first seen with has
//! lost its disk. It may have voted before and does not know it any more, so it must not vote again. It is refused, and
//! can come back only under a Raft id of its own, in the place of what it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::NodeName;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::types::{Incarnation, Membership};

/// How long a node that asked to be let in counts as waiting; it asks again several times in that time.
const GUEST_LIMIT: Duration = Duration::from_secs(5);

/// Why two nodes do not talk to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The other end is not a Holdfast node.
    #[error("the other end does not speak Holdfast's peer protocol")]
    NotHoldfast,
    /// The two speak different versions.
    #[error("peer protocol {theirs} is not spoken here; this node speaks {ours}")]
    WrongVersion {
        /// The refusing node's version.
        ours: u32,
        /// The refused node's version.
        theirs: u32,
    },
    /// The two belong to different clusters.
    #[error("this is cluster {ours:?}, not {theirs:?}")]
    WrongCluster {
        /// The refusing node's cluster.
        ours: String,
        /// The refused node's cluster.
        theirs: String,
    },
    /// The address leads to another node than was meant.
    #[error("this is {ours}, not {meant}; check the peer addresses")]
    WrongNode {
        /// The node that answered.
        ours: String,
        /// The node that was meant.
        meant: String,
    },
    /// The node is in no membership that this one knows.
    #[error("node {node} ({name}) is not a member")]
    UnknownNode {
        /// The node.
        node: u64,
        /// Its name.
        name: NodeName,
    },
    /// The node's place was given to another data directory.
    #[error(
        "node {node} was replaced: {name} is member {by} now. This data directory is of no use any more; move it aside. \
         If the one of member {by} is lost as well, start {name} empty and run `holdfast member replace {name}`"
    )]
    Replaced {
        /// The node.
        node: u64,
        /// Its name.
        name: NodeName,
        /// Who has its place.
        by: u64,
    },
    /// The member's data directory is not the one that it was first seen with.
    #[error(
        "node {node} ({name}) came with another data directory ({found:032x}) than it was first seen with \
         ({known:032x}); a member that lost its disk must not vote. Put that data directory back, or start {name} empty \
         and run `holdfast member replace {name}`"
    )]
    IncarnationChanged {
        /// The member.
        node: u64,
        /// Its name.
        name: NodeName,
        /// The data directory it was first seen with.
        known: Incarnation,
        /// The one it came with.
        found: Incarnation,
    },
    /// The cluster was restored from a backup, and the node was not, or from another one.
    #[error(
        "node {node} ({name}) began with {found}, and the node that refuses it with {known}: they were not restored from the \
         same backup with the same members. Which of them is wrong, the others tell: restore again, as those, whoever the \
         majority refuses. What a node began with is printed by `holdfast restore`, and by `holdfast verify` once it is \
         stopped"
    )]
    OtherBase {
        /// The member.
        node: u64,
        /// Its name.
        name: NodeName,
        /// What the refusing node began with.
        known: String,
        /// What the refused one began with.
        found: String,
    },
    /// The node that answers takes no part in the cluster yet.
    #[error("{name} has no data: it starts for the first time, or it lost its disk; it is not a member yet")]
    NotSeated {
        /// The node.
        name: NodeName,
    },
}

/// What a member says to a node that has no data and asks for its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reception {
    /// I know of no cluster either.
    Unformed,
    /// It is committed that you, with this very data directory, are this member.
    Member { node: u64 },
    /// You are this member, and as far as I know you were never seen. `confirmed` if that is what a majority knows.
    Expected { node: u64, confirmed: bool },
    /// This member was seen with another data directory than yours.
    Lost { node: u64, known: Incarnation },
    /// Your place is being decided on.
    Wait,
    /// No member has your name.
    Stranger,
    /// We do not talk at all.
    Refused(Refusal),
}

#[derive(Debug, Clone)]
struct Known {
    name: NodeName,
    incarnation: Option<Incarnation>,
    /// The data directory is in the committed membership.
    committed: bool,
}

#[derive(Debug)]
struct Members {
    /// There is a membership; before that the configuration's word counts.
    formed: bool,
    by_id: BTreeMap<u64, Known>,
}

impl Members {
    /// The member of that name; while it is being replaced, the one that comes.
    fn named(&self, name: &NodeName) -> Option<(u64, &Known)> {
        self.by_id.iter().rev().find(|(_, known)| known.name == *name).map(|(id, known)| (*id, known))
    }
}

/// A node that has lost its data, and asks to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    pub incarnation: Incarnation,
    at: Instant,
}

/// A data directory that was replaced, and is there again.
#[derive(Debug, Clone, Copy)]
struct OldDisk {
    node: u64,
    at: Instant,
}

/// Who may talk to this node; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    pub cluster: Arc<str>,
    pub name: NodeName,
    pub node: u64,
    pub incarnation: Incarnation,
    /// What this node's data directory began with, if not empty.
    pub base: Option<u128>,
    members: Arc<RwLock<Members>>,
    guests: Arc<watch::Sender<BTreeMap<NodeName, Guest>>>,
    old_disks: Arc<Mutex<BTreeMap<NodeName, OldDisk>>>,
}

impl Registry {
    /// Starts with the configured members, none of them seen.
    pub fn new<'a>(
        cluster: &str,
        (node, name): (u64, &NodeName),
        incarnation: Incarnation,
        members: impl Iterator<Item = (u64, &'a NodeName)>,
    ) -> Self {
        let known = |name: &NodeName| Known { name: name.clone(), incarnation: None, committed: false };
        let by_id = members.map(|(id, name)| (id, known(name))).collect();
        let members = Members { formed: false, by_id };
        Self {
            cluster: cluster.into(),
            name: name.clone(),
            node,
            incarnation,
            base: None,
            members: Arc::new(RwLock::new(members)),
            guests: Arc::new(watch::Sender::default()),
            old_disks: Arc::default(),
        }
    }

    /// The same for a node whose data directory was made with something in it.
    pub fn with_base(self, base: Option<u128>) -> Self {
        Self { base, ..self }
    }

    /// Where the cluster was restored, whoever is seen for the first time must have been restored as this node was. One
    /// that is known already may have joined later, empty.
    fn check_base(&self, (node, name): (u64, &NodeName), base: Option<u128>) -> Result<(), Refusal> {
        if self.base.is_none() || base == self.base {
            return Ok(());
        }
        let shown = |base: Option<u128>| base.map_or("nothing".to_owned(), |base| format!("{base:032x}"));
        Err(Refusal::OtherBase { node, name: name.clone(), known: shown(self.base), found: shown(base) })
    }

    /// The data directory that a member was first seen with, if it was seen.
    pub fn incarnation_of(&self, node: u64) -> Option<Incarnation> {
        self.members.read().by_id.get(&node).and_then(|known| known.incarnation)
    }

    /// Takes over a membership: what the log says outranks what was only seen here, and whoever is not in it is no
    /// member.
    pub fn learn(&self, effective: &Membership, committed: &Membership) {
        if effective.nodes().next().is_none() {
            return;
        }
        let mut members = self.members.write();
        let known = |(id, node): (&u64, &crate::types::PeerNode)| {
            let seen = members.by_id.get(id).filter(|known| known.name == node.name);
            let incarnation = node.incarnation.or(seen.and_then(|known| known.incarnation));
            let in_committed = committed.get_node(id).and_then(|node| node.incarnation);
            let is_committed = incarnation.is_some() && in_committed == incarnation;
            (*id, Known { name: node.name.clone(), incarnation, committed: is_committed })
        };
        let by_id = effective.nodes().map(known).collect();
        *members = Members { formed: true, by_id };
    }

    /// Checks a member's data directory, and remembers it at first sight.
    pub fn admit(&self, node: u64, name: &NodeName, found: Incarnation, base: Option<u128>) -> Result<(), Refusal> {
        let mut members = self.members.write();
        let name = name.clone();
        if let Some(member) = members.by_id.get_mut(&node).filter(|member| member.name == name) {
            return match member.incarnation {
                Some(known) if known != found => Err(Refusal::IncarnationChanged { node, name, known, found }),
                Some(_) => Ok(()),
                None => {
                    self.check_base((node, &name), base)?;
                    member.incarnation = Some(found);
                    Ok(())
                }
            };
        }
        match members.named(&name).map(|(by, _)| by) {
            // The configuration tells names for good; ids only until somebody is replaced.
            Some(_) if !members.formed => {
                self.check_base((node, &name), base)?;
                members.by_id.insert(node, Known { name, incarnation: Some(found), committed: false });
                Ok(())
            }
            Some(by) if node < by => {
                self.old_disks.lock().insert(name.clone(), OldDisk { node, at: Instant::now() });
                Err(Refusal::Replaced { node, name, by })
            }
            _ => Err(Refusal::UnknownNode { node, name }),
        }
    }

    /// What there is to say to a node that has no data and asks for its place.
    pub fn receive(&self, name: &NodeName, found: Incarnation) -> Reception {
        let members = self.members.read();
        if !members.formed {
            return Reception::Unformed;
        }
        let Some((node, member)) = members.named(name) else { return Reception::Stranger };
        match member.incarnation {
            // Whoever asks has no data.
            None => match self.check_base((node, name), None) {
                Ok(()) => Reception::Expected { node, confirmed: false },
                Err(refusal) => Reception::Refused(refusal),
            },
            Some(known) if known != found => {
                self.note_guest(name, found);
                Reception::Lost { node, known }
            }
            Some(_) if member.committed => Reception::Member { node },
            Some(_) => Reception::Wait,
        }
    }

    fn note_guest(&self, name: &NodeName, incarnation: Incarnation) {
        self.guests.send_if_modified(|guests| {
            let now = Instant::now();
            let before = guests.insert(name.clone(), Guest { incarnation, at: now });
            before.is_none_or(|before| before.incarnation != incarnation || now - before.at > GUEST_LIMIT)
        });
    }

    /// The data directory with which the node of that name waits to be let in, if it does.
    pub fn guest(&self, name: &NodeName) -> Option<Incarnation> {
        let guests = self.guests.borrow();
        guests.get(name).filter(|guest| guest.at.elapsed() <= GUEST_LIMIT).map(|guest| guest.incarnation)
    }

    /// What there is to say of a member that is not reached, if its node runs on the data directory that it had before it
    /// was replaced, and goes on asking to be let in.
    pub fn old_disk(&self, name: &NodeName, by: u64) -> Option<String> {
        let old = self.old_disks.lock().get(name).copied()?;
        (old.at.elapsed() <= GUEST_LIMIT && old.node < by).then(|| {
            format!(
                "{name} runs on an old data directory: that of node {}, which was replaced by member {by}. Stop it, and put \
                 back the one of member {by}; if that is lost, start {name} empty and run `holdfast member replace {name}`",
                old.node
            )
        })
    }

    /// Follows who begins to wait.
    pub fn guests(&self) -> watch::Receiver<BTreeMap<NodeName, Guest>> {
        self.guests.subscribe()
    }

    /// Refuses another cluster.
    pub fn check_cluster(&self, theirs: &str) -> Result<(), Refusal> {
        check_cluster(&self.cluster, theirs)
    }
}

/// Refuses another cluster.
pub(crate) fn check_cluster(ours: &str, theirs: &str) -> Result<(), Refusal> {
    if theirs == ours {
        return Ok(());
    }
    Err(Refusal::WrongCluster { ours: ours.to_owned(), theirs: theirs.to_owned() })
}

#[cfg(test)]
mod tests;
