//! Reading backups: checking one, and making the data directory of a new cluster's node from it.
//!
//! Every node of the new cluster is made from the same file with the same members. So all of them begin with the same
//! state, as of the same log index and term, and with the same membership, none of whose nodes was seen yet; they start as
//! nodes do that were all restarted. What a node began with is part of its identity ([`Identity::base`]), and nodes that
//! began with different states refuse each other.
//!
//! [`Identity::base`]: holdfast_storage::Identity::base

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use holdfast_machine::{ArchiveError, Machine, Member, MemoryArchive, Millis, NodeName, RowCounts, STATE_VERSION};
use holdfast_storage::backup::{Backup, Manifest};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::snapshot::StateMark;
use holdfast_storage::{DataDir, Expected, Log, LogConfig, LogId, Snapshots, State, StateConfig, StorageError, Vote};

use crate::membership::first_members;
use crate::options::MemberConfig;
use crate::snapshot::{read_membership, stored_record};
use crate::state_machine::mark_of;
use crate::types::{Membership, StoredMembership, from_storage, members};
use crate::wire::encode;

/// What a backup holds, after all of it was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupReport {
    /// Where it comes from.
    pub manifest: Manifest,
    /// Version of the state machine's rows.
    pub machine: u32,
    /// The last entry that is in it.
    pub applied: LogId,
    /// The rolling hash of its state.
    pub state_hash: u64,
    /// Its log time.
    pub log_time: Millis,
    /// How many shards the cluster has.
    pub shard_count: u32,
    /// Its members' names.
    pub members: Vec<NodeName>,
    /// Live rows of the outbox.
    pub live_rows: RowCounts,
    /// Number of stored rows.
    pub rows: u64,
    /// Their length in bytes.
    pub row_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

/// Why a backup is not taken for one, or was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file or the data directory is refused, or the disk is.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// All checksums are right, and yet the state makes no sense.
    #[error("{file} does not hold a state that this program can run on: {what}. Use another backup.")]
    State {
        /// The backup.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The new cluster has no such member.
    #[error("the members of the new cluster have no node {node}. Nothing was changed.")]
    NoMember {
        /// The Raft id.
        node: u64,
    },
    /// The new cluster must not have the old one's name.
    #[error(
        "the backup is of a cluster that is called {cluster:?} as well. A restored cluster needs a name of its own, so \
         that no node of the old one can talk to it. Nothing was changed."
    )]
    SameCluster {
        /// The name.
        cluster: String,
    },
}

/// The node that a data directory is made for.
#[derive(Debug, Clone)]
pub struct NewNode<'a> {
    /// Where its data will live.
    pub data_dir: &'a Path,
    /// The new cluster's name.
    pub cluster: &'a str,
    /// The node's Raft id.
    pub node: u64,
    /// The members of the new cluster, the same for all nodes.
    pub members: &'a [MemberConfig],
}

/// What a node was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreReport {
    /// The entry that its log goes on after.
    pub applied: LogId,
    /// The rolling hash of its state.
    pub state_hash: u64,
    /// What all nodes of the new cluster have to agree on.
    pub base: u128,
}

/// Checks all of a backup file.
///
/// # Errors
/// What is wrong with it, and where.
pub fn verify_backup(file: &Path) -> Result<BackupReport, RestoreError> {
    let backup = Backup::open(&RealDisk, file)?;
    let header = backup.snapshot.header.clone();
    let senseless = |what: String| RestoreError::State { file: file.display().to_string(), what };
    if header.machine > u32::from(STATE_VERSION) {
        let (file, found, supported) = (file.to_path_buf(), header.machine, STATE_VERSION.into());
        return Err(StorageError::NewerBackup { file, found, supported }.into());
    }
    let (mut rows, mut row_bytes, mut live) = (0, 0, BTreeMap::new());
    let mut reading = backup.rows()?;
    while let Some(chunk) = reading.next_rows()? {
        for (key, value) in chunk {
            rows += 1;
            row_bytes += (key.len() + value.len()) as u64;
            Machine::check_row(&key, &value).map_err(|error| senseless(error.to_string()))?;
            if Machine::loads(&key) {
                live.insert(key, value);
            }
        }
    }
    let machine = Machine::load(&MemoryArchive(live)).map_err(|error| senseless(error.to_string()))?;
    let membership = read_membership(header.membership.as_deref()).map_err(|error| senseless(error.to_string()))?;
    check_state(&machine, header.mark, header.applied, &membership).map_err(senseless)?;
    Ok(BackupReport {
        manifest: backup.manifest,
        machine: header.machine,
        applied: header.applied,
        state_hash: machine.state_hash(),
        log_time: machine.now(),
        shard_count: machine.shard_count(),
        members: machine.members().map(|state| state.member.name.clone()).collect(),
        live_rows: machine.row_counts(),
        rows,
        row_bytes,
        file_bytes: backup.snapshot.length,
    })
}

