//! Reading the state: what a node answers without proposing anything.

use serde::de::DeserializeOwned;

use crate::archive::{Archive, ArchiveResult};
use crate::command::Scope;
use crate::history::{HistoryEvent, Run, StoredEvent, Workflow};
use crate::id::{DispatchKey, IdempotencyKey, Millis, Namespace, NodeName, ShardId, WorkflowId};
use crate::keys;
use crate::member::MemberState;
use crate::outbox::Row;
use crate::payload::Payload;
use crate::row_counts::RowCounts;
use crate::shard::ShardEntry;
use crate::state::Machine;

/// How fresh a read has to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// Sees every write that was acknowledged before the read began. Needs a quorum.
    #[default]
    Linearizable,
    /// What the node happens to know. Always answers.
    Stale,
    /// At least this log index, for example that of the caller's own last write.
    AtLeast(u64),
}

impl Machine {
    /// A workflow's projection; `None` if it has no history.
    ///
    /// # Errors
    /// When the archive cannot be read, as all queries here.
    pub fn workflow(&self, archive: &dyn Archive, id: &WorkflowId) -> ArchiveResult<Option<Workflow>> {
        match self.open.get(id) {
            Some(workflow) => Ok(Some(workflow.clone())),
            None => self.get(archive, &keys::closed_workflow(id)),
        }
    }

