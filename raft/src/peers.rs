//! The links to all peers, and the watch over them.
//!
//! Each peer has a task that looks at it every `poll_interval_ms`, and at once when its link closes or
//! comes back. Every node watches every peer, not only the leader: a node that comes to power knows
//! already who is dead, and a follower knows when its leader is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_machine::{ClusterEvent, Evidence, NodeName};
use openraft::async_runtime::WatchReceiver;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::detector::{Change, Detector, Observation, Verdict};
use crate::feed::Feed;
use crate::options::Detection;
use crate::status::Standing;
use crate::transport::link::{self, AddressBook, Link, LinkState};
use crate::transport::registry::{Refusal, Registry};
use crate::types::{Core, Metrics};

/// The link of each peer; cheap to clone. Peers come and go with the membership.
#[derive(Clone)]
pub(crate) struct Links(Arc<Opener>);

/// What a link is opened with, and those that are open.
struct Opener {
    registry: Registry,
    addresses: AddressBook,
    ping_interval: Duration,
    stop: CancellationToken,
    tasks: TaskTracker,
    open: RwLock<BTreeMap<u64, (Link, CancellationToken)>>,
}

impl Links {
    /// No links yet.
    pub fn new(
        registry: Registry,
        addresses: AddressBook,
        ping_interval: Duration,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self(Arc::new(Opener { registry, addresses, ping_interval, stop, tasks, open: RwLock::default() }))
    }

    /// Opens links to those of `peers` that have none, and closes those to anybody else. Gives what was opened, each
    /// with what ends it.
    pub fn keep(&self, peers: &BTreeSet<u64>) -> Vec<(Link, CancellationToken)> {
        let opener = &*self.0;
        let mut open = opener.open.write();
        open.retain(|peer, (_, end)| {
            let stays = peers.contains(peer);
            if !stays {
                end.cancel();
            }
            stays
        });
        let missing: Vec<u64> = peers.iter().copied().filter(|peer| !open.contains_key(peer)).collect();
        let opened = missing.into_iter().map(|peer| {
            let end = opener.stop.child_token();
            let (registry, addresses) = (opener.registry.clone(), opener.addresses.clone());
            let link = link::open(peer, registry, addresses, opener.ping_interval, end.clone(), &opener.tasks);
            open.insert(peer, (link.clone(), end.clone()));
            (link, end)
        });
        opened.collect()
    }

    /// The link to `peer`.
    pub fn get(&self, peer: u64) -> Option<Link> {
        self.0.open.read().get(&peer).map(|(link, _)| link.clone())
    }
}

/// What this node holds of each peer at the moment.
pub(crate) type Verdicts = BTreeMap<u64, Verdict>;

/// The watch over all peers.
#[derive(Clone)]
pub(crate) struct Lookout {
    core: Core,
    feed: Feed,
    interval: Duration,
    silence: Duration,
    detector: Arc<Mutex<Detector>>,
    verdicts: Arc<watch::Sender<Verdicts>>,
    led: Arc<Mutex<Option<Led>>>,
    standing: Arc<watch::Sender<Standing>>,
    tasks: TaskTracker,
}

/// A leader, and whether this node has reached it since it knows of it.
#[derive(Debug, Clone, Copy)]
struct Led {
    leader: u64,
    term: u64,
    reached: bool,
}

/// What the task of one peer works with.
struct Watcher {
    link: Link,
    name: NodeName,
    silence: Duration,
    core: Core,
    detector: Arc<Mutex<Detector>>,
    verdicts: Arc<watch::Sender<Verdicts>>,
    led: Arc<Mutex<Option<Led>>>,
    standing: Arc<watch::Sender<Standing>>,
    feed: Feed,
    /// Since when this node leads, if it does.
    leading: Option<(u64, Instant)>,
}

impl Lookout {
    /// Watches nobody yet.
    pub fn new(
        detection: &Detection,
        core: &Core,
        feed: &Feed,
        standing: &Arc<watch::Sender<Standing>>,
        tasks: &TaskTracker,
    ) -> Self {
        Self {
            core: core.clone(),
            feed: feed.clone(),
            interval: Duration::from_millis(detection.poll_interval_ms),
            silence: Duration::from_millis(detection.silence_ms),
            detector: Arc::new(Mutex::new(Detector::new(detection.confirmations))),
            verdicts: Arc::new(watch::Sender::new(Verdicts::new())),
            led: Arc::default(),
            standing: standing.clone(),
            tasks: tasks.clone(),
        }
    }

    /// Watches a peer until `end`; then nothing is held of it any more.
    pub fn watch(&self, link: Link, name: NodeName, end: CancellationToken) {
        let (peer, interval, verdicts) = (link.peer(), self.interval, self.verdicts.clone());
        let watcher = Watcher {
            link,
            name,
            silence: self.silence,
            core: self.core.clone(),
            detector: self.detector.clone(),
            verdicts: self.verdicts.clone(),
            led: self.led.clone(),
            standing: self.standing.clone(),
            feed: self.feed.clone(),
            leading: None,
        };
        self.tasks.spawn(async move {
            tokio::select! {
                () = watcher.run(interval) => {}
                () = end.cancelled() => {}
            }
            verdicts.send_if_modified(|verdicts| verdicts.remove(&peer).is_some());
        });
    }

