//! openraft's state machine over [`Machine`] and [`State`].
//!
//! Entries are applied in pieces. A piece is applied under one write lock and its writes go to storage as
//! one batch, so a reader sees rows and memory as of the same entry. Only then do replies, events and
//! effects go out.

use std::io;
use std::sync::Arc;

use futures::{FutureExt, Stream, StreamExt};
use holdfast_machine::{Applied, ClusterEvent, Effect, EventId, Machine, is_planted};
use holdfast_storage::snapshot::StateMark;
use holdfast_storage::state::SnapshotBuilder as StartedSnapshot;
use holdfast_storage::{SnapshotFile, State, Storage, StorageError};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::RwLock;
use tokio::sync::broadcast;

use crate::checkpoint::Hashes;
use crate::environment::{AppliedEntry, Observer};
use crate::feed::Feed;
use crate::log_store::{blocking, has_one_thread};
use crate::progress::Progress;
use crate::snapshot::{load, read_membership, stored_record};
use crate::transfers::Transfers;
use crate::types::{
    LogEntry, LogId, Outcome, Payload, Snapshot, SnapshotMeta, StoredMembership, TypeConfig, from_storage, members,
    to_storage,
};
use crate::wire::encode;

/// A piece ends after so many entries or bytes, so that readers get their turn.
const PIECE_ENTRIES: usize = 256;
const PIECE_BYTES: usize = 1024 * 1024;
/// A larger piece is applied on a blocking thread.
const INLINE_BYTES: usize = 128 * 1024;
/// Apply holds readers up for less than this; the installation of a snapshot may take long.
const VIEW_PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);
/// Pause before a snapshot is tried again on a full disk.
const SPACE_PAUSE: std::time::Duration = std::time::Duration::from_secs(5);
/// Pause before it is looked again whether the disk has room for an installation.
const INSTALL_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// The replicated state of this node: rows on disk and what the machine holds in memory.
pub(crate) struct Replica {
    machine: RwLock<Machine>,
    storage: Arc<Storage>,
    progress: Progress,
    feed: Feed,
    effects: broadcast::Sender<(u64, Effect)>,
    hashes: Hashes,
    observer: Option<Arc<dyn Observer>>,
}

type Piece = Vec<EntryResponder<TypeConfig>>;
type Answers = Vec<(Option<ApplyResponder<TypeConfig>>, Outcome)>;

impl Replica {
    /// The machine that was loaded from the rows in `storage`.
    pub fn new(
        machine: Machine,
        storage: Arc<Storage>,
        progress: Progress,
        feed: Feed,
        effects: broadcast::Sender<(u64, Effect)>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let hashes = Hashes::default();
        if let Some(applied) = storage.state.applied() {
            hashes.push(applied.index, machine.state_hash());
        }
        Self { machine: RwLock::new(machine), storage, progress, feed, effects, hashes, observer }
    }

    /// Reads the machine and its rows as of one entry.
    pub fn view<T>(&self, read: impl FnOnce(&Machine, &State) -> T) -> T {
        let machine = match self.machine.try_read_for(VIEW_PATIENCE) {
            Some(machine) => machine,
            None if has_one_thread() => self.machine.read(),
            // The runtime's other tasks go on meanwhile.
            None => tokio::task::block_in_place(|| self.machine.read()),
        };
        let value = read(&machine, &self.storage.state);
        if let Some(reason) = self.storage.dir.failure() {
            self.progress.fail(&reason);
        }
        value
    }

