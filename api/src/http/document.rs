//! The OpenAPI document: made from the handlers' attributes, and completed here with what holds for all of them,
//! so that an attribute says only what is its route's own.
//!
//! What a route need not say: the problems that any read or write can end in, the form of problems, the header
//! `Holdfast-Index`, the meaning and the bounds of the parameters of paging and freshness. In an attribute the
//! `description` of an error answer is the list of its codes, and nothing else.

use axum::Extension;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use holdfast_client::Problem;
use holdfast_client::wire::{
    Consistency, DeadLetter, Encoding, EventBody, HeadGrew, IDEMPOTENCY_HEADER, INDEX_HEADER, LaggedBody, ResyncBody,
    Topology, WorkerMessage,
};
use holdfast_machine::OCTETS;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::extract::PAGE;

/// What the document says besides the routes.
#[derive(OpenApi)]
#[openapi(
    info(title = "Holdfast", description = "An embedded, replicated storage node for workflow engines."),
    tags(
        (name = "workflows", description = "Histories and what is derived from them"),
        (name = "outbox", description = "Activities that wait, are claimed, or have ended"),
        (name = "batch", description = "Many calls in one request"),
        (name = "sessions", description = "Workers, and the rows that are given to them"),
        (name = "namespaces", description = "Tenants: ceilings and retention"),
        (name = "timers", description = "When a workflow has to be woken"),
        (name = "shards", description = "Who owns which slice of the workflows"),
        (name = "cluster", description = "Nodes and their agreement"),
        (name = "explain", description = "Why something does not move, and what to do"),
        (name = "events", description = "What happens in the cluster, as a stream"),
        (name = "node", description = "The process itself, and this document"),
    ),
    // What no body or answer names: parameters, problems, messages of the stream.
    components(schemas(
        Consistency, DeadLetter, EventBody, HeadGrew, LaggedBody, Problem, ResyncBody, Topology, WorkerMessage
    ))
)]
pub(crate) struct Frame;

/// The document as it is served.
#[derive(Clone)]
pub(crate) struct Text(Bytes);

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "node",
    responses((status = 200, content_type = "application/json", body = Object))
)]
pub(crate) async fn document(Extension(Text(text)): Extension<Text>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], text)
}

impl Text {
    /// The document that the routes made, completed.
    pub fn of(document: &utoipa::openapi::OpenApi) -> Self {
        // A document of plain values is always JSON.
        let mut document = serde_json::to_value(document).unwrap_or_default();
        if let Some(Value::Object(paths)) = document.get_mut("paths") {
            for (path, operations) in paths {
                for (_, operation) in operations.as_object_mut().into_iter().flatten() {
                    complete(path, operation);
                }
            }
        }
        tidy(&mut document);
        let mut text = serde_json::to_vec_pretty(&document).unwrap_or_default();
        text.push(b'\n');
        Self(text.into())
    }

