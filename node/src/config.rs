//! What a node can be told, in one place: every key with its meaning and default, checked before anything is
//! touched. A value comes from a flag, else from the environment, else from the file, else from its default.
//!
//! `load.rs` reads the sources, `members.rs` is the list of members, `check.rs` refuses what cannot work, and
//! `error.rs` has the sentence for each refusal.

mod check;
mod error;
mod load;
mod members;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use confique::Layer;
use holdfast_machine::NodeName;

pub use check::Identity;
pub use error::ConfigError;
pub use load::{example, load, parse_setting};
pub use members::{InvalidMembers, Members, PeerAddress};

/// Configuration of one Holdfast node, as TOML. A flag stands above an environment variable, and that above
/// this file. Every key may be left out; what is commented out here is the default.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct Config {
    /// This node's stable name, one of `members`. May be left out by a node without `members`: it is then a
    /// cluster of its own and called `node-a`.
    #[config(env = "HOLDFAST_NODE_NAME")]
    pub node_name: Option<NodeName>,

    /// The name of the cluster, the same on all its nodes. Nodes and data directories of another cluster are
    /// refused.
    #[config(env = "HOLDFAST_CLUSTER_ID", default = "holdfast")]
    pub cluster_id: String,

    /// The first members, the same on all nodes: each name with the address where the other nodes reach it. A new
    /// cluster begins once all of them have been started. The first numeric Raft id of a member is its place in the
    /// list sorted by name, from 1; to fix it, write `"1@host:7700"`, and then for every member. In the environment:
    /// `node-a=host-a:7700,node-b=host-b:7700,node-c=host-c:7700`.
    #[config(env = "HOLDFAST_MEMBERS", parse_env = Members::from_text, default = {})]
    pub members: Members,

    /// Where the HTTP API listens.
    #[config(env = "HOLDFAST_HTTP_LISTEN", default = "127.0.0.1:7600")]
    pub http_listen: SocketAddr,

    /// Where the other nodes are listened to.
    #[config(env = "HOLDFAST_PEER_LISTEN", default = "127.0.0.1:7700")]
    pub peer_listen: SocketAddr,

    /// The directory that holds this node's log and state. It is made if it does not exist.
    #[config(env = "HOLDFAST_DATA_DIR", default = "holdfast-data")]
    pub data_dir: PathBuf,

    /// When the file system of `data_dir` has fewer free bytes than this, new work is refused (`storage_full`) and only
    /// what finishes work or frees space is taken. Never more than an eighth of the file system.
    #[config(env = "HOLDFAST_DISK_RESERVE_BYTES", default = 268_435_456)]
    pub disk_reserve_bytes: u64,

    /// Allows `http_listen` and `peer_listen` beyond loopback. There is no authentication yet: whoever reaches
    /// such an address may read and change everything, so it needs a network that keeps strangers out.
    #[config(env = "HOLDFAST_INSECURE_ALLOW_REMOTE", default = false)]
    pub insecure_allow_remote: bool,

    /// How many shards a new cluster gets. Fixed when the cluster is created; without effect afterwards.
    #[config(env = "HOLDFAST_SHARD_COUNT", default = 64)]
    pub shard_count: u32,

    /// How long a stopping node may take to finish its calls and to hand over leadership, in milliseconds.
    #[config(env = "HOLDFAST_SHUTDOWN_TIMEOUT_MS", default = 10_000)]
    pub shutdown_timeout_ms: u64,

    /// How long rows have to be due, in milliseconds, until that nobody takes them is an event (`DispatchParked`) and
    /// is counted.
    #[config(env = "HOLDFAST_PARKED_AFTER_MS", default = 1_000)]
    pub parked_after_ms: u64,

    /// Whether the leader replaces a member by itself that comes back with an empty data directory, as
    /// `holdfast member replace` does. The same on all nodes. It saves a call in the night; but a directory that is empty
    /// by mistake, such as a disk that was not mounted, then costs a copy of all data, and the old data is of no use any
    /// more.
    #[config(env = "HOLDFAST_AUTO_REPLACE", default = false)]
    pub auto_replace: bool,

    /// When a peer is taken for dead.
    #[config(nested)]
    pub detector: DetectorConfig,

    /// The consensus between the nodes.
    #[config(nested)]
    pub raft: RaftConfig,

    /// How survivors take over the shards of a dead node.
    #[config(nested)]
    pub adoption: AdoptionConfig,

    /// The safety net under rows whose holder is gone.
    #[config(nested)]
    pub reconcile: ReconcileConfig,

    /// What one request may ask for. More is refused and changes nothing.
    #[config(nested)]
    pub limits: LimitsConfig,

    /// What the node says while it runs.
    #[config(nested)]
    pub log: LogConfig,
}

/// When a peer is taken for dead.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct DetectorConfig {
    /// How often each peer is looked at, in milliseconds.
    #[config(env = "HOLDFAST_DETECTOR_POLL_INTERVAL_MS", default = 50)]
    pub poll_interval_ms: u64,

    /// How many bad observations in a row make a death; one good observation starts the count anew.
    #[config(env = "HOLDFAST_DETECTOR_CONFIRMATIONS", default = 3)]
    pub confirmations: u32,

    /// How long a peer may leave heartbeats unanswered before that is a bad observation, in milliseconds.
    #[config(env = "HOLDFAST_DETECTOR_SILENCE_MS", default = 600)]
    pub silence_ms: u64,
}

