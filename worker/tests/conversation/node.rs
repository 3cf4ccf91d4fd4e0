//! A node that says what the test tells it to say, over a real connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use holdfast_client::wire::{HeldRow, NodeMessage, WorkerMessage};
use holdfast_client::{Client, ClientOptions, Delivery, Encoding};
use holdfast_machine::{ClaimToken, Millis, NodeName, Payload, RunId, SessionId, Worker};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

/// Enough on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node, as the test sees it.
pub struct Node {
    pub client: Client,
    connections: Mutex<mpsc::UnboundedReceiver<Connection>>,
    calls: Mutex<mpsc::UnboundedReceiver<Call>>,
}

/// A worker's connection. The node ends it when this is dropped.
pub struct Connection {
    said: mpsc::UnboundedReceiver<WorkerMessage>,
    mouth: Arc<Mouth>,
}

/// Numbers what is said. Heartbeats are answered by themselves, so that no test is slow to do so.
struct Mouth {
    say: mpsc::UnboundedSender<NodeMessage>,
    number: std::sync::Mutex<u64>,
    silent: AtomicBool,
}

impl Mouth {
    fn say(&self, message: impl FnOnce(u64) -> NodeMessage) {
        let mut number = self.number.lock().unwrap();
        let message = message(*number + 1);
        *number = message.number().unwrap_or(*number);
        // The worker may be gone, which is up to the test to notice.
        let _ = self.say.send(message);
    }
}

/// A call about a row.
#[derive(Debug)]
pub struct Call {
    pub action: String,
    pub key: String,
    pub idempotency_key: Option<String>,
    pub body: Value,
    answer: oneshot::Sender<(StatusCode, Value)>,
}

#[derive(Clone)]
struct Doors {
    connections: mpsc::UnboundedSender<Connection>,
    calls: mpsc::UnboundedSender<Call>,
}

impl Node {
    pub async fn start() -> Self {
        let (connections, opened) = mpsc::unbounded_channel();
        let (calls, called) = mpsc::unbounded_channel();
        let router = Router::new()
            .route("/v1/sessions/stream", get(stream))
            .route("/v1/outbox/rows/{key}/{action}", post(row))
            .with_state(Doors { connections, calls });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let options = ClientOptions { encoding: Encoding::Json, ..ClientOptions::default() };
        let client = Client::with_options([url], options).unwrap();
        Self { client, connections: Mutex::new(opened), calls: Mutex::new(called) }
    }

    /// The next connection, and what it attaches.
    pub async fn attached(&self) -> (Connection, SessionId, Worker, Vec<HeldRow>) {
        let mut connections = self.connections.lock().await;
        let mut connection = timeout(PATIENCE, connections.recv()).await.expect("a connection").unwrap();
        match connection.hear().await {
            WorkerMessage::Attach { session, worker, holding } => (connection, session, worker, holding),
            other => panic!("not attached: {other:?}"),
        }
    }

    /// The next connection, welcomed.
    pub async fn welcome(&self, resumed: bool) -> (Connection, SessionId, Vec<HeldRow>) {
        let (mut connection, session, _, holding) = self.attached().await;
        connection.say(|number| NodeMessage::Attached {
            number,
            node: NodeName::new("node-a").unwrap(),
            deadline: Millis(1),
            heartbeat_ms: 500,
            resumed,
        });
        (connection, session, holding)
    }

    /// The next call about a row.
    pub async fn call(&self) -> Call {
        timeout(PATIENCE, self.calls.lock().await.recv()).await.expect("a call").unwrap()
    }

    /// The next call, which is this one and succeeds.
    pub async fn takes(&self, action: &str, key: &str) -> Value {
        let call = self.call().await;
        assert_eq!((call.action.as_str(), call.key.as_str()), (action, key));
        let body = call.body.clone();
        call.succeed();
        body
    }
}

impl Connection {
    /// What the worker says next.
    pub async fn hear(&mut self) -> WorkerMessage {
        timeout(PATIENCE, self.said.recv()).await.expect("a message").expect("the connection is open")
    }

    /// As [`Connection::hear`], but for heartbeats.
    pub async fn hear_but_heartbeats(&mut self) -> WorkerMessage {
        loop {
            match self.hear().await {
                WorkerMessage::Heartbeat { .. } => {}
                other => return other,
            }
        }
    }

