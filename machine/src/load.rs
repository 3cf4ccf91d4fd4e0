//! Loading: the live state is in memory, and comes back from what storage holds of it. What is finished stays there.

use serde::de::DeserializeOwned;

use crate::archive::{Archive, ArchiveError, ArchiveResult, Pair};
use crate::dispatch::session_claim;
use crate::id::{IdempotencyKey, WorkflowId};
use crate::keys;
use crate::member::MemberState;
use crate::outbox::Row;
use crate::state::Machine;
use crate::timer::Armed;

/// How many rows a load reads at a time.
const LOAD_BATCH: usize = 1_024;

/// The tables that a load reads.
const LOADED: &[u8] = &[
    keys::META,
    keys::MEMBERS,
    keys::SHARDS,
    keys::NAMESPACES,
    keys::REMOVALS,
    keys::OPEN_WORKFLOWS,
    keys::SESSIONS,
    keys::TURNS,
    keys::LIVE_ROWS,
    keys::TIMERS,
    keys::REPLIES,
    keys::LANES,
];

impl Machine {
    /// True for a row that [`Machine::load`] reads. They are as many as what lives, however much is finished.
    pub fn loads(key: &[u8]) -> bool {
        key.first().is_some_and(|table| LOADED.contains(table))
    }

    /// Checks what can be told of a stored row by itself: its table and the version of its value.
    ///
    /// # Errors
    /// What is wrong, with the key.
    pub fn check_row(key: &[u8], value: &[u8]) -> ArchiveResult<()> {
        let is_known = |table: &u8| LOADED.contains(table) || keys::COLD.contains(table);
        if !key.first().is_some_and(is_known) {
            return Err(ArchiveError(format!("the key {} is of no table", String::from_utf8_lossy(key))));
        }
        keys::check_version(key, value)
    }

    /// Rebuilds the live state from what storage holds.
    ///
    /// # Errors
    /// When a stored row cannot be read; the node must not serve then.
    pub fn load(archive: &dyn Archive) -> ArchiveResult<Self> {
        let mut machine = Self::default();
        if let Some(stored) = archive.get(&keys::meta())? {
            machine.meta = keys::decode(&keys::meta(), &stored)?;
            machine.index.upcoming.pass(machine.meta.now);
        }
        each(archive, keys::MEMBERS, |key, member: MemberState| {
            machine.members.insert(keys::parse_id(key)?, member);
            Ok(())
        })?;
        each(archive, keys::SHARDS, |_, entry| {
            machine.directory.restore(entry);
            Ok(())
        })?;
        each(archive, keys::NAMESPACES, |key, state| {
            machine.namespaces.insert(keys::parse_id(key)?, state);
            Ok(())
        })?;
        each(archive, keys::REMOVALS, |key, events_left| {
            machine.removals.insert(keys::parse_id(key)?, events_left);
            Ok(())
        })?;
        each(archive, keys::OPEN_WORKFLOWS, |key, workflow| {
            let id: WorkflowId = keys::parse_id(key)?;
            machine.open.insert(machine.shard_of(&id), id, workflow);
            Ok(())
        })?;
        each(archive, keys::SESSIONS, |key, session| {
            machine.sessions.put(&keys::parse_id(key)?, session, machine.meta.now);
            Ok(())
        })?;
        each(archive, keys::TURNS, |key, turn| {
            machine.sessions.set_turn(&keys::parse_id(key)?, turn);
            Ok(())
        })?;
        each(archive, keys::LIVE_ROWS, |key, row: Row| {
            let key = keys::parse_live_row(key)?;
            machine.index.insert(&key, &row, machine.standing(&key));
            if let Some((session, token)) = session_claim(&row) {
                machine.sessions.hold(session, token, key.clone(), machine.meta.now);
            }
            machine.rows.insert(machine.shard_of(&key.workflow), key, row);
            Ok(())
        })?;
        each(archive, keys::TIMERS, |key, armed: Armed| {
            let (workflow, timer) = keys::parse_timer(key)?;
            let (shard, held) = (machine.shard_of(&workflow), machine.is_held(&workflow));
            machine.timers.arm(shard, &workflow, &timer, armed, held);
            Ok(())
        })?;
        each(archive, keys::REPLIES, |key, reply: crate::dedup::Remembered| {
            let key: IdempotencyKey = keys::parse_id(key)?;
            machine.replies.insert((reply.at, key.clone()));
            machine.remembered.insert(key, reply.at);
            Ok(())
        })?;
        each(archive, keys::LANES, |key, count| {
            machine.lanes.0.insert(keys::parse_lane(key)?, count);
            Ok(())
        })?;
        Ok(machine)
    }
}

fn each<T: DeserializeOwned>(
    archive: &dyn Archive,
    table: u8,
    mut take: impl FnMut(&[u8], T) -> ArchiveResult<()>,
) -> ArchiveResult<()> {
    let (mut from, to) = keys::table(table);
    loop {
        let pairs: Vec<Pair> = archive.scan(&from, &to, LOAD_BATCH)?;
        for (key, value) in &pairs {
            take(key, keys::decode(key, value)?)?;
        }
        let Some((last, _)) = pairs.last() else { return Ok(()) };
        from = last.clone();
        from.push(0);
    }
}
