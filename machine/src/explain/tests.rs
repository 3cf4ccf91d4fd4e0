//! Each reason, and the order in which they are looked for.

mod workers;

use super::*;
use crate::command::{Claim, Command, Commit, NewHolder};
use crate::deadline::Deadline;
use crate::event::Parked;
use crate::history::{EventKind, NewEvent};
use crate::id::{DispatchKey, Epoch, ShardId};
use crate::member::Liveness;
use crate::namespace::NamespaceSettings;
use crate::outbox::{NewRow, RetryPolicy, RowStatus, Timeouts};
use crate::payload::Payload;
use crate::row_index::Route;
use crate::state::Machine;
use crate::trial::{DOWN, Trial, id, member, new_row, started};

fn at(now: u64) -> Vantage {
    Vantage { now: Millis(now), ..Vantage::default() }
}

fn row_at(trial: &Trial, key: &str, vantage: &Vantage) -> RowReason {
    trial.machine.explain_row(&trial.archive, &id(key), vantage).unwrap()
}

/// As of the trial's own time.
fn row(trial: &Trial, key: &str) -> RowReason {
    row_at(trial, key, &at(trial.at))
}

fn workflow(trial: &Trial, workflow: &str) -> WorkflowReason {
    trial.machine.explain_workflow(&trial.archive, &id(workflow), &at(trial.at)).unwrap()
}

fn shard(trial: &Trial, number: u32) -> ShardReason {
    trial.machine.explain_shard(ShardId(number), &at(trial.at))
}

fn open(trial: &mut Trial, workflow: &str, rows: Vec<NewRow>) {
    let opening = Commit::new(id(workflow), 0).event(started());
    trial.ask(Command::Commit(rows.into_iter().fold(opening, Commit::activity))).unwrap();
}

fn ceiling(trial: &mut Trial, claimed_max: Option<u32>) {
    let settings = NamespaceSettings { claimed_max, ..Default::default() };
    trial.ask(Command::PutNamespace { namespace: Default::default(), settings }).unwrap();
}

fn no_quorum() -> NoQuorum {
    NoQuorum { node: id("a"), leader: None, linked: 1, voters: 3, for_ms: Some(61_000) }
}

fn poll(scope: Scope) -> Vec<Poll> {
    vec![Poll { scope, owner: None, hold: Vec::new(), count: 1 }]
}

fn no_worker() -> RowReason {
    RowReason::NoWorker { namespace: Default::default(), task_queue: Default::default() }
}

/// A row that failed in this way.
fn fail(trial: &mut Trial, key: &str, retryable: bool) {
    let error = Payload::text("card declined");
    let fail = Command::Fail { key: id(key), token: None, error, error_type: None, retryable };
    trial.ask(fail).unwrap();
}

#[test]
fn rows_that_are_not_there() {
    let mut trial = Trial::new();
    let missing = |workflow_known| RowReason::NoSuchRow { workflow_known, being_removed: false };
    assert_eq!(row(&trial, "order-1:1"), missing(false));
    trial.start("order-1", []);
    assert_eq!(row(&trial, "order-1:1"), missing(true));
    assert_eq!(missing(true).outlook(), Outlook::Unknown);
    let alone = Vantage { no_quorum: Some(no_quorum()), ..at(1_000) };
    assert_eq!(row_at(&trial, "order-1:1", &alone), RowReason::NoQuorum(no_quorum()), "it may be there by now");
}

#[test]
fn rows_that_have_ended() {
    let mut trial = Trial::new();
    trial.start("order-1", [1, 2, 3]);
    let claims = trial.lease(2, 5_000);
    trial.complete(&claims[0].key, claims[0].token).unwrap();
    assert_eq!(row(&trial, "order-1:1"), RowReason::Finished { status: RowStatus::Done, outcome_seq: Some(8) });
    fail(&mut trial, "order-1:2", false);
    let RowReason::DeadLetter { outcome_seq: Some(9), failure_delivered: true, .. } = row(&trial, "order-1:2") else {
        panic!("{:?}", row(&trial, "order-1:2"));
    };
    assert_eq!(row(&trial, "order-1:2").outlook(), Outlook::Finished, "its workflow has the outcome and goes on");
    trial.ask(Command::Settle { workflow: id("order-1") }).unwrap();
    let cancelled = RowReason::Finished { status: RowStatus::Cancelled, outcome_seq: None };
    let alone = Vantage { no_quorum: Some(no_quorum()), ..at(1_000) };
    assert_eq!(row_at(&trial, "order-1:3", &alone), cancelled, "what has ended stays so");
    assert_eq!(cancelled.outlook(), Outlook::Finished);
}

