//! Starts a node: opens its data, then the links, then Raft, then everything that watches over it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{ClusterEvent, Effect, NodeName};
use holdfast_storage::{Expected, LogWriter, Storage, StorageError};
use openraft::async_runtime::WatchReceiver;
use openraft::{Config, SnapshotPolicy};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batcher::Batcher;
use crate::budget::Budget;
use crate::checkpoint::Checkpoints;
use crate::compaction;
use crate::environment::PeerListener;
use crate::feed::Feed;
use crate::handle::{Handle, Running};
use crate::leader::LeaderDesk;
use crate::log_store::{LogStore, blocking};
use crate::membership::{self, Keeper};
use crate::options::{InvalidOption, Options, PeerListen};
use crate::peers::{Links, Lookout};
use crate::progress::Progress;
use crate::propose::Proposer;
use crate::room::{Admission, RoomWatch};
use crate::snapshot::read_membership;
use crate::state_machine::{Replica, StateMachine};
use crate::succession::Successor;
use crate::transport::handshake::Registry;
use crate::transport::link::AddressBook;
use crate::transport::network::Network;
use crate::transport::server::Server;
use crate::types::{Core, PeerNode, StoredMembership};

/// Effects that a slow receiver may be behind.
const EFFECTS: usize = 4096;
/// How long a data directory may still be held by a process that is stopping.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Pause before a disk without room is tried again.
const SPACE_PAUSE: Duration = Duration::from_secs(1);
/// Between two syncs of the state; the log has what comes after.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// Only transfers use this; theirs are bounded chunk by chunk.
const SNAPSHOT_LIMIT_MS: u64 = 3_600_000;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error("invalid configuration: {0}")]
    Invalid(#[from] InvalidOption),
    /// The data directory cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The address for peers cannot be used.
    #[error("cannot listen for peers on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What the operating system says.
        error: io::Error,
    },
    /// Raft refused what it found, or the state could not be read.
    #[error("the node cannot start: {0}")]
    Refused(String),
}

/// The way to a running node.
pub struct Raft;

impl Raft {
    /// Starts a node, on the tokio runtime that this is called on.
    ///
    /// # Errors
    /// See [`StartError`]; nothing keeps running then.
    pub async fn start(options: Options) -> Result<Handle, StartError> {
        options.check()?;
        let listener = listen(&options).await?;
        let storage = Arc::new(open_storage(&options).await?);
        let ground = Ground::prepare(options, storage)?;
        let stop = ground.stop.clone();
        let started = start(ground, listener).await;
        if started.is_err() {
            stop.cancel();
        }
        started
    }
}

async fn listen(options: &Options) -> Result<Box<dyn PeerListener>, StartError> {
    let address = match &options.listen {
        PeerListen::Address(address) => address.clone(),
        PeerListen::Bound(_) => "the given socket".to_owned(),
    };
    let listening = options.environment.network.listen(&options.listen).await;
    listening.map_err(|error| StartError::Listen { address, error })
}

/// Opens the data directory; waits a little for a process that is just leaving it.
async fn open_storage(options: &Options) -> Result<Storage, StartError> {
    let begun = Instant::now();
    loop {
        let path = options.data_dir.clone();
        let expected = Expected { cluster: options.cluster.clone(), node: options.node };
        let settings = storage_options(options);
        let open = move || Ok(Storage::open(&path, &expected, &settings));
        let opened = blocking(open).await.map_err(refused)?;
        match opened {
            Err(StorageError::InUse { .. }) if begun.elapsed() < LOCK_LIMIT => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            // Where there is nothing to be done but to wait, a restart would do no more.
            Err(error) if error.is_full() => {
                tracing::error!(%error, "no space on the disk; waiting for it");
                tokio::time::sleep(SPACE_PAUSE).await;
            }
            opened => return Ok(opened?),
        }
    }
}

fn storage_options(options: &Options) -> holdfast_storage::Options {
    let environment = &options.environment;
    let mut storage = environment.storage.clone();
    storage.reserve_bytes = options.disk_reserve_bytes;
    storage.state.machine_version = holdfast_machine::STATE_VERSION.into();
    if environment.write_pause.is_some() {
        storage.log.writer = LogWriter::Driven;
    }
    storage
}

