//! Every implementation of the interface keeps every promise.

use std::sync::Arc;

use holdfast_client::{Client, ClientOptions, Encoding, ReadMode};
use holdfast_conformance::{Backend, Options, run};
use holdfast_machine::{WorkflowFilter, WorkflowStatus};
use holdfast_tests::embedded::Embedded;

async fn keeps_every_promise(store: Arc<dyn Backend>, url: Option<String>) {
    let options = Options { disturbing: true, url, ..Options::default() };
    // Told as they come: a suite that hangs shows how far it came.
    let report = run(store, &options, |finding| println!("{finding}")).await;
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}\n{}", report.summary(), failures.join("\n"));
    println!("{}", report.summary());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_node() {
    let nodes = Embedded::start(1).await.unwrap();
    keeps_every_promise(Arc::new(nodes.node(0).store()), None).await;
    nodes.stop().await;
}

/// Checks do not get in each other's way, find nothing that others left, and leave nothing open.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_several_suites_use_at_once_and_again() {
    let nodes = Embedded::start(1).await.unwrap();
    let options = Options::default();
    let suite = || async {
        let report = run(Arc::new(nodes.node(0).store()), &options, |_| {}).await;
        let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{}\n{}", report.summary(), failures.join("\n"));
    };
    tokio::join!(suite(), suite());
    suite().await;
    for namespace in ["conformance", "conformance-other"] {
        let statuses = vec![WorkflowStatus::Running, WorkflowStatus::Paused];
        let open = WorkflowFilter { namespace: namespace.parse().unwrap(), statuses, ..WorkflowFilter::default() };
        let left = nodes.node(0).store().count_workflows(&open, ReadMode::Linearizable).await.unwrap().value;
        assert_eq!(left, 0, "workflows that are open in {namespace}");
    }
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_follower_of_three() {
    let nodes = Embedded::start(3).await.unwrap();
    keeps_every_promise(Arc::new(nodes.follower().unwrap().store()), None).await;
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_one_node() {
    let nodes = Embedded::start(1).await.unwrap();
    let url = nodes.urls().remove(0);
    keeps_every_promise(Arc::new(Client::new([&url]).unwrap()), Some(url)).await;
    nodes.stop().await;
}

/// The others speak postcard, which is the client's default.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_speaks_json() {
    let nodes = Embedded::start(1).await.unwrap();
    let options = ClientOptions { encoding: Encoding::Json, ..ClientOptions::default() };
    let client = Client::with_options(nodes.urls(), options).unwrap();
    keeps_every_promise(Arc::new(client), None).await;
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_follower_of_three() {
    let nodes = Embedded::start(3).await.unwrap();
    let url = format!("http://{}", nodes.follower().unwrap().http_addr());
    keeps_every_promise(Arc::new(Client::new([&url]).unwrap()), Some(url)).await;
    nodes.stop().await;
}
