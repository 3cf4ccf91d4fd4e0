//! Nothing that anybody can send makes the machine panic: any bytes as a log entry, entries with bytes changed,
//! and numbers at the ends of their ranges in every place that takes a number.

#![allow(clippy::unwrap_used)]

use holdfast_machine::{
    Arming, AttributeValue, Claim, ClaimToken, Command, Commit, DispatchKey, Entry, Epoch, EventKind, Evidence, Fence,
    Limits, Liveness, Machine, Member, MemoryArchive, Millis, Namespace, NamespaceSettings, NewEvent, NewHolder,
    NewRow, Payload, Request, RetryPolicy, RowAction, Scope, ShardId, TimerChange, Transition, WorkflowFilter,
    WorkflowId, WorkflowQuery, WorkflowType,
};
use proptest::prelude::*;
use proptest::sample::select;

/// A machine with a cluster, a workflow, a claimed row and a pending one.
fn machine() -> Machine {
    let mut machine = Machine::default();
    let archive = MemoryArchive::default();
    let liveness = [Liveness::Up, Liveness::Down { evidence: Evidence::Silent }];
    let member = |(number, liveness): (usize, &Liveness)| Member {
        id: number as u64,
        name: ["a", "b"][number].parse().unwrap(),
        peer_addr: String::new(),
        http_addr: String::new(),
        liveness: *liveness,
    };
    let members: Vec<Member> = liveness.iter().enumerate().map(member).collect();
    machine.apply_members(1, &members, &archive).unwrap();
    let commands = [
        Command::Create { shard_count: 2 },
        Command::Boot { node: "a".parse().unwrap(), boot: "a1".parse().unwrap() },
        Command::Assign { owners: vec![(ShardId(0), "a".parse().unwrap()), (ShardId(1), "a".parse().unwrap())] },
        staged(1, Millis(0), RetryPolicy::default()),
        claim(1, 1_000),
    ];
    let requests = commands.into_iter().map(Request::from).collect();
    machine.apply(2, Entry { at: Millis(1_000), requests }, &archive).unwrap();
    machine
}

fn workflow() -> WorkflowId {
    "w".parse().unwrap()
}

fn key(ordinal: u64) -> DispatchKey {
    DispatchKey { workflow: workflow(), ordinal }
}

fn row(ordinal: u64, visible_after: Millis, retry: RetryPolicy) -> NewRow {
    NewRow {
        ordinal,
        task_queue: Default::default(),
        node: None,
        activity_type: "charge".parse().unwrap(),
        input: Payload::default(),
        visible_after,
        retry,
        timeouts: Default::default(),
    }
}

fn staged(ordinal: u64, visible_after: Millis, retry: RetryPolicy) -> Command {
    let events = vec![
        NewEvent::started(WorkflowType::new("order").unwrap()),
        NewEvent::activity(EventKind::ActivityScheduled, ordinal),
        NewEvent::activity(EventKind::ActivityStarted, ordinal),
    ];
    let rows = vec![row(ordinal, visible_after, retry)];
    Command::Commit(Commit { events, rows, settle: vec![ordinal / 2], ..Commit::new(workflow(), 0) })
}

/// Attributes of all sorts, on a workflow that ends.
fn search(text: String, at: u64, count: u32) -> Command {
    let texts = vec![text.clone(); count.min(40) as usize];
    let values = [
        AttributeValue::Text(text),
        AttributeValue::Texts(texts),
        AttributeValue::Integer(at.cast_signed()),
        AttributeValue::Time(Millis(at)),
        AttributeValue::Bool(true),
    ];
    let named =
        values.into_iter().enumerate().map(|(number, value)| (format!("n{number}").parse().unwrap(), Some(value)));
    let update =
        NewEvent { search_attributes: Some(named.collect()), ..NewEvent::of(EventKind::SearchAttributesUpdated) };
    Command::Commit(Commit::new(workflow(), 3).event(update).event(NewEvent::of(EventKind::WorkflowCompleted)))
}

fn arming(at: u64, armed_seq: u64) -> Arming {
    Arming { timer: "t".parse().unwrap(), fire_at: Millis(at), armed_seq }
}

