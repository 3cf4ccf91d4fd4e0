//! The engine of a node: which workflows are driven here, and what makes their drivers move.
//!
//! A driver is made when a shard is acquired (for each of its open workflows), when a history grows, and when a timer
//! falls due; it is dropped when its shard is lost, when its workflow ends, and when there are too many and it has
//! waited longest. So memory is bounded by [`EngineOptions::residents_max`], however many workflows wait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_api::{ExpiredCall, HeadMessage, HeadScope, PageCall, ReadMode, Store, StoreError};
use holdfast_machine::{Epoch, Fence, Namespace, ShardId, TimerId, WorkflowId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use crate::driver::{Stop, drive};
use crate::facts::{Mailbox, Word};
use crate::program::Programs;
use crate::retry::until_read;

/// Workflows listed, and timers asked for, with one call.
const PAGE: u32 = 500;
/// How long one call waits for a timer.
const TIMER_WAIT_MS: u64 = 30_000;
/// After this time a driver is told again of a timer that is still due.
const TOLD_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at timers of which the drivers have been told.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What an engine can be told.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The namespace whose workflows it drives.
    pub namespace: Namespace,
    /// Workflows that are kept in memory while they wait. Beyond it, those that have waited longest are dropped, and
    /// replayed when something happens to them. A workflow that waits for a child stays.
    pub residents_max: usize,
    /// Histories that are replayed at a time.
    pub replays_max: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { namespace: Namespace::default(), residents_max: 10_000, replays_max: 64 }
    }
}

/// Drives the workflows of the shards that it is told of, until it is dropped.
pub struct Engine {
    shared: Arc<Shared>,
    _listeners: JoinSet<()>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("node", self.shared.store.node()).finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.shards.lock().clear();
    }
}

struct Shared {
    store: Store,
    programs: Programs,
    options: EngineOptions,
    replays: Arc<Semaphore>,
    shards: Mutex<BTreeMap<ShardId, Shard>>,
}

/// A shard of this node.
struct Shard {
    epoch: Epoch,
    residents: BTreeMap<WorkflowId, Resident>,
    /// Workflows that are left alone, and why.
    halted: BTreeMap<WorkflowId, String>,
    listing: Option<AbortHandle>,
}

/// A workflow with a driver.
struct Resident {
    mailbox: Arc<Mailbox>,
    driver: AbortHandle,
    moved: Instant,
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.listing.iter().for_each(AbortHandle::abort);
    }
}

impl Engine {
    /// An engine of the default namespace. Must be called inside a tokio runtime.
    pub fn new(store: Store, programs: Programs) -> Self {
        Self::with_options(store, programs, EngineOptions::default())
    }

    /// An engine with options. Must be called inside a tokio runtime.
    pub fn with_options(store: Store, programs: Programs, options: EngineOptions) -> Self {
        let replays = Arc::new(Semaphore::new(options.replays_max.max(1)));
        let shared = Arc::new(Shared { store, programs, options, replays, shards: Mutex::default() });
        let mut listeners = JoinSet::new();
        listeners.spawn(hear_of_histories(Arc::clone(&shared)));
        listeners.spawn(hear_of_timers(Arc::clone(&shared)));
        Self { shared, _listeners: listeners }
    }

    /// The node owns this shard from now on, under this epoch: its open workflows are taken up.
    pub fn acquire(&self, shard: ShardId, epoch: Epoch) {
        let (residents, halted) = Default::default();
        // What ran under an older epoch is dropped with the older entry.
        self.shared.shards.lock().insert(shard, Shard { epoch, residents, halted, listing: None });
        Shared::list(&self.shared, shard);
    }

    /// The node does not own this shard any more: its workflows are let go of.
    pub fn lose(&self, shard: ShardId) {
        self.shared.shards.lock().remove(&shard);
    }

    /// Workflows that are left alone, and why. They are taken up again with their shard, or with the next start.
    pub fn halted(&self) -> BTreeMap<WorkflowId, String> {
        let shards = self.shared.shards.lock();
        shards.values().flat_map(|shard| shard.halted.clone()).collect()
    }