/// What stands before Raft runs, and what everything else is built on.
struct Ground {
    options: Options,
    storage: Arc<Storage>,
    names: BTreeMap<u64, NodeName>,
    registry: Registry,
    addresses: AddressBook,
    links: Links,
    admission: Admission,
    progress: Progress,
    feed: Feed,
    effects: broadcast::Sender<(u64, Effect)>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Ground {
    fn prepare(options: Options, storage: Arc<Storage>) -> Result<Self, StartError> {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let incarnation = storage.dir.identity().incarnation.as_u128();
        let stored = read_membership(storage.state.membership().as_deref()).map_err(refused)?;
        let known = known_members(&options, &stored);
        let base = storage.dir.identity().base;
        let registry =
            Registry::new(&options.cluster, options.node, incarnation, known.keys().copied()).with_base(base);
        registry.learn_committed(known.iter().map(|(id, node)| (*id, node.incarnation)));
        let addresses = address_book(&options, &known);
        let peers = known.keys().copied().filter(|id| *id != options.node);
        let ping_interval = Duration::from_millis(options.timing.heartbeat_ms * 2);
        let links = Links::open(peers, &registry, &addresses, ping_interval, &stop, &tasks);
        let applied = storage.state.applied().map(|id| id.index);
        Ok(Self {
            progress: Progress::new(applied),
            feed: Feed::new(options.feed_capacity, applied),
            effects: broadcast::channel(EFFECTS).0,
            names: known.into_iter().map(|(id, node)| (id, node.name)).collect(),
            options,
            storage,
            registry,
            addresses,
            links,
            admission: Admission::default(),
            stop,
            tasks,
        })
    }

    async fn load_replica(&self) -> Result<Arc<Replica>, StartError> {
        let (storage, progress) = (self.storage.clone(), self.progress.clone());
        let (feed, effects) = (self.feed.clone(), self.effects.clone());
        let observer = self.options.environment.observer.clone();
        let load = move || Replica::load(storage, progress, feed, effects, observer);
        blocking(load).await.map(Arc::new).map_err(refused)
    }

    async fn start_core(&self, replica: &Arc<Replica>) -> Result<Core, StartError> {
        let config = Arc::new(config(&self.options).map_err(refused)?);
        let network = Network {
            links: self.links.clone(),
            registry: self.registry.clone(),
            addresses: self.addresses.clone(),
            acknowledged: Default::default(),
        };
        let pause = self.options.environment.write_pause.clone();
        let log = LogStore::new(self.storage.clone(), self.progress.clone(), pause);
        let machine = StateMachine::new(replica.clone());
        Core::new(self.options.node, config, network, log, machine).await.map_err(refused)
    }

    /// Runs `work` until it ends or the node stops.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    fn open_desk(&self, core: &Core) -> LeaderDesk {
        let (clock, limits) = (self.options.environment.clock.clone(), self.options.batching.clone());
        let batcher = Batcher::start(core.clone(), clock, limits, self.stop.clone(), &self.tasks);
        let (storage, admission) = (self.storage.clone(), self.admission.clone());
        LeaderDesk::open(core.clone(), batcher, storage, admission, self.stop.clone(), &self.tasks)
    }

    /// Starts what answers peers and what watches over them.
    fn attend(&self, core: &Core, desk: &LeaderDesk, replica: &Arc<Replica>, listener: Box<dyn PeerListener>) {
        let node = self.options.node;
        let (stop, tasks) = (&self.stop, &self.tasks);
        let lookout = Lookout::start(&self.links, &self.names, &self.options.detection, core, &self.feed, stop, tasks);
        let successor = Successor { core: core.clone(), node, links: self.links.clone(), verdicts: lookout.verdicts() };
        self.spawn(successor.run());
        let keeper = Keeper {
            core: core.clone(),
            node,
            links: self.links.clone(),
            registry: self.registry.clone(),
            configured: self.options.members.clone(),
            verdicts: lookout.verdicts(),
        };
        self.spawn(keeper.run());
        let checkpoints = Checkpoints {
            core: core.clone(),
            node,
            desk: desk.clone(),
            links: self.links.clone(),
            replica: replica.clone(),
            interval: Duration::from_millis(self.options.timing.checkpoint_ms),
        };
        self.spawn(checkpoints.run());
        let room = RoomWatch {
            room: self.storage.room.clone(),
            core: core.clone(),
            links: self.links.clone(),
            admission: self.admission.clone(),
        };
        self.spawn(room.run());
        let server = Server {
            registry: self.registry.clone(),
            core: core.clone(),
            desk: desk.clone(),
            lookout,
            storage: self.storage.clone(),
            replica: replica.clone(),
            progress: self.progress.clone(),
            stop: stop.clone(),
            tasks: tasks.clone(),
        };
        self.spawn(server.run(listener));
    }
}

fn refused(error: impl std::fmt::Display) -> StartError {
    StartError::Refused(error.to_string())
}