    /// Waits for a heartbeat that confirms all that has been said so far.
    pub async fn confirmed(&mut self) {
        let all = *self.mouth.number.lock().unwrap();
        while !matches!(self.hear().await, WorkerMessage::Heartbeat { received } if received >= all) {}
    }

    /// Answers no heartbeat from now on.
    pub fn fall_silent(&self) {
        self.mouth.silent.store(true, Ordering::Relaxed);
    }

    pub fn deliver(&mut self, deliveries: Vec<Delivery>) {
        self.say(|number| NodeMessage::Deliveries { number, deliveries });
    }

    /// Says something under the next number.
    pub fn say(&mut self, message: impl FnOnce(u64) -> NodeMessage) {
        self.mouth.say(message);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.said.close();
    }
}

impl Call {
    pub fn succeed(self) {
        let value = match self.action.as_str() {
            "complete" => serde_json::json!({"seq": 9}),
            "heartbeat" => serde_json::json!({"deadline": 9}),
            _ => serde_json::json!({"returned": null}),
        };
        self.answer.send((StatusCode::OK, value)).unwrap();
    }

    pub fn refuse(self, problem: &holdfast_client::Problem) {
        let status = StatusCode::from_u16(problem.status).unwrap();
        self.answer.send((status, serde_json::to_value(problem).unwrap())).unwrap();
    }
}

pub fn delivery(index: u64, activity: &str, input: &Payload) -> Delivery {
    Delivery {
        key: format!("w:{index}").parse().unwrap(),
        token: token(index),
        deadline: None,
        run_id: RunId::numbered(1),
        namespace: Default::default(),
        task_queue: Default::default(),
        activity_type: activity.parse().unwrap(),
        attempt: 1,
        deliveries: 0,
        scheduled_at: Default::default(),
        timeouts: Default::default(),
        finish_by: None,
        input: input.clone(),
    }
}

pub fn token(index: u64) -> ClaimToken {
    ClaimToken { index, number: 0 }
}

async fn stream(State(doors): State<Doors>, upgrade: WebSocketUpgrade) -> impl IntoResponse {
    upgrade.on_upgrade(move |socket| talk(socket, doors))
}

async fn talk(mut socket: WebSocket, doors: Doors) {
    let (heard, said) = mpsc::unbounded_channel();
    let (say, mut to_say) = mpsc::unbounded_channel::<NodeMessage>();
    let mouth = Arc::new(Mouth { say, number: Default::default(), silent: AtomicBool::new(false) });
    if doors.connections.send(Connection { said, mouth: Arc::clone(&mouth) }).is_err() {
        return;
    }
    loop {
        tokio::select! {
            // What the test has said before it dropped the connection still goes out.
            biased;
            message = to_say.recv() => match message {
                Some(message) => {
                    let text = serde_json::to_string(&message).unwrap();
                    if socket.send(Message::Text(text.into())).await.is_err() {
                        return;
                    }
                }
                None => return,
            },
            () = heard.closed() => return,
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => {
                    let message: WorkerMessage = serde_json::from_str(&text).unwrap();
                    let is_heartbeat = matches!(message, WorkerMessage::Heartbeat { .. });
                    if is_heartbeat && !mouth.silent.load(Ordering::Relaxed) {
                        mouth.say(|number| NodeMessage::Extended { number, deadline: Millis(2) });
                    }
                    let _ = heard.send(message);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
        }
    }
}

async fn row(
    State(doors): State<Doors>,
    Path((key, action)): Path<(String, String)>,
    headers: HeaderMap,
    body: axum::Json<Value>,
) -> impl IntoResponse {
    let idempotency_key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
    let (answer, answered) = oneshot::channel();
    drop(doors.calls.send(Call { action, key, idempotency_key, body: body.0, answer }));
    let (status, value) = answered.await.unwrap_or((StatusCode::SERVICE_UNAVAILABLE, Value::Null));
    let kind = if status.is_success() { "application/json" } else { "application/problem+json" };
    (status, [("content-type", kind), ("holdfast-index", "1")], value.to_string())
}
