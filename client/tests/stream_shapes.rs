//! What goes over a worker's stream, to the letter, and what is listed of sessions. As in `shapes.rs`; the stream is
//! JSON only.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;

use holdfast_client::Problem;
use holdfast_client::wire::*;
use holdfast_machine::{Attached, ClaimToken, Millis, Payload, RowStatus, Worker};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn shape<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, text: &str) {
    assert_eq!(serde_json::to_string(&value).unwrap(), text);
    assert_eq!(serde_json::from_str::<T>(text).unwrap(), value);
}

fn held() -> HeldRow {
    HeldRow { key: "w:1".parse().unwrap(), token: ClaimToken { index: 7, number: 1 } }
}

fn worker() -> Worker {
    Worker {
        identity: "me".parse().unwrap(),
        namespaces: vec!["default".parse().unwrap(), "acme".parse().unwrap()],
        task_queue: "mail".parse().unwrap(),
        activity_types: vec!["charge".parse().unwrap()],
        max_concurrency: 8,
        node: None,
        lease_ms: 30_000,
    }
}

const WORKER: &str = concat!(
    r#"{"identity":"me","namespaces":["default","acme"],"task_queue":"mail","activity_types":["charge"],"#,
    r#""max_concurrency":8,"node":null,"lease_ms":30000}"#
);