    /// How many workflows are in memory.
    pub fn residents(&self) -> usize {
        self.shared.residents()
    }
}

impl Shared {
    fn residents(&self) -> usize {
        self.shards.lock().values().map(|shard| shard.residents.len()).sum()
    }

    /// Takes up the open workflows of a shard.
    fn list(shared: &Arc<Self>, shard: ShardId) {
        let listing = tokio::spawn(take_up(Arc::clone(shared), shard)).abort_handle();
        match shared.shards.lock().get_mut(&shard) {
            Some(entry) => entry.listing.replace(listing).iter().for_each(AbortHandle::abort),
            None => listing.abort(),
        }
    }

    /// Tells a workflow's driver something; makes one if there is none.
    fn tell(shared: &Arc<Self>, shard: ShardId, workflow: &WorkflowId, word: Word) {
        let mut shards = shared.shards.lock();
        let Some(entry) = shards.get_mut(&shard).filter(|entry| !entry.halted.contains_key(workflow)) else { return };
        let resident = entry.residents.entry(workflow.clone()).or_insert_with(|| {
            let mailbox = Arc::new(Mailbox::default());
            let driver = Self::start(shared, shard, entry.epoch, workflow, &mailbox);
            Resident { mailbox, driver, moved: Instant::now() }
        });
        resident.moved = Instant::now();
        resident.mailbox.tell(word);
        let residents: usize = shards.values().map(|shard| shard.residents.len()).sum();
        if residents > shared.options.residents_max {
            drop_longest_waiting(&mut shards, residents - shared.options.residents_max);
        }
    }

    fn start(
        shared: &Arc<Self>,
        shard: ShardId,
        epoch: Epoch,
        workflow: &WorkflowId,
        mailbox: &Arc<Mailbox>,
    ) -> AbortHandle {
        let (shared, workflow, mailbox) = (Arc::clone(shared), workflow.clone(), Arc::clone(mailbox));
        let driver = async move {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&shared.replays).acquire_owned().await else { return };
            let fence = Fence { owner: shared.store.node().clone(), epoch };
            let (store, programs) = (shared.store.clone(), shared.programs.clone());
            let namespace = shared.options.namespace.clone();
            let end = drive(store, fence, programs, namespace, workflow.clone(), Arc::clone(&mailbox), permit).await;
            Self::stopped(&shared, shard, &workflow, &mailbox, end);
        };
        tokio::spawn(driver).abort_handle()
    }

    /// A driver has come to its end.
    fn stopped(
        shared: &Arc<Self>,
        shard: ShardId,
        workflow: &WorkflowId,
        mailbox: &Arc<Mailbox>,
        end: Result<(), Stop>,
    ) {
        let mut shards = shared.shards.lock();
        let Some(entry) = shards.get_mut(&shard) else { return };
        // A newer driver of the same workflow is not this one's.
        if !entry.residents.get(workflow).is_some_and(|resident| Arc::ptr_eq(&resident.mailbox, mailbox)) {
            return;
        }
        entry.residents.remove(workflow);
        match end {
            Ok(()) => {}
            Err(Stop::Halted(halt)) => {
                tracing::error!(%workflow, "left alone: {halt}");
                entry.halted.insert(workflow.clone(), halt.to_string());
                return;
            }
            // Whoever owns the shard now goes on, or this node's next driver does.
            Err(Stop::Store(StoreError::Reject(reject))) => tracing::info!(%workflow, "given up: {reject}"),
            Err(Stop::Store(StoreError::Stopped)) => return,
            Err(Stop::Store(error)) => {
                tracing::error!(%workflow, "left alone: {error}");
                entry.halted.insert(workflow.clone(), error.to_string());
                return;
            }
        }
        drop(shards);
        // Word that came while the driver was about to end.
        if mailbox.unread() {
            Self::tell(shared, shard, workflow, Word::Grew);
        }
    }
}

