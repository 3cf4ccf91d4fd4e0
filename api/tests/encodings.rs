//! The forms of bodies and answers: compressed, binary, payloads as they are; and what a node shows to people.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write as _;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use flate2::Compression;
use flate2::write::GzEncoder;
use holdfast_api::http::{HttpOptions, router};
use holdfast_client::wire::{AppendBody, Encoding};
use holdfast_client::{Client, Problem, ReadMode, Write};
use holdfast_machine::{Committed, Payload, Reject};
use reqwest::Response;
use support::{Served, claim, id, keys, listen, serve, signal, started};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// A client that shows what is on the wire.
fn plain() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().no_gzip().build().unwrap()
}

async fn append(served: &Served, encoding: &str, body: Vec<u8>) -> Response {
    let url = format!("{}/v1/workflows/w/append", served.url);
    let request = plain().post(url).header("content-type", "application/json").header("content-encoding", encoding);
    request.body(body).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_is_taken_for_what_it_becomes() {
    let served = serve().await;
    let body = br#"{"expected_seq": 0, "events": [{"kind": "WorkflowStarted", "start": {"workflow_type": "t"}}]}"#;
    assert_eq!(append(&served, "gzip", gzip(body)).await.status(), 200);
    assert_eq!(served.client.history(&id("w"), 1, 10, ReadMode::Linearizable).await.unwrap().value.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_inflated_is_refused() {
    let served = serve().await;
    let whole = gzip(br#"{"expected_seq": 0, "events": []}"#);
    let mut damaged = whole.clone();
    damaged[15] ^= 0xff;
    let cut = whole[..whole.len() - 9].to_vec();
    for (encoding, body, code) in [
        ("gzip", b"{}".to_vec(), "invalid_argument"),
        ("gzip", damaged, "invalid_argument"),
        ("gzip", cut, "invalid_argument"),
        ("br", whole.clone(), "unsupported_media_type"),
        ("gzip, gzip", whole, "unsupported_media_type"),
    ] {
        let response = append(&served, encoding, body).await;
        assert_eq!(response.json::<Problem>().await.unwrap().code, code, "{encoding}");
    }
    assert_eq!(append(&served, "identity", b"{}".to_vec()).await.status(), 400, "as if nothing were said");
}

/// The limit is that of what comes out, and nothing beyond it is inflated.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_body_does_not_become_a_large_one() {
    let mut served = serve().await;
    let options = HttpOptions { body_bytes_max: 100_000, ..HttpOptions::default() };
    served.url = listen(router(served.store.clone(), options)).await;
    let bomb = gzip(&vec![b' '; 50_000_000]);
    assert!(bomb.len() < 100_000);
    let response = append(&served, "gzip", bomb).await;
    assert_eq!(response.status(), 413);
    let refused = response.json::<Problem>().await.unwrap().reject();
    assert!(matches!(refused, Some(Reject::LimitExceeded { limit: 100_000, actual: 100_001, .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_are_compressed_for_those_who_ask() {
    let served = serve().await;
    let http = plain();
    let get = |path: &str, accept: &'static str| {
        http.get(format!("{}{path}", served.url)).header("accept-encoding", accept).send()
    };
    let large = get("/openapi.json", "gzip").await.unwrap();
    assert_eq!(large.headers()["content-encoding"], "gzip");
    let plain = get("/openapi.json", "identity").await.unwrap();
    assert!(plain.headers().get("content-encoding").is_none());
    let small = get("/v1/shards?consistency=stale", "gzip").await.unwrap();
    assert!(small.headers().get("content-encoding").is_none(), "not worth it");
    let stream = get("/v1/events", "gzip").await.unwrap();
    assert!(stream.headers().get("content-encoding").is_none(), "a reader would wait for a full buffer");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_find_the_document_and_the_pages_of_errors() {
    let served = serve().await;
    let http = plain();
    let get = async |path: &str| http.get(format!("{}{path}", served.url)).send().await.unwrap();
    let document: serde_json::Value = get("/openapi.json").await.json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let page = get("/docs").await;
    assert!(page.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'self'"));
    let page = page.text().await.unwrap();
    assert!(!page.contains("://"), "nothing from elsewhere: {page}");
    for part in page.split('"').filter(|part| part.starts_with("/docs/")) {
        assert_eq!(get(part).await.status(), 200, "{part}");
    }
    assert_eq!(get("/docs/nothing.js").await.status(), 404);
    let refused: Problem = get("/v1/outbox/rows/w:1").await.json().await.unwrap();
    assert!(get(&refused.kind).await.text().await.unwrap().starts_with("# row_not_found\n"));
    assert!(get("/errors").await.text().await.unwrap().contains("| [`row_not_found`]"));
    assert_eq!(get("/errors/no_such_code").await.status(), 404);
}

const POSTCARD: &str = Encoding::Postcard.content_type();

/// The first row of a workflow with one row, claimed: its path and its token.
async fn claimed(served: &Served, workflow: &str) -> (String, String) {
    served.stage(workflow, [1]).await;
    let delivery = served.client.claim(claim(1, 0), Write::default()).await.unwrap().value.remove(0);
    (format!("{}/v1/outbox/rows/{}", served.url, delivery.key), delivery.token.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_speaks_postcard_unless_told_otherwise() {
    let served = serve().await;
    let client = Client::new([&served.url]).unwrap();
    let bytes = Payload::octets(vec![0, 255, 13, 10]);
    let mut commit = support::staged("w", [1]);
    commit.rows[0].input = bytes.clone();
    assert_eq!(client.commit(commit, Write::default()).await.unwrap().value.head, 3);
    let deliveries = client.claim(claim(1, 0), Write::default()).await.unwrap().value;
    assert_eq!((keys(&deliveries), &deliveries[0].input), (vec!["w:1".to_owned()], &bytes));
    let (key, token) = (&deliveries[0].key, deliveries[0].token);
    client.heartbeat(key, token, 1_000, Payload::text("half"), Write::default()).await.unwrap();
    assert_eq!(client.complete(key, Some(token), bytes.clone(), Write::default()).await.unwrap().value, Some(4));
    let history = client.history(&id("w"), 1, 10, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(history, served.client.history(&id("w"), 1, 10, ReadMode::Linearizable).await.unwrap().value);
    assert_eq!(history[3].payload, bytes);
    let refused = client.append(&id("w"), 0, vec![signal("late")], Write::default()).await;
    assert_eq!(support::reject(refused).code(), "sequence_conflict");
    for both in [&client, &served.client] {
        assert_eq!(both.workflow(&id("w"), ReadMode::Linearizable).await.unwrap().value.workflow.unwrap().head, 4);
        assert_eq!(both.cluster().await.unwrap().value.shard_count, support::SHARDS);
        assert_eq!(both.shards(ReadMode::Linearizable).await.unwrap().value.shards.len(), support::SHARDS as usize);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postcard_is_taken_and_given_by_its_name_and_version() {
    let served = serve().await;
    let http = plain();
    let url = format!("{}/v1/workflows/w/append", served.url);
    let body = Encoding::Postcard.write(&AppendBody { expected_seq: 0, events: vec![started()] }).unwrap();
    let send = |content_type: &'static str, accept: &'static str, body: &[u8]| {
        let request = http.post(&url).header("content-type", content_type).header("accept", accept);
        request.body(body.to_vec()).send()
    };
    let answer = send(POSTCARD, POSTCARD, &body).await.unwrap();
    assert_eq!(answer.headers()["content-type"], POSTCARD);
    let committed: Committed = Encoding::Postcard.read(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!((committed.head, committed.duplicate), (1, false));
    // In JSON for those who do not ask, or ask for something else.
    for accept in ["*/*", "text/html", "application/vnd.holdfast.postcard;version=2"] {
        let answer = send(POSTCARD, accept, &body).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/json", "{accept}");
        assert!(answer.json::<Committed>().await.unwrap().duplicate);
    }
    for (content_type, body, status) in [
        ("application/vnd.holdfast.postcard;version=2", body.as_slice(), 415),
        ("application/vnd.holdfast.postcard", &body, 415),
        (POSTCARD, &body[..body.len() - 1], 400),
        (POSTCARD, &[body.as_slice(), b"x"].concat(), 400),
        (POSTCARD, b"", 400),
        (POSTCARD, &[0xff; 64], 400),
    ] {
        let answer = send(content_type, POSTCARD, body).await.unwrap();
        assert_eq!(answer.headers()["content-type"], Problem::CONTENT_TYPE);
        assert_eq!(answer.status(), status);
    }
}

/// A node of another version: the client goes on in JSON.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_postcard_is_not_spoken_sends_json() {
    let served = serve().await;
    let refuse = async |request: Request, next: Next| {
        if request.headers().get("content-type").is_some_and(|value| value == POSTCARD) {
            let problem = Problem::new(415, "unsupported_media_type", "what is this?");
            let headers = [("content-type", Problem::CONTENT_TYPE)];
            return (StatusCode::UNSUPPORTED_MEDIA_TYPE, headers, serde_json::to_vec(&problem).unwrap())
                .into_response();
        }
        next.run(request).await
    };
    let older = router(served.store.clone(), HttpOptions::default()).layer(from_fn(refuse));
    let client = Client::new([listen(older).await]).unwrap();
    for seq in 0..2 {
        let events = vec![if seq == 0 { started() } else { signal("x") }];
        assert_eq!(client.append(&id("w"), seq, events, Write::default()).await.unwrap().value.head, seq + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_the_body_itself() {
    let served = serve().await;
    let http = plain();
    let (row, token) = claimed(&served, "w").await;
    let bytes = vec![0u8, 159, 146, 150];
    let complete = http.post(format!("{row}/complete?token={token}")).header("content-type", "image/png");
    assert_eq!(complete.body(bytes.clone()).send().await.unwrap().text().await.unwrap(), r#"{"seq":4}"#);
    let payload = http.get(format!("{}/v1/workflows/w/events/4/payload", served.url)).send().await.unwrap();
    assert_eq!(
        (&payload.headers()["content-type"], &payload.headers()["x-content-type-options"]),
        (&"image/png".parse().unwrap(), &"nosniff".parse().unwrap())
    );
    assert!(payload.headers().contains_key("holdfast-index"));
    assert_eq!(payload.bytes().await.unwrap(), bytes);
    let input = http.get(format!("{row}/input")).send().await.unwrap();
    assert_eq!(input.headers()["content-type"], "text/plain");
    assert_eq!(input.text().await.unwrap(), "input 1");
    let none = http.get(format!("{}/v1/workflows/w/events/2/payload", served.url)).send().await.unwrap();
    assert_eq!(none.status(), 204);
    for missing in ["/v1/workflows/w/events/9/payload", "/v1/workflows/w/events/0/payload", "/v1/outbox/rows/w:9/input"]
    {
        assert_eq!(http.get(format!("{}{missing}", served.url)).send().await.unwrap().status(), 404, "{missing}");
    }
    for odd in ["/v1/workflows/w/events/x/payload", "/v1/workflows/w/events/-1/payload", "/v1/outbox/rows/w/input"] {
        assert_eq!(http.get(format!("{}{odd}", served.url)).send().await.unwrap().status(), 400, "{odd}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_the_body_itself() {
    let served = serve().await;
    let http = plain();
    let (row, token) = claimed(&served, "w").await;
    let fail = |query: &str, content_type: &'static str, body: &'static str| {
        http.post(format!("{row}/fail{query}")).header("content-type", content_type).body(body)
    };
    let whole = format!("?token={token}&retryable=false");
    let json = format!(r#"{{"token": "{token}", "retryable": false}}"#);
    for (query, content_type, status) in [
        (format!("?token={token}"), "text/csv", 400),
        (format!("{whole}&delay=1"), "text/csv", 400),
        ("?token=never&retryable=false".to_owned(), "text/csv", 400),
        (whole.clone(), "text/plain", 415),
        (whole.clone(), "application/json", 400),
    ] {
        let answer = fail(&query, content_type, "{}").send().await.unwrap();
        assert_eq!(answer.status(), status, "{query} {content_type}");
    }
    let said = http.post(format!("{row}/fail{whole}")).header("content-type", "application/json").body(json);
    assert_eq!(said.send().await.unwrap().status(), 400, "said twice");
    let taken = fail(&whole, "text/plain", "no").header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(taken.status(), 200);
    let history = served.client.history(&id("w"), 4, 1, ReadMode::Linearizable).await.unwrap().value;
    assert_eq!(history[0].payload, Payload::text("no"));
}
