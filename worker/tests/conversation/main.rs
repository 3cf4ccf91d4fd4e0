//! What a worker says to a node and does with what it hears, word by word.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod node;

use std::time::Duration;

use holdfast_client::Problem;
use holdfast_client::wire::{Ended, HeldRow, NodeMessage, WithdrawnRow, WorkerMessage};
use holdfast_machine::{Payload, Reject, RowStatus};
use holdfast_worker::{Activity, ActivityError, Cancelled, Counters, Tally, Worker, WorkerError};
use node::{Node, delivery, token};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A worker with activities for every purpose of this file.
struct Running {
    counters: Counters,
    /// What handlers tell of themselves.
    told: mpsc::UnboundedReceiver<String>,
    shutdown: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<Tally, WorkerError>>,
}

fn start(node: &Node, set_up: impl FnOnce(Worker) -> Worker) -> Running {
    let (tell, told) = mpsc::unbounded_channel();
    let hold = move |activity: Activity, result_when_stopped: Option<String>| {
        let tell = tell.clone();
        async move {
            tell.send(format!("{} begins", activity.key())).unwrap();
            let why = activity.cancelled().await;
            tell.send(format!("{} {why:?}", activity.key())).unwrap();
            result_when_stopped.ok_or_else(|| ActivityError::retryable("stopped"))
        }
    };
    let worker = Worker::new(node.client.clone())
        .identity("w-1")
        .max_concurrency(2)
        .activity("double", |_, number: u64| async move { Ok(number * 2) })
        .activity("panic", |_, text: String| async move {
            if !text.is_empty() {
                panic!("{text}");
            }
            Ok(())
        })
        .activity("hold", hold);
    let worker = set_up(worker);
    let (shutdown, told_to) = oneshot::channel::<()>();
    let counters = worker.counters();
    let ended = tokio::spawn(worker.run_until(async move { drop(told_to.await) }));
    Running { counters, told, shutdown: Some(shutdown), ended }
}

impl Running {
    async fn told(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(60), self.told.recv()).await.expect("a word").unwrap()
    }

    fn stop(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    async fn ended(self) -> Result<Tally, WorkerError> {
        tokio::time::timeout(Duration::from_secs(60), self.ended).await.expect("an end").unwrap()
    }
}

fn number(number: u64) -> Payload {
    Payload::json(&number).unwrap()
}

fn claim_lost(key: &str) -> Problem {
    Problem::of_reject(409, &Reject::ClaimLost { key: key.parse().unwrap() })
}

fn ended(reason: Ended) -> impl FnOnce(u64) -> NodeMessage {
    move |_| NodeMessage::Ended { reason, problem: None }
}

#[tokio::test]
async fn a_worker_registers_confirms_works_and_ends() {
    let node = Node::start().await;
    let (tell, mut results) = mpsc::unbounded_channel();
    let hear = move |activity: &Activity, seq| tell.send((activity.token(), seq)).unwrap();
    let set_up = |worker: Worker| worker.task_queue("orders").lease(Duration::from_secs(7)).on_result(hear);
    let mut running = start(&node, set_up);
    let (mut connection, _, worker, holding) = node.attached().await;
    assert_eq!((worker.identity.as_str(), worker.task_queue.as_str()), ("w-1", "orders"));
    assert_eq!((worker.max_concurrency, worker.lease_ms, holding.len()), (2, 7_000, 0));
    let types: Vec<&str> = worker.activity_types.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(types, ["double", "hold", "panic"]);
    connection.say(|number| NodeMessage::Attached {
        number,
        node: "node-a".parse().unwrap(),
        deadline: holdfast_machine::Millis(1),
        heartbeat_ms: 300,
        resumed: false,
    });
    connection.deliver(vec![delivery(1, "double", &number(21))]);
    connection.confirmed().await;
    let body = node.takes("complete", "w:1").await;
    assert_eq!((&body["token"], &body["result"]["json"]), (&json!("1-0"), &json!(42)));
    assert_eq!(results.recv().await, Some((token(1), Some(9))));

    running.stop();
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Drain);
    // What was sent before the answer is still work.
    connection.deliver(vec![delivery(2, "double", &number(1))]);
    connection.say(|number| NodeMessage::Draining { number });
    node.takes("complete", "w:2").await;
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Close);
    connection.say(ended(Ended::Closed));
    let tally = running.ended().await.unwrap();
    assert_eq!((tally.sessions, tally.attached, tally.started, tally.completed), (1, 1, 2, 2));
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_the_work_goes_on() {
    let node = Node::start().await;
    let mut running = start(&node, |worker| worker);
    let (mut connection, session, _) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "hold", &Payload::default())]);
    assert_eq!(running.told().await, "w:1 begins");
    drop(connection);
    let (mut connection, same, holding) = node.welcome(true).await;
    let held = [HeldRow { key: "w:1".parse().unwrap(), token: token(1) }];
    assert!(same == session && holding == held, "{holding:?}");
    // Delivered again all the same: it runs already.
    connection.deliver(vec![delivery(1, "hold", &Payload::default()), delivery(2, "double", &number(1))]);
    node.takes("complete", "w:2").await;
    assert_eq!(running.counters.tally().started, 2);

    // A node that leaves heartbeats unanswered is left as well.
    connection.fall_silent();
    let (_, same, holding) = node.welcome(true).await;
    assert!(same == session && holding == held, "{holding:?}");
    assert!(running.told.try_recv().is_err(), "nobody told it to stop");
}