    /// Up to `limit` events from number `from_seq` on; empty for an unknown workflow or beyond the head.
    /// Costs what it returns, wherever it starts.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn history(
        &self,
        archive: &dyn Archive,
        id: &WorkflowId,
        from_seq: u64,
        limit: usize,
    ) -> ArchiveResult<Vec<HistoryEvent>> {
        if self.is_being_removed(id) {
            return Ok(Vec::new());
        }
        let (from, to) = (keys::event(id, from_seq.max(1)), keys::event(id, u64::MAX));
        let pairs = self.scan(archive, &from, &to, limit)?;
        pairs.iter().map(|(key, value)| Ok(keys::decode::<StoredEvent>(key, value)?.event)).collect()
    }

    /// Up to `limit` runs of a workflow behind number `after`, oldest first.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn runs(&self, archive: &dyn Archive, id: &WorkflowId, after: u32, limit: usize) -> ArchiveResult<Vec<Run>> {
        if self.is_being_removed(id) {
            return Ok(Vec::new());
        }
        let from = keys::run(id, after.saturating_add(1));
        let pairs = self.scan(archive, &from, &keys::run(id, u32::MAX), limit)?;
        pairs.iter().map(|(key, value)| keys::decode(key, value)).collect()
    }

    /// One row, live or finished.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn row(&self, archive: &dyn Archive, key: &DispatchKey) -> ArchiveResult<Option<Row>> {
        match self.rows.get(self.shard_of(&key.workflow), key) {
            Some(row) => Ok(Some(row.clone())),
            None => self.get_of(archive, &key.workflow, &keys::finished_row(key)),
        }
    }

    /// A row's input.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn input(&self, archive: &dyn Archive, key: &DispatchKey) -> ArchiveResult<Option<Payload>> {
        self.get_of(archive, &key.workflow, &keys::input(key))
    }

    /// What the last heartbeat of a row, or its last failed attempt, said.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn details(&self, archive: &dyn Archive, key: &DispatchKey) -> ArchiveResult<Option<Payload>> {
        self.get_of(archive, &key.workflow, &keys::details(key))
    }

    /// What stands under a key of a workflow, unless the workflow is being removed.
    fn get_of<T: DeserializeOwned>(
        &self,
        archive: &dyn Archive,
        id: &WorkflowId,
        key: &[u8],
    ) -> ArchiveResult<Option<T>> {
        if self.is_being_removed(id) { Ok(None) } else { self.get(archive, key) }
    }

    /// The directory, by shard. A shard without an owner is not listed.
    pub fn shards(&self) -> impl Iterator<Item = &ShardEntry> {
        self.directory.all()
    }

    /// One shard's entry.
    pub fn shard(&self, shard: ShardId) -> Option<&ShardEntry> {
        self.directory.get(shard)
    }

    /// The members, by name.
    pub fn members(&self) -> impl Iterator<Item = &MemberState> {
        self.members.values()
    }

    /// One member.
    pub fn member(&self, name: &NodeName) -> Option<&MemberState> {
        self.members.get(name)
    }

    /// Open workflows of a shard, by id. For an engine that has just acquired it.
    pub fn open_workflows(&self, shard: ShardId) -> impl Iterator<Item = (&WorkflowId, &Workflow)> {
        self.open.of_shard_after(shard, None)
    }

    /// All live rows, by shard, then by key.
    pub fn live_rows(&self) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.rows.all()
    }

    /// Live rows by status.
    pub fn row_counts(&self) -> RowCounts {
        let claimed = self.index.claimed_count();
        RowCounts { pending: (self.rows.count() - claimed) as u64, claimed: claimed as u64 }
    }

    /// Live rows by namespace, by its name, behind `after` if that is given. A namespace without live rows is not
    /// listed.
    pub fn namespace_counts(&self, after: Option<&Namespace>) -> impl Iterator<Item = (&Namespace, RowCounts)> {
        self.index.counts().after(after)
    }

    /// Live rows of one namespace.
    pub fn counts_of(&self, namespace: &Namespace) -> RowCounts {
        self.index.counts().get(namespace)
    }

    /// Up to `limit` claimed rows whose claim is at least `older_than_ms` old at `now`, by claim time, then key, from
    /// behind `after` on.
    pub fn stale_rows(
        &self,
        now: Millis,
        older_than_ms: u64,
        after: Option<&(Millis, DispatchKey)>,
        limit: usize,
    ) -> Vec<(DispatchKey, Row)> {
        let Some(until) = now.0.checked_sub(older_than_ms) else { return Vec::new() };
        let row = |(key, _): (&DispatchKey, _)| {
            let row = self.rows.get(self.shard_of(&key.workflow), key)?;
            Some((key.clone(), row.clone()))
        };
        self.index.claimed_until(after, Millis(until)).filter_map(row).take(limit).collect()
    }

    /// The rows that a claim of this scope may take and the times from which they are due, in the order in
    /// which claims take them. With an `owner` only those of the shards that it owns.
    pub fn pending<'a>(
        &'a self,
        scope: &'a Scope,
        owner: Option<&'a NodeName>,
    ) -> impl Iterator<Item = (Millis, &'a DispatchKey)> {
        self.index.pending(scope, owner)
    }

    /// True if the reply to this key is remembered: a request under it gets that reply and changes nothing.
    pub fn remembers(&self, key: &IdempotencyKey) -> bool {
        self.remembered.contains_key(key)
    }

    /// How many replies are remembered.
    pub fn remembered_count(&self) -> usize {
        self.remembered.len()
    }

    /// When the first row of a scope is or was due; `None` if it has no pending row.
    pub fn next_due(&self, scope: &Scope) -> Option<Millis> {
        self.index.next_due(scope)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::archive::{Archive, ArchiveResult, MemoryArchive, Pair};
    use crate::command::{Command, Entry};
    use crate::history::{EventKind, NewEvent};
    use crate::id::Millis;
    use crate::trial::{Trial, id};

    #[test]
    fn a_history_is_read_in_pages_from_anywhere() {
        let mut trial = Trial::new();
        trial.start("order-1", [1, 2]);
        trial.start("order-11", [1]);
        let page = |from, limit| -> Vec<u64> {
            let events = trial.machine.history(&trial.archive, &id("order-1"), from, limit).unwrap();
            events.iter().map(|event| event.seq).collect()
        };
        assert_eq!(page(0, 9), [1, 2, 3, 4, 5]);
        assert_eq!(page(4, 9), [4, 5]);
        assert_eq!(page(2, 2), [2, 3]);
        assert_eq!(page(6, 9), [0u64; 0]);
        assert_eq!(page(u64::MAX, usize::MAX), [0u64; 0]);
        assert_eq!(page(1, 0), [0u64; 0]);
        assert!(trial.machine.history(&trial.archive, &id("nobody"), 0, 9).unwrap().is_empty());
        assert!(trial.machine.runs(&trial.archive, &id("nobody"), 0, 9).unwrap().is_empty());
    }

    /// Counts what is read through it.
    struct Counting<'a> {
        archive: &'a MemoryArchive,
        calls: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl Counting<'_> {
        fn count(&self, bytes: usize) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    impl Archive for Counting<'_> {
        fn get(&self, key: &[u8]) -> ArchiveResult<Option<Vec<u8>>> {
            let value = self.archive.get(key)?;
            self.count(value.as_ref().map_or(0, Vec::len));
            Ok(value)
        }

        fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
            let pairs = self.archive.scan(from, to, limit)?;
            self.count(pairs.iter().map(|(key, value)| key.len() + value.len()).sum());
            Ok(pairs)
        }

        fn scan_back(&self, from: &[u8], to: &[u8], limit: usize) -> ArchiveResult<Vec<Pair>> {
            let pairs = self.archive.scan_back(from, to, limit)?;
            self.count(pairs.iter().map(|(key, value)| key.len() + value.len()).sum());
            Ok(pairs)
        }
    }

    /// What a page costs is what it holds, however deep in a history it is; the same for its head, status and runs.
    #[test]
    fn ten_thousand_events_deep_is_as_cheap_as_the_head() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        let signal = || NewEvent::of(EventKind::SignalReceived).with(crate::Payload::text("the same in each"));
        let mut head = 1;
        while head < 20_001 {
            let commit = crate::Commit { events: vec![signal(); 1_000], ..crate::Commit::new(id("order-1"), head) };
            trial.ask(Command::Commit(commit)).unwrap();
            head += 1_000;
        }
        let cost = |read: &dyn Fn(&dyn Archive) -> usize| {
            let counting = Counting { archive: &trial.archive, calls: AtomicUsize::new(0), bytes: AtomicUsize::new(0) };
            let read = read(&counting);
            (read, counting.calls.into_inner(), counting.bytes.into_inner())
        };
        let history = |from| cost(&|archive| trial.machine.history(archive, &id("order-1"), from, 50).unwrap().len());
        let (read, calls, bytes) = history(19_952);
        assert_eq!((read, calls), (50, 1));
        for deep in [200, 10_000, 19_000] {
            let (read, calls, deep_bytes) = history(deep);
            assert_eq!((read, calls), (50, 1), "from {deep}");
            // Shorter numbers are shorter; nothing else differs.
            assert!(deep_bytes.abs_diff(bytes) <= 50 * 4, "from {deep}: {deep_bytes} bytes, not about {bytes}");
        }
        assert_eq!(history(20_002).0, 0);
        let whole = |archive: &dyn Archive| trial.machine.workflow(archive, &id("order-1")).unwrap().unwrap().head;
        assert_eq!(cost(&|archive| whole(archive) as usize), (20_001, 0, 0), "the projection is never folded anew");
        let (runs, calls, bytes) = cost(&|archive| trial.machine.runs(archive, &id("order-1"), 0, 9).unwrap().len());
        assert!((runs, calls) == (1, 1) && bytes < 100, "{bytes} bytes for one run");
    }

    #[test]
    fn what_storage_has_yet_to_commit_is_seen() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let commit = crate::Commit::new(id("order-1"), 3).event(NewEvent::of(EventKind::WorkflowCompleted));
        let entry = Entry { at: Millis(0), requests: vec![Command::Commit(commit).into()] };
        trial.machine.apply(trial.machine.applied() + 1, entry, &trial.archive).unwrap();
        let (machine, archive) = (&trial.machine, &trial.archive);
        let seqs = |limit| machine.history(archive, &id("order-1"), 2, limit).unwrap().len();
        assert_eq!((seqs(9), seqs(3), seqs(2)), (3, 3, 2));
        assert!(machine.runs(archive, &id("order-1"), 0, 9).unwrap()[0].closed_at.is_some());
        assert!(machine.workflow(archive, &id("order-1")).unwrap().unwrap().status.is_terminal());
        let pairs = |from: &[u8], to: &[u8]| machine.scan(archive, from, to, 9).unwrap().len();
        assert_eq!((pairs(b"L", b"M"), pairs(b"O", b"P")), (0, 1), "the live row is gone, the finished one is there");
    }

    #[test]
    fn claims_are_stale_by_their_age() {
        let mut trial = Trial::new();
        trial.at = 100;
        trial.start("order-1", [1]);
        trial.lease(1, 1_000);
        let stale = |now, older| trial.machine.stale_rows(Millis(now), older, None, 9).len();
        assert_eq!(stale(1_000, 0), 1);
        assert_eq!(stale(1_010, 10), 1);
        assert_eq!(stale(1_009, 10), 0);
        assert_eq!(stale(1_009, u64::MAX), 0, "nothing is older than time itself");
    }
}
