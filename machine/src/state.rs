//! The machine's state: what lives is in memory, what is finished is asked of the archive.
//!
//! Every change goes through [`Machine::put`] and [`Machine::delete`], which do three things at once:
//! they queue the write for storage, they make it visible to later reads, and they fold it into the
//! rolling hash, so that nodes with equal hashes have written equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::archive::{Archive, ArchiveResult, Pair, Writes};
use crate::dispatch::{Stirred, session_claim};
use crate::event::{ClusterEvent, Effect};
use crate::history::{Workflow, WorkflowStatus};
use crate::id::{DispatchKey, Epoch, IdempotencyKey, Millis, Namespace, NodeName, ShardId, WorkflowId};
use crate::keys::{self, Key};
use crate::member::MemberState;
use crate::namespace::NamespaceState;
use crate::open_workflows::OpenWorkflows;
use crate::outbox::{Row, RowStatus};
use crate::row_index::{LiveRows, RowIndex, Standing};
use crate::session_index::Sessions;
use crate::shard::{Directory, ShardEntry};
use crate::timer_index::TimerIndex;
use crate::visibility::Lanes;

/// What the state keeps about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Log time.
    pub now: Millis,
    /// The rolling hash over all writes.
    pub hash: u64,
    /// The last applied log index that the hash covers.
    pub index: u64,
    /// 0 until the cluster is created.
    pub shard_count: u32,
    /// True if the last entry had more rows to give to sessions than one entry may.
    pub dispatch_cut: bool,
    /// The epoch that a shard without an owner has: above 0 in a cluster that began with another one's backup.
    pub epoch_floor: Epoch,
}

/// The deterministic state machine. See the crate's page for its rules.
#[derive(Default)]
pub struct Machine {
    pub(crate) meta: Meta,
    pub(crate) members: BTreeMap<NodeName, MemberState>,
    pub(crate) directory: Directory,
    pub(crate) namespaces: BTreeMap<Namespace, NamespaceState>,
    pub(crate) open: OpenWorkflows,
    /// Workflows that are being removed, with how many of their events are left.
    pub(crate) removals: BTreeMap<WorkflowId, u64>,
    pub(crate) rows: LiveRows,
    pub(crate) index: RowIndex,
    pub(crate) timers: TimerIndex,
    pub(crate) sessions: Sessions,
    pub(crate) replies: BTreeSet<(Millis, IdempotencyKey)>,
    pub(crate) remembered: BTreeMap<IdempotencyKey, Millis>,
    pub(crate) lanes: Lanes,
    writes: Writes,
    hasher: Xxh3,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// One entry's apply under way: the state, the archive beneath it, and what is told to the world.
pub(crate) struct Apply<'a> {
    pub state: &'a mut Machine,
    pub archive: &'a dyn Archive,
    pub log_index: u64,
    pub tokens: u32,
    /// Deadlines of rows that the entry may still pass.
    pub passable: usize,
    /// Keys of removed workflows that the entry may still delete.
    pub removable: usize,
    pub events: Vec<ClusterEvent>,
    pub effects: Vec<Effect>,
    pub stirred: Stirred,
}

