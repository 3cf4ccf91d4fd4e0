//! One node of a cluster of one, in this process, with its store over real HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

mod conformance;
pub mod sessions;

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use conformance::conforming;
use holdfast_api::http::{HttpOptions, router};
use holdfast_api::{ClaimCall, ClaimHolder, Store, StoreOptions, Write};
use holdfast_client::{Client, ClientOptions, Delivery, Encoding};
use holdfast_machine::{
    ActivityType, BootId, Claimant, Command, Commit, EventKind, Liveness, NewEvent, NewRow, NodeName, Payload, Reject,
    RetryPolicy, Scope, ShardId, WorkflowId, WorkflowType,
};
use holdfast_raft::{Handle, MemberConfig, Options, PeerListen, Raft};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// No wait in these tests should come near this.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// How many shards the cluster has.
pub const SHARDS: u32 = 4;

pub struct Served {
    pub raft: Handle,
    pub store: Store,
    pub client: Client,
    /// `http://host:port`
    pub url: String,
    _dir: TempDir,
}

pub fn node() -> NodeName {
    NodeName::new("node-1").unwrap()
}

/// A node that owns every shard, served with defaults.
pub async fn serve() -> Served {
    serve_with(|_| {}).await
}

/// As [`serve`], with other options for the node.
pub async fn serve_with(adjust: impl FnOnce(&mut Options)) -> Served {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    // A loopback address of this node's own.
    let peer_addr = format!("127.{}.{}.{}:7500", pid % 250 + 1, pid / 250 % 250, NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = tempfile::tempdir().unwrap();
    let member = MemberConfig { id: 1, name: node(), peer_addr: peer_addr.clone(), http_addr: String::new() };
    let mut options = Options::new("api-test", 1, dir.path(), vec![member], PeerListen::Address(peer_addr));
    adjust(&mut options);
    let raft = Raft::start(options).await.unwrap();
    let boot = BootId::new("boot-1").unwrap();
    found(&raft, &boot).await;
    let store = Store::new(raft.clone(), StoreOptions::new(node(), boot));
    let url = listen(router(store.clone(), HttpOptions::default())).await;
    // JSON, which can be held against the document; `encodings.rs` has the other form.
    let options = ClientOptions { encoding: Encoding::Json, ..ClientOptions::default() };
    let client = Client::with_options([&url], options).unwrap();
    Served { raft, store, client, url, _dir: dir }
}

/// Creates the cluster and gives the node all shards.
async fn found(raft: &Handle, boot: &BootId) {
    eventually("the node is up", || {
        raft.view(|machine, _| machine.member(&node()).is_some_and(|m| m.member.liveness == Liveness::Up))
    })
    .await;
    let owners = (0..SHARDS).map(|shard| (ShardId(shard), node())).collect();
    for command in [
        Command::Create { shard_count: SHARDS },
        Command::Boot { node: node(), boot: boot.clone() },
        Command::Assign { owners },
    ] {
        raft.propose(command.into()).await.unwrap().reply.unwrap();
    }
}

/// Serves a router on a free port and returns its URL. Its answers are held against the OpenAPI document.
pub async fn listen(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, conforming(router)).await });
    url
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Served {
    /// The last index in the log: unchanged if nothing was proposed.
    pub fn last(&self) -> u64 {
        self.raft.status().last.unwrap()
    }

    /// Stages a workflow with one row for each ordinal.
    pub async fn stage(&self, workflow: &str, ordinals: impl IntoIterator<Item = u64>) {
        self.store.commit(staged(workflow, ordinals), Write::default()).await.unwrap();
    }

    /// Lets log time reach the present.
    pub async fn tick(&self) {
        self.raft.propose(Command::Tick.into()).await.unwrap().reply.unwrap();
    }
}

pub fn id(text: &str) -> WorkflowId {
    WorkflowId::new(text).unwrap()
}

pub fn started() -> NewEvent {
    NewEvent::started(WorkflowType::new("order").unwrap())
}

pub fn signal(text: &str) -> NewEvent {
    NewEvent::of(EventKind::SignalReceived).with(Payload::text(text))
}

pub fn new_row(ordinal: u64) -> NewRow {
    NewRow {
        input: Payload::text(format!("input {ordinal}")),
        retry: RetryPolicy { initial_ms: 1, ..RetryPolicy::default() },
        ..NewRow::new(ordinal, ActivityType::new("charge").unwrap())
    }
}

/// A commit that starts a workflow and stages one row for each ordinal.
pub fn staged(workflow: &str, ordinals: impl IntoIterator<Item = u64>) -> Commit {
    let opening = Commit::new(id(workflow), 0).event(started());
    ordinals.into_iter().fold(opening, |commit, ordinal| commit.activity(new_row(ordinal)))
}

/// A claim of up to `limit` rows under a long lease.
pub fn claim(limit: u32, wait_ms: u64) -> ClaimCall {
    let holder = ClaimHolder::Lease { claimant: Claimant::new("worker").unwrap(), lease_ms: 60_000 };
    ClaimCall { scope: Scope::default(), limit, holder, hold: Vec::new(), wait_ms }
}

pub fn keys(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.key.to_string()).collect()
}

/// The refusal that a call got.
pub fn reject<T: std::fmt::Debug>(result: Result<T, holdfast_client::ClientError>) -> Reject {
    result.unwrap_err().reject().unwrap().clone()
}
