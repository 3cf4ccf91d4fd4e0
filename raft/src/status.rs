//! What a node says of itself and of the cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{Liveness, NodeName};
use holdfast_storage::{LogStats, RoomLevel, Storage};
use openraft::async_runtime::WatchReceiver;

use crate::membership::Keeper;
use crate::options::MemberConfig;
use crate::peers::Links;
use crate::progress::Progress;
use crate::replacement::Replacement;
use crate::transport::link::LinkState;

/// Whether a node takes part in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Member,
    /// It starts without data, and not all those that could know of it have answered.
    Asking {
        /// Who is missing, and why.
        missing: Vec<(NodeName, String)>,
    },
    /// It is known with another data directory.
    Lost {
        /// The Raft id that it had.
        node: u64,
        /// Who says so.
        by: NodeName,
    },
    /// The cluster has no member of its name.
    Stranger {
        /// Who says so.
        by: NodeName,
    },
    /// Its place was given to another data directory while this one was away.
    Replaced {
        /// The Raft id that it had.
        node: u64,
        /// Who has its place.
        new: u64,
        /// Who says so.
        by: NodeName,
    },
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member => f.write_str("this node is a member"),
            Self::Asking { missing } => {
                f.write_str("this node has no data yet and waits until all members have said whether they know it")?;
                missing.iter().try_for_each(|(name, problem)| write!(f, "; {name}: {problem}"))
            }
            Self::Lost { node, by } => write!(
                f,
                "this node lost its disk: {by} knows it as member {node} with other data than the empty directory that it \
                 has now. It may have voted, so it does not vote and takes no part. Put that data directory back, or have \
                 it re-join with a copy from its peers: `holdfast member replace` with its name, against any of them"
            ),
            Self::Stranger { by } => write!(
                f,
                "this node is no member: {by} has a cluster without a member of its name. Check `node_name` and `members`"
            ),
            Self::Replaced { node, new, by } => write!(
                f,
                "this node has an old data directory: {by} says that node {node} was replaced, and that member {new} has its \
                 name now. The directory is of no use any more: stop this node and move it aside. If the one of member {new} \
                 is lost as well, start the node empty and run `holdfast member replace` with its name, against any of the \
                 others"
            ),
        }
    }
}

/// A node's picture of itself and of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Whether it takes part. If it does not, the rest says next to nothing, or is long past.
    pub standing: Standing,
    /// This node's id; 0 as long as it has none.
    pub node: u64,
    /// The leader that it follows or is.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// The last log index.
    pub last: Option<u64>,
    /// The last log index known to be committed.
    pub committed: Option<u64>,
    /// The last applied log index.
    pub applied: Option<u64>,
    /// The last log index that was purged.
    pub purged: Option<u64>,
    /// The last log index in the newest snapshot.
    pub snapshot: Option<u64>,
    /// All members, by id. While one is replaced, its name is there twice.
    pub members: Vec<MemberStatus>,
    /// Members that are being replaced, and those that have lost their data and wait for that.
    pub replacements: Vec<Replacement>,
    /// Set once the node cannot go on: why.
    pub fatal: Option<String>,
    /// True while this node's disk is full, or so nearly that it is the log's alone.
    pub storage_full: bool,
    /// Free bytes of this node's disk, if it says.
    pub disk_free: Option<u64>,
    /// What its log has written since the node started.
    pub log: LogStats,
}

/// A member, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: NodeName,
    /// Where its peers reach it.
    pub peer_addr: String,
    /// Where clients reach it.
    pub http_addr: String,
    /// What is committed about its life.
    pub liveness: Liveness,
    /// True if it votes.
    pub voter: bool,
    /// This node's link to it is up; true for this node itself.
    pub linked: bool,
    /// Why the link is down, if it is.
    pub link_problem: Option<String>,
    /// For how long it has been down, if it has been up or refused.
    pub unlinked_for: Option<Duration>,
    /// How far its log agrees with this node's; known to the leader only.
    pub matched: Option<u64>,
    /// The room on its disk, if it has said so.
    pub room: Option<RoomLevel>,
}

