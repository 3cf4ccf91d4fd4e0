//! The engine on a real node: every thing that a workflow can do, in the middle of which the node is started again.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use holdfast_engine::{Engine, EngineOptions, LocalActivities, Programs, Workflow, WorkflowError, Workflows};
use holdfast_machine::{Epoch, EventKind, HistoryEvent, Payload, RetryPolicy, ShardId, WorkflowId};
use holdfast_node::api::{Failure, ReadMode};
use holdfast_node::{Config, Node, ShardChange};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    items: Vec<u64>,
    /// Approved by a signal before it is charged.
    approved: bool,
}

/// Fan-out, a retry, a signal, a timer, a child.
async fn order(workflow: Workflow, order: Order) -> Result<u64, WorkflowError> {
    let prices = order.items.iter().map(|item| workflow.activity::<u64>("price", item));
    let total = try_join_all(prices).await?.iter().sum::<u64>();
    if order.approved {
        workflow.signal::<bool>("approve").await?;
    }
    workflow.sleep(Duration::from_millis(50)).await;
    let quick = RetryPolicy { initial_ms: 10, ..RetryPolicy::default() };
    workflow.activity::<()>("charge", &total).retried(quick).await?;
    let id = format!("{}/parcel", workflow.id());
    let parcels: u64 = workflow.child("parcel", &id, &3u64).await?;
    Ok(total + parcels)
}

/// Continues as new until nothing is left to send.
async fn parcel(workflow: Workflow, left: u64) -> Result<u64, WorkflowError> {
    if left == 0 {
        return Ok(1_000);
    }
    workflow.activity::<u64>("price", &left).await?;
    Err(workflow.continue_as_new(&(left - 1)))
}

/// Hears of a dead letter.
async fn doomed(workflow: Workflow, (): ()) -> Result<String, WorkflowError> {
    let once = RetryPolicy { initial_ms: 1, deliveries_max: 2, ..RetryPolicy::default() };
    match workflow.activity::<()>("fail", &()).retried(once).await {
        Ok(()) => Err(WorkflowError::failed("it did not fail")),
        Err(error) => Ok(error.message),
    }
}

async fn panics(workflow: Workflow, (): ()) -> Result<(), WorkflowError> {
    workflow.sleep(Duration::from_millis(1)).await;
    panic!("a mistake")
}

struct Running {
    node: Node,
    engine: Arc<Engine>,
    workflows: Workflows,
    tasks: JoinSet<()>,
}

async fn start(data_dir: &Path, charges: &Arc<AtomicU32>) -> Running {
    start_with(data_dir, charges, EngineOptions::default()).await
}

async fn start_with(data_dir: &Path, charges: &Arc<AtomicU32>, options: EngineOptions) -> Running {
    let (data_dir, listen) = (data_dir.to_owned(), ([127, 0, 0, 1], 0).into());
    let config = Config { data_dir, http_listen: listen, peer_listen: listen, ..Config::default() };
    let node = Node::start(config).await.unwrap();
    assert!(node.ready().await);
    let programs = Programs::new().with("order", order).unwrap().with("parcel", parcel).unwrap();
    let programs = programs.with("doomed", doomed).unwrap().with("panics", panics).unwrap();
    let engine = Arc::new(Engine::with_options(node.store(), programs, options));
    let (mut tasks, mut shards, driven) = (JoinSet::new(), node.shards(), Arc::clone(&engine));
    tasks.spawn(async move {
        while let Some(change) = shards.next().await {
            match change {
                ShardChange::Acquired { shard, epoch, .. } => driven.acquire(shard, epoch),
                ShardChange::Lost { shard, .. } => driven.lose(shard),
            }
        }
    });
    let charges = Arc::clone(charges);
    let activities = LocalActivities::new(node.store(), Default::default())
        .with("price", |_, item: u64| async move { Ok(item * 10) })
        .unwrap()
        .with("fail", |_, (): ()| async { Err::<(), _>(Failure::retryable(Payload::text("no luck"))) })
        .unwrap()
        .with("charge", move |attempt, _: u64| {
            let charges = Arc::clone(&charges);
            async move {
                charges.fetch_add(1, Ordering::Relaxed);
                if attempt.attempt < 3 { Err(Failure::retryable(Payload::text("the bank is closed"))) } else { Ok(()) }
            }
        })
        .unwrap();
    tasks.spawn(async move { drop(activities.run().await) });
    let workflows = Workflows::new(node.store());
    Running { node, engine, workflows, tasks }
}

