//! What a node is started with, and the checks on it.

use std::net::TcpListener;
use std::path::PathBuf;

use holdfast_machine::NodeName;

use crate::environment::Environment;

/// One member of the static first list, the same on all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// The numeric Raft id.
    pub id: u64,
    /// The stable name.
    pub name: NodeName,
    /// Where its peers reach it, `host:port`; looked up again at each connect.
    pub peer_addr: String,
    /// Where clients reach it, `host:port`; may be empty.
    pub http_addr: String,
}

/// Where this node listens for its peers.
#[derive(Debug)]
pub enum PeerListen {
    /// An address to bind, `host:port`.
    Address(String),
    /// A socket that is bound already.
    Bound(TcpListener),
}

/// Heartbeats, elections and how long callers wait. All in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// A follower that hears nothing campaigns after `election_max_ms` and a random part between these
    /// two; they must stand above the longest stall of the disk's sync.
    pub election_min_ms: u64,
    /// See `election_min_ms`.
    pub election_max_ms: u64,
    /// How long a proposal or a read waits for its answer.
    pub answer_ms: u64,
    /// Between two checkpoints, while anything is written.
    pub checkpoint_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { heartbeat_ms: 50, election_min_ms: 200, election_max_ms: 400, answer_ms: 2_000, checkpoint_ms: 10_000 }
    }
}

/// How a dead peer is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detection {
    /// Between two looks at a peer, in milliseconds.
    pub poll_interval_ms: u64,
    /// Bad looks in a row that make a verdict.
    pub confirmations: u32,
    /// A peer that acknowledged nothing for this long, in milliseconds, looks bad.
    pub silence_ms: u64,
}

impl Default for Detection {
    fn default() -> Self {
        Self { poll_interval_ms: 50, confirmations: 3, silence_ms: 600 }
    }
}

/// What goes into a log entry, and how much may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batching {
    /// Requests in one entry, at most.
    pub requests_per_entry: usize,
    /// Bytes after which an entry is full.
    pub bytes_per_entry: usize,
    /// Entries under way at a time.
    pub entries_in_flight: usize,
    /// Bytes of entries under way at a time; a larger entry goes alone. Followers have to take them in, sync them and
    /// answer within an election timeout.
    pub bytes_in_flight: usize,
    /// Requests that may wait for their reply, on the leader and on each node that passes them on; past it they are turned
    /// away.
    pub requests_waiting_max: usize,
    /// Bytes that may wait for their reply, likewise; never less than the largest request.
    pub bytes_waiting_max: usize,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            requests_per_entry: 512,
            bytes_per_entry: 64 * 1024,
            entries_in_flight: 8,
            bytes_in_flight: 8 * 1024 * 1024,
            requests_waiting_max: 16 * 1024,
            bytes_waiting_max: 128 * 1024 * 1024,
        }
    }
}

/// When the log is made shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// Entries after which a new snapshot is taken.
    pub snapshot_every: u64,
    /// Entries that are kept although a snapshot covers them, so that a follower that was away for a
    /// while needs no snapshot. More than is written while a snapshot is sent; never 0.
    pub keep: u64,
    /// A learner that is further behind than this has not caught up. (Who gets a snapshot is decided by what is kept.)
    pub lag_max: u64,
    /// Bytes of log after which a new snapshot is taken, however few entries they are; more when the last snapshot is
    /// larger than that. Never more than an eighth of the disk, otherwise.
    pub snapshot_bytes: u64,
    /// Bytes of log that are kept although a snapshot covers them, at most; never more than a sixteenth of the disk.
    pub keep_bytes: u64,
    /// Entries that are purged at a time, at least.
    pub purge_batch: u64,
}

impl Default for Compaction {
    fn default() -> Self {
        Self {
            snapshot_every: 100_000,
            keep: 50_000,
            lag_max: 200_000,
            snapshot_bytes: 512 * 1024 * 1024,
            keep_bytes: 256 * 1024 * 1024,
            purge_batch: 1_024,
        }
    }
}

/// Default of [`Options::disk_reserve_bytes`].
const DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;

/// What a node is started with.
pub struct Options {
    /// The cluster's id; nodes of different clusters refuse each other.
    pub cluster: String,
    /// This node's id in the first list of members; it has to be among `members`. A member that was replaced has
    /// another one.
    pub node: u64,
    /// Where this node's data lives.
    pub data_dir: PathBuf,
    /// The first list of members.
    pub members: Vec<MemberConfig>,
    /// Where peers reach this node.
    pub listen: PeerListen,
    /// Heartbeats, elections, deadlines.
    pub timing: Timing,
    /// The failure detector.
    pub detection: Detection,
    /// The batcher.
    pub batching: Batching,
    /// Snapshots and the length of the log.
    pub compaction: Compaction,
    /// Free bytes on the disk below which no new work is taken, at most; never more than an eighth of the disk.
    pub disk_reserve_bytes: u64,
    /// The leader replaces a member by itself that comes back without its data.
    pub auto_replace: bool,
    /// Events that the feed keeps.
    pub feed_capacity: usize,
    /// What it takes from the operating system.
    pub environment: Environment,
}