    /// The hashes as of the last entries.
    pub fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// Where the state is kept.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    fn apply(&self, piece: Piece) -> io::Result<Answers> {
        let mut answers = Vec::with_capacity(piece.len());
        let mut published = Vec::with_capacity(piece.len());
        let (mut last, mut membership) = (None, None);
        let mut machine = self.machine.write();
        for (entry, responder) in piece {
            let index = entry.log_id.index;
            last = Some(entry.log_id);
            let applied = self.apply_entry(&mut machine, entry, &mut membership)?;
            self.hashes.push(index, machine.state_hash());
            self.compare(&applied.effects)?;
            let outcome = Outcome { at: machine.now(), replies: applied.replies };
            answers.push((responder, outcome));
            published.push((index, applied.events, applied.effects));
        }
        let Some(last) = last else { return Ok(answers) };
        let writes = machine.take_writes();
        self.storage.state.commit(writes, to_storage(last), membership)?;
        drop(machine);
        self.progress.applied_to(last.index);
        self.publish(published);
        Ok(answers)
    }

    fn apply_entry(
        &self,
        machine: &mut Machine,
        entry: LogEntry,
        membership: &mut Option<Vec<u8>>,
    ) -> io::Result<Applied> {
        let LogId { index, leader_id } = entry.log_id;
        let observe = |what: AppliedEntry<'_>| {
            if let Some(observer) = &self.observer {
                observer.applied(index, leader_id.term, &what);
            }
        };
        match entry.payload {
            Payload::Blank => {
                observe(AppliedEntry::Blank);
                Ok(Applied::default())
            }
            Payload::Normal(proposal) => {
                let requests = proposal.0.as_entry().map_err(io::Error::other)?;
                observe(AppliedEntry::Requests(&requests));
                machine.apply(index, requests, &*self.storage.state).map_err(io::Error::other)
            }
            Payload::Membership(change) => {
                let members = members(&change);
                observe(AppliedEntry::Members(&members));
                let stored = StoredMembership::new(Some(entry.log_id), change);
                *membership = Some(encode(&stored_record(&stored)).to_vec());
                machine.apply_members(index, &members, &*self.storage.state).map_err(io::Error::other)
            }
        }
    }

    /// Holds checkpoints against what the hash was here. A node that differs has nothing written of the piece, answers
    /// nothing of it, and does not start on this data directory again.
    fn compare(&self, effects: &[Effect]) -> io::Result<()> {
        for effect in effects {
            if let Effect::Checkpoint { index, hash } = effect
                && let Err(diverged) = self.hashes.compare(*index, *hash)
            {
                return Err(self.storage.dir.condemn(&diverged.to_string()).into());
            }
        }
        Ok(())
    }

    fn publish(&self, published: Vec<(u64, Vec<ClusterEvent>, Vec<Effect>)>) {
        let mut events = Vec::new();
        for (index, of_entry, effects) in published {
            let numbered = of_entry.into_iter().zip(0..);
            events.extend(numbered.map(|(event, position)| (EventId { index, position }, event)));
            for effect in effects {
                // Nobody may be listening.
                let _ = self.effects.send((index, effect));
            }
        }
        if !events.is_empty() {
            self.feed.push_committed(events);
        }
    }

    /// Makes the state durable, and remembers how far it is.
    pub fn sync(&self) -> io::Result<Option<LogId>> {
        let durable = self.storage.state.sync()?;
        self.progress.durable_to(durable.map(|id| id.index));
        Ok(durable.map(from_storage))
    }

    /// Starts a snapshot as of the last applied entry.
    fn start_snapshot(&self) -> Result<StartedSnapshot, StorageError> {
        // Nothing is applied meanwhile, so the mark is that of the very state.
        let machine = self.machine.read();
        let mark = mark_of(&machine);
        Ok(self.storage.state.snapshot_builder()?.with_mark(mark))
    }

    /// Waits until the disk has room for the state that `file` holds. No thread waits meanwhile: where there is but one,
    /// whoever makes room would wait for it.
    async fn room_for(&self, file: &SnapshotFile) -> io::Result<()> {
        let Storage { state, room, .. } = &*self.storage;
        let mut found = state.room_for(file);
        if let Err(error) = &found {
            tracing::warn!(%error, "waiting for space on the disk, for a snapshot that came");
        }
        while found.is_err() && !room.is_closed() {
            tokio::time::sleep(INSTALL_PAUSE).await;
            found = state.room_for(file);
        }
        found
    }

    fn install(&self, file: &SnapshotFile) -> io::Result<()> {
        // Readers have the old state meanwhile, which may take as long as the state is large. Nothing is applied.
        let prepared = self.storage.state.prepare(file)?;
        let mut machine = self.machine.write();
        self.storage.state.switch_to(prepared)?;
        *machine = Machine::load(&*self.storage.state).map_err(io::Error::other)?;
        let found = mark_of(&machine);
        if let Some(mark) = file.header.mark.filter(|mark| *mark != found) {
            let index = file.header.applied.index;
            return Err(io::Error::other(format!("the snapshot at {index} tells of {mark} and holds {found}")));
        }
        let index = file.header.applied.index;
        self.hashes.push(index, machine.state_hash());
        drop(machine);
        tracing::info!(index, "a snapshot was installed");
        self.progress.durable_to(Some(index));
        self.progress.applied_to(index);
        self.feed.jumped(index);
        // The directory may have changed in the part that was jumped over.
        let _ = self.effects.send((index, Effect::TopologyChanged));
        Ok(())
    }
}

/// What a machine says of its state.
pub(crate) fn mark_of(machine: &Machine) -> StateMark {
    StateMark { hash: machine.state_hash(), now: machine.now().0 }
}

