//! Bodies that are compressed, answers that are, and what a node shows to people.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use holdfast_api::http::{HttpOptions, router};
use holdfast_client::{Problem, ReadMode};
use holdfast_machine::Reject;
use reqwest::Response;
use support::{Served, id, listen, serve};

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