/// Drops drivers that do nothing but wait: an eighth more than there are too many, so that it is not done for each.
fn drop_longest_waiting(shards: &mut BTreeMap<ShardId, Shard>, too_many: usize) {
    let residents = shards.iter().flat_map(|(shard, entry)| {
        let closable = entry.residents.iter().filter(|(_, resident)| resident.mailbox.may_be_closed());
        closable.map(|(workflow, resident)| (resident.moved, *shard, workflow.clone()))
    });
    let mut waiting: Vec<(Instant, ShardId, WorkflowId)> = residents.collect();
    waiting.sort_unstable();
    let count = too_many + waiting.len() / 8;
    for (_, shard, workflow) in waiting.into_iter().take(count) {
        if let Some(entry) = shards.get_mut(&shard) {
            entry.residents.remove(&workflow);
        }
    }
}

async fn take_up(shared: Arc<Shared>, shard: ShardId) {
    let mut page = PageCall::first(PAGE);
    loop {
        let heads = match until_read(|| shared.store.heads(Some(shard), true, &page, ReadMode::Stale)).await {
            Ok(heads) => heads.value,
            Err(error) => return tracing::warn!(%shard, %error, "open workflows are not listed"),
        };
        for head in heads.heads.iter().filter(|head| head.namespace == shared.options.namespace) {
            Shared::tell(&shared, shard, &head.workflow, Word::Grew);
        }
        match heads.next_cursor {
            Some(cursor) => page = PageCall::after(PAGE, cursor),
            None => return,
        }
    }
}

/// Hears of histories that grow and of rows that are given up, in this node's shards.
async fn hear_of_histories(shared: Arc<Shared>) {
    let (owner, namespace) = (Some(shared.store.node().clone()), Some(shared.options.namespace.clone()));
    let mut heads = shared.store.watch_heads(HeadScope { shard: None, owner, namespace });
    while let Some(message) = heads.next().await {
        match message {
            HeadMessage::Grew(grew) => Shared::tell(&shared, grew.shard, &grew.workflow, Word::Grew),
            HeadMessage::DeadLetter(letter) => {
                let word = Word::GivenUp(letter.key.ordinal);
                Shared::tell(&shared, letter.shard, &letter.key.workflow, word);
            }
            // Something may have been missed: look at everything.
            HeadMessage::Resync { .. } => {
                let shards: Vec<ShardId> = shared.shards.lock().keys().copied().collect();
                shards.into_iter().for_each(|shard| Shared::list(&shared, shard));
            }
        }
    }
}

/// Hears of timers that are due in this node's shards. A timer is due until it is retired, so drivers are told of each
/// once, and again if nothing comes of it.
async fn hear_of_timers(shared: Arc<Shared>) {
    let mut told: BTreeMap<(WorkflowId, TimerId, u64), Instant> = BTreeMap::new();
    loop {
        let call = ExpiredCall {
            owner: Some(shared.store.node().clone()),
            namespace: Some(shared.options.namespace.clone()),
            as_of: None,
            limit: PAGE,
            wait_ms: TIMER_WAIT_MS,
        };
        let due = match until_read(|| shared.store.expired_timers(call.clone(), ReadMode::Stale)).await {
            Ok(due) => due.value.timers,
            Err(error) => return tracing::info!(%error, "no more timers are heard of"),
        };
        let Ok(directory) = until_read(|| shared.store.shards(ReadMode::Stale)).await else { return };
        let mut told_before = std::mem::take(&mut told);
        for timer in &due {
            let id = (timer.workflow.clone(), timer.timer.clone(), timer.armed_seq);
            let at = told_before.remove(&id).filter(|at| at.elapsed() < TOLD_AGAIN);
            if at.is_none() {
                let shard = ShardId::of(&timer.workflow, directory.value.shard_count);
                Shared::tell(&shared, shard, &timer.workflow, Word::Due(timer.arming()));
            }
            told.insert(id, at.unwrap_or_else(Instant::now));
        }
        if !due.is_empty() {
            sleep(LOOK_AGAIN).await;
        }
    }
}