/// The consensus between the nodes.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct RaftConfig {
    /// How often the leader says that it is there, in milliseconds.
    #[config(env = "HOLDFAST_RAFT_HEARTBEAT_MS", default = 50)]
    pub heartbeat_ms: u64,

    /// The shortest time without a leader after which a node stands for election, in milliseconds.
    #[config(env = "HOLDFAST_RAFT_ELECTION_MIN_MS", default = 200)]
    pub election_min_ms: u64,

    /// The longest such time, in milliseconds. It has to stand above the longest stall of the disk.
    #[config(env = "HOLDFAST_RAFT_ELECTION_MAX_MS", default = 400)]
    pub election_max_ms: u64,

    /// How long a call waits for its answer, in milliseconds. After that its outcome is unknown to the caller.
    #[config(env = "HOLDFAST_RAFT_ANSWER_MS", default = 2_000)]
    pub answer_ms: u64,

    /// How often the nodes compare their states while anything is written, in milliseconds. One that differs stops.
    #[config(env = "HOLDFAST_RAFT_CHECKPOINT_MS", default = 10_000)]
    pub checkpoint_ms: u64,

    /// A snapshot is taken after this many log entries.
    #[config(env = "HOLDFAST_RAFT_SNAPSHOT_AFTER", default = 100_000)]
    pub snapshot_after: u64,

    /// A snapshot is taken after this many bytes of log, however few entries they are; later when the last snapshot is
    /// larger than that. Never more than an eighth of the disk, otherwise.
    #[config(env = "HOLDFAST_RAFT_SNAPSHOT_AFTER_BYTES", default = 536_870_912)]
    pub snapshot_after_bytes: u64,

    /// How many log entries are kept behind a snapshot, for peers that lag a little.
    #[config(env = "HOLDFAST_RAFT_LOGS_KEPT", default = 50_000)]
    pub logs_kept: u64,

    /// How many bytes of log are kept behind a snapshot, however few entries they are; never more than a sixteenth of the
    /// disk.
    #[config(env = "HOLDFAST_RAFT_LOGS_KEPT_BYTES", default = 268_435_456)]
    pub logs_kept_bytes: u64,
}

/// How survivors take over the shards of a dead node.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct AdoptionConfig {
    /// The preferred adopter of a shard acts at once; each further survivor waits this much longer than the one
    /// before it, in milliseconds, and acts only if nobody has.
    #[config(env = "HOLDFAST_ADOPTION_STAGGER_MS", default = 150)]
    pub stagger_ms: u64,

    /// When a new cluster's shards are given out without waiting longer for members that have never started, in
    /// milliseconds after a quorum has.
    #[config(env = "HOLDFAST_ADOPTION_FIRST_ASSIGNMENT_GRACE_MS", default = 5_000)]
    pub first_assignment_grace_ms: u64,
}

/// The safety net under rows whose holder is gone.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct ReconcileConfig {
    /// How often the leader looks for such rows, in milliseconds.
    #[config(env = "HOLDFAST_RECONCILE_INTERVAL_MS", default = 5_000)]
    pub interval_ms: u64,

    /// Claims younger than this are left alone, in milliseconds.
    #[config(env = "HOLDFAST_RECONCILE_OLDER_THAN_MS", default = 30_000)]
    pub older_than_ms: u64,
}

/// What one request may ask for.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct LimitsConfig {
    /// Largest payload, in bytes.
    #[config(env = "HOLDFAST_LIMITS_PAYLOAD_BYTES_MAX", default = 2_097_152)]
    pub payload_bytes_max: usize,

    /// Most events, rows or keys in one command.
    #[config(env = "HOLDFAST_LIMITS_BATCH_MAX", default = 1_000)]
    pub batch_max: usize,

    /// Most items in one page or one claim.
    #[config(env = "HOLDFAST_LIMITS_PAGE_MAX", default = 1_000)]
    pub page_max: usize,

    /// Longest lease, in milliseconds.
    #[config(env = "HOLDFAST_LIMITS_LEASE_MS_MAX", default = 86_400_000)]
    pub lease_ms_max: u64,
}

/// What the node says while it runs.
#[derive(Debug, Clone, PartialEq, confique::Config)]
pub struct LogConfig {
    /// `text` for people, `json` for machines: one line each, on standard error.
    #[config(env = "HOLDFAST_LOG_FORMAT", default = "text")]
    pub format: LogFormat,

    /// What is said: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,holdfast_raft=debug`.
    /// The variable `RUST_LOG` stands above it.
    #[config(env = "HOLDFAST_LOG_LEVEL", default = "info")]
    pub level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    /// The defaults alone, with nothing read from the environment: a cluster of one node.
    fn default() -> Self {
        let defaults = <Self as confique::Config>::Layer::default_values();
        // Each field is optional or has a default; the test `defaults_are_complete` holds that true.
        #[allow(clippy::expect_used)]
        <Self as confique::Config>::from_layer(defaults).expect("every key has a default")
    }
}

impl LimitsConfig {
    /// The limits as the API checks them.
    pub fn limits(&self) -> holdfast_machine::Limits {
        holdfast_machine::Limits {
            payload_bytes_max: self.payload_bytes_max,
            batch_max: self.batch_max,
            page_max: self.page_max,
            lease_ms_max: self.lease_ms_max,
        }
    }
}

impl Config {
    /// How long a stopping node may take.
    pub fn shutdown_timeout(&self) -> Duration {
        Duration::from_millis(self.shutdown_timeout_ms)
    }
}

#[cfg(test)]
mod tests;