impl Machine {
    /// The writes since the last call, for storage to commit together with the applied index.
    pub fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.writes)
    }

    /// The rolling hash; equal on all nodes at equal applied indexes.
    pub fn state_hash(&self) -> u64 {
        self.meta.hash
    }

    /// Log time.
    pub fn now(&self) -> Millis {
        self.meta.now
    }

    /// The last log index that changed or may have changed the state.
    pub fn applied(&self) -> u64 {
        self.meta.index
    }

    /// The cluster's shard count; 0 before it is created.
    pub fn shard_count(&self) -> u32 {
        self.meta.shard_count
    }

    /// The shard of a workflow.
    pub fn shard_of(&self, workflow: &WorkflowId) -> ShardId {
        ShardId::of(workflow, self.meta.shard_count)
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, archive: &dyn Archive, key: &[u8]) -> ArchiveResult<Option<T>> {
        let stored = match self.writes.get(key) {
            Some(written) => written.clone(),
            None => archive.get(key)?,
        };
        stored.map(|stored| keys::decode(key, &stored)).transpose()
    }

    /// Up to `limit` pairs with `from <= key < to`, ascending, with the writes that storage has yet to commit.
    pub(crate) fn scan(&self, archive: &dyn Archive, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
        let pending_count = self.unwritten(from, to).count();
        // A pending delete hides one stored pair, so this many are enough to fill the page.
        let stored = archive.scan(from, to, limit.saturating_add(pending_count))?;
        if pending_count == 0 {
            return Ok(stored);
        }
        Ok(self.with_unwritten(from, to, stored).into_iter().take(limit).collect())
    }

    /// The last `limit` of these pairs, descending.
    pub(crate) fn scan_back(
        &self,
        archive: &dyn Archive,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> ArchiveResult<Vec<Pair>> {
        let pending_count = self.unwritten(from, to).count();
        let stored = archive.scan_back(from, to, limit.saturating_add(pending_count))?;
        if pending_count == 0 {
            return Ok(stored);
        }
        Ok(self.with_unwritten(from, to, stored).into_iter().rev().take(limit).collect())
    }

    fn unwritten(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)> {
        self.writes.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
    }

    fn with_unwritten(&self, from: &[u8], to: &[u8], stored: Vec<Pair>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut pairs: BTreeMap<_, _> = stored.into_iter().collect();
        for (key, value) in self.unwritten(from, to) {
            match value {
                Some(value) => pairs.insert(key.clone(), value.clone()),
                None => pairs.remove(key),
            };
        }
        pairs
    }

    pub(crate) fn put<T: Serialize>(&mut self, key: Key, value: &T) {
        let value = keys::encode(value);
        self.fold(&key, &value);
        self.writes.insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.fold(&key, &[]);
        self.writes.insert(key, None);
    }

    fn fold(&mut self, key: &[u8], value: &[u8]) {
        self.hasher.update(&(key.len() as u64).to_le_bytes());
        self.hasher.update(key);
        self.hasher.update(&(value.len() as u64).to_le_bytes());
        self.hasher.update(value);
    }

    /// Ends an entry: its writes, its time, its index and the shard count go into the hash.
    pub(crate) fn seal(&mut self, log_index: u64) {
        self.meta.index = log_index;
        for number in [self.meta.hash, self.meta.now.0, log_index, u64::from(self.meta.shard_count)] {
            self.hasher.update(&number.to_le_bytes());
        }
        self.meta.hash = self.hasher.digest();
        self.hasher.reset();
        self.writes.insert(keys::meta(), Some(keys::encode(&self.meta)));
    }

    /// Sorts what lives into the shards of a cluster that has just been created.
    pub(crate) fn spread(&mut self) {
        self.rows.spread(self.meta.shard_count);
        self.timers.spread(self.meta.shard_count);
        self.open.spread(self.meta.shard_count);
    }

    fn owner_of(&self, shard: ShardId) -> Option<NodeName> {
        self.directory.get(shard).map(|entry| entry.owner.clone())
    }

    pub(crate) fn standing(&self, key: &DispatchKey) -> Standing {
        Standing { owner: self.owner_of(self.shard_of(&key.workflow)), held: self.is_held(&key.workflow) }
    }

    /// True if the rows and timers of a workflow wait until it is resumed.
    pub fn is_held(&self, workflow: &WorkflowId) -> bool {
        self.open.get(workflow).is_some_and(is_paused)
    }

    /// Changes an entry of the directory; due rows move to the lane of the new owner.
    pub(crate) fn put_shard(&mut self, entry: ShardEntry) {
        let shard = entry.shard;
        let (before, after) = (self.owner_of(shard), Some(entry.owner.clone()));
        self.put(keys::shard(shard), &entry);
        self.directory.restore(entry);
        if before == after {
            return;
        }
        for (key, row) in self.rows.of_shard(shard) {
            let held = self.open.get(&key.workflow).is_some_and(is_paused);
            self.index.remove(key, row, before.clone());
            self.index.insert(key, row, Standing { owner: after.clone(), held });
        }
    }
}

fn is_paused(workflow: &Workflow) -> bool {
    workflow.status == WorkflowStatus::Paused
}

