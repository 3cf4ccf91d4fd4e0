//! The invariants, held against what every node does while it does it, and against the whole log at the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_checkers::invariants::{EpochsHaveOneOwner, OneEntryPerIndex, Watch as Seen};
use holdfast_checkers::replay::Replay;
use holdfast_checkers::{Broken, Check, Observation};
use holdfast_machine::{Entry, Fence, Member, NodeName, Reject, Reply, Request, ShardId};
use holdfast_raft::{AppliedEntry, Handle, Observer};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::host::Host;
use crate::record::Record;

/// What is in the log at one index.
#[derive(Debug, Clone)]
enum Logged {
    Nothing,
    Requests(Entry),
    Members(Vec<Member>),
}

/// A write that was acknowledged.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    /// Where it is in the log.
    pub index: u64,
    /// The write.
    pub request: Request,
    /// The answer.
    pub reply: Result<Reply, Reject>,
}

/// The watch over one run.
pub struct Watch {
    record: Record,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: OneEntryPerIndex,
    seen: Seen,
    owners: EpochsHaveOneOwner,
    log: BTreeMap<u64, Logged>,
    acknowledged: Vec<Acknowledged>,
    nodes: BTreeMap<NodeName, Known>,
}

/// What was seen of a node last.
#[derive(Default)]
struct Known {
    boot: u64,
    term: u64,
    leader: Option<NodeName>,
    snapshot: u64,
    purged: u64,
    /// The last entry that this process was seen to apply.
    applied: u64,
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(record: Record) -> Self {
        Self { record, inner: Mutex::default() }
    }

    fn hold(&self, check: Check) {
        if let Err(broken) = check {
            self.record.broken(broken);
        }
    }

    /// Looks at a node from outside.
    pub fn look(&self, host: &Host, node: &Handle) {
        let status = node.status();
        let named = |id: u64| status.members.iter().find(|member| member.id == id).map(|member| member.name.clone());
        let leader = status.leader.and_then(named);
        let (disk, boot) = host.numbers();
        let mut inner = self.inner.lock();
        let (hashed, hash) = node.view(|machine, _| (machine.applied(), machine.state_hash()));
        let seen = Observation {
            node: host.name.clone(),
            disk,
            boot,
            term: status.term,
            leader,
            purged: status.purged.unwrap_or(0),
            snapshot: status.snapshot.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            committed: status.committed.unwrap_or(0),
            last: status.last.unwrap_or(0),
            hash: None,
        };
        self.hold(inner.seen.observe(&seen));
        // The hash covers what it says, which is less than what is applied where an entry holds nothing; none is 0.
        if hash != 0 {
            self.hold(inner.seen.states.observe(&Observation { applied: hashed, hash: Some(hash), ..seen.clone() }));
        }
        let entries: Vec<_> = node.view(|machine, _| machine.shards().cloned().collect());
        self.hold(inner.owners.directory(&host.name, boot, &entries));
        self.count(inner.nodes.entry(host.name.clone()).or_default(), &seen, boot);
    }

    /// Counts what a node has done since it was looked at last.
    fn count(&self, known: &mut Known, seen: &Observation, boot: u64) {
        if known.boot != boot {
            *known = Known { boot, ..Known::default() };
        }
        if (known.term, &known.leader) != (seen.term, &seen.leader) {
            let leader = seen.leader.as_ref().map_or("nobody", NodeName::as_str);
            self.record.note(format_args!("{} follows {leader} in term {}", seen.node, seen.term));
        }
        if known.snapshot != 0 && seen.snapshot > known.snapshot {
            self.record.count("snapshot taken or installed");
        }
        if known.purged != 0 && seen.purged > known.purged {
            self.record.count("log purged");
        }
        if known.applied != 0 && seen.applied > known.applied {
            self.record.count("snapshot installed");
            self.record.note(format_args!("{} leaps from {} to {}", seen.node, known.applied, seen.applied));
        }
        *known = Known {
            boot,
            term: seen.term,
            leader: seen.leader.clone(),
            snapshot: seen.snapshot.max(1),
            purged: seen.purged.max(1),
            applied: seen.applied,
        };
    }