/// A setting that makes no sense, by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {problem}")]
pub struct InvalidOption {
    /// The setting.
    pub key: &'static str,
    /// What is wrong, as the end of a sentence.
    pub problem: String,
}

impl Options {
    /// Options with every default.
    pub fn new(
        cluster: impl Into<String>,
        node: u64,
        data_dir: impl Into<PathBuf>,
        members: Vec<MemberConfig>,
        listen: PeerListen,
    ) -> Self {
        Self {
            cluster: cluster.into(),
            node,
            data_dir: data_dir.into(),
            members,
            listen,
            timing: Timing::default(),
            detection: Detection::default(),
            batching: Batching::default(),
            compaction: Compaction::default(),
            disk_reserve_bytes: DISK_RESERVE_BYTES,
            auto_replace: false,
            feed_capacity: 10_000,
            environment: Environment::default(),
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let positive: [(&'static str, u64); 14] = [
            ("poll_interval_ms", self.detection.poll_interval_ms),
            ("confirmations", self.detection.confirmations.into()),
            ("silence_ms", self.detection.silence_ms),
            ("heartbeat_ms", self.timing.heartbeat_ms),
            ("answer_ms", self.timing.answer_ms),
            ("checkpoint_ms", self.timing.checkpoint_ms),
            ("requests_per_entry", self.batching.requests_per_entry as u64),
            ("bytes_per_entry", self.batching.bytes_per_entry as u64),
            ("entries_in_flight", self.batching.entries_in_flight as u64),
            ("requests_waiting_max", self.batching.requests_waiting_max as u64),
            ("snapshot_every", self.compaction.snapshot_every),
            ("keep", self.compaction.keep),
            ("snapshot_bytes", self.compaction.snapshot_bytes),
            ("purge_batch", self.compaction.purge_batch),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(InvalidOption { key, problem: "must not be 0".to_owned() });
            }
        }
        self.check_timing()?;
        self.check_members()
    }

    /// This node's name.
    ///
    /// # Errors
    /// When it is not among the members.
    pub fn name(&self) -> Result<&NodeName, InvalidOption> {
        let own = self.members.iter().find(|member| member.id == self.node);
        own.map(|member| &member.name).ok_or_else(|| {
            let problem = format!("does not name this node ({})", self.node);
            InvalidOption { key: "members", problem }
        })
    }

    fn check_timing(&self) -> Result<(), InvalidOption> {
        let Timing { heartbeat_ms, election_min_ms, election_max_ms, .. } = self.timing;
        if election_min_ms < heartbeat_ms.saturating_mul(2) {
            let problem = format!("must be at least twice heartbeat_ms ({heartbeat_ms})");
            return Err(InvalidOption { key: "election_min_ms", problem });
        }
        if election_max_ms <= election_min_ms {
            let problem = format!("must be above election_min_ms ({election_min_ms})");
            return Err(InvalidOption { key: "election_max_ms", problem });
        }
        if self.detection.silence_ms < heartbeat_ms.saturating_mul(2) {
            let problem = format!("must be at least twice heartbeat_ms ({heartbeat_ms})");
            return Err(InvalidOption { key: "silence_ms", problem });
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), InvalidOption> {
        let invalid = |problem: String| InvalidOption { key: "members", problem };
        for (i, member) in self.members.iter().enumerate() {
            let earlier = &self.members[..i];
            if earlier.iter().any(|other| other.id == member.id) {
                return Err(invalid(format!("has the id {} twice", member.id)));
            }
            if earlier.iter().any(|other| other.name == member.name) {
                return Err(invalid(format!("has the name {} twice", member.name)));
            }
        }
        self.name().map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn member(id: u64, name: &str) -> MemberConfig {
        let name = NodeName::new(name).unwrap();
        MemberConfig { id, name, peer_addr: String::new(), http_addr: String::new() }
    }

    fn options() -> Options {
        let members = vec![member(1, "a"), member(2, "b")];
        Options::new("c", 1, "/nowhere", members, PeerListen::Address(String::new()))
    }

    #[test]
    fn defaults_are_fine_and_nonsense_is_named() {
        assert_eq!(options().check(), Ok(()));
        let mut changed = options();
        changed.detection.confirmations = 0;
        assert_eq!(changed.check().unwrap_err().to_string(), "confirmations must not be 0");
        let mut changed = options();
        changed.detection.poll_interval_ms = 0;
        assert_eq!(changed.check().unwrap_err().key, "poll_interval_ms");
        let mut changed = options();
        changed.timing.election_min_ms = 60;
        assert_eq!(changed.check().unwrap_err().key, "election_min_ms");
        let mut changed = options();
        changed.members.push(member(2, "c"));
        assert_eq!(changed.check().unwrap_err().key, "members");
        let mut changed = options();
        changed.node = 9;
        assert_eq!(changed.check().unwrap_err().key, "members");
    }
}
