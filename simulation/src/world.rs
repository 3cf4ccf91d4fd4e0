//! What all parts of a run share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_checkers::history::Recorder;
use holdfast_machine::limits::REPLY_REMEMBERED_MS;
use holdfast_machine::{Fence, NodeName, ShardId, WorkflowId};
use parking_lot::Mutex;

use crate::draw::{Draw, Random};
use crate::host::Host;
use crate::network::Wires;
use crate::record::Record;
use crate::watch::Watch;

/// What is drawn once for a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nodes.
    pub nodes: u64,
    /// Shards.
    pub shards: u32,
    /// Entries between two snapshots.
    pub snapshot_after: u64,
    /// Entries kept behind one.
    pub logs_kept: u64,
    /// Bytes of a segment of the log.
    pub segment_bytes: u64,
    /// Between two heartbeats.
    pub heartbeat_ms: u64,
    /// The least and the most that a sync takes.
    pub sync_ms: (u64, u64),
    /// The least and the most that a message takes.
    pub message_ms: (u64, u64),
    /// Replies that are lost, of a hundred.
    pub lost_replies: u64,
    /// Engines, workers, and clients that append.
    pub clients: (u64, u64, u64),
    /// Workers with sessions.
    pub sessions: u64,
    /// How far clocks are stepped at most. Beyond the time for which replies are remembered, a retry may be a second call.
    pub clock_step_ms: i64,
    /// Leaders replace nodes that lost their disks by themselves; otherwise an operator has it done.
    pub auto_replace: bool,
}

impl Settings {
    /// Draws them.
    pub fn draw(random: &mut Random) -> Self {
        let messages = *random.pick(&[(1, 2), (1, 5), (2, 20)]);
        Self {
            nodes: *random.pick(&[3, 3, 3, 5]),
            shards: *random.pick(&[1, 4, 8]),
            snapshot_after: random.between(50, 400),
            logs_kept: random.between(10, 100),
            segment_bytes: *random.pick(&[8 << 10, 32 << 10, 256 << 10]),
            // Above what a message takes, there and back.
            heartbeat_ms: 50 + messages.1 * 2,
            sync_ms: *random.pick(&[(0, 1), (1, 4), (2, 15)]),
            message_ms: messages,
            lost_replies: *random.pick(&[0, 2, 5]),
            clients: (random.between(1, 3), random.between(1, 3), random.between(1, 2)),
            clock_step_ms: *random.pick(&[5_000, 5_000, 120_000, 3_600_000]),
            auto_replace: random.chance(40),
            sessions: random.below(3),
        }
    }

    /// The names of all clients, in the order of their numbers.
    pub fn client_names(&self) -> impl Iterator<Item = String> {
        let (engines, workers, appenders) = self.clients;
        let of = |kind: &'static str, count: u64| (1..=count).map(move |number| format!("{kind}-{number}"));
        let all = of("engine", engines).chain(of("worker", workers)).chain(of("session", self.sessions));
        all.chain(of("appender", appenders)).chain(["operator".to_owned()])
    }
}

/// What all parts of a run share.
pub struct World {
    /// What was drawn.
    pub settings: Settings,
    /// What happens.
    pub record: Record,
    /// The invariants.
    pub watch: Arc<Watch>,
    /// The machines.
    pub hosts: Vec<Arc<Host>>,
    /// Connections between nodes.
    pub wires: Wires,
    /// What clients called, and what they were answered.
    pub calls: Recorder,
    /// Replies that are lost, of a hundred, while there are faults.
    pub lost_replies: u64,
    elapsed: Arc<AtomicU64>,
    random: Mutex<Random>,
    faults_are_over: AtomicBool,
    work_is_over: AtomicBool,
    engines: AtomicU64,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(settings: Settings, mut random: Random, record: Record) -> anyhow::Result<Self> {
        let elapsed = Arc::new(AtomicU64::new(0));
        let mut hosts = Vec::new();
        for id in 1..=settings.nodes {
            let name = NodeName::new(format!("node-{id}"))?;
            hosts.push(Arc::new(Host::new(name, elapsed.clone(), random.fork(), settings.sync_ms)));
        }
        Ok(Self {
            watch: Arc::new(Watch::new(record.clone())),
            record,
            hosts,
            wires: Wires::default(),
            calls: Recorder::default(),
            lost_replies: settings.lost_replies,
            elapsed,
            random: Mutex::new(random),
            faults_are_over: AtomicBool::new(false),
            work_is_over: AtomicBool::new(false),
            engines: AtomicU64::new(settings.clients.0),
            settings,
        })
    }

    /// Simulated time has come to here.
    pub fn now_is(&self, at_ms: u64) {
        self.elapsed.store(at_ms, Ordering::Relaxed);
        self.record.now_is(at_ms);
    }

    /// Draws something, for whoever has no source of its own.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock())
    }

    /// No more faults; clients finish what they have begun, and begin nothing.
    pub fn faults_are_over(&self) {
        self.faults_are_over.store(true, Ordering::Relaxed);
    }

    /// True once clients should begin nothing more.
    pub fn is_ending(&self) -> bool {
        self.faults_are_over.load(Ordering::Relaxed)
    }

    /// An engine has finished everything. The last one lets the workers go.
    pub fn engine_is_done(&self) {
        if self.engines.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.work_is_over.store(true, Ordering::Relaxed);
        }
    }

    /// True once there is no more work.
    pub fn is_without_work(&self) -> bool {
        self.work_is_over.load(Ordering::Relaxed)
    }

    /// The shard of a workflow.
    pub fn shard_of(&self, workflow: &WorkflowId) -> ShardId {
        ShardId::of(workflow, self.settings.shards)
    }

    /// Who owns a workflow's shard, as whoever is asked first knows it.
    pub fn owner_of(&self, workflow: &WorkflowId) -> Option<Fence> {
        let shard = self.shard_of(workflow);
        let owner = |host: &Arc<Host>| {
            host.node()?.view(|machine, _| machine.shard(shard).map(|entry| (entry.owner.clone(), entry.epoch)))
        };
        let (owner, epoch) = self.hosts.iter().find_map(owner)?;
        Some(Fence { owner, epoch })
    }

    /// True if log time may leap so far that replies are forgotten, and a retry becomes a second call.
    pub fn leaps(&self) -> bool {
        self.settings.clock_step_ms as u64 > REPLY_REMEMBERED_MS
    }

    /// A node did not start.
    pub fn did_not_start(&self, host: &Host, reason: &str) {
        self.record.count("start refused");
        self.record.note(format_args!("{} does not start: {reason}", host.name));
        if host.disk().failed() == 0 {
            self.record.broken(format_args!("{} does not start, and its disk is sound: {reason}", host.name));
        }
    }

    /// A node cannot go on.
    pub fn node_failed(&self, host: &Host, reason: &str) {
        self.record.count("node stopped itself");
        self.record.note(format_args!("{} stops: {reason}", host.name));
        if host.disk().failed() == 0 {
            self.record.broken(format_args!("{} stops, and its disk is sound: {reason}", host.name));
        }
    }
}
