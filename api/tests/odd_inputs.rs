//! Case 23 over raw HTTP, on every route that takes a number or an id: each call works or is a clear 4xx with a problem
//! document; none is a 500, and none ends the node.
#![allow(clippy::unwrap_used)]

mod support;

use holdfast_client::{Problem, ReadMode};
use reqwest::{Client, Method};
use support::{Served, id, serve};

/// Numbers as they stand in a URL or in JSON: ends of ranges, beyond them, and none at all.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "1000",
    "1001",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "1.5",
    "1e3",
    "\"1\"",
];

/// One segment of a path each: 255 and 256 bytes, emoji, colons, slashes, percent signs, what URLs do not like.
fn ids() -> Vec<String> {
    let fixed = [
        "w",
        "%F0%9F%8E%89",
        "a:b",
        "a%3Ab:",
        ":",
        "a%2Fb",
        "%2F",
        "a%252Fb",
        "%25",
        "%20",
        "%C3%A9",
        "%00",
        "%FF",
        "%",
        "a%ZZ",
        "...",
        "~",
        "+",
        "%5C",
        "%7F",
    ];
    let long = ["x".repeat(255), "x".repeat(256), "%F0%9F%8E%89".repeat(63), "%F0%9F%8E%89".repeat(64)];
    fixed.map(str::to_owned).into_iter().chain(long).collect()
}

struct Caller<'a> {
    served: &'a Served,
    http: Client,
    calls: usize,
}