fn id(text: &str) -> WorkflowId {
    text.parse().unwrap()
}

impl Running {
    async fn start(&self, workflow_type: &str, workflow: &str, input: &impl Serialize) {
        self.workflows.start(&workflow_type.parse().unwrap(), &id(workflow), input).await.unwrap();
    }

    async fn history(&self, workflow: &str) -> Vec<HistoryEvent> {
        self.node.store().history(&id(workflow), 1, 1_000, ReadMode::Linearizable).await.unwrap().value
    }

    async fn until(&self, workflow: &str, kind: &EventKind, times: usize) {
        let there = async || count(&self.history(workflow).await, kind) >= times;
        wait_until(&format!("{workflow} has {times} {kind}"), there).await;
    }

    async fn result<T: serde::de::DeserializeOwned>(&self, workflow: &str) -> Result<T, holdfast_engine::NoResult> {
        let id = id(workflow);
        let result = tokio::time::timeout(Duration::from_secs(60), self.workflows.result(&id)).await;
        match result {
            Ok(result) => result,
            Err(_) => panic!("{workflow} does not end: {:#?}", self.history(workflow).await),
        }
    }

    async fn stop(mut self) {
        self.tasks.shutdown().await;
        drop(self.engine);
        self.node.shutdown().await;
    }
}

async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..3_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not come about that {what}");
}