#[test]
fn what_holds_for_all_rows_comes_first() {
    let mut trial = Trial::new();
    trial.start("order-1", [1]);
    let storage_full = Some(id("b"));
    let full = Vantage { storage_full: storage_full.clone(), ..at(1_000) };
    assert_eq!(row_at(&trial, "order-1:1", &full), RowReason::StorageFull { node: id("b") });
    let alone = Vantage { storage_full, no_quorum: Some(no_quorum()), ..at(1_000) };
    assert_eq!(row_at(&trial, "order-1:1", &alone), RowReason::NoQuorum(no_quorum()));
    let sentence = row_at(&trial, "order-1:1", &alone).sentence(Millis(1_000));
    assert!(sentence.contains("for 1 min 1 s") && sentence.contains("1 of 3 voters"), "{sentence}");
}

#[test]
fn rows_of_a_paused_workflow_are_held_unless_they_are_under_way() {
    let mut trial = Trial::new();
    trial.start("order-1", [1, 2]);
    trial.lease(1, 9_000);
    trial.at = 3_000;
    trial.append("order-1", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
    trial.append("order-1", NewEvent::of(EventKind::SignalReceived)).unwrap();
    trial.at = 5_000;
    let paused = RowReason::WorkflowPaused { workflow: id("order-1"), since: Some(Millis(3_000)) };
    assert_eq!(row(&trial, "order-1:2"), paused);
    assert_eq!(paused.sentence(Millis(5_000)), "Its workflow order-1 has been paused for 2.0 s; its rows wait.");
    assert!(matches!(row(&trial, "order-1:1"), RowReason::ClaimedByLease { .. }));
    let reason = WorkflowReason::Paused { since: Some(Millis(3_000)), pending: 1, claimed: 1 };
    assert_eq!(workflow(&trial, "order-1"), reason);
    for _ in 0..100 {
        trial.append("order-1", NewEvent::of(EventKind::SignalReceived)).unwrap();
    }
    assert_eq!(row(&trial, "order-1:2"), RowReason::WorkflowPaused { workflow: id("order-1"), since: None });
}

#[test]
fn rows_whose_time_has_not_come() {
    let mut trial = Trial::new();
    let later = NewRow { visible_after: Millis(5_200), ..new_row(1) };
    let failing = NewRow { retry: RetryPolicy { initial_ms: 4_000, ..Default::default() }, ..new_row(2) };
    open(&mut trial, "order-1", vec![later, failing]);
    let reason = row(&trial, "order-1:1");
    assert_eq!(reason, RowReason::NotYetVisible { visible_after: Millis(5_200), visible_in_ms: 4_200 });
    assert_eq!(
        (reason.sentence(Millis(0)).as_str(), reason.outlook()),
        ("The row becomes visible in 4.2 s.", Outlook::Moving)
    );
    trial.lease(1, 500);
    fail(&mut trial, "order-1:2", true);
    match row(&trial, "order-1:2") {
        RowReason::WaitingForRetry {
            attempt: 2, deliveries: 1, deliveries_max: 10, last_said, visible_in_ms, ..
        } => {
            assert_eq!(last_said.as_deref(), Some("card declined"));
            assert!((4_000..=4_400).contains(&visible_in_ms), "{visible_in_ms}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rows_for_a_node_that_nobody_serves() {
    let mut trial = Trial::new();
    let pinned = |ordinal, node: &str| NewRow { node: Some(id(node)), ..new_row(ordinal) };
    open(&mut trial, "order-1", vec![pinned(1, "c"), pinned(2, "z")]);
    let unserved = RowReason::PinnedNodeUnserved { node: id("c"), task_queue: Default::default() };
    assert_eq!(row(&trial, "order-1:1"), unserved);
    assert_eq!(row(&trial, "order-1:2"), RowReason::PinnedNodeAway { node: id("z"), down_since: None });
    trial.at = 2_000;
    trial.ask(Command::Tick).unwrap();
    trial.members(&[member("a", Liveness::Up), member("b", Liveness::Up), member("c", DOWN)]);
    let away = RowReason::PinnedNodeAway { node: id("c"), down_since: Some(Millis(2_000)) };
    assert_eq!(row(&trial, "order-1:1"), away);
    ceiling(&mut trial, Some(0));
    assert_eq!((row(&trial, "order-1:1"), away.parked()), (away, Some(Parked::PinnedNodeMissing)));
    ceiling(&mut trial, None);
    // A claimant that takes rows of that node is enough, wherever it runs.
    let scope = Scope { node: Some(id("c")), ..Scope::default() };
    let polled = Vantage { polls: poll(scope), ..at(2_000) };
    assert_eq!(row_at(&trial, "order-1:1", &polled), RowReason::AboutToBeDelivered);
}

#[test]
fn rows_of_a_namespace_at_its_ceiling() {
    let mut trial = Trial::new();
    trial.start("order-1", [1, 2]);
    ceiling(&mut trial, Some(1));
    trial.lease(1, 5_000);
    let full = RowReason::NamespaceFull { namespace: Default::default(), claimed: 1, claimed_max: 1 };
    let polled = Vantage { polls: poll(Scope::default()), ..at(1_000) };
    assert_eq!((row(&trial, "order-1:2"), row_at(&trial, "order-1:2", &polled)), (full.clone(), full.clone()));
    assert!(full.sentence(Millis(0)).contains("1/1"), "{full:?}");
    ceiling(&mut trial, Some(0));
    let stopped = RowReason::NamespaceStopped { namespace: Default::default(), claimed: 1 };
    assert_eq!((row(&trial, "order-1:2"), stopped.parked()), (stopped, Some(Parked::NamespaceFull)));
}

#[test]
fn rows_that_a_claim_waits_for_are_about_to_be_delivered() {
    let mut trial = Trial::new();
    trial.start("order-1", [1]);
    assert_eq!(row(&trial, "order-1:1"), no_worker());
    let with = |scope: Scope, owner: Option<&str>, hold: &[&str]| {
        let hold = hold.iter().map(|workflow| id(workflow)).collect();
        let polls = vec![Poll { scope, owner: owner.map(id), hold, count: 3 }];
        row_at(&trial, "order-1:1", &Vantage { polls, ..at(1_000) })
    };
    let any = Scope::default;
    assert_eq!(with(any(), None, &[]), RowReason::AboutToBeDelivered);
    assert_eq!(with(any(), Some("a"), &["order-2"]), RowReason::AboutToBeDelivered);
    assert_eq!(with(any(), Some("b"), &[]), no_worker(), "b's engine takes rows of b's shards");
    assert_eq!(with(any(), None, &["order-1"]), no_worker());
    assert_eq!(with(Scope { activity_types: vec![id("mail")], ..any() }, None, &[]), no_worker());
    assert_eq!(with(Scope { task_queue: id("other"), ..any() }, None, &[]), no_worker());
}

#[test]
fn rows_that_somebody_holds() {
    let mut trial = Trial::new();
    let timeouts = Timeouts { start_to_close_ms: Some(3_000), heartbeat_ms: Some(2_500), ..Default::default() };
    open(&mut trial, "order-1", vec![NewRow { timeouts, ..new_row(1) }, new_row(2)]);
    trial.lease(1, 12_000);
    trial.claim_by("a");
    trial.at = 2_000;
    let by_lease =
        RowReason::ClaimedByLease { claimant: id("bob"), claimed_for_ms: 1_000, lease_left_ms: 11_000, attempt: 1 };
    assert_eq!(row(&trial, "order-1:1"), by_lease);
    let by_node = RowReason::ClaimedByNode { node: id("a"), claimed_for_ms: 1_000, attempt: 1 };
    assert_eq!(row(&trial, "order-1:2"), by_node);
    // The state is as old as its last entry; a node's clock goes on.
    let overdue = RowReason::DeadlineOverdue { passed_at: Millis(3_500), overdue_ms: 5_001 };
    assert_eq!(row_at(&trial, "order-1:1", &at(8_501)), overdue);
    assert_eq!(trial.machine.oldest_claim(), Some(Millis(1_000)));
    assert!(matches!(row_at(&trial, "order-1:1", &at(8_500)), RowReason::ClaimedByLease { .. }));
    trial.members(&[member("a", DOWN), member("b", Liveness::Up), member("c", Liveness::Up)]);
    match row(&trial, "order-1:2") {
        RowReason::HolderAway { node, down_since: Some(_), adopter: Some(_) } => assert_eq!(node, id("a")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_timeout_of_a_row_that_passes_first() {
    let mut trial = Trial::new();
    let timeouts = Timeouts {
        schedule_to_start_ms: Some(2_000),
        start_to_close_ms: Some(3_000),
        heartbeat_ms: Some(2_500),
        schedule_to_close_ms: Some(4_000),
    };
    open(&mut trial, "order-1", vec![NewRow { timeouts, ..new_row(1) }, new_row(2)]);
    let timeout = |trial: &Trial, key: &str| {
        let next = trial.machine.timeout_of(&trial.archive, &id(key), Millis(trial.at)).unwrap();
        next.map(|next| (next.timeout, next.at.0, next.in_ms))
    };
    trial.at = 1_500;
    assert_eq!(timeout(&trial, "order-1:1"), Some((Deadline::ScheduleToStart, 3_000, 1_500)));
    assert_eq!((timeout(&trial, "order-1:2"), timeout(&trial, "order-1:3")), (None, None));
    // A pause holds what waits, and time does nothing to it; at the resume somebody has as long again to take it.
    trial.append("order-1", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
    assert_eq!(timeout(&trial, "order-1:1"), None);
    assert!(matches!(row_at(&trial, "order-1:1", &at(99_000)), RowReason::WorkflowPaused { .. }));
    assert_eq!(trial.machine.overdue_deadlines(Millis(99_000)), 0);
    trial.at = 2_000;
    trial.append("order-1", NewEvent::of(EventKind::WorkflowResumed)).unwrap();
    assert_eq!(timeout(&trial, "order-1:1"), Some((Deadline::ScheduleToStart, 4_000, 2_000)));
    let overdue = RowReason::DeadlineOverdue { passed_at: Millis(4_000), overdue_ms: 5_001 };
    assert_eq!((row(&trial, "order-1:1"), row_at(&trial, "order-1:1", &at(9_001))), (no_worker(), overdue));
    // Of an attempt, whatever its lease says.
    trial.lease(1, 500);
    assert_eq!(timeout(&trial, "order-1:1"), Some((Deadline::Heartbeat, 4_500, 2_500)));
    assert_eq!(
        (trial.machine.overdue_deadlines(Millis(7_500)), trial.machine.overdue_deadlines(Millis(7_501))),
        (0, 1)
    );
    trial.at = 2_400;
    let claim = trial.machine.row(&trial.archive, &id("order-1:1")).unwrap().unwrap().claim.unwrap();
    let heartbeat =
        Command::Heartbeat { key: id("order-1:1"), token: claim.token, lease_ms: 30_000, details: Payload::default() };
    trial.ask(heartbeat).unwrap();
    assert_eq!(timeout(&trial, "order-1:1"), Some((Deadline::Heartbeat, 4_900, 2_500)));
    trial.ask(Command::Complete { key: id("order-1:1"), token: None, result: Payload::text("ok") }).unwrap();
    assert_eq!(timeout(&trial, "order-1:1"), None);
}

#[test]
fn workflows_wait_for_one_thing_at_a_time() {
    let mut trial = Trial::new();
    assert_eq!(workflow(&trial, "order-1"), WorkflowReason::NoSuchWorkflow);
    open(&mut trial, "order-1", vec![new_row(1), NewRow { task_queue: id("other"), ..new_row(2) }]);
    trial.arm("order-1", "soon", 9_000, 1).unwrap();
    trial.arm("order-1", "later", 90_000, 1).unwrap();
    let of = |key: &str, reason: RowReason| (id::<DispatchKey>(key), reason);
    let (row, row_reason) = of("order-1:1", no_worker());
    let held = WorkflowReason::RowHeldUp { pending: 2, claimed: 0, row, row_reason };
    assert_eq!(workflow(&trial, "order-1"), held);
    assert_eq!(held.outlook(), Outlook::HeldUp);

    // The second row is what is left to be held up; then both move.
    let claim = |trial: &mut Trial, queue: &str| {
        let scope = Scope { task_queue: id(queue), ..Scope::default() };
        let holder = NewHolder::Lease { claimant: id("bob"), lease_ms: 100_000 };
        trial.ask(Command::Claim(Claim { scope, limit: 9, holder, hold: Vec::new() })).unwrap();
    };
    claim(&mut trial, "default");
    match workflow(&trial, "order-1") {
        WorkflowReason::RowHeldUp { pending: 1, claimed: 1, row, .. } => assert_eq!(row, id("order-1:2")),
        other => panic!("{other:?}"),
    }
    claim(&mut trial, "other");
    match workflow(&trial, "order-1") {
        WorkflowReason::WaitingForRows { pending: 0, claimed: 2, row, .. } => assert_eq!(row, id("order-1:1")),
        other => panic!("{other:?}"),
    }

    trial.ask(Command::Settle { workflow: id("order-1") }).unwrap();
    let timer = |trial: &Trial| workflow(trial, "order-1");
    let waits =
        WorkflowReason::WaitingForTimer { timer: id("soon"), fire_at: Millis(9_000), due_in_ms: 8_000, timers: 2 };
    assert_eq!(timer(&trial), waits);
    trial.at = 15_000;
    let due = WorkflowReason::TimerDue { timer: id("soon"), fire_at: Millis(9_000), due_for_ms: 6_000, owner: id("a") };
    assert_eq!(timer(&trial), due);
    trial.append("order-1", NewEvent::of(EventKind::WorkflowCompleted)).unwrap();
    assert!(matches!(timer(&trial), WorkflowReason::Finished { head: 6, closed_at: Some(Millis(15_000)), .. }));
}

#[test]
fn a_dead_letter_that_nobody_has_heard_of_holds_its_workflow_up() {
    let mut trial = Trial::new();
    trial.start("order-1", [1]);
    trial.bury("order-1:1");
    match workflow(&trial, "order-1") {
        WorkflowReason::UnheardDeadLetter { row, row_reason: RowReason::DeadLetter { failure_delivered, .. } } => {
            assert_eq!((row, failure_delivered), (id("order-1:1"), false));
        }
        other => panic!("{other:?}"),
    }
    trial.ask(Command::MarkFailureDelivered { key: id("order-1:1") }).unwrap();
    let (owner, epoch) = (id("a"), Epoch(1));
    let idle = WorkflowReason::WaitingForEngine { owner, shard: ShardId(0), epoch, head: 3 };
    assert_eq!(workflow(&trial, "order-1"), idle);
    assert_eq!(idle.outlook(), Outlook::Moving);
}

#[test]
fn shards_and_their_owners() {
    let mut trial = Trial::new();
    let owned = ShardReason::Owned { owner: id("a"), epoch: Epoch(1), since: Millis(1_000), previous: None };
    assert_eq!(shard(&trial, 0), owned);
    assert_eq!(shard(&trial, 2), ShardReason::NoSuchShard { shard_count: 2 });
    let alone = Vantage { no_quorum: Some(no_quorum()), ..at(1_000) };
    assert_eq!(trial.machine.explain_shard(ShardId(0), &alone), ShardReason::NoQuorum(no_quorum()));

    trial.start("order-1", [1]);
    trial.members(&[member("a", DOWN), member("b", Liveness::Up), member("c", Liveness::Up)]);
    let names = [id("b"), id("c")];
    let first = crate::rendezvous::ranked(ShardId(0), &names.iter().collect::<Vec<_>>())[0].clone();
    let down = ShardReason::OwnerDown {
        owner: id("a"),
        epoch: Epoch(1),
        down_since: Some(Millis(1_000)),
        adopter: Some(first),
    };
    assert_eq!(shard(&trial, 0), down);
    let waits = WorkflowReason::ShardWithoutOwner { shard: ShardId(0), shard_reason: down };
    assert_eq!(workflow(&trial, "order-1"), waits);
    trial.members(&[member("b", DOWN), member("c", DOWN)]);
    match shard(&trial, 0) {
        ShardReason::OwnerDown { down_since: None, adopter: None, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn shards_of_a_new_cluster() {
    let machine = Machine::default();
    assert_eq!(machine.explain_shard(ShardId(0), &at(1)), ShardReason::ClusterNotCreated { started: 0, members: 0 });
    let mut trial = Trial::new();
    trial.machine = Machine::default();
    trial.archive = Default::default();
    trial.members(&["a", "b", "c"].map(|name| member(name, Liveness::Up)));
    trial.ask(Command::Create { shard_count: 2 }).unwrap();
    trial.ask(Command::Boot { node: id("a"), boot: id("1") }).unwrap();
    assert_eq!(shard(&trial, 1), ShardReason::NeverOwned { started: 1, members: 3 });
}

#[test]
fn parked_routes_are_those_of_the_owner_whose_rows_have_been_due_for_a_while() {
    let mut trial = Trial::new();
    let queued =
        |ordinal, queue: &str, at| NewRow { task_queue: id(queue), visible_after: Millis(at), ..new_row(ordinal) };
    open(
        &mut trial,
        "order-1",
        vec![queued(1, "p", 0), queued(2, "p", 1_500), queued(3, "p", 9_000), queued(4, "q", 1_900)],
    );
    trial.start("held", [1]);
    let parked = |trial: &Trial, owner: &str, after: Option<&Route>, limit| {
        let found = trial.machine.parked_routes(&id(owner), Millis(1_000), after, limit, &at(2_000));
        let routes =
            found.0.into_iter().map(|parked| (parked.route.task_queue.to_string(), parked.rows, parked.reason));
        (routes.collect::<Vec<_>>(), found.1)
    };
    let of_p = vec![("p".to_owned(), 2, Parked::NoWorker)];
    assert_eq!(parked(&trial, "a", None, 9), (of_p.clone(), None), "q has not been due for long, held is b's");
    let (first, next) = parked(&trial, "a", None, 1);
    assert_eq!(first, of_p);
    assert_eq!(parked(&trial, "a", next.as_ref(), 1), (vec![], None));
    assert_eq!(parked(&trial, "c", None, 9), (vec![], None));
    assert_eq!(trial.machine.next_due_of(&id("a")), Some(Millis(1_000)));
    assert_eq!(trial.machine.next_due_of(&id("c")), None);
    trial.append("held", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
    assert_eq!(parked(&trial, "b", None, 9), (vec![], None), "nobody is missed by rows of a paused workflow");
}

/// What is told is one or two sentences, and each reason is `code` and figures in JSON and back.
#[test]
fn reasons_are_a_code_beside_their_figures() {
    let reason = RowReason::NamespaceFull { namespace: Default::default(), claimed: 1_024, claimed_max: 1_024 };
    let json = serde_json::to_value(&reason).unwrap();
    let expected = serde_json::json!({
        "code": "namespace_full", "namespace": "default", "claimed": 1_024, "claimed_max": 1_024
    });
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<RowReason>(json).unwrap(), reason);
    let json = serde_json::to_value(RowReason::NoQuorum(no_quorum())).unwrap();
    assert_eq!((&json["code"], &json["voters"]), (&"no_quorum".into(), &3.into()));
    assert_eq!(serde_json::from_value::<RowReason>(json).unwrap(), RowReason::NoQuorum(no_quorum()));
    let of_row = WorkflowReason::RowHeldUp { pending: 1, claimed: 0, row: id("w:1"), row_reason: reason };
    let json = serde_json::to_value(&of_row).unwrap();
    assert_eq!(json["row_reason"]["code"], "namespace_full");
    assert_eq!(serde_json::from_value::<WorkflowReason>(json).unwrap(), of_row);
}
