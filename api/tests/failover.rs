//! The client over several nodes: it goes on to the next one under the same idempotency key.
#![allow(clippy::unwrap_used)]

mod support;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::any;
use axum::{Json, Router};
use holdfast_api::http::{HttpOptions, router};
use holdfast_client::{Client, ClientOptions, Problem, ReadMode, Write};
use support::{claim, id, keys, listen, serve, staged, started};
use tokio::net::TcpListener;

fn client(nodes: &[&str], deadline: Duration) -> Client {
    let attempt_timeout = Duration::from_millis(500);
    let options = ClientOptions { deadline, attempt_timeout, ..ClientOptions::default() };
    Client::with_options(nodes, options).unwrap()
}

/// An address at which nothing listens.
async fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A node that answers every call with this problem, and counts the calls.
async fn refusing(status: StatusCode, code: &'static str) -> (String, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let answer = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { (status, Json(Problem::new(status.as_u16(), code, "for the test"))) }
    };
    (listen(Router::new().fallback(any(answer))).await, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_dead_or_cannot_serve_is_passed_over() {
    let served = serve().await;
    let (unready, _) = refusing(StatusCode::SERVICE_UNAVAILABLE, "no_quorum").await;
    let client = client(&[&dead().await, &unready, &served.url], Duration::from_secs(30));
    client.append(&id("w"), 0, vec![started()], Write::default()).await.unwrap();
    assert_eq!(client.history(&id("w"), 1, 10, ReadMode::Linearizable).await.unwrap().value.len(), 1);
}

/// The first node does what it is asked, but its answers are lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_asked_for_again_and_nothing_happens_twice() {
    let served = serve().await;
    let swallow = from_fn(|request: Request, next: Next| async move {
        next.run(request).await;
        pending::<Response>().await
    });
    let mute = listen(router(served.store.clone(), HttpOptions::default()).layer(swallow)).await;
    let wait = Duration::from_secs(30);
    let committed = client(&[&mute, &served.url], wait).commit(staged("w", [1, 2]), Write::default()).await.unwrap();
    assert!(!committed.value.duplicate, "the first reply, not a second try's");
    let taken = client(&[&mute, &served.url], wait).claim(claim(1, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&taken), ["w:1"]);
    let rest = served.client.claim(claim(10, 0), Write::default()).await.unwrap().value;
    assert_eq!(keys(&rest), ["w:2"], "the lost claim took no second row");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_with_what_is_known_when_its_time_is_up() {
    let short = Duration::from_millis(300);
    let append = async |nodes: &[&str]| {
        let client = client(nodes, short);
        client.append(&id("w"), 0, vec![started()], Write::default()).await.unwrap_err()
    };
    // Time may run out in the middle of an attempt, and then "unknown" is the truth: such a call says nothing here.
    let known = async |nodes: &[&str]| {
        for _ in 0..50 {
            let error = append(nodes).await;
            if error.code() != "unknown" {
                return error;
            }
        }
        panic!("each of 50 calls was cut off in the middle of an attempt");
    };
    let error = known(&[&dead().await]).await;
    assert_eq!((error.code(), error.is_retryable()), ("unreachable", true));
    let (unready, calls) = refusing(StatusCode::SERVICE_UNAVAILABLE, "no_quorum").await;
    assert_eq!(known(&[&unready]).await.code(), "no_quorum");
    assert!(calls.load(Ordering::Relaxed) > 1, "tried once only");
    let (busy, _) = refusing(StatusCode::TOO_MANY_REQUESTS, "overloaded").await;
    assert_eq!(known(&[&busy]).await.code(), "overloaded");
    let (unsure, _) = refusing(StatusCode::GATEWAY_TIMEOUT, "unknown").await;
    assert_eq!(append(&[&unsure, &dead().await]).await.code(), "unknown");
    let (full, calls) = refusing(StatusCode::INSUFFICIENT_STORAGE, "storage_full").await;
    let patient = client(&[&full], Duration::from_secs(30));
    let error = patient.append(&id("w"), 0, vec![started()], Write::default()).await.unwrap_err();
    assert_eq!((error.code(), calls.load(Ordering::Relaxed)), ("storage_full", 1));
}