    /// The text, pretty printed, with a line end.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Adds to an operation what all of its sort have in common.
fn complete(path: &str, operation: &mut Value) {
    if let Some(Value::Array(parameters)) = operation.get_mut("parameters") {
        parameters.iter_mut().for_each(complete_parameter);
    }
    let is_write =
        operation["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == IDEMPOTENCY_HEADER));
    let has_body = operation["requestBody"].is_object();
    if let Some(Value::Object(content)) = operation.pointer_mut("/requestBody/content") {
        content.insert(Encoding::Postcard.content_type().to_owned(), octets());
        if let Some(payload) = content.get_mut(OCTETS) {
            *payload = octets();
        }
    }
    let is_stored = path.starts_with("/v1/");
    let is_for_people = path.starts_with("/v1/explain/");
    let is_about_a_workflow = path.starts_with("/v1/workflows/{id}") || path.starts_with("/v1/outbox/rows/");
    let common: [(bool, u16, &str); 10] = [
        (is_stored, 400, "invalid_argument"),
        (has_body, 408, "body_unread"),
        (is_write, 409, "not_owner idempotency_conflict"),
        (is_stored && !is_for_people, 413, "limit_exceeded"),
        (has_body, 415, "unsupported_media_type"),
        (is_write, 429, "overloaded"),
        (is_stored, 500, "state_unreadable internal"),
        (is_stored && !is_for_people, 503, "no_quorum index_not_reached stopped"),
        (is_for_people, 503, "stopped"),
        (is_write && is_about_a_workflow, 503, "being_removed"),
    ];
    let common = common.into_iter().chain([(is_write, 504, "unknown"), (is_write, 507, "storage_full")]);
    let Some(Value::Object(responses)) = operation.get_mut("responses") else { return };
    for (_, status, codes) in common.filter(|(applies, ..)| *applies) {
        let response = responses.entry(status.to_string()).or_insert_with(|| json!({"description": ""}));
        let own = response["description"].as_str().unwrap_or_default();
        response["description"] = format!("{own} {codes}").trim().into();
    }
    for (status, response) in responses {
        match status.parse::<u16>() {
            Ok(status) if status >= 400 => complete_problem(status, response),
            Ok(101) => {}
            _ => complete_success(response, is_stored, is_for_people),
        }
    }
}

fn complete_success(response: &mut Value, is_stored: bool, is_json_only: bool) {
    if response["description"] == "" {
        response["description"] = "As asked".into();
    }
    if is_stored && response["content"]["application/json"].is_object() {
        if !is_json_only {
            response["content"][Encoding::Postcard.content_type()] = octets();
        }
        let description = "The log index that the answer reflects; pass it as `min_index` to read your own write";
        response["headers"][INDEX_HEADER] = json!({"description": description, "schema": number(0, u64::MAX)});
    }
}

fn complete_problem(status: u16, response: &mut Value) {
    let codes: Vec<String> =
        response["description"].as_str().unwrap_or_default().split(' ').map(|code| format!("`{code}`")).collect();
    let codes = codes.join(", ");
    response["description"] = codes.into();
    response["content"] = json!({Problem::CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}});
    if matches!(status, 429 | 503) {
        let header = json!({"description": "When to come back, in seconds", "schema": number(0, u64::MAX)});
        response["headers"]["retry-after"] = header;
    }
}

fn complete_parameter(parameter: &mut Value) {
    if parameter["in"] != "query" {
        return;
    }
    let (description, schema) = match parameter["name"].as_str().unwrap_or_default() {
        "consistency" => {
            ("How fresh the answer has to be; `linearizable` if nothing is said. Not together with `min_index`", None)
        }
        "min_index" => ("Of this log index or later; waits for it", None),
        "limit" => {
            let mut schema = number(1, 1_000);
            schema["default"] = PAGE.into();
            ("Most items in the page", Some(schema))
        }
        "cursor" => ("Where to go on: `next_cursor` of the page before, with the same other parameters", None),
        _ => return,
    };
    if let Value::Object(fields) = parameter {
        fields.entry("description").or_insert_with(|| description.into());
        if let Some(schema) = schema {
            fields.insert("schema".to_owned(), schema);
        }
    }
}

/// Bytes; what is in them, the content type says.
fn octets() -> Value {
    json!({"schema": {"type": "string", "format": "binary"}})
}

fn number(least: u64, most: u64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most})
}

/// Puts right, everywhere, what the attributes cannot say: numbers have ends, a parameter that is left out is not
/// null, and links to Rust items lead nowhere in this document.
fn tidy(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Object(fields) => {
            tidy_fields(fields);
            fields.values_mut().for_each(tidy);
        }
        _ => {}
    }
}

fn tidy_fields(fields: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`");
    }
    let most = match fields.get("format").and_then(Value::as_str) {
        // The spelling that utoipa has for these two is nobody else's.
        Some("u-int64") => Some(("uint64", u64::MAX)),
        Some("u-int32") => Some(("uint32", u32::MAX.into())),
        _ => None,
    };
    if let Some((format, most)) = most {
        fields.insert("format".to_owned(), format.into());
        fields.entry("maximum").or_insert_with(|| most.into());
    }
    if fields.contains_key("in")
        && let Some(schema) = fields.get_mut("schema")
    {
        not_null(schema);
    }
}

fn not_null(schema: &mut Value) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [only] = choices.as_slice() {
            *schema = only.clone();
        }
    }
}