#[tokio::test]
async fn a_session_that_is_over_cancels_its_rows_and_another_one_is_opened() {
    let node = Node::start().await;
    let mut running = start(&node, |worker| worker);
    let (mut connection, session, _) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "hold", &Payload::json("late").unwrap())]);
    assert_eq!(running.told().await, "w:1 begins");
    connection.say(ended(Ended::SessionOver));
    let (mut connection, other, holding) = node.welcome(false).await;
    assert!(other != session && holding.is_empty(), "{holding:?}");
    assert_eq!(running.told().await, "w:1 SessionOver");
    // The result under the old claim is not told; the first call is that of the next row.
    connection.deliver(vec![delivery(2, "double", &number(1))]);
    node.takes("complete", "w:2").await;
    let tally = running.counters.tally();
    assert_eq!((tally.sessions, tally.cancelled), (2, 1));
}

#[tokio::test]
async fn a_row_that_is_withdrawn_cancels_its_handler_and_makes_room() {
    let node = Node::start().await;
    let mut running = start(&node, |worker| worker.max_concurrency(1));
    let (mut connection, ..) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "hold", &Payload::default())]);
    assert_eq!(running.told().await, "w:1 begins");
    let row = |index, status| WithdrawnRow { key: "w:1".parse().unwrap(), token: token(index), status };
    let rows = vec![row(1, Some(RowStatus::Cancelled)), row(99, None)];
    connection.say(|number| NodeMessage::Withdrawn { number, rows });
    connection.deliver(vec![delivery(2, "double", &number(1))]);
    assert_eq!(running.told().await, "w:1 Withdrawn(Some(Cancelled))");
    node.takes("complete", "w:2").await;
    assert_eq!(running.counters.tally().cancelled, 1);
}

#[tokio::test]
async fn failures_are_told_in_their_kind_and_end_nothing() {
    let node = Node::start().await;
    let running = start(&node, |worker| worker);
    let (mut connection, ..) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "panic", &Payload::text("oh"))]);
    let body = node.takes("fail", "w:1").await;
    assert_eq!((&body["retryable"], &body["error_type"]), (&json!(true), &json!("panic")));
    assert!(body["error"]["text"].as_str().unwrap().contains("oh"), "{body}");
    connection.deliver(vec![delivery(2, "double", &Payload::text("seven"))]);
    let body = node.takes("fail", "w:2").await;
    assert_eq!((&body["retryable"], &body["error_type"]), (&json!(false), &json!("invalid_input")));
    connection.deliver(vec![delivery(3, "unheard of", &Payload::default())]);
    node.takes("retry", "w:3").await;

    // A result that the store does not take is a failure for good: the next attempt would have the same one.
    connection.deliver(vec![delivery(4, "double", &number(2))]);
    node.call().await.refuse(&Problem::new(413, "limit_exceeded", "the payload is too large"));
    let body = node.takes("fail", "w:4").await;
    assert_eq!((&body["retryable"], &body["error_type"]), (&json!(false), &json!("invalid_output")));
    connection.deliver(vec![delivery(5, "double", &number(2))]);
    node.takes("complete", "w:5").await;
    let tally = running.counters.tally();
    assert_eq!((tally.failed, tally.panicked, tally.handed_back), (3, 1, 1));
}

