//! The key layout of the replicated state: one table, one place.
//!
//! | table | key after the letter | value |
//! |---|---|---|
//! | `M` | | [`crate::state::Meta`] |
//! | `N` | node name | member |
//! | `B` | node name, NUL, boot id | log time of a boot |
//! | `S` | shard, u32 | directory entry |
//! | `A` | workflow id | workflow whose run is open |
//! | `W` | workflow id | workflow whose run is closed |
//! | `R` | workflow id, NUL, run number, u32 | run |
//! | `E` | workflow id, NUL, sequence, u64 | event |
//! | `L` | workflow id, NUL, ordinal, u64 | live row (pending or claimed) |
//! | `O` | workflow id, NUL, ordinal, u64 | finished row |
//! | `I` | workflow id, NUL, ordinal, u64 | input of a row |
//! | `D` | workflow id, NUL, ordinal, u64 | what a row's last heartbeat or failed attempt said |
//! | `T` | workflow id, NUL, run number, u32, ordinal, u64 | sequence of the outcome of an activity without a row |
//! | `F` | workflow id, NUL, timer id | what a timer is armed as |
//! | `G` | namespace, NUL, workflow id, NUL, ordinal, u64 | nothing: the row is a dead letter |
//! | `H` | workflow id, NUL, ordinal, u64 | the namespace of a dead letter |
//! | `K` | idempotency key | remembered reply |
//! | `Q` | namespace | its settings |
//! | `C` | session id | worker session |
//! | `c` | session id | what the session was given last |
//! | `J` | workflow id | what is left of a workflow that is being removed |
//! | `U` | lane | number of workflows in the lane |
//! | `V` | lane, start, u64, workflow id | close; none if open |
//! | `Z` | lane, close, u64, workflow id | start; closed workflows only |
//! | `P` | workflow id | search attributes, if it has any |
//! | `Y` | attribute, start, u64, workflow id | nothing |
//! | `X` | attribute, close, u64, workflow id | nothing; closed workflows only |
//!
//! A lane is namespace, NUL, workflow type or nothing, NUL, status, u8; an attribute is namespace, NUL, name, NUL,
//! and a value in the form of `attributes.rs`, which sorts as values do and says itself where it ends.
//!
//! Numbers are big-endian, so that keys sort as numbers do; ids hold no control characters, so NUL ends
//! them. Live and finished things are apart so that a start reads only what lives. A value is one
//! version byte and the postcard form of the type; a type that changes gets a new version.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::archive::{ArchiveError, ArchiveResult};
use crate::history::WorkflowStatus;
use crate::id::{
    AttributeName, BootId, DispatchKey, IdempotencyKey, Millis, Namespace, NodeName, SessionId, ShardId, TimerId,
    WorkflowId,
};
use crate::visibility::{Lane, WorkflowSort};

/// The version of the state's layout; part of snapshots and of the state itself.
pub const STATE_VERSION: u8 = 1;

pub(crate) type Key = Vec<u8>;

pub(crate) const META: u8 = b'M';
pub(crate) const MEMBERS: u8 = b'N';
pub(crate) const SHARDS: u8 = b'S';
pub(crate) const OPEN_WORKFLOWS: u8 = b'A';
pub(crate) const CLOSED_WORKFLOWS: u8 = b'W';
pub(crate) const LIVE_ROWS: u8 = b'L';
pub(crate) const TIMERS: u8 = b'F';
pub(crate) const REPLIES: u8 = b'K';
pub(crate) const LANES: u8 = b'U';
pub(crate) const NAMESPACES: u8 = b'Q';
pub(crate) const REMOVALS: u8 = b'J';
pub(crate) const SESSIONS: u8 = b'C';
pub(crate) const TURNS: u8 = b'c';
pub(crate) const RUNS: u8 = b'R';
pub(crate) const FINISHED_ROWS: u8 = b'O';
pub(crate) const OUTCOMES: u8 = b'T';
/// The tables that stay on disk.
pub(crate) const COLD: &[u8] = b"BEWROIDTGHVZPYX";