impl Caller<'_> {
    /// Sends a call, and holds its answer to what an odd input deserves.
    async fn send(&mut self, method: Method, path: &str, body: Option<String>) -> u16 {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.served.url));
        if let Some(body) = &body {
            request = request.header("content-type", "application/json").body(body.clone());
        }
        let shown = format!("{method} {path} {}", body.unwrap_or_default());
        let response = request.send().await.unwrap_or_else(|error| panic!("{shown}: {error}"));
        let status = response.status().as_u16();
        if status >= 400 {
            assert!(status < 500, "{shown}: {status}, {}", response.text().await.unwrap());
            let problem: Problem = response.json().await.unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert_eq!(problem.status, status, "{shown}");
            assert!(!problem.code.is_empty() && !problem.detail.is_empty(), "{shown}");
        }
        self.calls += 1;
        status
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_odd_number_is_a_500() {
    let served = serve().await;
    let http = Client::builder().no_proxy().build().unwrap();
    let mut caller = Caller { served: &served, http, calls: 0 };
    let reads = [
        "/v1/workflows/w/history?limit=#",
        "/v1/workflows/w/history?from_seq=#",
        "/v1/workflows/w/runs?limit=#",
        "/v1/workflows/w/dead-letters?limit=#",
        "/v1/outbox/dead-letters?limit=#",
        "/v1/outbox/stale?older_than_ms=#",
        "/v1/outbox/stale?older_than_ms=0&limit=#",
        "/v1/outbox/unsettled?shard=#",
        "/v1/outbox/unsettled?limit=#",
        "/v1/outbox/routes?limit=#",
        "/v1/outbox/counts?limit=#",
        "/v1/heads?shard=#&open=true",
        "/v1/heads?limit=#",
        "/v1/outbox/rows/w:#",
    ];
    let row = |member: &str| format!(r##"{{"rows":[{{"ordinal":7,"activity_type":"x",{member}}}]}}"##);
    let lease = |limit: &str, ms: &str| {
        format!(r##"{{"limit":{limit},"holder":{{"lease":{{"claimant":"me","lease_ms":{ms}}}}}}}"##)
    };
    let writes = [
        ("/v1/workflows/w/append", r##"{"expected_seq":#,"events":[{"kind":"SignalReceived"}]}"##.to_owned()),
        (
            "/v1/workflows/w/append",
            r##"{"expected_seq":0,"events":[{"kind":"ActivityCompleted","ordinal":#}]}"##.to_owned(),
        ),
        ("/v1/workflows/w/commit", r##"{"expected_seq":0,"settle":[#]}"##.to_owned()),
        ("/v1/workflows/w/stage", r##"{"rows":[{"ordinal":#,"activity_type":"x"}]}"##.to_owned()),
        ("/v1/workflows/w/stage", row(r##""visible_after":#"##)),
        ("/v1/workflows/w/stage", row(r##""retry":{"initial_ms":#}"##)),
        ("/v1/workflows/w/stage", row(r##""retry":{"multiplier_percent":#}"##)),
        ("/v1/workflows/w/stage", row(r##""retry":{"maximum_ms":#}"##)),
        ("/v1/workflows/w/stage", row(r##""retry":{"deliveries_max":#}"##)),
        ("/v1/workflows/w/rearm", r##"{"rows":[{"ordinal":#,"activity_type":"x"}]}"##.to_owned()),
        ("/v1/outbox/claim", lease("#", "50")),
        ("/v1/outbox/claim", lease("1", "#")),
        ("/v1/outbox/rows/w:7/heartbeat", r##"{"token":"7-1","lease_ms":#}"##.to_owned()),
        ("/v1/outbox/rows/w:7/retry", r##"{"delay_ms":#}"##.to_owned()),
        ("/v1/outbox/rows/w:#/fail", r##"{"retryable":true}"##.to_owned()),
        ("/v1/outbox/rows/w:#/complete", "{}".to_owned()),
        ("/v1/outbox/rows/w:#/failure-delivered", "{}".to_owned()),
        ("/v1/outbox/rows/w:#/redrive", "{}".to_owned()),
        ("/v1/outbox/reconcile", r##"{"older_than_ms":#,"limit":1}"##.to_owned()),
        ("/v1/outbox/reconcile", r##"{"older_than_ms":0,"limit":#}"##.to_owned()),
        ("/v1/shards/#/transfer", r##"{"to":"nobody","expected_epoch":1}"##.to_owned()),
        ("/v1/shards/0/transfer", r##"{"to":"nobody","expected_epoch":#}"##.to_owned()),
    ];
    for number in NUMBERS {
        let in_url = number.replace('"', "%22");
        for path in reads {
            caller.send(Method::GET, &path.replace('#', &in_url), None).await;
        }
        for (path, body) in &writes {
            caller.send(Method::POST, &path.replace('#', &in_url), Some(body.replace('#', number))).await;
        }
    }
    assert_eq!(caller.calls, NUMBERS.len() * (reads.len() + writes.len()));
    let row = served.client.row(&"w:18446744073709551615".parse().unwrap(), ReadMode::Linearizable).await.unwrap();
    assert_eq!(row.value.key.ordinal, u64::MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_odd_id_is_a_500() {
    let served = serve().await;
    let http = Client::builder().no_proxy().build().unwrap();
    let mut caller = Caller { served: &served, http, calls: 0 };
    let start = r#"{"expected_seq":0,"events":[{"kind":"WorkflowStarted","start":{"workflow_type":"order"}}]}"#;
    let rows = r#"{"rows":[{"ordinal":0,"activity_type":"x"},{"ordinal":18446744073709551615,"activity_type":"x"}]}"#;
    for segment in ids() {
        let workflow = format!("/v1/workflows/{segment}");
        let mut statuses = vec![
            caller.send(Method::POST, &format!("{workflow}/append"), Some(start.to_owned())).await,
            caller.send(Method::POST, &format!("{workflow}/stage"), Some(rows.to_owned())).await,
        ];
        for rest in ["", "/history", "/runs", "/dead-letters"] {
            statuses.push(caller.send(Method::GET, &format!("{workflow}{rest}"), None).await);
        }
        statuses.push(caller.send(Method::GET, &format!("/v1/outbox/rows/{segment}:0"), None).await);
        statuses.push(caller.send(Method::POST, &format!("{workflow}/settle"), Some("{}".to_owned())).await);
        // An id is good on all routes or on none.
        assert!(statuses.iter().all(|status| *status == statuses[0]), "{segment}: {statuses:?}");
    }
    let page = holdfast_client::PageCall::first(1_000);
    let heads = served.client.heads(None, false, &page, ReadMode::Linearizable);
    let heads = heads.await.unwrap().value.heads;
    for good in ["w", "\u{1F389}", "a:b", "a/b", "/", "a%2Fb", "%", "x"] {
        let good = if good == "x" { "x".repeat(255) } else { good.to_owned() };
        assert!(heads.iter().any(|head| head.workflow == id(&good)), "{good} is not there");
    }
    assert!(heads.iter().all(|head| head.workflow.as_str().len() <= 255));
}
