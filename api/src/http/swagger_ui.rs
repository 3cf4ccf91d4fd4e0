//! A page to browse the OpenAPI document: Swagger UI, from the binary itself, so that nothing is fetched from elsewhere.

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;

use super::error::{ApiError, Refusal};
use super::extract::Segment;

/// Swagger UI sets styles from its script and has its icons inside of them.
const POLICY: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

const PAGE: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Holdfast</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"#;

/// In a file of its own, since the policy forbids scripts inside of pages.
const START: &str = r##"SwaggerUIBundle({ url: "/openapi.json", dom_id: "#ui", deepLinking: true });
"##;

/// This document as a page to browse and to try.
#[utoipa::path(
    get,
    path = "/docs",
    tag = "node",
    responses((status = 200, content_type = "text/html", body = String))
)]
pub(crate) async fn docs() -> impl IntoResponse {
    sent("text/html; charset=utf-8", PAGE.as_bytes())
}

/// The parts of that page.
#[utoipa::path(
    get,
    path = "/docs/{file}",
    tag = "node",
    params(("file" = String, Path)),
    responses(
        (status = 200, content(("text/css"), ("text/javascript"))),
        (status = 400, description = "invalid_argument"),
        (status = 404, description = "not_found"),
    )
)]
pub(crate) async fn docs_file(Segment(file): Segment<String>) -> Result<impl IntoResponse, ApiError> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    Ok(match file.as_str() {
        "start.js" => sent(SCRIPT, START.as_bytes()),
        "swagger-ui-bundle.js" => sent(SCRIPT, include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js"))),
        "swagger-ui.css" => {
            sent("text/css; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css")))
        }
        _ => return Err(ApiError::new(Refusal::NotFound, format!("there is no /docs/{file}"))),
    })
}

fn sent(content_type: &'static str, content: &'static [u8]) -> impl IntoResponse + use<> {
    let headers =
        [(CONTENT_TYPE, content_type), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, content)
}
