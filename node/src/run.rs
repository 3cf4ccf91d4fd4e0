//! Starting a node, in the order that lets nothing go wrong half way: ports, data directory, log and state, Raft,
//! HTTP, boot entry. Whatever cannot work is found before anything on disk is changed.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use futures::Stream;
use holdfast_api::http::{HttpOptions, router};
use holdfast_api::{EventMessage, Store, StoreOptions};
use holdfast_machine::{BootId, NodeName};
use holdfast_raft::{Compaction, Detection, Environment, Handle, MemberConfig, Options, PeerListen, Raft, Timing};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adopt::Adopter;
use crate::boot::{BootWatch, Booted, boot};
use crate::config::{Config, ConfigError, Identity};
use crate::membership::MembershipChanges;
use crate::parked::ParkedWatch;
use crate::shards::ShardChanges;
use crate::shutdown::{Deadline, hand_over_leadership};
use crate::ticker::Reconcile;
use crate::{create, telemetry, ticker};

/// How long a node may take to let go of its tasks and its data, once its calls have ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How long a node that stops goes on telling the cluster that its workers are not attached any more.
const DETACH_LIMIT: Duration = Duration::from_secs(1);

/// Why a node did not start. Each message is a sentence that says what to do, and nothing on disk was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error("`{key}`: cannot listen on {addr} ({source}); stop what uses that address, or choose another one")]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address.
        addr: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The data directory is refused, or Raft does not start on it.
    #[error(transparent)]
    Raft(#[from] holdfast_raft::StartError),
}

/// A running node. See the [crate's page](crate) for an example.
///
/// Dropping it without [`Node::shutdown`] stops its tasks without ceremony, as [`Node::abort`] does, but does not
/// wait for them.
pub struct Node {
    identity: Identity,
    boot: BootId,
    handle: Handle,
    store: Store,
    booted: BootWatch,
    http_addr: SocketAddr,
    peer_addr: SocketAddr,
    shutdown_timeout: Duration,
    http: Option<JoinHandle<()>>,
    /// Ends the acceptance of new HTTP calls.
    http_stop: CancellationToken,
    /// Ends everything else.
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Node {
    /// Starts a node and returns as soon as it runs. It serves shards once its boot entry is committed, which takes
    /// a quorum of members; [`Node::ready`] waits for that. Needs a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let identity = config.check()?;
        let http = listen("http_listen", config.http_listen)?;
        let peer = listen("peer_listen", config.peer_listen)?;
        let (http_addr, peer_addr) = (local(&http, config.http_listen), local(&peer, config.peer_listen));
        let listener =
            to_tokio(http).map_err(|source| StartError::Listen { key: "http_listen", addr: http_addr, source })?;

        identity.warn_of_another_port(peer_addr);
        let listen = PeerListen::Bound(peer);
        let (mut node, booted) = Self::assemble(&config, identity, Environment::default(), listen).await?;
        (node.http_addr, node.peer_addr) = (http_addr, peer_addr);
        tracing::info!(node = %node.identity.name, id = node.identity.id, cluster = config.cluster_id,
            http = %http_addr, peers = %peer_addr, data = %config.data_dir.display(), "started");
        let metrics = telemetry::recorder()
            .inspect_err(|error| tracing::warn!(%error, "no /metrics here: this process has a recorder of its own"))
            .ok();
        node.http = Some(node.serve_http(listener, metrics.clone()));
        node.start_tasks(&config, booted, metrics);
        Ok(node)
    }