/// A commit that hands a row back, and that arms a timer and retires it.
fn moved(ordinal: u64, token: Option<ClaimToken>, number: u64) -> Command {
    let transitions = vec![Transition { ordinal, token, action: RowAction::Retry { delay_ms: number } }];
    let arming = arming(number, number);
    let timers = vec![TimerChange::Schedule(arming.clone()), TimerChange::Retire(arming)];
    Command::Commit(Commit { transitions, timers, ..Commit::new(workflow(), 3) })
}

fn claim(limit: u32, lease_ms: u64) -> Command {
    let holder = NewHolder::Lease { claimant: "bob".parse().unwrap(), lease_ms };
    Command::Claim(Claim { scope: Scope::default(), limit, holder, hold: Vec::new() })
}

/// Applies an entry as a follower would, and loads what it left behind.
fn survives(entry: Entry) {
    let mut machine = machine();
    let mut archive = MemoryArchive::default();
    archive.commit(machine.take_writes());
    for request in &entry.requests {
        // The entrance must not panic either; what it refuses is applied all the same, as an old log might hold it.
        let _ = Limits::default().check(&request.command);
    }
    machine.apply(3, entry, &archive).unwrap();
    machine
        .apply(4, Entry { at: Millis(u64::MAX), requests: vec![claim(u32::MAX, u64::MAX).into()] }, &archive)
        .unwrap();
    archive.commit(machine.take_writes());
    let loaded = Machine::load(&archive).unwrap();
    assert_eq!(loaded.state_hash(), machine.state_hash());
    let listed = loaded.list_workflows(&archive, &WorkflowQuery::default(), None, 10, 10).unwrap().workflows;
    let count = loaded.count_workflows(&archive, &WorkflowFilter::default(), None, 10).unwrap().count;
    assert_eq!(listed.len() as u64, count);
}

fn number() -> impl Strategy<Value = u64> {
    select(vec![0, 1, 2, 1_000, u64::from(u32::MAX), u64::MAX / 2, u64::MAX - 1, u64::MAX])
}

fn small() -> impl Strategy<Value = u32> {
    select(vec![0, 1, 2, 100, u32::MAX / 2, u32::MAX - 1, u32::MAX])
}

fn policy() -> impl Strategy<Value = RetryPolicy> {
    (number(), small(), number(), small()).prop_map(|(initial_ms, multiplier_percent, maximum_ms, deliveries_max)| {
        RetryPolicy { initial_ms, multiplier_percent, maximum_ms, deliveries_max, non_retryable: Vec::new() }
    })
}

fn token() -> impl Strategy<Value = ClaimToken> {
    prop_oneof![
        Just(ClaimToken { index: 2, number: 1 }),
        (number(), small()).prop_map(|(index, number)| ClaimToken { index, number })
    ]
}

