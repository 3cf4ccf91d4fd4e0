#![allow(clippy::unwrap_used)]

use holdfast_machine::{Payload, RunId};

use super::*;

pub(crate) fn token(index: u64) -> ClaimToken {
    ClaimToken { index, number: 0 }
}

pub(crate) fn delivery(index: u64, key: &str) -> Delivery {
    Delivery {
        key: key.parse().unwrap(),
        token: token(index),
        deadline: None,
        run_id: RunId::numbered(1),
        namespace: Default::default(),
        task_queue: Default::default(),
        activity_type: "work".parse().unwrap(),
        attempt: 1,
        deliveries: 0,
        scheduled_at: Default::default(),
        timeouts: Default::default(),
        finish_by: None,
        input: Payload::default(),
    }
}

fn started(rows: &mut Rows) -> Vec<u64> {
    let steps = rows.take_steps().into_iter();
    steps.filter_map(|step| if let Step::Start(row, _) = step { Some(row.token.index) } else { None }).collect()
}

#[test]
fn a_row_that_comes_twice_under_one_token_is_executed_once() {
    let mut rows = Rows::new(4);
    rows.deliver(delivery(1, "w:1"));
    rows.deliver(delivery(1, "w:1"));
    assert_eq!(started(&mut rows), [1]);
    rows.ended(token(1));
    rows.deliver(delivery(1, "w:1"));
    assert!(started(&mut rows).is_empty(), "its outcome is being told");
    rows.gone(token(1));
    assert!(rows.is_empty());
}

#[test]
fn never_more_at_a_time_than_there_is_room_and_in_the_order_of_arrival() {
    let mut rows = Rows::new(2);
    for index in 1..=5 {
        rows.deliver(delivery(index, &format!("w:{index}")));
    }
    assert_eq!(started(&mut rows), [1, 2]);
    rows.ended(token(2));
    assert_eq!(started(&mut rows), [3], "a handler that has ended makes room before its outcome is told");
    rows.gone(token(2));
    assert!(started(&mut rows).is_empty());
    // One that is to stop takes its room until it has.
    rows.cancel(token(1), Cancelled::SessionOver);
    assert!(started(&mut rows).is_empty());
    rows.gone(token(1));
    assert_eq!(started(&mut rows), [4]);
}

#[test]
fn a_row_that_is_given_again_waits_until_its_first_execution_has_stopped() {
    let mut rows = Rows::new(4);
    rows.deliver(delivery(1, "w:1"));
    rows.take_steps();
    rows.deliver(delivery(7, "w:1"));
    rows.deliver(delivery(8, "w:2"));
    let why = Standing { cancelled: Some(Cancelled::Withdrawn(None)), paused: false };
    let steps = rows.take_steps();
    assert_eq!(steps[0], Step::Tell(token(1), why), "{steps:?}");
    assert!(matches!(&steps[1..], [Step::Start(row, _)] if row.token == token(8)), "{steps:?}");
    assert_eq!(rows.holding().iter().map(|row| row.token.index).collect::<Vec<_>>(), [7, 8]);
    rows.gone(token(1));
    assert_eq!(started(&mut rows), [7]);
}

#[test]
fn what_waits_and_is_taken_away_never_begins() {
    let mut rows = Rows::new(1);
    rows.deliver(delivery(1, "w:1"));
    rows.deliver(delivery(2, "w:2"));
    rows.cancel(token(2), Cancelled::Withdrawn(None));
    rows.ended(token(1));
    rows.gone(token(1));
    assert_eq!(started(&mut rows), [1]);
    assert!(rows.is_empty());
}

#[test]
fn a_pause_that_comes_while_a_row_waits_is_known_at_its_start() {
    let mut rows = Rows::new(1);
    rows.deliver(delivery(1, "w:1"));
    rows.deliver(delivery(2, "w:2"));
    rows.pause(token(2), true);
    rows.take_steps();
    rows.gone(token(1));
    let steps = rows.take_steps();
    assert!(matches!(&steps[..], [Step::Start(_, Standing { paused: true, .. })]), "{steps:?}");
}

#[test]
fn rows_of_a_worker_that_stops_are_held_until_all_is_said() {
    let mut rows = Rows::new(2);
    rows.deliver(delivery(1, "w:1"));
    rows.deliver(delivery(2, "w:2"));
    rows.deliver(delivery(3, "w:3"));
    rows.ended(token(2));
    rows.take_steps();
    rows.cancel_all(Cancelled::Stopping);
    assert_eq!(rows.holding().len(), 3, "results still count");
    assert!(started(&mut rows).is_empty());
    // A row may be lost all the same.
    rows.cancel(token(1), Cancelled::SessionOver);
    assert_eq!(rows.holding().len(), 2);
}
