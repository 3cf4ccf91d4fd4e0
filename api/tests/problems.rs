//! What the router itself answers: problem documents for whatever makes no sense, health, metrics.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_api::Store;
use holdfast_api::StoreOptions;
use holdfast_api::http::{HttpOptions, router};
use holdfast_client::{Problem, ReadMode};
use holdfast_machine::BootId;
use metrics_exporter_prometheus::PrometheusBuilder;
use reqwest::{Method, Response};
use support::{Served, id, listen, node, serve};

const JSON: &str = "application/json";

async fn send(served: &Served, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = http.request(method, format!("{}{path}", served.url)).body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// Checks that an answer is this problem, whole and in the right form.
async fn assert_problem(shown: &str, response: Response, status: u16, code: &str) {
    assert_eq!(response.status().as_u16(), status, "{shown}");
    assert_eq!(response.headers()["content-type"], Problem::CONTENT_TYPE, "{shown}");
    let problem: Problem = response.json().await.unwrap();
    assert_eq!((problem.code.as_str(), problem.status), (code, status), "{shown}: {problem:?}");
    assert_eq!(problem.kind, format!("/errors/{code}"));
    assert!(!problem.detail.is_empty(), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_makes_no_sense_gets_a_problem() {
    let served = serve().await;
    let long = format!("/v1/workflows/{}", "x".repeat(256));
    for (path, status, code) in [
        ("/nowhere", 404, "not_found"),
        ("/v1/nowhere", 404, "not_found"),
        ("/v1/workflows/", 404, "not_found"),
        ("/v1/workflows/w/append", 405, "method_not_allowed"),
        (&long, 400, "invalid_argument"),
        ("/v1/workflows/%00", 400, "invalid_argument"),
        ("/v1/workflows/%ff", 400, "invalid_argument"),
        ("/v1/workflows/w?consistency=maybe", 400, "invalid_argument"),
        ("/v1/workflows/w?consistent=stale", 400, "invalid_argument"),
        ("/v1/workflows/w/history?limit=0", 400, "invalid_argument"),
        ("/v1/workflows/w/history?limit=1001", 413, "limit_exceeded"),
        ("/v1/workflows/w/history?limit=4294967296", 400, "invalid_argument"),
        ("/v1/outbox/rows/no-ordinal", 400, "invalid_argument"),
        ("/v1/outbox/rows/w:1", 404, "row_not_found"),
        ("/v1/outbox/stale", 400, "invalid_argument"),
        ("/v1/events?from=soon", 400, "invalid_argument"),
    ] {
        let response = send(&served, Method::GET, path, &[], "").await;
        assert_problem(path, response, status, code).await;
    }
    let patched = send(&served, Method::PATCH, "/v1/workflows/w", &[], "").await;
    assert_problem("PATCH", patched, 405, "method_not_allowed").await;
}

/// A number that nothing has yet is no lack of a quorum.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_come_is_named() {
    let served = support::serve_with(|options| options.timing.answer_ms = 100).await;
    let min_index = served.last() + 1_000;
    let path = format!("/v1/workflows/w?min_index={min_index}");
    let response = send(&served, Method::GET, &path, &[], "").await;
    assert_eq!(response.headers()["retry-after"], "1");
    let problem: Problem = response.json().await.unwrap();
    assert_eq!((problem.status, problem.code.as_str()), (503, "index_not_reached"));
    assert_eq!(problem.details["min_index"], min_index);
    assert_eq!(problem.details["applied"], served.last());
    let error = served.store.workflow(&id("w"), ReadMode::AtLeast(min_index)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_makes_no_sense_gets_a_problem() {
    let served = serve().await;
    let append = "/v1/workflows/w/append";
    for (path, body, status, code) in [
        (append, "", 400, "invalid_argument"),
        (append, "{", 400, "invalid_argument"),
        (append, "[]", 400, "invalid_argument"),
        // The members of the body, in their order.
        (append, r#" [0,[{"kind":"WorkflowStarted","start":{"workflow_type":"order"}}]]"#, 400, "invalid_argument"),
        (append, "\u{fffd}", 400, "invalid_argument"),
        (append, r#"{"expected_seq":0}"#, 400, "invalid_argument"),
        (append, r#"{"expected_seq":-1,"events":[]}"#, 400, "invalid_argument"),
        (append, r#"{"expected_seq":0,"events":[],"x":1}"#, 400, "invalid_argument"),
        (append, r#"{"expected_seq":0,"events":[]}"#, 400, "invalid_argument"),
        ("/v1/shards/x/transfer", "{}", 400, "invalid_argument"),
        ("/v1/shards/99/transfer", r#"{"to":"node-1","expected_epoch":1}"#, 404, "no_such_shard"),
        ("/v1/shards/0/transfer", r#"{"to":"nobody","expected_epoch":1}"#, 409, "node_state"),
    ] {
        let response = send(&served, Method::POST, path, &[("content-type", JSON)], body).await;
        assert_problem(&format!("{path} {body}"), response, status, code).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_make_no_sense_get_a_problem() {
    let served = serve().await;
    let append = "/v1/workflows/w/append";
    for (header, status, code) in [
        (("content-type", "text/plain"), 415, "unsupported_media_type"),
        (("accept", JSON), 415, "unsupported_media_type"),
        (("holdfast-fence", "x"), 400, "invalid_argument"),
        (("idempotency-key", ""), 400, "invalid_argument"),
    ] {
        let response = send(&served, Method::POST, append, &[header], "{}").await;
        assert_problem(header.0, response, status, code).await;
    }
    let resumed = send(&served, Method::GET, "/v1/events", &[("last-event-id", "soon")], "").await;
    assert_problem("last-event-id", resumed, 400, "invalid_argument").await;
}

/// The server closes a connection with an unread body on it; a client that was not told would send its next call there.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_will_be_closed_is_said_to_be() {
    let served = serve().await;
    let append = "/v1/workflows/w/append";
    for (path, header, body, is_closed) in [
        (append, ("content-type", "text/plain"), "{}", true),
        (append, ("idempotency-key", ""), "{}", true),
        ("/nowhere", ("content-type", JSON), "{}", true),
        ("/nowhere", ("content-type", JSON), "", false),
        (append, ("content-type", JSON), "{", false),
        ("/v1/outbox/rows/w:1/redrive", ("content-type", JSON), "{}", false),
    ] {
        let response = send(&served, Method::POST, path, &[header], body).await;
        assert!(response.status().is_client_error(), "{path} {body}");
        let connection = response.headers().get("connection").map(|value| value.to_str().unwrap());
        assert_eq!(connection, is_closed.then_some("close"), "{path} {header:?} {body}");
    }
}

/// Only a JSON body makes a browser ask before it sends a call to another site.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_is_taken_without_json() {
    let served = serve().await;
    let workflow = ["append", "commit", "settle", "rearm", "stage"].map(|call| format!("/v1/workflows/w/{call}"));
    let row = ["heartbeat", "complete", "fail", "retry", "failure-delivered", "redrive"]
        .map(|call| format!("/v1/outbox/rows/w:1/{call}"));
    let rest = ["outbox/claim", "outbox/reconcile", "shards/0/transfer", "shards/0/adopt"].map(|c| format!("/v1/{c}"));
    for path in workflow.iter().chain(&row).chain(&rest) {
        let response = send(&served, Method::POST, path, &[("content-type", "text/plain")], "{}").await;
        assert_problem(path, response, 415, "unsupported_media_type").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused() {
    let mut served = serve().await;
    let options = HttpOptions { body_bytes_max: 100, ..HttpOptions::default() };
    served.url = listen(router(served.store.clone(), options)).await;
    let body = format!(r#"{{"expected_seq":0,"events":[{}]}}"#, " ".repeat(200));
    let response = send(&served, Method::POST, "/v1/workflows/w/append", &[("content-type", JSON)], &body).await;
    assert_eq!(response.status(), 413);
    assert_eq!(response.json::<Problem>().await.unwrap().code, "limit_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_boot_of_the_node() {
    let mut served = serve().await;
    assert_eq!(send(&served, Method::GET, "/healthz", &[], "").await.status(), 200);
    assert_eq!(send(&served, Method::GET, "/readyz", &[], "").await.status(), 200);
    let next_boot = StoreOptions::new(node(), BootId::new("boot-2").unwrap());
    served.url = listen(router(Store::new(served.raft.clone(), next_boot), HttpOptions::default())).await;
    let starting = send(&served, Method::GET, "/readyz", &[], "").await;
    assert_eq!((starting.status().as_u16(), starting.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(starting.json::<Problem>().await.unwrap().code, "not_ready");
    assert_eq!(send(&served, Method::GET, "/healthz", &[], "").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_commands_by_outcome() {
    let mut served = serve().await;
    let metrics = Some(PrometheusBuilder::new().install_recorder().unwrap());
    served.url = listen(router(served.store.clone(), HttpOptions { metrics, ..HttpOptions::default() })).await;
    served.stage("w", [1, 2]).await;
    served.client.append(&id("w"), 0, vec![support::signal("x")], Default::default()).await.unwrap_err();
    let text = send(&served, Method::GET, "/metrics", &[], "").await.text().await.unwrap();
    for line in [
        r#"holdfast_commands_total{command="commit",outcome="ok"} 1"#,
        r#"holdfast_commands_total{command="commit",outcome="sequence_conflict"} 1"#,
        r#"holdfast_rows{status="pending"} 2"#,
        "holdfast_leads 1",
    ] {
        assert!(text.contains(line), "{line} is missing in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_and_its_shards_are_shown() {
    let served = serve().await;
    let view = served.client.cluster().await.unwrap().value;
    assert_eq!((view.node, view.leader, view.shard_count), (node(), Some(node()), support::SHARDS));
    assert_eq!(view.members.len(), 1);
    assert_eq!(view.members[0].connected, None);
    let hash = served.raft.view(|machine, _| (machine.applied(), format!("{:016x}", machine.state_hash())));
    assert_eq!((view.applied, view.state_hash), hash);
    let directory = served.client.shards(ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(directory.shards.len(), support::SHARDS as usize);
}