#[test]
fn what_a_worker_says() {
    let attach = WorkerMessage::Attach { session: "s".parse().unwrap(), worker: worker(), holding: vec![held()] };
    let holding = r#"[{"key":"w:1","token":"7-1"}]"#;
    shape(attach, &format!(r#"{{"type":"attach","session":"s","worker":{WORKER},"holding":{holding}}}"#));
    shape(WorkerMessage::Heartbeat { received: 3 }, r#"{"type":"heartbeat","received":3}"#);
    shape(WorkerMessage::Drain, r#"{"type":"drain"}"#);
    shape(WorkerMessage::Close, r#"{"type":"close"}"#);
}

#[test]
fn the_least_that_a_worker_has_to_say() {
    let least = concat!(
        r#"{"type":"attach","session":"s","worker":{"identity":"me","namespaces":["default"],"#,
        r#""max_concurrency":1,"lease_ms":30000}}"#
    );
    let WorkerMessage::Attach { worker, holding, .. } = serde_json::from_str(least).unwrap() else { panic!() };
    assert_eq!((worker.task_queue, worker.activity_types, worker.node, holding), Default::default());
    for bad in [r#"{"type":"attach"}"#, r#"{"type":"heartbeat","received":1,"rows":2}"#, r#"{"type":"ack"}"#, "{}"] {
        assert!(serde_json::from_str::<WorkerMessage>(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_a_node_says() {
    let node = "node-a".parse().unwrap();
    let deadline = Millis(9);
    shape(
        NodeMessage::Attached { number: 1, node, deadline, heartbeat_ms: 7_500, resumed: true },
        r#"{"type":"attached","number":1,"node":"node-a","deadline":9,"heartbeat_ms":7500,"resumed":true}"#,
    );
    let delivery = Delivery {
        key: "w:1".parse().unwrap(),
        token: ClaimToken { index: 7, number: 1 },
        deadline: None,
        run_id: "run-1".parse().unwrap(),
        namespace: Default::default(),
        task_queue: Default::default(),
        activity_type: "charge".parse().unwrap(),
        attempt: 1,
        deliveries: 0,
        scheduled_at: Millis(3),
        timeouts: Default::default(),
        finish_by: None,
        input: Payload::text("in"),
    };
    shape(
        NodeMessage::Deliveries { number: 2, deliveries: vec![delivery] },
        concat!(
            r#"{"type":"deliveries","number":2,"deliveries":[{"key":"w:1","token":"7-1","deadline":null,"#,
            r#""run_id":"run-1","namespace":"default","task_queue":"default","activity_type":"charge","attempt":1,"#,
            r#""deliveries":0,"scheduled_at":3,"timeouts":{"schedule_to_start_ms":null,"start_to_close_ms":null,"#,
            r#""schedule_to_close_ms":null,"heartbeat_ms":null},"finish_by":null,"#,
            r#""input":{"content_type":"text/plain","text":"in"}}]}"#,
        ),
    );
    let HeldRow { key, token } = held();
    let withdrawn = WithdrawnRow { key, token, status: Some(RowStatus::Cancelled) };
    shape(
        NodeMessage::Withdrawn { number: 3, rows: vec![withdrawn] },
        r#"{"type":"withdrawn","number":3,"rows":[{"key":"w:1","token":"7-1","status":"cancelled"}]}"#,
    );
    let rows = r#"[{"key":"w:1","token":"7-1"}]"#;
    let (number, held) = (4, || vec![held()]);
    shape(NodeMessage::Paused { number, rows: held() }, &format!(r#"{{"type":"paused","number":4,"rows":{rows}}}"#));
    shape(NodeMessage::Resumed { number, rows: held() }, &format!(r#"{{"type":"resumed","number":4,"rows":{rows}}}"#));
    shape(NodeMessage::Extended { number, deadline }, r#"{"type":"extended","number":4,"deadline":9}"#);
    shape(NodeMessage::Draining { number }, r#"{"type":"draining","number":4}"#);
}

#[test]
fn how_a_stream_ends() {
    for (reason, name) in [
        (Ended::Closed, "closed"),
        (Ended::NodeStopping, "node_stopping"),
        (Ended::SessionOver, "session_over"),
        (Ended::Moved, "moved"),
        (Ended::StreamDead, "stream_dead"),
    ] {
        let text = format!(r#"{{"type":"ended","reason":"{name}","problem":null}}"#);
        shape(NodeMessage::Ended { reason, problem: None }, &text);
    }
    let problem = Some(Problem::new(400, "invalid_argument", "no"));
    shape(
        NodeMessage::Ended { reason: Ended::Refused, problem },
        concat!(
            r#"{"type":"ended","reason":"refused","problem":{"type":"/errors/invalid_argument","#,
            r#""title":"invalid argument","status":400,"code":"invalid_argument","detail":"no","details":{}}}"#,
        ),
    );
}

#[test]
fn sessions_as_they_are_listed() {
    let session = SessionView {
        session: "s".parse().unwrap(),
        worker: worker(),
        attached: Some(Attached { node: "node-a".parse().unwrap(), boot: "boot-1".parse().unwrap() }),
        opened_at: Millis(3),
        deadline: Millis(9),
        draining: false,
        rows: 1,
    };
    let text = format!(
        r#"{{"session":"s","worker":{WORKER},"attached":{{"node":"node-a","boot":"boot-1"}},{}}}"#,
        r#""opened_at":3,"deadline":9,"draining":false,"rows":1"#
    );
    shape(session.clone(), &text);
    shape(
        SessionWithRows { session: session.clone(), held: vec![held()] },
        &format!(r#"{{"session":{text},"held":[{{"key":"w:1","token":"7-1"}}]}}"#),
    );
    shape(
        SessionPage { sessions: vec![session.clone()], next_cursor: None },
        &format!(r#"{{"sessions":[{text}],"next_cursor":null}}"#),
    );
    let page = SessionPage { sessions: vec![session], next_cursor: Some("c".into()) };
    let bytes = Encoding::Postcard.write(&page).unwrap();
    assert_eq!(Encoding::Postcard.read::<SessionPage>(&bytes).unwrap(), page);
}

#[test]
fn a_delivery_keeps_its_json_to_the_letter() {
    let input = r#"{"content_type":"application/json","json":{"n": 12345678901234567890.10}}"#;
    let delivery = concat!(
        r#""key":"w:1","token":"7-1","deadline":null,"run_id":"run-1","namespace":"default","task_queue":"default","#,
        r#""activity_type":"charge","attempt":1,"deliveries":0,"scheduled_at":3,"timeouts":"#,
        r#"{"schedule_to_start_ms":null,"start_to_close_ms":5,"schedule_to_close_ms":null,"heartbeat_ms":null},"#,
        r#""finish_by":8"#
    );
    let text = format!(r#"{{"type":"deliveries","number":2,"deliveries":[{{{delivery},"input":{input}}}]}}"#);
    let message: NodeMessage = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&message).unwrap(), text);
    // In whatever order the members come.
    let reordered = format!(r#"{{"deliveries":[{{{delivery},"input":{input}}}],"number":2,"type":"deliveries"}}"#);
    assert_eq!(serde_json::from_str::<NodeMessage>(&reordered).unwrap(), message);
}