#[tokio::test]
async fn an_outcome_is_told_until_it_is_answered_and_stays_in_hand_until_then() {
    let node = Node::start().await;
    let mut running = start(&node, |worker| worker);
    let (mut connection, ..) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "double", &number(2))]);
    let first = node.call().await;
    drop(connection);
    let (mut connection, _, holding) = node.welcome(true).await;
    assert_eq!(holding, [HeldRow { key: "w:1".parse().unwrap(), token: token(1) }]);
    let key = first.idempotency_key.clone();
    assert!(key.is_some());
    first.refuse(&Problem::new(503, "no_quorum", "two of three are gone"));
    let again = node.call().await;
    assert_eq!(again.idempotency_key, key, "a repetition is not another outcome");
    again.refuse(&claim_lost("w:1"));

    // It counts for nothing, and the worker does not insist.
    running.stop();
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Drain);
    connection.say(|number| NodeMessage::Draining { number });
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Close);
    connection.say(ended(Ended::Closed));
    let tally = running.ended().await.unwrap();
    assert_eq!((tally.absorbed, tally.completed), (1, 0));
}

#[tokio::test]
async fn what_is_not_finished_in_time_is_stopped_and_goes_back() {
    let node = Node::start().await;
    let mut running = start(&node, |worker| worker.drain_deadline(Duration::from_millis(100)));
    let (mut connection, ..) = node.welcome(false).await;
    let with_result = Payload::json("in time").unwrap();
    connection.deliver(vec![delivery(1, "hold", &Payload::default()), delivery(2, "hold", &with_result)]);
    running.told().await;
    running.told().await;
    running.stop();
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Drain);
    connection.say(|number| NodeMessage::Draining { number });
    // One has a result at last, which counts; the other one's error would not be its fault, so it is not told. What
    // comes now is not begun.
    let call = node.call().await;
    assert_eq!((call.action.as_str(), call.key.as_str()), ("complete", "w:2"));
    connection.deliver(vec![delivery(3, "double", &number(1))]);
    connection.confirmed().await;
    call.succeed();
    assert_eq!(connection.hear_but_heartbeats().await, WorkerMessage::Close);
    connection.say(ended(Ended::Closed));
    let stopped = [running.told().await, running.told().await];
    assert!(stopped.iter().all(|text| text.ends_with(&format!("{:?}", Cancelled::Stopping))), "{stopped:?}");
    let tally = running.ended().await.unwrap();
    assert_eq!((tally.started, tally.completed, tally.cancelled, tally.failed), (2, 1, 1, 0));
}

#[tokio::test]
async fn heartbeats_of_a_row_say_the_newest_and_hear_that_it_is_lost() {
    let node = Node::start().await;
    let running = start(&node, |worker| {
        worker.activity("count", |activity: Activity, (): ()| async move {
            (0..100).for_each(|number| activity.heartbeat(&number));
            Err::<(), _>(ActivityError::retryable(format!("{:?}", activity.cancelled().await)))
        })
    });
    let (mut connection, ..) = node.welcome(false).await;
    connection.deliver(vec![delivery(1, "count", &Payload::default())]);
    let call = node.call().await;
    assert_eq!((call.action.as_str(), &call.body["details"]["json"]), ("heartbeat", &json!(99)));
    call.refuse(&claim_lost("w:1"));
    connection.deliver(vec![delivery(2, "double", &number(2))]);
    node.takes("complete", "w:2").await;
    while running.counters.tally().cancelled == 0 {
        connection.confirmed().await;
    }
}

#[tokio::test]
async fn a_worker_that_is_refused_or_replaced_ends_with_an_error() {
    let node = Node::start().await;
    let running = start(&node, |worker| worker);
    let (mut connection, ..) = node.attached().await;
    let problem = Some(Problem::new(400, "invalid_argument", "the lease is too long"));
    connection.say(|_| NodeMessage::Ended { reason: Ended::Refused, problem });
    let error = running.ended().await.unwrap_err();
    assert!(matches!(error, WorkerError::Refused(_)) && error.to_string().contains("too long"), "{error}");

    let running = start(&node, |worker| worker);
    for _ in 0..3 {
        let (mut connection, ..) = node.welcome(false).await;
        connection.say(ended(Ended::Moved));
    }
    let error = running.ended().await.unwrap_err();
    assert!(matches!(error, WorkerError::Moved), "{error}");

    let worker = Worker::new(node.client.clone()).identity("").max_concurrency(1);
    let error = worker.run_until(async {}).await.unwrap_err();
    assert!(error.to_string().contains("no activities") && error.to_string().contains("empty"), "{error}");
}