fn extreme() -> impl Strategy<Value = Command> {
    let details = Payload::text("x");
    let (result, error) = (details.clone(), details.clone());
    let some_key = || prop_oneof![Just(1u64), number()].prop_map(key);
    prop_oneof![
        small().prop_map(|shard_count| Command::Create { shard_count }),
        (small(), number()).prop_map(|(shard, epoch)| Command::Adopt {
            shard: ShardId(shard),
            from: "b".parse().unwrap(),
            by: "a".parse().unwrap(),
            expected_epoch: Epoch(epoch)
        }),
        (small(), number()).prop_map(|(shard, epoch)| Command::Transfer {
            shard: ShardId(shard),
            to: "a".parse().unwrap(),
            expected_epoch: Epoch(epoch)
        }),
        small().prop_map(|shard| Command::Assign { owners: vec![(ShardId(shard), "a".parse().unwrap())] }),
        (number(), number(), policy()).prop_map(|(ordinal, at, retry)| staged(ordinal, Millis(at), retry)),
        (number(), number()).prop_map(|(expected_seq, ordinal)| {
            let events = vec![NewEvent::activity(EventKind::ActivityFailed, ordinal)];
            let (rows, settle) = (Vec::new(), vec![ordinal]);
            Command::Commit(Commit { events, rows, settle, ..Commit::new(workflow(), expected_seq) })
        }),
        (any::<String>(), number(), small()).prop_map(|(text, at, count)| search(text, at, count)),
        (small(), number()).prop_map(|(limit, lease_ms)| claim(limit, lease_ms)),
        (some_key(), token(), number()).prop_map(move |(key, token, lease_ms)| {
            Command::Heartbeat { key, token, lease_ms, details: details.clone() }
        }),
        (some_key(), prop::option::of(token()))
            .prop_map(move |(key, token)| { Command::Complete { key, token, result: result.clone() } }),
        (some_key(), prop::option::of(token()), any::<bool>()).prop_map(move |(key, token, retryable)| {
            Command::Fail { key, token, error: error.clone(), error_type: None, retryable }
        }),
        (some_key(), prop::option::of(token()), number()).prop_map(|(key, token, delay_ms)| Command::Retry {
            key,
            token,
            delay_ms
        }),
        (number(), number(), policy()).prop_map(|(ordinal, at, retry)| {
            Command::Rearm { workflow: workflow(), rows: vec![row(ordinal, Millis(at), retry)] }
        }),
        (prop::option::of(small()), prop::option::of(number()), any::<bool>()).prop_map(
            |(claimed_max, retention_ms, deprecated)| {
                let settings = NamespaceSettings { claimed_max, retention_ms, deprecated, ..Default::default() };
                Command::PutNamespace { namespace: Namespace::default(), settings }
            }
        ),
        any::<bool>().prop_map(|known| {
            let workflow = if known { workflow() } else { "nobody".parse().unwrap() };
            Command::Purge { workflows: vec![workflow.clone(), workflow] }
        }),
        Just(Command::Delete { workflow: workflow() }),
        (number(), number(), policy()).prop_map(|(ordinal, at, retry)| {
            let row = row(ordinal, Millis(at), retry);
            Command::Stage { workflow: workflow(), namespace: Namespace::default(), rows: vec![row.clone(), row] }
        }),
        (number(), number()).prop_map(|(at, armed_seq)| Command::Timer {
            workflow: workflow(),
            change: TimerChange::Schedule(arming(at, armed_seq))
        }),
        (some_key(), prop::option::of(token()), number()).prop_map(|(key, token, number)| moved(
            key.ordinal,
            token,
            number
        )),
        some_key().prop_map(|key| Command::MarkFailureDelivered { key }),
        (some_key(), any::<bool>()).prop_map(|(key, forced)| Command::Redrive { key, forced }),
        (number(), small()).prop_map(|(older_than_ms, limit)| {
            Command::Reconcile { older_than_ms, limit, excluded: vec![key(u64::MAX)] }
        }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let fence = number().prop_map(|epoch| Fence { owner: "a".parse().unwrap(), epoch: Epoch(epoch) });
    let request = (extreme(), prop::option::weighted(0.2, fence)).prop_map(|(command, fence)| {
        let idempotency_key = fence.as_ref().map(|_| "k".parse().unwrap());
        Request { idempotency_key, fence, command }
    });
    (number(), prop::collection::vec(request, 0..8)).prop_map(|(at, requests)| Entry { at: Millis(at), requests })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn extreme_numbers_are_answered(entry in entry()) {
        survives(entry);
    }

    #[test]
    fn any_bytes_are_an_entry_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(entry) = postcard::from_bytes::<Entry>(&bytes) {
            survives(entry);
        }
    }

    #[test]
    fn changed_bytes_are_an_entry_or_an_error(
        entry in entry(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = postcard::to_stdvec(&entry).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(entry) = postcard::from_bytes::<Entry>(&bytes) {
            survives(entry);
        }
        let cut = cut.index(bytes.len());
        if let Ok(entry) = postcard::from_bytes::<Entry>(&bytes[..cut]) {
            survives(entry);
        }
    }

    #[test]
    fn any_text_is_a_command_or_an_error(text in "[\\[\\]{}:,\"a-zA-Z0-9 ]{0,60}") {
        if let Ok(command) = serde_json::from_str::<Command>(&text) {
            survives(Entry { at: Millis(0), requests: vec![command.into()] });
        }
    }
}