/// What openraft drives.
pub(crate) struct StateMachine {
    replica: Arc<Replica>,
    transfers: Transfers,
}

impl StateMachine {
    /// openraft's view of `replica`.
    pub fn new(replica: Arc<Replica>, transfers: Transfers) -> Self {
        Self { replica, transfers }
    }

    async fn apply_piece(&self, piece: Piece, bytes: usize) -> io::Result<Answers> {
        if let Some((last, _)) = piece.last().filter(|_| !is_planted("apply-before-the-log-is-on-disk")) {
            self.replica.progress.flushed(last.log_id.index).await?;
        }
        let replica = self.replica.clone();
        if replica.storage.state.is_full() {
            // Before the machine is locked: sled may have to wait for space on the disk, and reads must not.
            let replica = replica.clone();
            blocking(move || {
                replica.storage.state.wait_for_sled();
                Ok(())
            })
            .await?;
        }
        if bytes <= INLINE_BYTES {
            return replica.apply(piece);
        }
        blocking(move || replica.apply(piece)).await
    }

    /// The error, after the node was told that it cannot go on.
    fn fatal<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.replica.progress.fail(error))
    }
}

/// What is ready, up to one piece; empty at the end of the stream.
async fn next_piece<S>(entries: &mut S) -> io::Result<(Piece, usize)>
where
    S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin,
{
    let (mut piece, mut bytes) = (Piece::new(), 0);
    let mut next = entries.next().await;
    while let Some(item) = next {
        let item = item?;
        if let Payload::Normal(proposal) = &item.0.payload {
            bytes += proposal.0.as_bytes().len();
        }
        piece.push(item);
        if piece.len() >= PIECE_ENTRIES || bytes >= PIECE_BYTES {
            break;
        }
        next = entries.next().now_or_never().flatten();
    }
    Ok((piece, bytes))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = &self.replica.storage.state;
        let membership = read_membership(state.membership().as_deref()).map_err(io::Error::other);
        Ok((state.applied().map(from_storage), self.fatal(membership)?))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        loop {
            let (piece, bytes) = self.fatal(next_piece(&mut entries).await)?;
            if piece.is_empty() {
                return Ok(());
            }
            let answers = self.apply_piece(piece, bytes).await;
            for (responder, outcome) in self.fatal(answers)? {
                if let Some(responder) = responder {
                    responder.send(outcome);
                }
            }
        }
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        let builder = self.get_snapshot_builder().await;
        let busy = matches!(builder.started, Some(Err(StorageError::SnapshotInProgress)));
        (force || !busy).then_some(builder)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let replica = self.replica.clone();
        let started = blocking(move || Ok(replica.start_snapshot())).await;
        // A panic in there is told by the builder, as an error.
        SnapshotBuilder { replica: self.replica.clone(), started: started.ok() }
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let room = self.replica.room_for(&snapshot).await;
        self.fatal(room)?;
        let replica = self.replica.clone();
        let installed = blocking(move || replica.install(&snapshot)).await;
        self.fatal(installed)
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let storage = &self.replica.storage;
        if let Some(unfinished) = self.transfers.unfinished(storage.log.purged().map(|id| id.index)) {
            return Ok(Some(unfinished));
        }
        let snapshots = storage.snapshots.clone();
        blocking(move || snapshots.newest()?.map(load).transpose()).await
    }
}

/// A snapshot that was started as of one entry and is still to be written.
pub(crate) struct SnapshotBuilder {
    replica: Arc<Replica>,
    started: Option<Result<StartedSnapshot, StorageError>>,
}

impl SnapshotBuilder {
    async fn write(&self, started: Result<StartedSnapshot, StorageError>) -> io::Result<Snapshot> {
        let replica = self.replica.clone();
        blocking(move || {
            let stored = replica.storage.snapshots.write(started?)?;
            // The log may be purged up to the snapshot from now on, so the state must be on disk.
            replica.sync()?;
            load(stored)
        })
        .await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let started = self.started.take();
        let started = started.ok_or_else(|| io::Error::other("there is no snapshot to be written"))?;
        let mut built = self.write(started).await;
        while built.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            tracing::warn!("no space for a snapshot; trying again");
            tokio::time::sleep(SPACE_PAUSE).await;
            let replica = self.replica.clone();
            let started = blocking(move || Ok(replica.start_snapshot())).await?;
            built = self.write(started).await;
        }
        let snapshot = built.inspect_err(|error| self.replica.progress.fail(error))?;
        if let Some(last) = snapshot.meta.last_log_id {
            self.replica.feed.push_local(ClusterEvent::SnapshotTaken { index: last.index });
        }
        Ok(snapshot)
    }
}
