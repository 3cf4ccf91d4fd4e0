//! What is promised of HTTP itself, to whoever speaks it without our client: forms of answers and of refusals.
//! These checks send their own requests to the first URL.

use anyhow::{Context, Result, bail, ensure};
use reqwest::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::checks::checks;
use crate::trial::{Skip, Trial, same};

checks! {
    "http":
    successes = "a success is a JSON object and states the index that it reflects",
    problems = "a refusal is a problem document with a stable code, a sentence and typed details",
    long_ids = "an id of 256 bytes, an empty one and one with control characters are refused; 255 bytes are taken",
    escaped_ids = "an id with a slash and a percent sign is one segment of a path when it is escaped",
    unknown_members = "unknown members and parameters are refused, so that a misspelt one is noticed",
    bodies = "a body that is not JSON, or not declared as JSON, is refused",
    routes = "a route that is not there, and a method that a route does not take, are refused",
    freshness = "a read is fresh in one way: consistency and min_index exclude each other",
    too_early = "a read of an index that does not come in time says so, and when to come back",
    headers = "a fence or an idempotency key that makes no sense is refused",
    numbers = "numbers beyond their range are refused",
    node_claims = "nobody claims over HTTP as a node's own engine",
    backups = "a backup is a file of its own kind that says its length and an index with every write before it",
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

/// One request. `body` is sent as it is, declared as JSON unless `headers` say otherwise.
async fn send(
    trial: &Trial,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> Result<Answer> {
    let Some(url) = &trial.url else { return Err(Skip("the store is not spoken to by HTTP").into()) };
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut request = client.request(method, format!("{}{path}", url.trim_end_matches('/')));
    if let Some(body) = body {
        request = request.body(body);
        if headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("content-type")) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).with_context(|| format!("status {status} with a body of {text:?}"))?;
    Ok(Answer { status, headers, body })
}

async fn get(trial: &Trial, path: &str) -> Result<Answer> {
    send(trial, Method::GET, path, &[], None).await
}

async fn post(trial: &Trial, path: &str, body: Value) -> Result<Answer> {
    send(trial, Method::POST, path, &[], Some(body.to_string())).await
}

/// Fails unless the answer is a problem document of this kind.
fn is_problem(what: &str, answer: &Answer, status: u16, code: &str) -> Result<()> {
    let Answer { status: found, headers, body } = answer;
    same(&format!("{what}: status and code"), (found.as_u16(), &body["code"]), (status, &json!(code)))?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ensure!(content_type.starts_with("application/problem+json"), "{what}: a problem sent as {content_type:?}");
    same(&format!("{what}: status in the body"), &body["status"], &json!(status))?;
    for member in ["type", "title", "detail"] {
        ensure!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{what}: no {member} in {body}");
    }
    ensure!(body["details"].is_object(), "{what}: no details in {body}");
    Ok(())
}

/// A path of a workflow of this check's own.
fn path(trial: &Trial, text: &str) -> Result<String> {
    Ok(format!("/v1/workflows/{}", trial.id(text)?))
}

fn opening() -> Value {
    let start = json!({"workflow_type": "conformance", "namespace": "conformance"});
    json!({"expected_seq": 0, "events": [{"kind": "WorkflowStarted", "start": start}]})
}

async fn successes(trial: &Trial) -> Result<()> {
    let path = path(trial, "success")?;
    let opened = post(trial, &format!("{path}/commit"), opening()).await?;
    let mut last = 0;
    for answer in [
        opened,
        get(trial, &path).await?,
        get(trial, &format!("{path}/history")).await?,
        get(trial, &format!("{path}/runs?limit=5")).await?,
        get(trial, "/v1/outbox/stale?older_than_ms=0").await?,
        get(trial, "/v1/shards").await?,
    ] {
        same("the status", answer.status, StatusCode::OK)?;
        ensure!(answer.body.is_object(), "no object: {}", answer.body);
        let index = answer.headers.get("holdfast-index").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let Some(index) = index else { bail!("no index in {:?}", answer.headers) };
        ensure!(index >= last, "index {index} after {last}");
        last = index;
    }
    Ok(())
}

async fn problems(trial: &Trial) -> Result<()> {
    let path = path(trial, "problem")?;
    post(trial, &format!("{path}/commit"), opening()).await?;
    let event = json!({"expected_seq": 7, "events": [{"kind": "SignalReceived"}]});
    let conflict = post(trial, &format!("{path}/append"), event).await?;
    is_problem("an append at another place", &conflict, 409, "sequence_conflict")?;
    let details = &conflict.body["details"];
    same("expected and found", (&details["expected"], &details["found"]), (&json!(7), &json!(1)))?;
    let missing = get(trial, &format!("/v1/outbox/rows/{}:9", trial.name("problem"))).await?;
    is_problem("a row that is not there", &missing, 404, "row_not_found")
}

async fn long_ids(trial: &Trial) -> Result<()> {
    let tag = trial.name("");
    let longest = format!("{tag}{}", "x".repeat(255 - tag.len()));
    trial.uses(&longest.parse()?);
    let taken = post(trial, &format!("/v1/workflows/{longest}/commit"), opening()).await?;
    same("255 bytes", taken.status, StatusCode::OK)?;
    for id in [format!("{longest}x"), "🎉".repeat(64), "a%00b".to_owned(), "a%0Ab".to_owned()] {
        let answer = post(trial, &format!("/v1/workflows/{id}/commit"), opening()).await?;
        is_problem("a commit", &answer, 400, "invalid_argument")?;
        is_problem("a read", &get(trial, &format!("/v1/workflows/{id}")).await?, 400, "invalid_argument")?;
        is_problem("a row", &get(trial, &format!("/v1/outbox/rows/{id}:1")).await?, 400, "invalid_argument")?;
    }
    let queue = json!({"limit": 1, "scope": {"task_queue": "q".repeat(256)}, "holder": {"lease": {"claimant": "c", "lease_ms": 1}}});
    is_problem("a long queue", &post(trial, "/v1/outbox/claim", queue).await?, 400, "invalid_argument")?;
    for key in ["no-colon", "a:", "a:-1", "a:01", "a:18446744073709551616"] {
        is_problem(key, &get(trial, &format!("/v1/outbox/rows/{key}")).await?, 400, "invalid_argument")?;
    }
    Ok(())
}

async fn escaped_ids(trial: &Trial) -> Result<()> {
    let tag = trial.name("");
    let (id, escaped) = (format!("a/b%2F{tag}"), format!("a%2Fb%252F{tag}"));
    trial.uses(&id.parse()?);
    let committed = post(trial, &format!("/v1/workflows/{escaped}/commit"), opening()).await?;
    same("the commit", committed.status, StatusCode::OK)?;
    same("its id", &get(trial, &format!("/v1/workflows/{escaped}")).await?.body["id"], &json!(id))
}

async fn unknown_members(trial: &Trial) -> Result<()> {
    let path = path(trial, "unknown")?;
    let mut body = opening();
    body["expectedSeq"] = json!(1);
    let answer = post(trial, &format!("{path}/commit"), body).await?;
    is_problem("a misspelt member", &answer, 400, "invalid_argument")?;
    let mut body = opening();
    body["events"][0]["seq"] = json!(1);
    let answer = post(trial, &format!("{path}/commit"), body).await?;
    is_problem("a member of an event", &answer, 400, "invalid_argument")?;
    let answer = get(trial, &format!("{path}/history?form_seq=2")).await?;
    is_problem("a misspelt parameter", &answer, 400, "invalid_argument")?;
    same("the workflow", &get(trial, &path).await?.body["workflow"], &Value::Null)
}

async fn bodies(trial: &Trial) -> Result<()> {
    let path = format!("{}/commit", path(trial, "bodies")?);
    for (what, text) in [("broken", "{"), ("empty", ""), ("a list", "[]"), ("null", "null"), ("no UTF-8", "\u{fffd}")] {
        let answer = send(trial, Method::POST, &path, &[], Some(text.to_owned())).await?;
        is_problem(what, &answer, 400, "invalid_argument")?;
    }
    let plain = [("content-type", "text/plain")];
    let answer = send(trial, Method::POST, &path, &plain, Some(opening().to_string())).await?;
    is_problem("declared as text", &answer, 415, "unsupported_media_type")?;
    let charset = [("content-type", "Application/JSON; charset=utf-8")];
    let answer = send(trial, Method::POST, &path, &charset, Some(opening().to_string())).await?;
    same("declared with a charset", answer.status, StatusCode::OK)
}

async fn routes(trial: &Trial) -> Result<()> {
    is_problem("no route", &get(trial, "/v1/nothing-of-this-name").await?, 404, "not_found")?;
    let answer = send(trial, Method::DELETE, "/v1/shards", &[], None).await?;
    is_problem("another method", &answer, 405, "method_not_allowed")?;
    let allowed = answer.headers.get(ALLOW).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ensure!(allowed.contains("GET"), "the methods that it takes: {allowed:?}");
    Ok(())
}

async fn freshness(trial: &Trial) -> Result<()> {
    let path = path(trial, "fresh")?;
    for good in ["consistency=stale", "consistency=linearizable", "min_index=1"] {
        same(good, get(trial, &format!("{path}?{good}")).await?.status, StatusCode::OK)?;
    }
    for bad in ["consistency=stale&min_index=1", "consistency=eventual", "min_index=-1", "min_index=x"] {
        is_problem(bad, &get(trial, &format!("{path}?{bad}")).await?, 400, "invalid_argument")?;
    }
    Ok(())
}

async fn too_early(trial: &Trial) -> Result<()> {
    let path = path(trial, "early")?;
    let answer = get(trial, &format!("{path}?min_index={}", u64::MAX)).await?;
    is_problem("an index that never comes", &answer, 503, "index_not_reached")?;
    ensure!(answer.headers.contains_key(RETRY_AFTER), "no Retry-After in {:?}", answer.headers);
    Ok(())
}

async fn headers(trial: &Trial) -> Result<()> {
    let path = format!("{}/commit", path(trial, "headers")?);
    let long = "k".repeat(256);
    for (name, value) in [
        ("idempotency-key", ""),
        ("idempotency-key", long.as_str()),
        ("holdfast-fence", "node-a"),
        ("holdfast-fence", "node-a/x"),
        ("holdfast-fence", "/1"),
    ] {
        let answer = send(trial, Method::POST, &path, &[(name, value)], Some(opening().to_string())).await?;
        is_problem(&format!("{name}: {value:?}"), &answer, 400, "invalid_argument")?;
    }
    Ok(())
}

async fn numbers(trial: &Trial) -> Result<()> {
    let path = path(trial, "numbers")?;
    for limit in ["-1", "1.5", "4294967296", "1e3", "x", ""] {
        let answer = get(trial, &format!("{path}/history?limit={limit}")).await?;
        is_problem(&format!("a limit of {limit:?}"), &answer, 400, "invalid_argument")?;
    }
    let mut body = opening();
    for seq in [json!(-1), json!(1.5), json!("0"), json!(null), serde_json::from_str("18446744073709551616")?] {
        body["expected_seq"] = seq.clone();
        let answer = post(trial, &format!("{path}/commit"), body.clone()).await?;
        is_problem(&format!("a sequence of {seq}"), &answer, 400, "invalid_argument")?;
    }
    Ok(())
}

async fn node_claims(trial: &Trial) -> Result<()> {
    let scope = json!({"namespace": "conformance", "task_queue": trial.name("queue")});
    let claim = json!({"limit": 1, "scope": scope, "holder": "node"});
    is_problem("a node's claim", &post(trial, "/v1/outbox/claim", claim).await?, 400, "invalid_argument")
}

async fn backups(trial: &Trial) -> Result<()> {
    let opened = post(trial, &format!("{}/commit", path(trial, "backup")?), opening()).await?;
    let index = |headers: &HeaderMap| -> Result<u64> { Ok(headers["holdfast-index"].to_str()?.parse()?) };
    let written = index(&opened.headers)?;
    let Some(url) = &trial.url else { return Err(Skip("the store is not spoken to by HTTP").into()) };
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{}/v1/cluster/backup", url.trim_end_matches('/'));
    let response = client.get(&url).header("accept-encoding", "gzip").send().await?;
    same("status", response.status(), StatusCode::OK)?;
    let headers = response.headers().clone();
    same("content type", headers[CONTENT_TYPE].to_str()?, "application/vnd.holdfast.backup")?;
    let taken = index(&headers)?;
    ensure!(taken >= written, "a backup at index {taken} after a write at {written}");
    let length: usize = headers[CONTENT_LENGTH].to_str()?.parse()?;
    same("length", response.bytes().await?.len(), length)?;
    let answer = get(trial, "/v1/cluster/backup?consistency=stale&min_index=1").await?;
    is_problem("two freshnesses", &answer, 400, "invalid_argument")
}