impl Apply<'_> {
    pub fn now(&self) -> Millis {
        self.state.meta.now
    }

    pub fn get<T: DeserializeOwned>(&self, key: &[u8]) -> ArchiveResult<Option<T>> {
        self.state.get(self.archive, key)
    }

    pub fn workflow(&self, id: &WorkflowId) -> ArchiveResult<Option<Workflow>> {
        self.state.workflow(self.archive, id)
    }

    pub fn row(&self, key: &DispatchKey) -> ArchiveResult<Option<Row>> {
        self.state.row(self.archive, key)
    }

    /// Writes a workflow, keeping open ones in memory and closed ones out of it. `was` is its status before. Where
    /// more than the head changes, listings have to be told too ([`Apply::relist`]).
    pub fn put_workflow(&mut self, id: &WorkflowId, was: Option<WorkflowStatus>, workflow: Workflow) {
        let (shard, status) = (self.state.shard_of(id), workflow.status);
        if status.is_terminal() {
            if self.state.open.remove(shard, id).is_some() {
                self.state.delete(keys::open_workflow(id));
            }
            self.state.put(keys::closed_workflow(id), &workflow);
        } else {
            if was.is_some_and(WorkflowStatus::is_terminal) {
                self.state.delete(keys::closed_workflow(id));
            }
            self.state.put(keys::open_workflow(id), &workflow);
            self.state.open.insert(shard, id.clone(), workflow);
        }
        if (was == Some(WorkflowStatus::Paused)) != (status == WorkflowStatus::Paused) {
            self.hold(id, status == WorkflowStatus::Paused);
        }
    }

    /// Takes a workflow's pending rows and its timers out of the order in which they are due, or lets them in again.
    fn hold(&mut self, id: &WorkflowId, held: bool) {
        let shard = self.state.shard_of(id);
        let owner = self.state.owner_of(shard);
        let now = self.now();
        let Machine { rows, index, sessions, .. } = &mut *self.state;
        let mut waiting = Vec::new();
        for (key, row) in rows.of_workflow(shard, id) {
            if !held && row.start_by.is_some() {
                waiting.push((key.clone(), row.clone()));
                continue;
            }
            index.remove(key, row, owner.clone());
            index.insert(key, row, Standing { owner: owner.clone(), held });
            if !held && row.claim.is_none() {
                announce_due(&mut self.effects, row);
                self.stirred.row(sessions, row, now);
            }
            self.stirred.changed.extend(session_claim(row).map(|(session, _)| session.clone()));
        }
        // Nobody could claim them meanwhile, so the time in which somebody has to begins anew.
        for (key, row) in waiting {
            self.put_row(&key, row);
        }
        self.state.timers.set_held(shard, id, held);
        if !held {
            self.tell_if_timers_due(shard);
        }
    }

    /// Writes a row, keeping live ones in memory and indexed, and finished ones out of it.
    pub fn put_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.start_by = row.start_by_from(self.now());
        let shard = self.state.shard_of(&key.workflow);
        let standing = self.state.standing(key);
        let before = self.state.rows.remove(shard, key);
        self.follow_claim(key, before.as_ref(), &row);
        if let Some(before) = &before {
            let had_room = before.claim.is_none() || self.has_room(&before.namespace);
            self.state.index.remove(key, before, standing.owner.clone());
            if row.claim.is_none() {
                self.tell_of_room(&before.namespace, had_room);
            }
        }
        if !row.status.is_live() {
            if before.is_some() {
                self.state.delete(keys::live_row(key));
            }
            if row.status == RowStatus::Failed && !row.failure_delivered {
                self.effects.push(Effect::DeadLetter { key: key.clone(), shard, namespace: row.namespace.clone() });
            }
            self.state.put(keys::finished_row(key), &row);
            if row.status == RowStatus::Failed {
                self.state.put(keys::dead_letter_in(&row.namespace, key), &());
                self.state.put(keys::dead_letter_of(key), &row.namespace);
            }
            return;
        }
        self.state.put(keys::live_row(key), &row);
        if row.claim.is_none() && !standing.held {
            announce_due(&mut self.effects, &row);
            self.stirred.row(&self.state.sessions, &row, self.state.meta.now);
        }
        self.state.index.insert(key, &row, standing);
        self.state.rows.insert(shard, key.clone(), row);
    }

    /// Writes a row in the place of a finished one.
    pub fn replace_row(&mut self, key: &DispatchKey, finished: &Row, row: Row) {
        self.drop_finished_row(key, finished);
        self.put_row(key, row);
    }

    /// Deletes a finished row, but not what stands beside it.
    pub fn drop_finished_row(&mut self, key: &DispatchKey, finished: &Row) {
        self.state.delete(keys::finished_row(key));
        if finished.status == RowStatus::Failed {
            self.state.delete(keys::dead_letter_in(&finished.namespace, key));
            self.state.delete(keys::dead_letter_of(key));
        }
    }
}