    /// Starts a node that takes what it needs of the outside world from `environment`, and has no HTTP API, which does
    /// not know any other world than the operating system's. For simulations; runs on a runtime of any kind.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start_in(config: Config, environment: Environment) -> Result<Self, StartError> {
        let identity = config.check()?;
        let listen = PeerListen::Address(config.peer_listen.to_string());
        let (node, booted) = Self::assemble(&config, identity, environment, listen).await?;
        node.start_tasks(&config, booted, None);
        Ok(node)
    }

    /// All parts of a node, and the place in which its boot is announced; no task runs yet.
    async fn assemble(
        config: &Config,
        identity: Identity,
        environment: Environment,
        peer: PeerListen,
    ) -> Result<(Self, watch::Sender<Option<Arc<Booted>>>), StartError> {
        let handle = Raft::start(options(config, &identity, environment, peer)).await?;
        let boot = fresh_boot();
        let mut store_options = StoreOptions::new(identity.name.clone(), boot.clone());
        store_options.limits = config.limits.limits();
        let (booted_sender, booted) = watch::channel(None);
        let node = Self {
            identity,
            boot,
            store: Store::new(handle.clone(), store_options),
            handle,
            booted,
            http_addr: config.http_listen,
            peer_addr: config.peer_listen,
            shutdown_timeout: config.shutdown_timeout(),
            http: None,
            http_stop: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Ok((node, booted_sender))
    }

    /// The typed store of this node.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// This node's name.
    pub fn name(&self) -> &NodeName {
        &self.identity.name
    }

    /// This start of the node.
    pub fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Where its HTTP API listens.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where it listens to its peers.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    /// Waits until the node may serve shards: its boot entry is committed and applied here. False if the node stops
    /// before that.
    pub async fn ready(&self) -> bool {
        let mut booted = self.booted.clone();
        tokio::select! {
            () = self.stop.cancelled() => false,
            booted = booted.wait_for(Option::is_some) => booted.is_ok(),
        }
    }

    /// A stream of this node's shards: those that it owns now, then each change.
    pub fn shards(&self) -> ShardChanges {
        let (name, boot) = (self.identity.name.clone(), self.boot.clone());
        ShardChanges::new(self.handle.clone(), name, boot, self.booted.clone(), self.stop.clone())
    }

    /// A stream of committed changes of the members: the members as they are now, then each change.
    pub fn membership(&self) -> MembershipChanges {
        MembershipChanges::new(self.handle.clone(), self.stop.clone())
    }

    /// The cluster's events: first a snapshot of the topology, then what happens from then on. Ends with the node.
    /// `store().events(..)` is the same and can resume from an event's number.
    pub fn events(&self) -> impl Stream<Item = EventMessage> + Send + 'static {
        self.store.events(None)
    }

    /// The consensus beneath the store, for reads of the local state and for status.
    pub fn raft(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the node cannot go on, such as after a failed disk, and says why. It acknowledges nothing from
    /// then on, and should be shut down. Waits for ever if the node is stopped in good order.
    pub async fn failed(&self) -> String {
        let mut fatal = self.handle.fatal();
        let reason =
            fatal.wait_for(Option::is_some).await.ok().and_then(|reason| reason.as_ref().map(ToString::to_string));
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Stops in good order: new calls are turned away, those under way are finished, leadership goes to a peer,
    /// and what is acknowledged is on the disk. Takes at most `shutdown_timeout_ms`, and a moment to close.
    pub async fn shutdown(mut self) {
        let deadline = Deadline::after(self.shutdown_timeout);
        tracing::info!("stopping");
        self.store.close();
        self.http_stop.cancel();
        // Workers find their sessions free at the other nodes.
        if Deadline::after(DETACH_LIMIT).bound(self.store.detached()).await.is_none() {
            tracing::warn!("some sessions are still attached; they go on when their workers attach elsewhere");
        }
        deadline.bound(hand_over_leadership(&self.handle)).await;
        if let Some(mut http) = self.http.take()
            && deadline.bound(&mut http).await.is_none()
        {
            tracing::warn!("some HTTP calls were not finished in time");
            http.abort();
        }
        if Deadline::after(CLOSE_LIMIT).bound(self.close()).await.is_none() {
            tracing::warn!("the node did not let go of everything; what it acknowledged is on its disk");
        }
        tracing::info!("stopped");
    }

    /// Stops at once, as if the process had been killed: connections are cut and nobody is told. For tests.
    pub async fn abort(mut self) {
        if let Some(http) = self.http.take() {
            http.abort();
        }
        self.store.close();
        self.close().await;
    }

    async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.handle.shutdown().await;
    }

    fn serve_http(&self, listener: tokio::net::TcpListener, metrics: Option<PrometheusHandle>) -> JoinHandle<()> {
        let router = router(self.store.clone(), HttpOptions { metrics, ..HttpOptions::default() });
        let (stop, accepting) = (self.stop.clone(), self.http_stop.clone());
        // A message to a worker is small and is not to wait for the acknowledgement of the one before.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps its delay");
            }
        });
        tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(accepting.cancelled_owned());
            tokio::select! {
                () = stop.cancelled() => {}
                served = served.into_future() => if let Err(error) = served {
                    tracing::error!(%error, "the HTTP API ended");
                },
            }
        })
    }

    fn start_tasks(
        &self,
        config: &Config,
        booted: watch::Sender<Option<Arc<Booted>>>,
        metrics: Option<PrometheusHandle>,
    ) {
        let millis = Duration::from_millis;
        let (handle, name) = (&self.handle, &self.identity.name);
        let adopter = Adopter {
            handle: handle.clone(),
            node: name.clone(),
            boot: self.boot.clone(),
            stagger: millis(config.adoption.stagger_ms),
        };
        let settings =
            Reconcile { interval: millis(config.reconcile.interval_ms), older_than_ms: config.reconcile.older_than_ms };
        let grace = millis(config.adoption.first_assignment_grace_ms);
        self.spawn(boot(handle.clone(), name.clone(), self.boot.clone(), booted));
        self.spawn(create::found(handle.clone(), config.shard_count, grace));
        self.spawn(adopter.run());
        self.spawn(ticker::move_time(handle.clone()));
        self.spawn(ticker::reconcile(handle.clone(), settings));
        self.spawn(ticker::purge(handle.clone()));
        let (after, store) = (millis(config.parked_after_ms), self.store.clone());
        self.spawn(ParkedWatch { store, handle: handle.clone(), node: name.clone(), after }.run());
        self.spawn(telemetry::keep_gauges(handle.clone(), name.clone(), metrics));
    }

    /// Runs a task until the node stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.stop.is_cancelled() {
            return;
        }
        self.store.close();
        self.stop.cancel();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let handle = self.handle.clone();
            runtime.spawn(async move { handle.shutdown().await });
        }
    }
}

