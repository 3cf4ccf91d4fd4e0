//! Starts a node: opens its data, then, as soon as it has a place in the cluster, Raft and what watches over it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{Effect, Machine, NodeName};
use holdfast_storage::{Storage, StorageError};
use openraft::{Config, SnapshotPolicy};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{Applicant, Place};
use crate::batcher::Batcher;
use crate::budget::Budget;
use crate::checkpoint::Checkpoints;
use crate::compaction;
use crate::environment::PeerListener;
use crate::feed::Feed;
use crate::handle::{Handle, Running, Seat};
use crate::leader::LeaderDesk;
use crate::log_store::{LogStore, blocking};
use crate::membership::{self, Keeper};
use crate::open::open;
use crate::options::{InvalidOption, MemberConfig, Options, PeerListen};
use crate::peers::{Links, Lookout};
use crate::progress::Progress;
use crate::propose::Proposer;
use crate::room::{Admission, RoomWatch};
use crate::roster::Roster;
use crate::snapshot::read_membership;
use crate::state_machine::{Replica, StateMachine};
use crate::status::Standing;
use crate::succession::Successor;
use crate::transfers::Transfers;
use crate::transport::link::AddressBook;
use crate::transport::network::Network;
use crate::transport::registry::Registry;
use crate::transport::server::Server;
use crate::types::{Core, Incarnation};

/// Effects that a slow receiver may be behind.
const EFFECTS: usize = 4096;
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
        let (storage, machine) = open(&options).await?;
        let ground = Ground::prepare(options, Arc::new(storage))?;
        let stop = ground.stop.clone();
        let started = start(ground, machine, listener).await;
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