/// Says that a row is due; once for rows in a row that are due alike.
fn announce_due(effects: &mut Vec<Effect>, row: &Row) {
    let (namespace, task_queue) = (row.namespace.clone(), row.task_queue.clone());
    let due = Effect::RowsDue { namespace, task_queue, at: row.visible_after };
    if effects.last() != Some(&due) {
        effects.push(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Entry};
    use crate::history::{EventKind, NewEvent};
    use crate::trial::{Trial, id};

    #[test]
    fn a_loaded_machine_goes_on_as_if_nothing_had_been() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2]);
        trial.start("held", [1, 2]);
        trial.lease(1, 50);
        trial.claim_by("a");
        for (workflow, timer, at) in [("order-1", "soon", 1_050), ("order-1", "later", 5_000), ("held", "soon", 1_049)]
        {
            trial.arm(workflow, timer, at, 1).unwrap();
        }
        trial.append("held", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
        for session in ["first", "second"] {
            trial.attach(session, crate::trial::worker(1));
        }
        trial.start("order-2", [1, 2, 3]);
        assert!(trial.archive.0.iter().all(|(key, value)| Machine::check_row(key, value).is_ok()));
        let mut needed = trial.archive.clone();
        needed.0.retain(|key, _| Machine::loads(key));
        assert!(needed.0.len() < trial.archive.0.len());
        let mut loaded = Machine::load(&needed).unwrap();
        let index = trial.machine.applied();
        assert_eq!(
            (loaded.state_hash(), loaded.applied(), loaded.now()),
            (trial.machine.state_hash(), index, trial.machine.now())
        );
        for (step, at) in [1_049, 1_050, 2_000].into_iter().enumerate() {
            let entry = Entry { at: Millis(at), requests: vec![Command::Tick.into()] };
            let [expected, effects] = [&mut trial.machine, &mut loaded]
                .map(|machine| machine.apply(index + 1 + step as u64, entry.clone(), &trial.archive).unwrap().effects);
            assert_eq!(effects, expected);
            let due = |machine: &Machine| {
                (machine.expired_timers(None, None, Millis(9_999), 9), machine.next_timer_due(None, Millis(at)))
            };
            assert_eq!(due(&loaded), due(&trial.machine));
            assert_eq!(loaded.state_hash(), trial.machine.state_hash());
            assert_eq!(loaded.row_counts(), trial.machine.row_counts());
            let due = |machine: &Machine| (machine.next_session_end(), machine.next_dispatch_due());
            assert_eq!(due(&loaded), due(&trial.machine));
        }
        assert_eq!(loaded.take_writes(), trial.machine.take_writes());
    }

    #[test]
    fn the_hash_tells_states_apart() {
        let hash = |commands: Vec<Command>, at| {
            let mut machine = Machine::default();
            let requests = commands.into_iter().map(Into::into).collect();
            machine.apply(1, Entry { at: Millis(at), requests }, &crate::MemoryArchive::default()).unwrap();
            machine.state_hash()
        };
        let create = |shard_count| vec![Command::Create { shard_count }];
        let hashes = BTreeSet::from([hash(vec![], 1), hash(vec![], 2), hash(create(1), 1), hash(create(2), 1)]);
        assert_eq!(hashes.len(), 4);
        assert_eq!(hash(create(2), 1), hash(create(2), 1));
    }

    #[test]
    fn due_rows_follow_the_owner_of_their_shard() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let transfer = Command::Transfer { shard: ShardId(0), to: id("c"), expected_epoch: crate::Epoch(1) };
        trial.ask(transfer).unwrap();
        assert_eq!(trial.claim_by("a").len(), 0);
        assert_eq!(trial.claim_by("c").len(), 1);
    }
}
