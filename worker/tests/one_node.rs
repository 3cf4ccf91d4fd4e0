//! Workers of one real node: what handlers get, return and are told.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use holdfast_client::{Client, ReadMode, Write};
use holdfast_machine::{Commit, DispatchKey, EventKind, NewEvent, NewRow, Payload, RetryPolicy, RowStatus, WorkflowId};
use holdfast_node::{Config, Node};
use holdfast_worker::{Activity, ActivityError, Cancelled, Worker};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

struct Cluster {
    node: Node,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            http_listen: ([127, 0, 0, 1], 0).into(),
            peer_listen: ([127, 0, 0, 1], 0).into(),
            data_dir: folder.path().join("data"),
            ..Config::default()
        };
        let node = Node::start(config).await.unwrap();
        assert!(within("the node is ready", node.ready()).await);
        let client = Client::new([format!("http://{}", node.http_addr())]).unwrap();
        Self { node, client, _folder: folder }
    }

    /// Opens a workflow with one row, and gives the row's key.
    async fn stage(&self, id: &str, activity: &str, input: Payload, retry: RetryPolicy) -> DispatchKey {
        let workflow = WorkflowId::new(id).unwrap();
        let row = NewRow { input, retry, ..NewRow::new(1, activity.parse().unwrap()) };
        let opening = Commit::new(workflow.clone(), 0).event(NewEvent::started("test".parse().unwrap()));
        self.client.commit(opening.activity(row), Write::default()).await.unwrap();
        DispatchKey { workflow, ordinal: 1 }
    }

    /// The outcome of a row.
    async fn outcome(&self, key: &DispatchKey) -> (EventKind, Payload) {
        let next = async {
            loop {
                let wait = Duration::from_secs(5);
                let page = self.client.next_events(&key.workflow, 4, 1, wait, ReadMode::Linearizable);
                if let Some(event) = page.await.unwrap().value.pop() {
                    return (event.kind, event.payload);
                }
            }
        };
        within("an outcome", next).await
    }

    async fn append(&self, key: &DispatchKey, after: u64, kind: EventKind) {
        self.client.append(&key.workflow, after, vec![NewEvent::of(kind)], Write::default()).await.unwrap();
    }
}

async fn within<T>(what: &str, next: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), next).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn soon() -> RetryPolicy {
    RetryPolicy { initial_ms: 10, ..RetryPolicy::default() }
}

#[derive(Deserialize)]
struct Charge {
    amount: u64,
}

#[derive(Serialize)]
struct Receipt {
    amount: u64,
    attempt: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_those_of_the_handlers() {
    let cluster = Cluster::start().await;
    let worker = Worker::new(cluster.client.clone())
        .activity("charge", |activity: Activity, input: Charge| async move {
            match activity.attempt() {
                1 => Err(ActivityError::retryable("the bank does not answer")),
                2 => panic!("a bug"),
                attempt => Ok(Receipt { amount: input.amount, attempt }),
            }
        })
        .activity("decline", |_, (): ()| async { Err::<(), _>(ActivityError::for_good("no").of_type("declined")) })
        .raw_activity("reverse", |activity: Activity| async move {
            Ok(Payload::octets(activity.input().data.iter().rev().copied().collect::<Vec<u8>>()))
        });
    let counters = worker.counters();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run_until(async move { drop(stopped.await) }));

    let input = Payload::json(&json!({"amount": 42})).unwrap();
    let charge = cluster.stage("charge", "charge", input, soon()).await;
    let decline = cluster.stage("decline", "decline", Payload::default(), soon()).await;
    let reverse = cluster.stage("reverse", "reverse", Payload::octets(vec![1, 2, 3]), soon()).await;
    let odd = cluster.stage("odd", "charge", Payload::text("a lot"), soon()).await;
    let receipt = Payload::json(&Receipt { amount: 42, attempt: 3 }).unwrap();
    assert_eq!(cluster.outcome(&charge).await, (EventKind::ActivityCompleted, receipt));
    assert_eq!(cluster.outcome(&decline).await, (EventKind::ActivityFailed, Payload::text("no")));
    assert_eq!(cluster.outcome(&reverse).await, (EventKind::ActivityCompleted, Payload::octets(vec![3, 2, 1])));
    assert_eq!(cluster.outcome(&odd).await.0, EventKind::ActivityFailed);

    stop.send(()).unwrap();
    let tally = within("the worker ends", running).await.unwrap().unwrap();
    assert_eq!((tally.started, tally.completed, tally.failed, tally.panicked), (6, 2, 4, 1));
    assert_eq!(tally, counters.tally());
    cluster.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_given_a_row_next_knows_how_far_it_was() {
    let cluster = Cluster::start().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = |name: &str| {
        let tell = tell.clone();
        let copy = move |activity: Activity, (): ()| {
            let tell = tell.clone();
            async move {
                let done = activity.last_details().await?;
                if !done.is_empty() {
                    return Ok(done);
                }
                // Ten pages at once: only the last one has to be known.
                (1..=10).for_each(|page| activity.heartbeat(&page));
                tell.send(()).unwrap();
                Err(ActivityError::retryable(format!("{:?}", activity.cancelled().await)))
            }
        };
        let worker = Worker::new(cluster.client.clone()).identity(name).drain_deadline(Duration::from_millis(10));
        worker.activity("copy", copy)
    };
    let key = cluster.stage("copy", "copy", Payload::default(), soon()).await;
    let first = worker("first").run_until(async { told.recv().await.unwrap() });
    let tally = within("the first worker ends", first).await.unwrap();
    assert_eq!((tally.started, tally.cancelled, tally.failed), (1, 1, 0));
    let row = cluster.client.row(&key, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!((row.row.status, row.row.attempt, row.row.deliveries), (RowStatus::Pending, 1, 0));
    assert_eq!(row.details, Payload::json(&10).unwrap());

    let second = tokio::spawn(worker("second").run_until(std::future::pending()));
    let (kind, result) = cluster.outcome(&key).await;
    assert_eq!(kind, EventKind::ActivityCompleted);
    assert!(String::from_utf8_lossy(&result.data).contains("10"), "{result:?}");
    second.abort();
    cluster.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_hears_of_pauses_and_of_the_end_of_its_workflow() {
    let cluster = Cluster::start().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::new(cluster.client.clone()).activity("rest", move |activity: Activity, (): ()| {
        let tell = tell.clone();
        async move {
            let cancelled = activity.cancelled();
            tell.send("begun".to_owned()).unwrap();
            while !activity.is_paused() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tell.send("paused".to_owned()).unwrap();
            activity.resumed().await;
            tell.send("resumed".to_owned()).unwrap();
            let why = cancelled.await;
            tell.send(format!("{why:?}")).unwrap();
            Ok(())
        }
    });
    let running = tokio::spawn(worker.run_until(std::future::pending()));
    let key = cluster.stage("rest", "rest", Payload::default(), soon()).await;
    let cancelled = format!("{:?}", Cancelled::Withdrawn(Some(RowStatus::Cancelled)));
    let story = [
        ("begun", Some(EventKind::WorkflowPaused)),
        ("paused", Some(EventKind::WorkflowResumed)),
        ("resumed", Some(EventKind::WorkflowCompleted)),
        (cancelled.as_str(), None),
    ];
    for (after, (word, then)) in (3..).zip(story) {
        assert_eq!(within(word, told.recv()).await.unwrap(), word);
        if let Some(kind) = then {
            cluster.append(&key, after, kind).await;
        }
    }
    running.abort();
    cluster.node.shutdown().await;
}
