//! A refusal may come before the body was read: the path, a header or the content type is wrong. What is left of the
//! body then stands before the next request, and the server closes the connection rather than read it. This says so,
//! lest the client sends its next call into a connection that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use futures::stream::poll_fn;

/// Adds `Connection: close` to an answer that left some of the request's body unread.
pub(crate) async fn tell(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_read = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_read);
    let end = poll_fn(move |_| {
        noted.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    });
    let request = request.map(|body| Body::from_stream(body.into_data_stream().chain(end)));
    let mut response = next.run(request).await;
    if !is_read.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
