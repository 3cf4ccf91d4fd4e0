//! A worker's session, as tests use it.

use holdfast_api::{Ended, HeldRow, NodeMessage};
use holdfast_client::{Delivery, Problem, WorkerStream, Write};
use holdfast_machine::{Attached, Payload, SessionId, Worker};
use tokio::time::timeout;

use super::{DEADLINE, Served};

pub fn session(name: &str) -> SessionId {
    name.parse().unwrap()
}

/// A worker for all that there is, with a lease that no test outlives.
pub fn worker(max_concurrency: u32) -> Worker {
    Worker {
        identity: "me".parse().unwrap(),
        namespaces: vec![Default::default()],
        task_queue: Default::default(),
        activity_types: Vec::new(),
        max_concurrency,
        node: None,
        lease_ms: 3_600_000,
    }
}

pub async fn attach(served: &Served, name: &str, worker: Worker, holding: Vec<HeldRow>) -> WorkerStream {
    let mut stream = served.client.attach(session(name), worker, holding).await.unwrap();
    assert!(matches!(next(&mut stream).await, NodeMessage::Attached { number: 1, .. }));
    stream
}

/// The next message, whatever it is.
pub async fn next(stream: &mut WorkerStream) -> NodeMessage {
    timeout(DEADLINE, stream.next()).await.expect("no message came").expect("the stream ended").unwrap()
}

/// As many deliveries as that, in however many messages.
pub async fn delivered(stream: &mut WorkerStream, count: usize) -> Vec<Delivery> {
    let mut found = Vec::new();
    while found.len() < count {
        match next(stream).await {
            NodeMessage::Deliveries { deliveries, .. } => found.extend(deliveries),
            other => panic!("expected deliveries, not {other:?}"),
        }
    }
    assert_eq!(found.len(), count);
    found
}

pub async fn ended(stream: &mut WorkerStream) -> (Ended, Option<Problem>) {
    match next(stream).await {
        NodeMessage::Ended { reason, problem } => {
            assert!(
                timeout(DEADLINE, stream.next()).await.unwrap().is_none(),
                "something came behind the last message"
            );
            (reason, problem)
        }
        other => panic!("expected the end, not {other:?}"),
    }
}

pub fn held(delivery: &Delivery) -> HeldRow {
    HeldRow { key: delivery.key.clone(), token: delivery.token }
}

impl Served {
    pub async fn complete(&self, row: &Delivery) {
        self.client.complete(&row.key, Some(row.token), Payload::default(), Write::default()).await.unwrap();
    }

    pub fn attached(&self, name: &str) -> Option<Attached> {
        self.raft.view(|machine, _| machine.session(&session(name)).and_then(|session| session.attached.clone()))
    }
}