fn listen(key: &'static str, addr: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(addr).map_err(|source| StartError::Listen { key, addr, source })
}

/// The address that was bound; it differs from the configured one where that has port 0.
fn local(listener: &TcpListener, configured: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(configured)
}

fn to_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

fn fresh_boot() -> BootId {
    // A UUID's text is 36 printable characters.
    #[allow(clippy::expect_used)]
    BootId::new(uuid::Uuid::new_v4().to_string()).expect("a uuid is a valid id")
}

/// The configured members, as the consensus takes them.
pub(crate) fn first_members(identity: &Identity) -> Vec<MemberConfig> {
    let member = |(id, name, addr): &(u64, NodeName, String)| {
        let (name, peer_addr, http_addr) = (name.clone(), addr.clone(), String::new());
        MemberConfig { id: *id, name, peer_addr, http_addr }
    };
    identity.members.iter().map(member).collect()
}

fn options(config: &Config, identity: &Identity, environment: Environment, peer: PeerListen) -> Options {
    let members = first_members(identity);
    let mut options = Options::new(&config.cluster_id, identity.id, &config.data_dir, members, peer);
    options.environment = environment;
    let (raft, detector) = (&config.raft, &config.detector);
    options.timing = Timing {
        heartbeat_ms: raft.heartbeat_ms,
        election_min_ms: raft.election_min_ms,
        election_max_ms: raft.election_max_ms,
        answer_ms: raft.answer_ms,
        checkpoint_ms: raft.checkpoint_ms,
    };
    options.detection = Detection {
        poll_interval_ms: detector.poll_interval_ms,
        confirmations: detector.confirmations,
        silence_ms: detector.silence_ms,
    };
    options.auto_replace = config.auto_replace;
    options.disk_reserve_bytes = config.disk_reserve_bytes;
    let compaction = Compaction::default();
    options.compaction = Compaction {
        snapshot_every: raft.snapshot_after,
        keep: raft.logs_kept,
        snapshot_bytes: raft.snapshot_after_bytes,
        keep_bytes: raft.logs_kept_bytes,
        // Whoever keeps little waits for little.
        purge_batch: compaction.purge_batch.min(raft.logs_kept),
        ..compaction
    };
    options
}