fn count(history: &[HistoryEvent], kind: &EventKind) -> usize {
    history.iter().filter(|event| event.kind == *kind).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_goes_through_everything_and_a_restart() {
    let (folder, charges) = (tempfile::tempdir().unwrap(), Arc::default());
    let running = start(folder.path(), &charges).await;
    running.start("order", "order-1", &Order { items: (1..=40).collect(), approved: true }).await;
    running.until("order-1", &EventKind::ActivityCompleted, 40).await;
    running.stop().await;

    let running = start(folder.path(), &charges).await;
    running.workflows.signal(&id("order-1"), "approve", &true).await.unwrap();
    let total: u64 = running.result("order-1").await.unwrap();
    assert_eq!(total, (1..=40).sum::<u64>() * 10 + 1_000);
    assert_eq!(charges.load(Ordering::Relaxed), 3, "two attempts failed");

    let history = running.history("order-1").await;
    let counts = |kind| count(&history, &kind);
    assert_eq!(counts(EventKind::WorkflowStarted), 1);
    assert_eq!(counts(EventKind::ActivityScheduled), 41);
    assert_eq!(counts(EventKind::ActivityCompleted), 41);
    assert_eq!((counts(EventKind::TimerStarted), counts(EventKind::TimerFired)), (1, 1));
    assert_eq!(counts(EventKind::WorkflowCompleted), 1);
    let child = running.history("order-1/parcel").await;
    assert_eq!(count(&child, &EventKind::WorkflowContinuedAsNew), 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_workflow_decides_nothing() {
    let (folder, charges) = (tempfile::tempdir().unwrap(), Arc::default());
    let running = start(folder.path(), &charges).await;
    running.start("order", "order-1", &Order { items: vec![1], approved: true }).await;
    running.until("order-1", &EventKind::ActivityCompleted, 1).await;
    running.workflows.pause(&id("order-1")).await.unwrap();
    running.workflows.signal(&id("order-1"), "approve", &true).await.unwrap();
    // A second workflow goes all the way meanwhile, so the engine had the time to make a mistake.
    running.start("order", "order-2", &Order { items: vec![1], approved: false }).await;
    assert_eq!(running.result::<u64>("order-2").await.unwrap(), 1_010);
    let last = running.history("order-1").await.pop().unwrap();
    assert_eq!(last.kind, EventKind::SignalReceived);
    running.workflows.resume(&id("order-1")).await.unwrap();
    assert_eq!(running.result::<u64>("order-1").await.unwrap(), 1_010);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_reach_the_function_and_mistakes_of_it_halt_the_workflow() {
    let (folder, charges) = (tempfile::tempdir().unwrap(), Arc::default());
    let running = start(folder.path(), &charges).await;
    running.start("doomed", "doomed-1", &()).await;
    assert_eq!(running.result::<String>("doomed-1").await.unwrap(), "no luck");
    let history = running.history("doomed-1").await;
    assert_eq!(count(&history, &EventKind::ActivityFailed), 1);

    running.start("panics", "panics-1", &()).await;
    running.until("panics-1", &EventKind::TimerFired, 1).await;
    wait_until("the panic halts it", async || !running.engine.halted().is_empty()).await;
    let halted = running.engine.halted();
    assert!(halted[&id("panics-1")].contains("a mistake"), "{halted:?}");
    running.workflows.cancel(&id("panics-1")).await.unwrap();
    let ended = running.result::<()>("panics-1").await.unwrap_err();
    assert!(ended.to_string().contains("cancelled"), "{ended}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_an_old_epoch_writes_nothing() {
    let (folder, charges) = (tempfile::tempdir().unwrap(), Arc::default());
    let running = start(folder.path(), &charges).await;
    // A workflow of a shard has gone all the way, so the engine has been told of it.
    let order = Order { items: vec![1], approved: false };
    running.start("order", "order-1", &order).await;
    running.result::<u64>("order-1").await.unwrap();
    let directory = running.node.store().shards(ReadMode::Linearizable).await.unwrap().value;
    let shard = ShardId::of(&id("order-1"), directory.shard_count);
    let epoch = directory.shards.iter().find(|entry| entry.shard == shard).unwrap().epoch;

    let same_shard = |id: &WorkflowId| ShardId::of(id, directory.shard_count) == shard;
    let second = (0..).map(|number| format!("second-{number}")).find(|text| same_shard(&id(text))).unwrap();
    running.engine.acquire(shard, Epoch(epoch.0 - 1));
    running.start("order", &second, &order).await;
    let elsewhere = (0..).map(|number| format!("elsewhere-{number}")).find(|text| !same_shard(&id(text))).unwrap();
    running.start("order", &elsewhere, &order).await;
    running.result::<u64>(&elsewhere).await.unwrap();
    assert_eq!(running.history(&second).await.len(), 1, "it has written under an old epoch");

    running.engine.acquire(shard, epoch);
    assert_eq!(running.result::<u64>(&second).await.unwrap(), 1_010);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workflows_that_wait_are_let_go_of_and_taken_up_again() {
    let (folder, charges) = (tempfile::tempdir().unwrap(), Arc::default());
    let options = EngineOptions { residents_max: 2, replays_max: 1, ..EngineOptions::default() };
    let running = start_with(folder.path(), &charges, options).await;
    let names: Vec<String> = (0..20).map(|number| format!("order-{number}")).collect();
    for name in &names {
        running.start("order", name, &Order { items: vec![1], approved: true }).await;
    }
    for name in &names {
        running.until(name, &EventKind::ActivityCompleted, 1).await;
    }
    wait_until("most are let go of", async || {
        running.workflows.signal(&id("order-0"), "not asked for", &()).await.unwrap();
        running.engine.residents() <= 3
    })
    .await;
    for name in &names {
        running.workflows.signal(&id(name), "approve", &true).await.unwrap();
    }
    for name in &names {
        assert_eq!(running.result::<u64>(name).await.unwrap(), 1_010);
    }
    running.stop().await;
}