/// Whether a state is the one that its header tells of.
fn check_state(
    machine: &Machine,
    mark: Option<StateMark>,
    applied: LogId,
    membership: &StoredMembership,
) -> Result<(), String> {
    let found = mark_of(machine);
    match mark {
        Some(mark) if mark != found => return Err(format!("the header tells of {mark}, the rows of {found}")),
        _ => {}
    }
    if machine.applied() > applied.index {
        return Err(format!("the header ends at {applied}, the rows at {}", machine.applied()));
    }
    let named = members(membership.membership()).into_iter().map(|member| member.name);
    let named: std::collections::BTreeSet<NodeName> = named.collect();
    if !machine.members().map(|state| &state.member.name).eq(named.iter()) {
        return Err("the rows tell of other members than the membership".to_owned());
    }
    Ok(())
}

/// Makes the data directory of a new cluster's node from a backup. The directory must be empty, or not be there.
///
/// # Errors
/// See [`RestoreError`]. If it is interrupted, what it has left in the directory is no data directory.
pub fn restore(file: &Path, new: &NewNode<'_>) -> Result<RestoreReport, RestoreError> {
    let backup = Backup::open(&RealDisk, file)?;
    if backup.manifest.cluster == new.cluster {
        return Err(RestoreError::SameCluster { cluster: new.cluster.to_owned() });
    }
    verify_backup(file)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let own = new.members.iter().find(|member| member.id == new.node);
    let own = own.ok_or(RestoreError::NoMember { node: new.node })?;
    let expected = Expected { cluster: new.cluster.to_owned(), name: own.name.to_string() };
    let mut report = None;
    let made = DataDir::make(&disk, new.data_dir, &expected, new.node, |dir| {
        let made = fill(dir, &backup, new)?;
        report = Some(made);
        Ok(made.base)
    });
    made?;
    report.ok_or_else(|| RestoreError::State { file: file.display().to_string(), what: "nothing was made".to_owned() })
}

/// Writes the state, its snapshot, and a log that goes on after it.
fn fill(dir: &DataDir, backup: &Backup, new: &NewNode<'_>) -> Result<RestoreReport, StorageError> {
    let (disk, poison) = (dir.disk(), dir.poison());
    let config = StateConfig { machine_version: STATE_VERSION.into(), ..StateConfig::default() };
    let unreadable = |error: ArchiveError| {
        let source = std::io::Error::other(error);
        StorageError::io("reading the restored state in", &dir.state_dir(), source)
    };
    State::restore(&disk, &dir.state_dir(), Some(&backup.snapshot), &config)?;
    let state = State::open(Arc::clone(&disk), &dir.state_dir(), config, poison.clone())?;
    let machine = Machine::load(&state).map_err(unreadable)?;

    let nodes = first_members(new.members);
    let voters = nodes.keys().copied().collect();
    let first = Membership::new(vec![voters], nodes).map_err(|error| {
        StorageError::io("forming the membership of", dir.path(), std::io::Error::other(error.to_string()))
    })?;
    let (last, named): (LogId, Vec<Member>) = (backup.snapshot.header.applied, members(&first));
    let (now, restored) = (machine.now(), machine.restored(last.index, &named, &state).map_err(unreadable)?);
    let applied = LogId { term: last.term, index: restored.index };
    let membership = encode(&stored_record(&StoredMembership::new(Some(from_storage(applied)), first)));
    state.commit(restored.writes, applied, Some(membership.to_vec()))?;

    let snapshots = Snapshots::open(Arc::clone(&disk), &dir.snapshot_dir(), poison.clone())?;
    let mark = StateMark { hash: restored.hash, now: now.0 };
    let snapshot = snapshots.write(state.snapshot_builder()?.with_mark(mark))?;
    let digest = snapshot.verify()?.digest;
    state.sync()?;
    drop(state);

    let log = Log::open(Arc::clone(&disk), &dir.log_dir(), LogConfig::default(), poison)?;
    let writing = |error| StorageError::io("writing the log in", &dir.log_dir(), error);
    log.purge(applied).map_err(writing)?;
    // The next election is for a later term than the last entry's, as everywhere in Raft.
    log.save_vote(Vote { term: applied.term, node: new.node, committed: false }).map_err(writing)?;
    let base = u128::from(restored.hash) << 64 | u128::from(digest);
    Ok(RestoreReport { applied, state_hash: restored.hash, base })
}