    fn applied(&self, node: &NodeName, index: u64, term: u64, entry: &AppliedEntry<'_>) {
        let logged = match entry {
            AppliedEntry::Blank => Logged::Nothing,
            AppliedEntry::Requests(entry) => Logged::Requests((*entry).clone()),
            AppliedEntry::Members(members) => Logged::Members(members.to_vec()),
        };
        let digest = xxh3_64(format!("{logged:?}").as_bytes());
        let mut inner = self.inner.lock();
        self.hold(inner.entries.applied(node, index, term, digest));
        inner.log.entry(index).or_insert(logged);
        inner.nodes.entry(node.clone()).or_default().applied = index;
        self.record.note(format_args!("{node} applies {index} of term {term}: {digest:016x}"));
    }

    /// A write was acknowledged.
    pub fn acknowledged(&self, acknowledged: Acknowledged) {
        self.inner.lock().acknowledged.push(acknowledged);
    }

    /// A write was accepted under a fence.
    pub fn fenced(&self, shard: ShardId, index: u64, fence: &Fence) {
        self.hold(self.inner.lock().owners.accepted(shard, index, fence));
    }

    /// How many terms had a leader.
    pub fn elections(&self) -> usize {
        self.inner.lock().seen.leaders.elections()
    }

    /// How often the states of two nodes were compared.
    pub fn compared(&self) -> u64 {
        self.inner.lock().seen.states.compared()
    }

    /// How often shards changed hands.
    pub fn owners(&self) -> usize {
        self.inner.lock().owners.changes()
    }

    /// Plays the whole log through a machine of its own, holds every property against each entry, every acknowledged
    /// reply against what the machine says there, and the hash at the end against `hash`. Says how many entries.
    pub fn replay(&self, hash: u64) -> usize {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.acknowledged.sort_by_key(|acknowledged| acknowledged.index);
        let mut acknowledged = inner.acknowledged.iter().peekable();
        let checked = (|| -> Result<u64, Broken> {
            let mut replay = Replay::new()?;
            for (index, logged) in &inner.log {
                let (requests, replies) = match logged {
                    Logged::Nothing => (Vec::new(), Vec::new()),
                    Logged::Members(members) => {
                        replay.members(*index, members)?;
                        (Vec::new(), Vec::new())
                    }
                    Logged::Requests(entry) => (entry.requests.clone(), replay.entry(*index, entry.clone())?),
                };
                let adopted = |reply: &&Result<Reply, Reject>| matches!(reply, Ok(Reply::Adopted(_)));
                replies.iter().filter(adopted).for_each(|_| self.record.count("shard adopted"));
                while let Some(next) = acknowledged.next_if(|next| next.index == *index) {
                    let said = requests.iter().zip(&replies).any(|said| said == (&next.request, &next.reply));
                    if !said {
                        self.record
                            .broken(format_args!("{next:?} was acknowledged, and the log has {replies:?} there"));
                    }
                }
            }
            Ok(replay.state_hash())
        })();
        match checked {
            Ok(replayed) if replayed == hash => {}
            Ok(replayed) => {
                self.record.broken(format_args!("the log leads to {replayed:016x}, the nodes are at {hash:016x}"))
            }
            Err(broken) => {
                self.record.broken(broken);
                return inner.log.len();
            }
        }
        if let Some(lost) = acknowledged.next() {
            self.record.broken(format_args!("{lost:?} was acknowledged and is not in the log"));
        }
        inner.log.len()
    }
}

/// What is seen of a node from inside.
pub struct Inside {
    /// The node.
    pub node: NodeName,
    /// Who watches.
    pub watch: Arc<Watch>,
}

impl Observer for Inside {
    fn applied(&self, index: u64, term: u64, entry: &AppliedEntry<'_>) {
        self.watch.applied(&self.node, index, term, entry);
    }
}