    /// Follows the verdicts.
    pub fn verdicts(&self) -> watch::Receiver<Verdicts> {
        self.verdicts.subscribe()
    }

    /// True if this node takes the leader of this term for dead; to be asked about the present one only. What it held of
    /// the node before the election is no evidence: a closed link is dialled again after a pause, and whoever was
    /// elected meanwhile was alive. So the leader must have been reached, and lost again.
    pub fn has_lost(&self, leader: u64, term: u64) -> bool {
        let verdict = self.verdicts.borrow().get(&leader).copied();
        let mut led = self.led.lock();
        let known = led.filter(|led| (led.leader, led.term) == (leader, term));
        let now = known.unwrap_or(Led { leader, term, reached: verdict == Some(Verdict::Up) });
        *led = Some(now);
        now.reached && matches!(verdict, Some(Verdict::Down(_)))
    }
}

impl Watcher {
    async fn run(mut self, interval: Duration) {
        let mut state = self.link.state();
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut was_connected = false;
        loop {
            let by_change = tokio::select! {
                _ = ticks.tick() => false,
                changed = state.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
            };
            let now = state.borrow_and_update().clone();
            self.note_replaced(&now);
            if by_change && now.is_connected() == was_connected {
                // Another reason for the same state is no second observation.
                continue;
            }
            was_connected = now.is_connected();
            if by_change {
                ticks.reset();
            }
            if let Some(observation) = self.look(&now) {
                self.take(observation);
            }
            if now.is_connected()
                && let Some(led) = self.led.lock().as_mut().filter(|led| led.leader == self.link.peer())
            {
                led.reached = true;
            }
        }
    }

    /// Takes the peer's word that this node's place was given to another data directory. It never comes back.
    fn note_replaced(&self, state: &LinkState) {
        let LinkState::Closed { refusal: Some(Refusal::Replaced { node, by: new, .. }), .. } = state else { return };
        if *node != self.core.metrics().borrow_watched().id {
            return;
        }
        self.standing.send_if_modified(|standing| {
            let is_news = *standing == Standing::Member;
            if is_news {
                *standing = Standing::Replaced { node: *node, new: *new, by: self.name.clone() };
                tracing::error!("{standing}");
            }
            is_news
        });
    }

    fn look(&mut self, state: &LinkState) -> Option<Observation> {
        match state {
            LinkState::Connecting => None,
            LinkState::Closed { .. } => Some(Observation::Bad(Evidence::LinkClosed)),
            LinkState::Connected if self.is_silent() => Some(Observation::Bad(Evidence::Silent)),
            LinkState::Connected => Some(Observation::Good),
        }
    }

    /// True if the peer answers no pings, or, on the leader, acknowledges no heartbeats, though it had the time to take in
    /// what is on its way to it.
    fn is_silent(&mut self) -> bool {
        let unanswered = self.link.last_heard().is_some_and(|at| at.elapsed() > self.silence);
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        let since = self.leading_since(&metrics);
        let unacknowledged = since.is_some_and(|since| {
            let heartbeat = acknowledged(&metrics, self.link.peer());
            let appended = self.link.last_appended().map(|at| at.elapsed());
            let quiet = [heartbeat, appended].into_iter().flatten().fold(since.elapsed(), Duration::min);
            quiet > self.silence + self.link.patience()
        });
        unanswered || unacknowledged
    }

    fn leading_since(&mut self, metrics: &Metrics) -> Option<Instant> {
        let term = metrics.state.is_leader().then_some(metrics.current_term);
        if self.leading.map(|(term, _)| term) != term {
            self.leading = term.map(|term| (term, Instant::now()));
        }
        self.leading.map(|(_, since)| since)
    }

    fn take(&self, observation: Observation) {
        let peer = self.link.peer();
        let (change, consecutive) = {
            let mut detector = self.detector.lock();
            (detector.observe(peer, observation), detector.consecutive(peer))
        };
        let suspected = |confirmed| ClusterEvent::PeerSuspected { node: self.name.clone(), consecutive, confirmed };
        match change {
            Change::None => {}
            Change::Suspected(_) => self.feed.push_local(suspected(false)),
            Change::Judged(verdict) => {
                tracing::info!(node = %self.name, ?verdict, "peer judged");
                if matches!(verdict, Verdict::Down(_)) {
                    self.feed.push_local(suspected(true));
                }
                self.verdicts.send_modify(|verdicts| {
                    verdicts.insert(peer, verdict);
                });
            }
        }
    }
}

/// How long ago the last heartbeat that `peer` acknowledged was sent.
fn acknowledged(metrics: &Metrics, peer: u64) -> Option<Duration> {
    let at = metrics.heartbeat.as_ref()?.get(&peer)?.as_ref()?;
    Some(openraft::Instant::elapsed(&**at))
}