async fn start(ground: Ground, listener: Box<dyn PeerListener>) -> Result<Handle, StartError> {
    let replica = ground.load_replica().await?;
    let core = ground.start_core(&replica).await?;
    let desk = ground.open_desk(&core);
    ground.attend(&core, &desk, &replica, listener);
    let (node, members) = (ground.options.node, ground.options.members.clone());
    ground.spawn(membership::form(core.clone(), members, node));
    let (feed, progress) = (ground.feed.clone(), ground.progress.clone());
    let names = ground.names.clone();
    ground.spawn(follow_leadership(core.clone(), ground.registry.clone(), feed, progress, names));
    ground.spawn(compaction::bound_bytes(core.clone(), ground.storage.clone(), ground.options.compaction.clone()));
    ground.spawn(sync_now_and_then(replica.clone(), ground.progress.clone()));
    let proposer = Proposer {
        core: core.clone(),
        node,
        desk: desk.clone(),
        links: ground.links.clone(),
        progress: ground.progress.clone(),
        budget: Budget::new(ground.options.batching.requests_waiting_max, ground.options.batching.bytes_waiting_max),
        limit: Duration::from_millis(ground.options.timing.answer_ms),
    };
    Ok(Handle::new(Running {
        clock: ground.options.environment.clock,
        core,
        replica,
        proposer,
        desk,
        links: ground.links,
        progress: ground.progress,
        feed: ground.feed,
        effects: ground.effects,
        stop: ground.stop,
        tasks: ground.tasks,
    }))
}

/// The committed members and the configured ones; what is committed counts first.
fn known_members(options: &Options, stored: &StoredMembership) -> BTreeMap<u64, PeerNode> {
    let mut known = membership::first_members(&options.members);
    known.extend(stored.nodes().map(|(id, node)| (*id, node.clone())));
    known
}

fn address_book(options: &Options, known: &BTreeMap<u64, PeerNode>) -> AddressBook {
    let mut addresses: BTreeMap<u64, String> = known.iter().map(|(id, node)| (*id, node.peer_addr.clone())).collect();
    let configured = options.members.iter();
    addresses.extend(configured.map(|member| (member.id, member.peer_addr.clone())));
    AddressBook::new(options.environment.network.clone(), addresses)
}

fn config(options: &Options) -> Result<Config, openraft::ConfigError> {
    let (timing, compaction) = (&options.timing, &options.compaction);
    let config = Config {
        cluster_name: options.cluster.clone(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_min_ms,
        election_timeout_max: timing.election_max_ms,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        max_payload_entries: 1024,
        max_append_entries: Some(4096),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(compaction.snapshot_every),
        max_in_snapshot_log_to_keep: compaction.keep,
        purge_batch_size: compaction.purge_batch,
        replication_lag_threshold: compaction.lag_max,
        install_snapshot_timeout: SNAPSHOT_LIMIT_MS,
        backoff: "25ms 50ms 100ms ..250ms".to_owned(),
        ..Config::default()
    };
    config.validate()
}

/// Tells subscribers of a change of leader, and the registry of committed data directories.
async fn follow_leadership(
    core: Core,
    registry: Registry,
    feed: Feed,
    progress: Progress,
    names: BTreeMap<u64, NodeName>,
) {
    let mut metrics = core.server_metrics();
    let mut known = None;
    loop {
        let (leader, term, membership) = {
            let metrics = metrics.borrow_watched();
            let term = metrics.vote.leader_id().term;
            (metrics.current_leader, term, metrics.committed_membership_config.clone())
        };
        registry.learn_committed(membership.nodes().map(|(id, node)| (*id, node.incarnation)));
        let now = leader.map(|leader| (leader, term));
        if now != known {
            known = now;
            let leader = leader.and_then(|leader| names.get(&leader).cloned());
            feed.push_local(ClusterEvent::LeaderChanged { leader, term });
        }
        if metrics.changed().await.is_err() {
            break;
        }
    }
    // Not reached when the node is stopped on purpose.
    match &core.metrics().borrow_watched().running_state {
        Ok(()) => progress.fail(&"Raft ended"),
        Err(fatal) => progress.fail(fatal),
    }
}

/// Bounds what has to be applied again after a crash.
async fn sync_now_and_then(replica: Arc<Replica>, progress: Progress) {
    let mut synced = None;
    loop {
        tokio::time::sleep(SYNC_INTERVAL).await;
        if *progress.applied().borrow() == synced {
            continue;
        }
        let replica = replica.clone();
        match blocking(move || replica.sync()).await {
            Ok(durable) => synced = durable.map(|id| id.index),
            // The log has it all the same; the state is synced when there is room.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => return progress.fail(&error),
        }
    }
}