/// The picture that a node has which takes no part yet.
pub(crate) fn outside(
    standing: Standing,
    configured: &[MemberConfig],
    progress: &Progress,
    storage: &Storage,
) -> Status {
    let problem = |name: &NodeName| match &standing {
        Standing::Asking { missing } => {
            missing.iter().find(|(other, _)| other == name).map(|(_, problem)| problem.clone())
        }
        _ => None,
    };
    let members = configured.iter().map(|member| MemberStatus {
        id: member.id,
        name: member.name.clone(),
        peer_addr: member.peer_addr.clone(),
        http_addr: member.http_addr.clone(),
        liveness: Liveness::Joining,
        voter: false,
        linked: false,
        link_problem: Some(problem(&member.name).unwrap_or_else(|| standing.to_string())),
        unlinked_for: None,
        matched: None,
        room: None,
    });
    Status {
        node: 0,
        leader: None,
        term: 0,
        last: None,
        committed: None,
        applied: *progress.applied().borrow(),
        purged: None,
        snapshot: None,
        members: members.collect(),
        replacements: Vec::new(),
        fatal: progress.fatal().borrow().as_ref().map(ToString::to_string),
        storage_full: is_full(storage),
        disk_free: storage.room.free(),
        log: storage.log.stats(),
        standing,
    }
}

/// Puts the picture together.
pub(crate) fn status(keeper: &Keeper, standing: Standing, progress: &Progress, storage: &Storage) -> Status {
    let replacements = keeper.replacements();
    let Keeper { core, links, registry, .. } = keeper;
    let metrics = core.metrics();
    let metrics = metrics.borrow_watched();
    let membership = &metrics.membership_config;
    let voters: Vec<u64> = membership.voter_ids().collect();
    let members = membership.nodes().map(|(id, node)| {
        let problem = link_problem(links, *id, metrics.id);
        let old_disk = problem.as_ref().and_then(|_| registry.old_disk(&node.name, *id));
        let matched = metrics.replication.as_ref().and_then(|all| all.get(id)?.as_ref());
        MemberStatus {
            id: *id,
            name: node.name.clone(),
            peer_addr: node.peer_addr.clone(),
            http_addr: node.http_addr.clone(),
            liveness: node.liveness,
            voter: voters.contains(id),
            linked: problem.is_none(),
            link_problem: old_disk.or_else(|| problem.map(|reason| reason.to_string())),
            unlinked_for: links.get(*id).and_then(|link| unlinked_for(&link.state().borrow())),
            matched: matched.map(|id| id.index),
            room: if *id == metrics.id {
                Some(storage.room.level())
            } else {
                links.get(*id).and_then(|link| link.room())
            },
        }
    });
    Status {
        standing,
        replacements,
        node: metrics.id,
        leader: metrics.current_leader,
        term: metrics.current_term,
        last: metrics.last_log_index,
        committed: metrics.local_committed.map(|id| id.index),
        applied: *progress.applied().borrow(),
        purged: metrics.purged.map(|id| id.index),
        snapshot: metrics.snapshot.map(|id| id.index),
        members: members.collect(),
        fatal: progress.fatal().borrow().as_ref().map(ToString::to_string),
        storage_full: is_full(storage),
        disk_free: storage.room.free(),
        log: storage.log.stats(),
    }
}

fn is_full(storage: &Storage) -> bool {
    storage.log.is_full() || storage.room.level() == RoomLevel::Out
}

fn unlinked_for(state: &LinkState) -> Option<Duration> {
    match state {
        LinkState::Closed { since, .. } => Some(since.elapsed()),
        LinkState::Connecting | LinkState::Connected => None,
    }
}

fn link_problem(links: &Links, peer: u64, node: u64) -> Option<Arc<str>> {
    if peer == node {
        return None;
    }
    let Some(link) = links.get(peer) else {
        return Some("there is no link".into());
    };
    match &*link.state().borrow() {
        LinkState::Connected => None,
        LinkState::Connecting => Some("connecting".into()),
        LinkState::Closed { reason, .. } => Some(reason.clone()),
    }
}