fn key(table: u8, id: &str, rest: &[&[u8]]) -> Key {
    let mut key = Vec::with_capacity(2 + id.len() + rest.iter().map(|part| part.len()).sum::<usize>());
    key.push(table);
    key.extend_from_slice(id.as_bytes());
    if !rest.is_empty() {
        key.push(0);
    }
    rest.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// The tables whose rows are numbered within a workflow, at the end of their keys.
const NUMBERED: &[u8] = b"ELIODTH";

/// The bits of a number that tell the rows of a bundle apart: in the last byte of their keys.
pub const BUNDLED_BITS: u8 = 0x0f;

/// Rows that are written and read together, for storage to keep them as one value: those of a workflow in one of the tables
/// with numbered rows, sixteen numbers in a row. Gives what stands for the bundle that the row of this key belongs to, if it
/// belongs to one: the first key that a row of it can have. Of a longer key, the bundle that it falls into. Between two keys
/// of a bundle stands no row of another one.
pub fn bundle_key(key: &[u8]) -> Option<Vec<u8>> {
    let table = key.first().filter(|table| NUMBERED.contains(table))?;
    let number = key.iter().position(|byte| *byte == 0)? + 1;
    let length = number + if *table == OUTCOMES { 12 } else { 8 };
    let mut first = key.get(..length)?.to_vec();
    *first.last_mut()? &= !BUNDLED_BITS;
    Some(first)
}

pub(crate) fn meta() -> Key {
    vec![META]
}

pub(crate) fn member(name: &NodeName) -> Key {
    key(MEMBERS, name.as_str(), &[])
}

pub(crate) fn boot(node: &NodeName, boot: &BootId) -> Key {
    key(b'B', node.as_str(), &[boot.as_str().as_bytes()])
}

pub(crate) fn shard(shard: ShardId) -> Key {
    let mut key = vec![SHARDS];
    key.extend_from_slice(&shard.0.to_be_bytes());
    key
}

pub(crate) fn open_workflow(id: &WorkflowId) -> Key {
    key(OPEN_WORKFLOWS, id.as_str(), &[])
}

pub(crate) fn closed_workflow(id: &WorkflowId) -> Key {
    key(CLOSED_WORKFLOWS, id.as_str(), &[])
}

pub(crate) fn run(id: &WorkflowId, number: u32) -> Key {
    key(RUNS, id.as_str(), &[&number.to_be_bytes()])
}

pub(crate) fn event(id: &WorkflowId, seq: u64) -> Key {
    key(b'E', id.as_str(), &[&seq.to_be_bytes()])
}

pub(crate) fn live_row(row: &DispatchKey) -> Key {
    key(LIVE_ROWS, row.workflow.as_str(), &[&row.ordinal.to_be_bytes()])
}

pub(crate) fn finished_row(row: &DispatchKey) -> Key {
    key(FINISHED_ROWS, row.workflow.as_str(), &[&row.ordinal.to_be_bytes()])
}

pub(crate) fn input(row: &DispatchKey) -> Key {
    key(b'I', row.workflow.as_str(), &[&row.ordinal.to_be_bytes()])
}

pub(crate) fn details(row: &DispatchKey) -> Key {
    key(b'D', row.workflow.as_str(), &[&row.ordinal.to_be_bytes()])
}

pub(crate) fn outcome(id: &WorkflowId, run: u32, ordinal: u64) -> Key {
    key(OUTCOMES, id.as_str(), &[&run.to_be_bytes(), &ordinal.to_be_bytes()])
}

pub(crate) fn timer(id: &WorkflowId, timer: &TimerId) -> Key {
    key(TIMERS, id.as_str(), &[timer.as_str().as_bytes()])
}

/// A dead letter among those of its namespace.
pub(crate) fn dead_letter_in(namespace: &Namespace, row: &DispatchKey) -> Key {
    let workflow = row.workflow.as_str().as_bytes();
    key(b'G', namespace.as_str(), &[workflow, &[0], &row.ordinal.to_be_bytes()])
}

/// A dead letter among those of its workflow.
pub(crate) fn dead_letter_of(row: &DispatchKey) -> Key {
    key(b'H', row.workflow.as_str(), &[&row.ordinal.to_be_bytes()])
}

/// The range that holds the dead letters of a namespace.
pub(crate) fn dead_letters_in(namespace: &Namespace) -> (Key, Key) {
    (key(b'G', namespace.as_str(), &[&[]]), end_of(b'G', namespace.as_str()))
}

/// The end of the keys of a table that begin with this id and a NUL.
fn end_of(table: u8, id: &str) -> Key {
    let mut end = key(table, id, &[]);
    end.push(1);
    end
}

/// The first key that comes after `key`.
pub(crate) fn after(mut key: Key) -> Key {
    key.push(0);
    key
}

pub(crate) fn reply(idempotency_key: &IdempotencyKey) -> Key {
    key(REPLIES, idempotency_key.as_str(), &[])
}

pub(crate) fn attributes(id: &WorkflowId) -> Key {
    key(b'P', id.as_str(), &[])
}

/// The number of workflows in a lane.
pub(crate) fn lane(lane: &Lane) -> Key {
    lane_in(LANES, lane)
}

/// The start of the keys of a lane's workflows.
pub(crate) fn lane_by(sort: WorkflowSort, lane: &Lane) -> Key {
    let table = match sort {
        WorkflowSort::Started => b'V',
        WorkflowSort::Closed => b'Z',
    };
    lane_in(table, lane)
}

fn lane_in(table: u8, lane: &Lane) -> Key {
    let workflow_type = lane.workflow_type.as_ref().map_or("", |workflow_type| workflow_type.as_str());
    key(table, lane.namespace.as_str(), &[workflow_type.as_bytes(), &[0, lane.status as u8]])
}

/// The start of the keys of the workflows that have this value of an attribute, or a value that begins so.
pub(crate) fn attribute_by(sort: WorkflowSort, namespace: &Namespace, name: &AttributeName, value: &[u8]) -> Key {
    let table = match sort {
        WorkflowSort::Started => b'Y',
        WorkflowSort::Closed => b'X',
    };
    key(table, namespace.as_str(), &[name.as_str().as_bytes(), &[0], value])
}

/// The key of a workflow under such a start.
pub(crate) fn timed(mut start: Key, at: Millis, id: &WorkflowId) -> Key {
    start.extend_from_slice(&at.0.to_be_bytes());
    start.extend_from_slice(id.as_str().as_bytes());
    start
}

/// Time and workflow of a key that [`timed`] made from a start of this length.
pub(crate) fn parse_timed(key: &[u8], start: usize) -> ArchiveResult<(Millis, WorkflowId)> {
    let parse = || {
        let (at, id) = key.get(start..)?.split_first_chunk::<8>()?;
        Some((Millis(u64::from_be_bytes(*at)), WorkflowId::new(std::str::from_utf8(id).ok()?).ok()?))
    };
    parse().ok_or_else(|| ArchiveError(format!("key {key:?} names no time and workflow")))
}

/// The lane that a key of table `U` names.
pub(crate) fn parse_lane(key: &[u8]) -> ArchiveResult<Lane> {
    let parse = || {
        let (status, rest) = key.get(1..)?.split_last()?;
        let (namespace, workflow_type) = std::str::from_utf8(rest.strip_suffix(&[0])?).ok()?.split_once('\0')?;
        let workflow_type = if workflow_type.is_empty() { None } else { Some(workflow_type.parse().ok()?) };
        let status = WorkflowStatus::ALL.into_iter().find(|known| *known as u8 == *status)?;
        Some(Lane { namespace: namespace.parse().ok()?, workflow_type, status })
    };
    parse().ok_or_else(|| ArchiveError(format!("key {key:?} names no lane")))
}

pub(crate) fn namespace(name: &Namespace) -> Key {
    key(NAMESPACES, name.as_str(), &[])
}

pub(crate) fn session(id: &SessionId) -> Key {
    key(SESSIONS, id.as_str(), &[])
}

pub(crate) fn turn(id: &SessionId) -> Key {
    key(TURNS, id.as_str(), &[])
}

pub(crate) fn removal(id: &WorkflowId) -> Key {
    key(REMOVALS, id.as_str(), &[])
}

/// The range that holds what a table has of one workflow.
pub(crate) fn of_workflow(table: u8, id: &WorkflowId) -> (Key, Key) {
    (key(table, id.as_str(), &[&[]]), end_of(table, id.as_str()))
}

/// The range that holds a whole table.
pub(crate) fn table(letter: u8) -> (Key, Key) {
    (vec![letter], vec![letter + 1])
}

/// The row that a key of table `L`, or of another one with keys of that form, names.
pub(crate) fn parse_live_row(key: &[u8]) -> ArchiveResult<DispatchKey> {
    parse_row(key, 1)
}

/// The row that a key of table `G` names, among those of a namespace.
pub(crate) fn parse_dead_letter_in(namespace: &Namespace, key: &[u8]) -> ArchiveResult<DispatchKey> {
    parse_row(key, 2 + namespace.as_str().len())
}

/// The row that a key names from this byte on: workflow id, NUL, ordinal.
fn parse_row(key: &[u8], from: usize) -> ArchiveResult<DispatchKey> {
    let parse = || {
        let (id, ordinal) = key.get(from..)?.split_last_chunk::<8>()?;
        let workflow = WorkflowId::new(std::str::from_utf8(id.strip_suffix(&[0])?).ok()?).ok()?;
        Some(DispatchKey { workflow, ordinal: u64::from_be_bytes(*ordinal) })
    };
    parse().ok_or_else(|| ArchiveError(format!("key {key:?} names no row")))
}

/// The workflow and the timer that a key of table `F` names.
pub(crate) fn parse_timer(key: &[u8]) -> ArchiveResult<(WorkflowId, TimerId)> {
    let parse = || {
        let (workflow, timer) = std::str::from_utf8(key.get(1..)?).ok()?.split_once('\0')?;
        Some((workflow.parse().ok()?, timer.parse().ok()?))
    };
    parse().ok_or_else(|| ArchiveError(format!("key {key:?} names no timer")))
}

/// The text id that a key consists of after its table's letter.
pub(crate) fn parse_id<T: std::str::FromStr>(key: &[u8]) -> ArchiveResult<T> {
    let parse = || std::str::from_utf8(key.get(1..)?).ok()?.parse().ok();
    parse().ok_or_else(|| ArchiveError(format!("key {key:?} holds no id")))
}

/// The stored form of a value.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Most values fit, and a buffer that grows is copied.
    let mut buffer = Vec::with_capacity(192);
    buffer.push(STATE_VERSION);
    // Serialization of these types into memory has no failing case: no custom errors, no unknown lengths.
    #[allow(clippy::expect_used)]
    postcard::to_extend(value, buffer).expect("state types always encode")
}

