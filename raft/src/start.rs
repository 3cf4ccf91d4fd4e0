//! Starts a node: opens its data, then the links, then Raft, then everything that watches over it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_machine::{ClusterEvent, NodeName};
use holdfast_storage::{Expected, StateConfig, Storage, StorageError};
use openraft::async_runtime::WatchReceiver;
use openraft::{Config, SnapshotPolicy};
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batcher::Batcher;
use crate::feed::Feed;
use crate::handle::{Handle, Running};
use crate::leader::LeaderDesk;
use crate::log_store::{LogStore, blocking};
use crate::membership::{self, Keeper};
use crate::options::{InvalidOption, Options, PeerListen};
use crate::peers::{Links, Lookout};
use crate::progress::Progress;
use crate::propose::Proposer;
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
    /// Starts a node. Needs a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; nothing keeps running then.
    pub async fn start(options: Options) -> Result<Handle, StartError> {
        options.check()?;
        let Options { listen, .. } = &options;
        let listener = bind(listen).await?;
        let storage = Arc::new(open_storage(&options).await?);
        let stop = CancellationToken::new();
        let started = start(options, listener, storage, stop.clone()).await;
        if started.is_err() {
            stop.cancel();
        }
        started
    }
}

async fn bind(listen: &PeerListen) -> Result<TcpListener, StartError> {
    let failed = |address: String| move |error| StartError::Listen { address, error };
    match listen {
        PeerListen::Address(address) => TcpListener::bind(address).await.map_err(failed(address.clone())),
        PeerListen::Bound(socket) => socket
            .try_clone()
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .and_then(TcpListener::from_std)
            .map_err(failed("the given socket".to_owned())),
    }
}

/// Opens the data directory; waits a little for a process that is just leaving it.
async fn open_storage(options: &Options) -> Result<Storage, StartError> {
    let begun = Instant::now();
    loop {
        let path = options.data_dir.clone();
        let expected = Expected { cluster: options.cluster.clone(), node: options.node };
        let settings = storage_options();
        let open = move || Ok(Storage::open(&path, &expected, &settings));
        let opened = blocking(open).await.map_err(|e| StartError::Refused(e.to_string()))?;
        match opened {
            Err(StorageError::InUse { .. }) if begun.elapsed() < LOCK_LIMIT => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            opened => return Ok(opened?),
        }
    }
}

fn storage_options() -> holdfast_storage::Options {
    let state = StateConfig { machine_version: holdfast_machine::STATE_VERSION.into(), ..StateConfig::default() };
    holdfast_storage::Options { state, ..Default::default() }
}

async fn start(
    options: Options,
    listener: TcpListener,
    storage: Arc<Storage>,
    stop: CancellationToken,
) -> Result<Handle, StartError> {
    let refused = |error: &dyn std::fmt::Display| StartError::Refused(error.to_string());
    let tasks = TaskTracker::new();
    let incarnation = storage.dir.identity().incarnation.as_u128();
    let stored = read_membership(storage.state.membership().as_deref());
    let known = known_members(&options, &stored.map_err(|e| refused(&e))?);
    let names: BTreeMap<u64, NodeName> = known.iter().map(|(id, node)| (*id, node.name.clone())).collect();

    let registry = Registry::new(&options.cluster, options.node, incarnation, known.keys().copied());
    registry.learn_committed(known.iter().map(|(id, node)| (*id, node.incarnation)));
    let addresses = address_book(&options, &known);
    let peers = known.keys().copied().filter(|id| *id != options.node);
    let ping_interval = Duration::from_millis(options.timing.heartbeat_ms * 2);
    let links = Links::open(peers, &registry, &addresses, ping_interval, &stop, &tasks);

    let applied = storage.state.applied().map(|id| id.index);
    let progress = Progress::new(applied);
    let feed = Feed::new(options.feed_capacity, applied);
    let (effects, _) = broadcast::channel(EFFECTS);
    let replica = load_replica(&storage, &progress, &feed, &effects).await?;

    let network = Network { links: links.clone(), registry: registry.clone(), addresses: addresses.clone() };
    let config = config(&options).map_err(|error| refused(&error))?;
    let log = LogStore::new(storage.clone(), progress.clone());
    let machine = StateMachine::new(replica.clone());
    let core = Core::new(options.node, Arc::new(config), network, log, machine).await;
    let core = core.map_err(|error| refused(&error))?;

    let detection = &options.detection;
    let lookout = Lookout::start(&links, &names, detection, &core, &feed, &stop, &tasks);
    let batcher = Batcher::start(core.clone(), options.clock.clone(), options.batching.clone(), stop.clone(), &tasks);
    let desk = LeaderDesk::open(core.clone(), batcher, storage.clone(), stop.clone(), &tasks);
    let spawn = |work: futures::future::BoxFuture<'static, ()>| {
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        })
    };
    let server = Server {
        registry: registry.clone(),
        core: core.clone(),
        desk: desk.clone(),
        lookout: lookout.clone(),
        storage: storage.clone(),
        stop: stop.clone(),
        tasks: tasks.clone(),
    };
    spawn(Box::pin(server.run(listener)));
    let keeper = Keeper {
        core: core.clone(),
        node: options.node,
        links: links.clone(),
        registry: registry.clone(),
        configured: options.members.clone(),
        verdicts: lookout.verdicts(),
    };
    spawn(Box::pin(keeper.run()));
    let successor =
        Successor { core: core.clone(), node: options.node, links: links.clone(), verdicts: lookout.verdicts() };
    spawn(Box::pin(successor.run()));
    spawn(Box::pin(membership::form(core.clone(), options.members.clone(), options.node)));
    spawn(Box::pin(follow_leadership(core.clone(), registry, feed.clone(), progress.clone(), names)));
    spawn(Box::pin(sync_now_and_then(replica.clone(), progress.clone())));

    let proposer = Proposer {
        core: core.clone(),
        node: options.node,
        desk: desk.clone(),
        links: links.clone(),
        progress: progress.clone(),
        limit: Duration::from_millis(options.timing.answer_ms),
    };
    Ok(Handle::new(Running { core, replica, proposer, desk, links, progress, feed, effects, incarnation, stop, tasks }))
}

/// The committed members and the configured ones; what is committed counts first.
fn known_members(options: &Options, stored: &StoredMembership) -> BTreeMap<u64, PeerNode> {
    let mut known = membership::first_members(&options.members);
    known.extend(stored.nodes().map(|(id, node)| (*id, node.clone())));
    known
}

fn address_book(options: &Options, known: &BTreeMap<u64, PeerNode>) -> AddressBook {
    let mut addresses: HashMap<u64, String> = known.iter().map(|(id, node)| (*id, node.peer_addr.clone())).collect();
    let configured = options.members.iter();
    addresses.extend(configured.map(|member| (member.id, member.peer_addr.clone())));
    Arc::new(RwLock::new(addresses))
}

async fn load_replica(
    storage: &Arc<Storage>,
    progress: &Progress,
    feed: &Feed,
    effects: &broadcast::Sender<(u64, holdfast_machine::Effect)>,
) -> Result<Arc<Replica>, StartError> {
    let (storage, progress) = (storage.clone(), progress.clone());
    let (feed, effects) = (feed.clone(), effects.clone());
    let load = move || Replica::load(storage, progress, feed, effects);
    let loaded = blocking(load).await;
    loaded.map(Arc::new).map_err(|error| StartError::Refused(error.to_string()))
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
            Err(error) => return progress.fail(&error),
        }
    }
}
