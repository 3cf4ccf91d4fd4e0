//! Reasons that have to do with workers' sessions.

use super::*;
use crate::session::{Session, SessionChange, Worker};
use crate::trial::worker;

fn census(trial: &Trial, key: &str, reason: &RowReason) -> Option<Census> {
    trial.machine.census_for(&trial.archive, &id(key), reason, &at(trial.at)).unwrap()
}

fn session<'a>(trial: &'a Trial, session: &str) -> &'a Session {
    trial.machine.session(&id(session)).unwrap()
}

#[test]
fn a_queue_without_workers_and_where_there_are_some() {
    let mut trial = Trial::new();
    trial.start("order-1", [1]);
    let elsewhere = Worker { task_queue: id("mail"), activity_types: vec![id("send")], ..worker(3) };
    trial.attach("s", elsewhere);
    let reason = row(&trial, "order-1:1");
    assert_eq!(reason, no_worker());
    let census = census(&trial, "order-1:1", &reason).unwrap();
    assert_eq!((census.workers, census.sessions.len(), census.polls_here), (0, 0, 0));
    let queue = QueueCensus {
        namespace: Default::default(),
        task_queue: id("mail"),
        workers: 1,
        activity_types: vec![id("send")],
    };
    assert_eq!(census.elsewhere, [queue]);
    assert!(reason.sentence(Millis(0)).contains("No worker serves task queue default"));
}

#[test]
fn workers_that_do_not_take_the_activity() {
    let mut trial = Trial::new();
    trial.start("order-1", [1]);
    trial.attach("s", Worker { activity_types: vec![id("mail"), id("ship")], ..worker(3) });
    let reason = row(&trial, "order-1:1");
    let lacking = RowReason::NoWorkerForActivity { task_queue: id("default"), activity_type: id("charge"), workers: 1 };
    assert_eq!((&reason, reason.parked()), (&lacking, Some(Parked::NoWorkerForActivity)));
    let census = census(&trial, "order-1:1", &reason).unwrap();
    assert_eq!(census.sessions[0].activity_types, [id("mail"), id("ship")]);
    assert_eq!(census.elsewhere, []);
}

#[test]
fn workers_that_are_full_drain_or_are_away() {
    let mut trial = Trial::new();
    let first = trial.attach("s", worker(2));
    trial.attach("t", worker(1));
    trial.start("order-1", [1, 2, 3, 4]);
    let full = RowReason::WorkersFull { task_queue: id("default"), workers: 2, rows: 3, slots: 3 };
    assert_eq!((row(&trial, "order-1:4"), full.parked()), (full.clone(), Some(Parked::WorkersFull)));
    assert!(full.sentence(Millis(0)).contains("2 workers of task queue default, 3 of 3 slots taken"), "{full:?}");
    assert_eq!(census(&trial, "order-1:4", &full).unwrap().workers, 2);

    trial.change("s", SessionChange::Drain { attachment: first }).unwrap();
    let full = RowReason::WorkersFull { task_queue: id("default"), workers: 1, rows: 1, slots: 1 };
    assert_eq!(row(&trial, "order-1:4"), full, "one of them drains");
    let second = session(&trial, "t").attachment;
    trial.change("t", SessionChange::Drain { attachment: second }).unwrap();
    let draining = RowReason::WorkersDraining { task_queue: id("default"), workers: 2 };
    assert_eq!((row(&trial, "order-1:4"), draining.parked()), (draining, Some(Parked::NoWorker)));

    trial.change("s", SessionChange::Detach { attachment: first }).unwrap();
    trial.change("t", SessionChange::Detach { attachment: second }).unwrap();
    let away = RowReason::WorkersAway { task_queue: id("default"), workers: 2 };
    assert_eq!((row(&trial, "order-1:4"), away.parked()), (away, Some(Parked::NoWorker)));
}

#[test]
fn rows_for_a_node_are_for_workers_that_take_them() {
    let mut trial = Trial::new();
    let pinned = |ordinal| NewRow { node: Some(id("c")), ..new_row(ordinal) };
    trial.attach("s", worker(9));
    open(&mut trial, "order-1", vec![pinned(1), pinned(2)]);
    let unserved = RowReason::PinnedNodeUnserved { node: id("c"), task_queue: id("default") };
    assert_eq!(row(&trial, "order-1:1"), unserved);
    assert_eq!(census(&trial, "order-1:1", &unserved).unwrap().workers, 1);
    trial.attach("t", Worker { node: Some(id("c")), ..worker(1) });
    trial.members(&[member("a", Liveness::Up), member("b", Liveness::Up), member("c", DOWN)]);
    assert!(matches!(row(&trial, "order-1:1"), RowReason::ClaimedBySession { .. }));
    let full = RowReason::WorkersFull { task_queue: id("default"), workers: 1, rows: 1, slots: 1 };
    assert_eq!(row(&trial, "order-1:2"), full, "who takes rows of c is attached to a, and needs no c");
}

#[test]
fn rows_that_a_session_holds() {
    let mut trial = Trial::new();
    let attachment = trial.attach("s", worker(2));
    trial.start("order-1", [1]);
    trial.at = 1_300;
    let held = RowReason::ClaimedBySession {
        session: id("s"),
        identity: id("bob"),
        node: id("a"),
        claimed_for_ms: 300,
        lease_left_ms: 700,
        heartbeat_ago_ms: 300,
        attempt: 1,
    };
    assert_eq!((row(&trial, "order-1:1"), held.outlook()), (held.clone(), Outlook::Moving));
    assert_eq!(census(&trial, "order-1:1", &held), None);
    trial.change("s", SessionChange::Detach { attachment }).unwrap();
    let away = RowReason::SessionAway { session: id("s"), identity: id("bob"), claimed_for_ms: 300, ends_in_ms: 700 };
    assert_eq!(row(&trial, "order-1:1"), away);
    let overdue = RowReason::DeadlineOverdue { passed_at: Millis(2_000), overdue_ms: 5_100 };
    assert_eq!(row_at(&trial, "order-1:1", &at(7_100)), overdue);
    let overdue = |now| trial.machine.overdue_deadlines(Millis(now));
    assert_eq!((overdue(7_000), overdue(7_001)), (0, 1), "the session's, which is one for all its rows");
}