/// The value of a stored form.
pub(crate) fn decode<T: DeserializeOwned>(key: &[u8], stored: &[u8]) -> ArchiveResult<T> {
    check_version(key, stored)?;
    postcard::from_bytes(&stored[1..]).map_err(|error| damaged(key, &error.to_string()))
}

/// Refuses a stored form that is not of this version.
pub(crate) fn check_version(key: &[u8], stored: &[u8]) -> ArchiveResult<()> {
    match stored.first() {
        Some(&STATE_VERSION) => Ok(()),
        Some(version) if *version > STATE_VERSION => {
            let newer =
                format!("version {version} was written by a newer program; this one reads up to {STATE_VERSION}");
            Err(damaged(key, &newer))
        }
        Some(version) => Err(damaged(key, &format!("unknown version {version}"))),
        None => Err(damaged(key, "empty value")),
    }
}

fn damaged(key: &[u8], problem: &str) -> ArchiveError {
    let table = key.first().copied().unwrap_or(b'?') as char;
    ArchiveError(format!("a row of table {table}, key {}: {problem}", String::from_utf8_lossy(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_ids_and_numbers_do() {
        let id = |text: &str| WorkflowId::new(text).unwrap();
        let keys = [
            event(&id("a"), 1),
            event(&id("a"), 255),
            event(&id("a"), 256),
            event(&id("a"), u64::MAX),
            event(&id("a "), 1),
            event(&id("ab"), 1),
            event(&id("b"), 1),
        ];
        assert!(keys.is_sorted());
        let (from, to) = table(b'E');
        assert!(keys.iter().all(|key| *key >= from && *key < to));
    }

    #[test]
    fn rows_of_a_bundle_are_neighbours_of_one_table_and_workflow() {
        let id = |text: &str| WorkflowId::new(text).unwrap();
        let bundle = |workflow: &str, seq| bundle_key(&event(&id(workflow), seq)).unwrap();
        assert_eq!(bundle("w", 0), event(&id("w"), 0));
        assert_eq!(bundle("w", 15), event(&id("w"), 0));
        assert_eq!(bundle("w", 16), event(&id("w"), 16));
        assert_ne!(bundle("w", 1), bundle("v", 1));
        assert_ne!(bundle_key(&live_row(&"w:1".parse().unwrap())), bundle_key(&input(&"w:1".parse().unwrap())));
        assert_eq!(bundle_key(&open_workflow(&id("w"))), None);
        assert_eq!((bundle_key(b""), bundle_key(b"E"), bundle_key(b"Ew\0\0\0\0")), (None, None, None));
        assert_eq!(bundle_key(&after(event(&id("w"), 18))), bundle_key(&event(&id("w"), 16)));
        assert_eq!(bundle_key(&outcome(&id("w"), 1, 18)), Some(outcome(&id("w"), 1, 16)));
        let between = event(&id("w"), 3)..event(&id("w"), 4);
        assert!(!between.contains(&event(&id("w "), 3)) && !between.contains(&event(&id("w\u{1F389}"), 3)));
    }

    #[test]
    fn keys_of_rows_and_ids_read_back() {
        for text in ["w:0", "a:b:18446744073709551615", "\u{1F389}:256"] {
            let row: DispatchKey = text.parse().unwrap();
            assert_eq!(parse_live_row(&live_row(&row)).unwrap(), row);
        }
        for text in ["w:0", "a:b:18446744073709551615", "\u{1F389}:256"] {
            let (row, namespace): (DispatchKey, Namespace) = (text.parse().unwrap(), "te:nant".parse().unwrap());
            let (in_namespace, of_workflow) = (dead_letter_in(&namespace, &row), dead_letter_of(&row));
            assert_eq!(parse_dead_letter_in(&namespace, &in_namespace).unwrap(), row);
            assert_eq!(parse_live_row(&of_workflow).unwrap(), row);
            let (from, to) = dead_letters_in(&namespace);
            assert!(in_namespace >= from && in_namespace < to);
            assert!(dead_letter_in(&"te:nant2".parse().unwrap(), &row) >= to);
        }
        assert_eq!(parse_id::<WorkflowId>(&open_workflow(&WorkflowId::new("w").unwrap())).unwrap().as_str(), "w");
        assert!(parse_live_row(b"L").is_err());
        assert!(parse_live_row(b"Lw\x01\0\0\0\0\0\0\0\0").is_err());
        assert!(parse_id::<WorkflowId>(b"A").is_err());
        let (workflow, name) = (WorkflowId::new("w w").unwrap(), TimerId::new("\u{1F389}:1").unwrap());
        assert_eq!(parse_timer(&timer(&workflow, &name)).unwrap(), (workflow, name));
        assert!(parse_timer(b"Fw").is_err() && parse_timer(b"Fw\0").is_err() && parse_timer(b"Fw\0a\0b").is_err());
    }

    #[test]
    fn lanes_and_times_read_back() {
        let lane_of = |workflow_type: Option<&str>, status| Lane {
            namespace: Namespace::default(),
            workflow_type: workflow_type.map(|name| name.parse().unwrap()),
            status,
        };
        for workflow_type in [None, Some("order"), Some("\u{1F389}")] {
            for status in WorkflowStatus::ALL {
                let of = lane_of(workflow_type, status);
                assert_eq!(parse_lane(&lane(&of)).unwrap(), of);
                let start = lane_by(WorkflowSort::Closed, &of);
                let id = WorkflowId::new("w").unwrap();
                let read = parse_timed(&timed(start.clone(), Millis(u64::MAX), &id), start.len()).unwrap();
                assert_eq!(read, (Millis(u64::MAX), id));
            }
        }
        assert!(parse_lane(b"Udefault\0order\0\x07").is_err());
        assert!(parse_lane(b"U").is_err());
        assert!(parse_timed(b"V1234567", 1).is_err());
        assert!(parse_timed(b"V12345678", 1).is_err(), "no id");
        assert!(parse_timed(b"V", 9).is_err());
    }

    #[test]
    fn a_value_that_cannot_be_read_says_where_it_is() {
        let key = b"Lw".as_slice();
        assert_eq!(decode::<u64>(key, &encode(&7u64)).unwrap(), 7);
        for (stored, problem) in [(&[][..], "empty"), (&[9, 7][..], "version 9"), (&[STATE_VERSION][..], "key Lw")] {
            let error = decode::<u64>(key, stored).unwrap_err().to_string();
            assert!(error.contains("table L") && error.contains(problem), "{error}");
        }
    }
}
