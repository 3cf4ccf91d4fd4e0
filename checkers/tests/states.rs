//! A sound log passes every property; a state with a byte of it gone, or one too many, does not.

#![allow(clippy::unwrap_used)]

use holdfast_checkers::Snapshot;
use holdfast_checkers::invariants::{PROPERTIES, check_state};
use holdfast_checkers::replay::Replay;
use holdfast_machine::{
    Arming, Claim, Command, Commit, Entry, EventKind, Liveness, Machine, Member, MemoryArchive, Millis, NewEvent,
    NewHolder, NewRow, NodeName, Payload, Reply, Request, RetryPolicy, Scope, ShardId, Timeouts, TimerChange,
    WorkflowId,
};

fn node() -> NodeName {
    "node-1".parse().unwrap()
}

fn members() -> Vec<Member> {
    let (name, liveness) = (node(), Liveness::Up);
    vec![Member { id: 1, name, peer_addr: String::new(), http_addr: String::new(), liveness }]
}

fn row(ordinal: u64) -> NewRow {
    NewRow {
        ordinal,
        task_queue: Default::default(),
        node: None,
        activity_type: "work".parse().unwrap(),
        input: Payload::default(),
        visible_after: Millis(0),
        retry: RetryPolicy { deliveries_max: 1, ..RetryPolicy::default() },
        timeouts: Timeouts::default(),
    }
}

/// Two workflows, one of them ended; a claimed row, a pending one, a finished one, a dead letter, and a timer.
fn log() -> Vec<Vec<Command>> {
    let id = |name: &str| -> WorkflowId { name.parse().unwrap() };
    let start = |name: &str| {
        let start = NewEvent::started("order".parse().unwrap());
        [1, 2, 3].into_iter().fold(Commit::new(id(name), 0).event(start), |commit, n| commit.activity(row(n)))
    };
    let claim = |limit| {
        let holder = NewHolder::Lease { claimant: "worker".parse().unwrap(), lease_ms: 10_000 };
        Command::Claim(Claim { scope: Scope::default(), limit, holder, hold: Vec::new() })
    };
    let armed = Arming { timer: "wake".parse().unwrap(), fire_at: Millis(9_000), armed_seq: 1 };
    let fail = |workflow: &str, retryable| Command::Fail {
        key: format!("{workflow}:1").parse().unwrap(),
        token: None,
        error: Payload::default(),
        error_type: None,
        retryable,
    };
    vec![
        vec![Command::Create { shard_count: 4 }],
        vec![Command::Boot { node: node(), boot: "boot-1".parse().unwrap() }],
        vec![Command::Assign { owners: (0..4).map(|shard| (ShardId(shard), node())).collect() }],
        vec![Command::Commit(start("order-1")), claim(2), fail("order-1", true)],
        vec![Command::Commit(start("order-2"))],
        vec![Command::Timer { workflow: id("order-1"), change: TimerChange::Schedule(armed) }],
        vec![Command::Commit(Commit::new(id("order-2"), 7).event(NewEvent::of(EventKind::WorkflowCompleted)))],
    ]
}

fn entries() -> impl Iterator<Item = (u64, Entry)> {
    (2..).zip(log()).map(|(index, commands)| {
        let requests = commands.into_iter().map(Request::from).collect();
        (index, Entry { at: Millis(1_000 + index), requests })
    })
}

fn archive() -> MemoryArchive {
    let (mut machine, mut archive) = (Machine::default(), MemoryArchive::default());
    machine.apply_members(1, &members(), &archive).unwrap();
    for (index, entry) in entries() {
        machine.apply(index, entry, &archive).unwrap();
    }
    archive.commit(machine.take_writes());
    archive
}

fn check(archive: &MemoryArchive) -> Result<(), String> {
    let machine = Machine::load(archive).map_err(|error| error.to_string())?;
    let state = Snapshot::of(&machine, archive).map_err(|error| error.to_string())?;
    check_state(&state).map_err(|broken| broken.to_string())
}

#[test]
fn a_sound_log_passes() {
    let mut replay = Replay::new().unwrap();
    replay.members(1, &members()).unwrap();
    let mut replies = Vec::new();
    for (index, entry) in entries() {
        replies.extend(replay.entry(index, entry).unwrap());
    }
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert!(replies.iter().any(|reply| matches!(reply, Ok(Reply::Claimed { claims }) if claims.len() == 2)));
    check(&archive()).unwrap();
}

/// Every key of a workflow, of its rows, its timers and its lists is missed when it is gone.
#[test]
fn a_state_that_lacks_a_key_does_not_pass() {
    let whole = archive();
    let mut tables: Vec<u8> = Vec::new();
    for key in whole.0.keys().filter(|key| b"AWRELOGHVZ".contains(&key[0])) {
        let mut archive = whole.clone();
        archive.0.remove(key);
        let shown = String::from_utf8_lossy(key);
        assert!(check(&archive).is_err(), "nobody misses {shown:?}");
        tables.push(key[0]);
    }
    tables.dedup();
    assert_eq!(String::from_utf8(tables).unwrap(), "AEGHLORVWZ", "the tables that were tried");
}

/// A row that is stored as live and as finished, and one of a workflow that has ended.
#[test]
fn a_state_with_a_key_too_many_does_not_pass() {
    let whole = archive();
    for (from, to) in [(b'L', b'O'), (b'O', b'L'), (b'A', b'W'), (b'G', b'H'), (b'V', b'Z')] {
        let (key, value) = whole.0.iter().find(|(key, _)| key[0] == from).unwrap();
        let mut archive = whole.clone();
        archive.0.insert([&[to], &key[1..]].concat(), value.clone());
        assert!(check(&archive).is_err(), "nobody notices {} as {}", char::from(from), char::from(to));
    }
}

#[test]
fn every_property_is_looked_at_somewhere() {
    for property in PROPERTIES {
        assert!(property.of_state.is_some() || property.of_step.is_some(), "{}", property.name);
        let file = format!("{}/src/invariants/{}.rs", env!("CARGO_MANIFEST_DIR"), property.name);
        assert!(std::path::Path::new(&file).exists(), "{file}");
    }
}

/// The table of the document names every file there is, and none that is not.
#[test]
fn the_document_lists_the_invariants() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/invariants");
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/testing.md")).unwrap();
    let section = document.split("## The invariants").nth(1).unwrap().split("\n## ").next().unwrap();
    let files: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let missing: Vec<&String> = files.iter().filter(|file| !section.contains(&format!("`{file}`"))).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
    let named = section.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs") && !word.contains('/'));
    let odd: Vec<&str> = named.filter(|word| !files.iter().any(|file| file == word)).collect();
    assert!(odd.is_empty(), "there are no such files: {odd:?}");
}
