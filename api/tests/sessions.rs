//! Worker sessions on one node: what is pushed to a worker, what is taken back, and how a stream ends.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use holdfast_api::http::{HttpOptions, router};
use holdfast_api::{Ended, NodeMessage, SessionFilter, Store, StoreOptions, WithdrawnRow};
use holdfast_client::{Client, ClientError, Delivery, PageCall, Problem, ReadMode, Write};
use holdfast_machine::{
    Attached, Command, EventKind, Holder, NewEvent, Payload, Reject, RowStatus, SessionChange, Worker,
};
use support::sessions::{attach, delivered, ended, held, next, session, worker};
use support::{DEADLINE, Served, claim, eventually, id, keys, listen, node, reject, serve};
use tokio::time::timeout;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::{Error, Message};

impl Served {
    async fn append(&self, workflow: &str, kind: EventKind) {
        let workflow = id(workflow);
        let head = self.client.workflow(&workflow, ReadMode::Linearizable).await.unwrap().value.workflow.unwrap().head;
        self.client.append(&workflow, head, vec![NewEvent::of(kind)], Write::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_pushed_as_far_as_there_is_room() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(2), Vec::new()).await;
    assert_eq!((stream.node(), stream.node_number()), (&node(), 0));
    served.stage("w", [1, 2, 3]).await;
    let rows = delivered(&mut stream, 2).await;
    assert_eq!(keys(&rows), ["w:1", "w:2"]);
    assert_eq!((rows[0].input.clone(), rows[0].deadline, rows[0].attempt), (Payload::text("input 1"), None, 1));
    let claim = served.client.row(&rows[0].key, ReadMode::Linearizable).await.unwrap().value.row.claim.unwrap();
    assert_eq!((claim.token, claim.holder), (rows[0].token, Holder::Session { session: session("s") }));
    let shown = served.client.session(&session("s"), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((shown.session.rows, shown.held), (2, rows.iter().map(held).collect()));

    served.complete(&rows[1]).await;
    assert_eq!(keys(&delivered(&mut stream, 1).await), ["w:3"]);
    stream.heartbeat(stream.received()).await.unwrap();
    assert!(matches!(next(&mut stream).await, NodeMessage::Extended { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_comes_in_portions_and_finished_rows_are_forgotten() {
    const ROWS: u64 = 400;
    let served = serve().await;
    served.stage("w", 1..=ROWS).await;
    let mut stream = attach(&served, "s", worker(100), Vec::new()).await;
    let (mut seen, mut numbers) = (Vec::new(), 1);
    while seen.len() < ROWS as usize {
        let message = next(&mut stream).await;
        numbers += 1;
        assert_eq!(message.number(), Some(numbers), "messages are numbered without a gap");
        match message {
            NodeMessage::Deliveries { deliveries, .. } => {
                assert!(deliveries.len() <= 64);
                for row in deliveries {
                    served.complete(&row).await;
                    seen.push(row.key);
                }
            }
            // Rows that are finished may be told, once there are many; then as what they are.
            NodeMessage::Withdrawn { rows, .. } => {
                assert!(rows.iter().all(|row| row.status == Some(RowStatus::Done) && seen.contains(&row.key)));
            }
            other => panic!("{other:?}"),
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), ROWS as usize, "a row was pushed twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_from_a_worker_is_withdrawn() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1, 2]).await;
    let rows = delivered(&mut stream, 2).await;
    served.client.complete(&rows[0].key, None, Payload::default(), Write::default()).await.unwrap();
    let gone = |row: &Delivery, status| {
        let (key, token, status) = (row.key.clone(), row.token, Some(status));
        vec![WithdrawnRow { key, token, status }]
    };
    let NodeMessage::Withdrawn { rows: withdrawn, .. } = next(&mut stream).await else { panic!() };
    assert_eq!(withdrawn, gone(&rows[0], RowStatus::Done), "finished by another hand");
    served.client.settle(&id("w"), Write::default()).await.unwrap();
    let NodeMessage::Withdrawn { rows: withdrawn, .. } = next(&mut stream).await else { panic!() };
    assert_eq!(withdrawn, gone(&rows[1], RowStatus::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_told_and_its_end_too() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1]).await;
    let row = held(&delivered(&mut stream, 1).await[0]);
    served.append("w", EventKind::WorkflowPaused).await;
    let NodeMessage::Paused { rows, .. } = next(&mut stream).await else { panic!() };
    assert_eq!(rows, std::slice::from_ref(&row));
    // Whoever attaches in the meantime is told as well: of what it brings along, and of what it is given again.
    for holding in [vec![row.clone()], Vec::new()] {
        let mut other = attach(&served, "s", worker(9), holding.clone()).await;
        if holding.is_empty() {
            assert_eq!(held(&delivered(&mut other, 1).await[0]), row);
        }
        let NodeMessage::Paused { rows, .. } = next(&mut other).await else { panic!() };
        assert_eq!(rows, std::slice::from_ref(&row));
        stream = other;
    }
    served.append("w", EventKind::WorkflowResumed).await;
    let NodeMessage::Resumed { rows, .. } = next(&mut stream).await else { panic!() };
    assert_eq!(rows, [row]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_rows_that_a_worker_brings_along_is_said_first() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1]).await;
    served.stage("x", [1]).await;
    let rows = delivered(&mut stream, 2).await;
    served.append("w", EventKind::WorkflowPaused).await;
    assert!(matches!(next(&mut stream).await, NodeMessage::Paused { .. }));
    drop(stream);
    served.append("w", EventKind::WorkflowResumed).await;
    served.append("x", EventKind::WorkflowPaused).await;
    served.stage("y", [1]).await;
    // Heartbeats that come at once do not change the order.
    let mut stream = attach(&served, "s", worker(9), rows.iter().map(held).collect()).await;
    stream.heartbeat(1).await.unwrap();
    let NodeMessage::Paused { rows: paused, .. } = next(&mut stream).await else { panic!() };
    assert_eq!(paused, rows.iter().filter(|row| row.key.workflow.as_str() == "x").map(held).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_is_given_nothing_new() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(1), Vec::new()).await;
    served.stage("w", [1, 2]).await;
    let rows = delivered(&mut stream, 1).await;
    stream.drain().await.unwrap();
    assert!(matches!(next(&mut stream).await, NodeMessage::Draining { .. }));
    served.complete(&rows[0]).await;
    let shown = served.client.session(&session("s"), ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((shown.session.draining, shown.held), (true, Vec::new()));
    stream.close().await.unwrap();
    assert_eq!(ended(&mut stream).await, (Ended::Closed, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_leaves_its_rows_at_once() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1]).await;
    delivered(&mut stream, 1).await;
    stream.close().await.unwrap();
    assert_eq!(ended(&mut stream).await, (Ended::Closed, None));
    assert_eq!(keys(&served.client.claim(claim(9, 0), Write::default()).await.unwrap().value), ["w:1"]);
    let gone = served.client.session(&session("s"), ReadMode::Linearizable).await;
    assert_eq!(reject(gone), Reject::SessionNotFound { session: session("s") });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_over_another_connection() {
    let served = serve().await;
    let mut first = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1, 2, 3]).await;
    let rows = delivered(&mut first, 3).await;
    // One is at work, one never arrived, one was finished meanwhile.
    served.complete(&rows[2]).await;
    let holding = vec![held(&rows[0]), held(&rows[2])];
    let mut second = served.client.attach(session("s"), worker(9), holding).await.unwrap();
    assert!(matches!(next(&mut second).await, NodeMessage::Attached { number: 1, resumed: true, .. }));
    let NodeMessage::Withdrawn { rows: gone, .. } = next(&mut second).await else { panic!() };
    assert_eq!((gone[0].key.clone(), gone[0].status), (rows[2].key.clone(), Some(RowStatus::Done)));
    assert_eq!(delivered(&mut second, 1).await, rows[1..2], "the same row under the same token");
    assert_eq!(ended(&mut first).await, (Ended::Moved, None));
    served.complete(&rows[0]).await;
    served.stage("v", [1]).await;
    assert_eq!(keys(&delivered(&mut second, 1).await), ["v:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_leaves_the_session_its_rows() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1]).await;
    let rows = delivered(&mut stream, 1).await;
    drop(stream);
    eventually("the session is detached", || served.attached("s").is_none()).await;
    served.stage("v", [1]).await;
    assert_eq!(keys(&served.client.claim(claim(9, 0), Write::default()).await.unwrap().value), ["v:1"]);
    let mut again = attach(&served, "s", worker(9), vec![held(&rows[0])]).await;
    served.complete(&rows[0]).await;
    served.stage("u", [1]).await;
    assert_eq!(keys(&delivered(&mut again, 1).await), ["u:1"]);
}

/// The messages of the node never arrive, and the heartbeats of the worker do.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_carries_heartbeats_only_ends_and_its_rows_are_free_with_the_lease() {
    let served = serve().await;
    served.stage("w", [1]).await;
    let registration = Worker { lease_ms: 1_000, ..worker(9) };
    let mut stream = served.client.attach(session("s"), registration, Vec::new()).await.unwrap();
    let reason = loop {
        let _ = stream.heartbeat(0).await;
        match timeout(Duration::from_millis(50), stream.next()).await {
            Ok(Some(Ok(NodeMessage::Ended { reason, .. }))) => break reason,
            Ok(Some(Ok(_))) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(reason, Ended::StreamDead);
    while served.client.claim(claim(9, 0), Write::default()).await.unwrap().value.is_empty() {
        served.tick().await;
    }
    assert!(served.raft.view(|machine, _| machine.session(&session("s")).is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_falls_silent_is_let_go() {
    let served = serve().await;
    let registration = Worker { lease_ms: 500, ..worker(9) };
    let mut stream = served.client.attach(session("s"), registration, Vec::new()).await.unwrap();
    assert!(matches!(next(&mut stream).await, NodeMessage::Attached { heartbeat_ms: 125, .. }));
    assert_eq!(ended(&mut stream).await, (Ended::StreamDead, None));
    eventually("the session is detached", || served.store.sessions_attached() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_over_is_told_so() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    let attachment = served.raft.view(|machine, _| machine.session(&session("s")).unwrap().attachment);
    let change = SessionChange::Close { attachment };
    served.raft.propose(Command::Session { session: session("s"), change }.into()).await.unwrap().reply.unwrap();
    assert_eq!(ended(&mut stream).await, (Ended::SessionOver, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_with_a_reason() {
    let served = serve().await;
    let none = served.client.attach(session("s"), worker(0), Vec::new()).await.unwrap_err();
    assert_eq!(none.reject().unwrap().code(), "invalid_argument", "{none}");
    let mut stream = attach(&served, "s", worker(1), Vec::new()).await;
    stream.heartbeat(99).await.unwrap();
    let (reason, problem) = ended(&mut stream).await;
    assert_eq!((reason, problem.unwrap().code.as_str()), (Ended::Refused, "invalid_argument"));

    let attach = r#"{"type":"attach","session":"t","worker":{"identity":"me","namespaces":["default"],"max_concurrency":1,"lease_ms":60000}}"#;
    let large = format!(r#"{{"type":"heartbeat","received":{}1}}"#, " ".repeat(5 * 1024 * 1024));
    for (said, code) in [
        (vec![Message::text("{}")], "invalid_argument"),
        (vec![Message::text(r#"{"type":"drain"}"#)], "invalid_argument"),
        (vec![Message::binary(vec![1, 2])], "invalid_argument"),
        (vec![Message::text(attach), Message::text(attach)], "invalid_argument"),
        (vec![Message::text(attach), Message::text("hello")], "invalid_argument"),
        (vec![Message::text(attach), Message::text(large)], "limit_exceeded"),
    ] {
        let url = format!("{}/v1/sessions/stream", served.url.replace("http", "ws"));
        let (mut socket, _) = connect_async(url).await.unwrap();
        for message in said {
            socket.send(message).await.unwrap();
        }
        let last = loop {
            let message = timeout(DEADLINE, socket.next()).await.unwrap().expect("the node says why").unwrap();
            let Message::Text(text) = message else { continue };
            match serde_json::from_str(&text).unwrap() {
                NodeMessage::Ended { reason, problem } => break (reason, problem.unwrap().code),
                NodeMessage::Attached { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(last, (Ended::Refused, code.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_no_websocket_hears_so() {
    let served = serve().await;
    let answer = reqwest::get(format!("{}/v1/sessions/stream", served.url)).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["upgrade"].to_str().unwrap()), (426, "websocket"));
    let problem: Problem = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(problem.code, "upgrade_required");
    served.store.close();
    let Err(Error::Http(answer)) =
        connect_async(format!("{}/v1/sessions/stream", served.url.replace("http", "ws"))).await
    else {
        panic!("a node that stops opens a stream")
    };
    assert_eq!(answer.status().as_u16(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_sends_its_workers_away_with_their_rows() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    served.stage("w", [1]).await;
    delivered(&mut stream, 1).await;
    served.store.close();
    assert_eq!(ended(&mut stream).await, (Ended::NodeStopping, None));
    timeout(DEADLINE, served.store.detached()).await.unwrap();
    assert_eq!(served.attached("s"), None);
    assert_eq!(served.raft.view(|machine, _| machine.session_row_count(&session("s"))), 1);
    let refused = served.client.attach(session("s"), worker(9), Vec::new()).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_retryable()), ("stopped", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_start_is_not_in_the_log_sends_workers_to_another_one() {
    let served = serve().await;
    let starting = StoreOptions::new(node(), "boot-2".parse().unwrap());
    let starting = listen(router(Store::new(served.raft.clone(), starting), HttpOptions::default())).await;
    let alone = Client::new([&starting]).unwrap().attach(session("s-1"), worker(1), Vec::new()).await.unwrap_err();
    assert!(matches!(alone, ClientError::Stopped(_)), "{alone:?}");
    let client = Client::new([&starting, &served.url]).unwrap();
    let stream = client.attach(session("s-1"), worker(1), Vec::new()).await.unwrap();
    assert_eq!(stream.node_number(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_that_nobody_here_knows_of_is_given_back() {
    let served = serve().await;
    let boot = served.raft.view(|machine, _| machine.member(&node()).unwrap().boot.clone().unwrap());
    let to = Attached { node: node(), boot };
    // As when the answer to it was lost.
    let change = SessionChange::Attach { worker: worker(9), to };
    served.raft.propose(Command::Session { session: session("s"), change }.into()).await.unwrap().reply.unwrap();
    eventually("the session is detached", || served.attached("s").is_none()).await;
    served.stage("w", [1]).await;
    let mut stream = attach(&served, "s", worker(9), Vec::new()).await;
    delivered(&mut stream, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_the_nodes_own_process_has_the_same() {
    let served = serve().await;
    let attachment = served.store.attach(session("s"), worker(9), Vec::new()).await.unwrap();
    assert!(matches!(attachment.next().await, Some(NodeMessage::Attached { number: 1, resumed: false, .. })));
    served.stage("w", [1]).await;
    let Some(NodeMessage::Deliveries { number: 2, deliveries }) = attachment.next().await else { panic!() };
    assert_eq!(keys(&deliveries), ["w:1"]);
    attachment.heartbeat(2).await.unwrap();
    assert!(matches!(attachment.next().await, Some(NodeMessage::Extended { number: 3, .. })));
    let attached = served.attached("s").unwrap();
    assert_eq!((attached.node, served.store.sessions_attached()), (node(), 1));
    drop(attachment);
    eventually("the session is detached", || served.attached("s").is_none()).await;
    assert_eq!(served.raft.view(|machine, _| machine.session_row_count(&session("s"))), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_by_name_in_pages() {
    let served = serve().await;
    let mut streams = Vec::new();
    for (name, queue) in [("c", "mail"), ("a", "default"), ("b", "mail")] {
        let registration = Worker { task_queue: queue.parse().unwrap(), ..worker(1) };
        streams.push(attach(&served, name, registration, Vec::new()).await);
    }
    let names = async |filter: &SessionFilter, page: PageCall| {
        let page = served.client.sessions(filter, &page, ReadMode::Linearizable).await.unwrap().value;
        let names: Vec<String> = page.sessions.iter().map(|view| view.session.to_string()).collect();
        (names, page.next_cursor)
    };
    let (first, cursor) = names(&SessionFilter::default(), PageCall::first(2)).await;
    assert_eq!(first, ["a", "b"]);
    let (second, end) = names(&SessionFilter::default(), PageCall::after(2, cursor.unwrap())).await;
    assert_eq!((second, end), (vec!["c".to_owned()], None));
    let mail = SessionFilter { task_queue: Some("mail".parse().unwrap()), ..SessionFilter::default() };
    assert_eq!(names(&mail, PageCall::first(9)).await.0, ["b", "c"]);
    let elsewhere = SessionFilter { namespace: Some("acme".parse().unwrap()), ..SessionFilter::default() };
    assert_eq!(names(&elsewhere, PageCall::first(9)).await.0, Vec::<String>::new());
}

/// A claim by long poll waits for the same rows, and a session is given them in the entry that stages them.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_beside_a_session_goes_on_waiting_and_costs_nothing() {
    let served = serve().await;
    let mut stream = attach(&served, "s", worker(1), Vec::new()).await;
    let waiting = tokio::spawn({
        let client = served.client.clone();
        async move { client.claim(claim(5, 20_000), Write::default()).await }
    });
    eventually("a claim waits", || served.store.claims_waiting() == 1).await;
    let before = served.last();
    served.stage("w", [1]).await;
    delivered(&mut stream, 1).await;
    assert_eq!((served.store.claims_waiting(), served.last()), (1, before + 1), "the commit alone");
    served.stage("v", [1]).await;
    assert_eq!(keys(&waiting.await.unwrap().unwrap().value), ["v:1"], "what the session has no room for");
}
