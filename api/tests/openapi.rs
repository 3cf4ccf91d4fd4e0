//! The OpenAPI document: checked in as `docs/openapi.json`, complete, and free of slips.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use holdfast_api::http::openapi;
use serde_json::Value;

const UPDATE: &str = "UPDATE_OPENAPI=1 cargo test -p holdfast-api --test openapi";

fn document() -> Value {
    serde_json::from_slice(&openapi()).unwrap()
}

/// Each operation with its method and path.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
    });
    operations.collect()
}

#[test]
fn the_document_that_is_checked_in_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let made = String::from_utf8(openapi().to_vec()).unwrap();
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    let line = made.lines().zip(stored.lines()).position(|(made, stored)| made != stored);
    assert!(made == stored, "docs/openapi.json is old, from line {:?} on; to write it: {UPDATE}", line.map(|n| n + 1));
}

#[test]
fn every_operation_is_described() {
    let document = document();
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().filter_map(|tag| tag["name"].as_str()).collect();
    let mut ids = BTreeSet::new();
    let mut offences = Vec::new();
    for (name, operation) in operations(&document) {
        if !operation["summary"].is_string() {
            offences.push(format!("{name}: no doc comment on its handler"));
        }
        if !operation["tags"].as_array().is_some_and(|all| all.iter().all(|tag| tags.contains(tag.as_str().unwrap()))) {
            offences.push(format!("{name}: a tag that is not in document.rs: {}", operation["tags"]));
        }
        if !ids.insert(operation["operationId"].as_str().unwrap()) {
            offences
                .push(format!("{name}: another handler has the name {}; say operation_id", operation["operationId"]));
        }
        let parameters: Vec<&Value> = operation["parameters"].as_array().into_iter().flatten().collect();
        let has = |wanted: &str| parameters.iter().any(|p| p["name"] == wanted);
        for parameter in &parameters {
            let is_path = parameter["in"] == "path";
            if !is_path && parameter["description"].as_str().unwrap_or_default().is_empty() {
                offences.push(format!("{name}: {} has no description", parameter["name"]));
            }
        }
        let answers = ["101", "200"].map(|status| operation["responses"][status]["content"].is_object());
        if name.contains(" /v1/") && !answers.contains(&true) {
            offences.push(format!("{name}: no type for its answer"));
        }
        // A replacement is the same however often it is asked for; the calls of a batch have their guards with them.
        let is_repeatable = name.ends_with("/replace") || name.contains("/v1/batch/");
        if !name.starts_with("get ") && !has("idempotency-key") && !has("consistency") && !is_repeatable {
            offences.push(format!("{name}: takes neither Guard nor a read's parameters"));
        }
        if has("consistency") != has("min_index") {
            offences.push(format!("{name}: consistency and min_index go together"));
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

/// An error answer lists its codes, and each of them has that status.
#[test]
fn statuses_list_codes_that_have_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors");
    let mut offences = Vec::new();
    for (name, operation) in operations(&document()) {
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            for code in response["description"].as_str().unwrap().split(", ").map(|code| code.trim_matches('`')) {
                let page = fs::read_to_string(folder.join(format!("{code}.md"))).unwrap_or_default();
                if !page.contains(&format!("**Status** {status} ")) {
                    offences.push(format!("{name}: {code} has no page that says status {status}"));
                }
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

/// A schema that is named must be there.
#[test]
fn every_reference_leads_somewhere() {
    fn walk<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|field| walk(field, found));
            }
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    walk(&document, &mut found);
    let missing = |reference: &&str| document.pointer(reference.trim_start_matches('#')).is_none();
    let missing: Vec<&str> = found.into_iter().filter(missing).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
