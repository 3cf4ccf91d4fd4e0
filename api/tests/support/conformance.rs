//! Holds every answer of the nodes under test against the OpenAPI document: its status, its content type, its codes
//! and the shape of its body. An answer that is not in the document becomes a 500 that says so, and the test fails.

use std::io::Read as _;
use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use holdfast_api::http::openapi;
use serde_json::{Value, json};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_slice(&openapi()).unwrap());

/// The same router, whose answers are checked.
pub fn conforming(router: Router) -> Router {
    router.layer(from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    let method = request.method().as_str().to_lowercase();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    let Some(operation) = path.as_ref().and_then(|path| DOCUMENT["paths"].get(path)?.get(&method)) else {
        return response;
    };
    // What is said over a socket, others look at.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return response;
    }
    let (parts, body) = response.into_parts();
    let is_json = content_type(&parts.headers).ends_with("json");
    // A stream has no end to wait for.
    let (body, bytes) = match is_json {
        true => {
            let bytes = to_bytes(body, usize::MAX).await.unwrap();
            (Body::from(bytes.clone()), Some(inflated(&parts.headers, bytes)))
        }
        false => (body, None),
    };
    match offence(operation, parts.status.as_u16(), content_type(&parts.headers), bytes) {
        None => Response::from_parts(parts, body),
        Some(offence) => {
            let text = format!("not in the OpenAPI document: {method} {}: {offence}", path.unwrap_or_default());
            eprintln!("{text}");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

fn inflated(headers: &HeaderMap, body: Bytes) -> Bytes {
    if !headers.contains_key("content-encoding") {
        return body;
    }
    let mut inflated = Vec::new();
    GzDecoder::new(&*body).read_to_end(&mut inflated).unwrap();
    inflated.into()
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

fn offence(operation: &Value, status: u16, content_type: &str, body: Option<Bytes>) -> Option<String> {
    let Some(response) = operation["responses"].get(status.to_string()) else {
        return Some(format!("status {status}: {}", String::from_utf8_lossy(&body.unwrap_or_default())));
    };
    let content = response["content"].as_object().into_iter().flatten();
    let Some((_, described)) =
        content.into_iter().find(|(name, _)| name.split(';').next() == Some(content_type) || *name == "*/*")
    else {
        let nothing = content_type.is_empty() && response.get("content").is_none();
        return (!nothing).then(|| format!("status {status} with the content type {content_type:?}"));
    };
    let body: Value = serde_json::from_slice(&body?).unwrap();
    if let Some(code) = body["code"].as_str().filter(|_| status >= 400) {
        let listed = response["description"].as_str().unwrap_or_default();
        if !listed.contains(&format!("`{code}`")) {
            return Some(format!("status {status} with the code {code}, not {listed}"));
        }
    }
    let schema = json!({"components": DOCUMENT["components"], "allOf": [described["schema"]]});
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&body).map(|error| format!("{error} at {}", error.instance_path)).collect();
    (!errors.is_empty()).then(|| format!("status {status}: {} in {body}", errors.join("; ")))
}