/// What stands before Raft runs, and what everything else is built on.
#[derive(Clone)]
struct Ground {
    options: Arc<Options>,
    configured: Arc<[MemberConfig]>,
    name: NodeName,
    incarnation: Incarnation,
    storage: Arc<Storage>,
    admission: Admission,
    transfers: Transfers,
    progress: Progress,
    feed: Feed,
    effects: broadcast::Sender<(u64, Effect)>,
    standing: Arc<watch::Sender<Standing>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The ways to the peers, once the node has an id to give.
struct Ways {
    node: u64,
    registry: Registry,
    addresses: AddressBook,
    links: Links,
}

impl Ground {
    fn prepare(options: Options, storage: Arc<Storage>) -> Result<Self, StartError> {
        let applied = storage.state.applied().map(|id| id.index);
        Ok(Self {
            name: options.name()?.clone(),
            configured: options.members.clone().into(),
            incarnation: storage.dir.identity().incarnation.as_u128(),
            progress: Progress::new(applied, storage.dir.poison()),
            feed: Feed::new(options.feed_capacity, applied),
            effects: broadcast::channel(EFFECTS).0,
            standing: Arc::new(watch::Sender::new(Standing::Asking { missing: Vec::new() })),
            options: Arc::new(options),
            storage,
            admission: Admission::default(),
            transfers: Transfers::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// The place that this node has without asking: it has been given one, or there is nobody to ask.
    fn place(&self) -> Option<Place> {
        let node = self.storage.dir.identity().node;
        let alone = self.configured.len() == 1;
        node.or(alone.then_some(self.options.node)).map(|node| Place { node, founds: true })
    }

    fn applicant(&self) -> Applicant {
        let others = self.configured.iter().filter(|member| member.name != self.name);
        Applicant {
            cluster: self.options.cluster.as_str().into(),
            name: self.name.clone(),
            configured: self.options.node,
            incarnation: self.incarnation,
            others: others.cloned().collect(),
            network: self.options.environment.network.clone(),
            standing: self.standing.clone(),
            tasks: self.tasks.clone(),
        }
    }

    fn ways(&self, node: u64) -> Result<Ways, StartError> {
        let configured = self.configured.iter().map(|member| (member.id, &member.name));
        let base = self.storage.dir.identity().base;
        let registry =
            Registry::new(&self.options.cluster, (node, &self.name), self.incarnation, configured).with_base(base);
        let stored = read_membership(self.storage.state.membership().as_deref()).map_err(refused)?;
        registry.learn(stored.membership(), stored.membership());
        let addresses = AddressBook::new(self.options.environment.network.clone());
        let ping_interval = Duration::from_millis(self.options.timing.heartbeat_ms * 2);
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        let links = Links::new(registry.clone(), addresses.clone(), ping_interval, stop, tasks);
        Ok(Ways { node, registry, addresses, links })
    }

    fn replica(&self, machine: Machine) -> Arc<Replica> {
        let (storage, progress) = (self.storage.clone(), self.progress.clone());
        let (feed, effects) = (self.feed.clone(), self.effects.clone());
        let observer = self.options.environment.observer.clone();
        Arc::new(Replica::new(machine, storage, progress, feed, effects, observer))
    }

    async fn start_core(&self, replica: &Arc<Replica>, ways: &Ways) -> Result<Core, StartError> {
        let config = Arc::new(config(&self.options).map_err(refused)?);
        let network = Network {
            links: ways.links.clone(),
            registry: ways.registry.clone(),
            addresses: ways.addresses.clone(),
            acknowledged: Default::default(),
            transfers: self.transfers.clone(),
        };
        let pause = self.options.environment.write_pause.clone();
        let log = LogStore::new(self.storage.clone(), self.progress.clone(), pause);
        let machine = StateMachine::new(replica.clone(), self.transfers.clone());
        Core::new(ways.node, config, network, log, machine).await.map_err(refused)
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

    /// Takes a place in the cluster: from now on the node runs Raft under this id.
    async fn sit(
        &self,
        place: Place,
        replica: &Arc<Replica>,
        listener: Box<dyn PeerListener>,
    ) -> Result<Seat, StartError> {
        place.write_down(&self.storage.dir).await?;
        let ways = self.ways(place.node)?;
        let core = self.start_core(replica, &ways).await?;
        let desk = self.open_desk(&core);
        let proposer = Proposer {
            core: core.clone(),
            node: ways.node,
            desk: desk.clone(),
            links: ways.links.clone(),
            progress: self.progress.clone(),
            budget: Budget::new(self.options.batching.requests_waiting_max, self.options.batching.bytes_waiting_max),
            limit: self.limit(),
        };
        // From now on peers may say otherwise.
        self.standing.send_replace(Standing::Member);
        let keeper = self.attend((&core, &desk), &ways, replica, listener);
        if place.founds {
            self.spawn(membership::form(core.clone(), self.configured.clone(), ways.node));
        }
        let (transfers, limits) = (self.transfers.clone(), self.options.compaction.clone());
        self.spawn(compaction::shorten_log(core.clone(), self.storage.clone(), transfers, limits));
        self.spawn(sync_now_and_then(replica.clone(), self.progress.clone()));
        Ok(Seat { core, proposer, desk, links: ways.links, keeper })
    }

    /// Starts what answers peers and what watches over them.
    fn attend(
        &self,
        (core, desk): (&Core, &LeaderDesk),
        ways: &Ways,
        replica: &Arc<Replica>,
        listener: Box<dyn PeerListener>,
    ) -> Keeper {
        let Ways { node, registry, addresses, links } = ways;
        let (core, node) = (core.clone(), *node);
        let lookout = Lookout::new(&self.options.detection, &core, &self.feed, &self.standing, &self.tasks);
        let successor = Successor { core: core.clone(), node, links: links.clone(), lookout: lookout.clone() };
        self.spawn(successor.run());
        let roster = Roster {
            core: core.clone(),
            node,
            registry: registry.clone(),
            links: links.clone(),
            addresses: addresses.clone(),
            lookout: lookout.clone(),
            configured: self.configured.clone(),
            feed: self.feed.clone(),
            progress: self.progress.clone(),
        };
        self.spawn(roster.follow());
        let keeper = Keeper {
            core: core.clone(),
            node,
            links: links.clone(),
            registry: registry.clone(),
            configured: self.configured.clone(),
            auto_replace: self.options.auto_replace,
            verdicts: lookout.verdicts(),
        };
        self.spawn(keeper.clone().run());
        let checkpoints = Checkpoints {
            core: core.clone(),
            node,
            desk: desk.clone(),
            links: links.clone(),
            replica: replica.clone(),
            interval: Duration::from_millis(self.options.timing.checkpoint_ms),
        };
        self.spawn(checkpoints.run());
        let room = RoomWatch {
            room: self.storage.room.clone(),
            core: core.clone(),
            links: links.clone(),
            admission: self.admission.clone(),
        };
        self.spawn(room.run());
        let server = Server {
            registry: registry.clone(),
            core,
            desk: desk.clone(),
            lookout,
            keeper: keeper.clone(),
            storage: self.storage.clone(),
            replica: replica.clone(),
            progress: self.progress.clone(),
            stop: self.stop.clone(),
            tasks: self.tasks.clone(),
        };
        self.spawn(server.run(listener));
        keeper
    }

    /// How long callers wait.
    fn limit(&self) -> Duration {
        Duration::from_millis(self.options.timing.answer_ms)
    }
}

pub(crate) fn refused(error: impl std::fmt::Display) -> StartError {
    StartError::Refused(error.to_string())
}

async fn start(ground: Ground, machine: Machine, listener: Box<dyn PeerListener>) -> Result<Handle, StartError> {
    let replica = ground.replica(machine);
    let (seats, seat) = watch::channel(None);
    match ground.place() {
        Some(place) => _ = seats.send_replace(Some(ground.sit(place, &replica, listener).await?)),
        None => {
            let (ground, replica) = (ground.clone(), replica.clone());
            let admitted = ground.clone();
            ground.spawn(async move {
                let mut listener = listener;
                let place = admitted.applicant().place(&mut *listener).await;
                tracing::info!(id = place.node, founds = place.founds, "this node takes its place");
                match admitted.sit(place, &replica, listener).await {
                    Ok(seat) => _ = seats.send_replace(Some(seat)),
                    Err(error) => admitted.progress.fail(&error),
                }
            });
        }
    }
    Ok(Handle::new(Running {
        clock: ground.options.environment.clock.clone(),
        limit: ground.limit(),
        seat,
        standing: ground.standing,
        configured: ground.configured,
        replica,
        progress: ground.progress,
        feed: ground.feed,
        effects: ground.effects,
        stop: ground.stop,
        tasks: ground.tasks,
    }))
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
        // See compaction.
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: compaction.lag_max,
        install_snapshot_timeout: SNAPSHOT_LIMIT_MS,
        backoff: "25ms 50ms 100ms ..250ms".to_owned(),
        ..Config::default()
    };
    config.validate()
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
