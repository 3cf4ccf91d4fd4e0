//! One call over all its attempts.
//!
//! A call goes to the node that answered last. If that one cannot be reached, says that it cannot serve
//! now, or does not answer in time, the next one is asked, with the same body and the same idempotency
//! key. After each round over all nodes there is a pause that grows. A refusal is final.

use std::time::Duration;

use holdfast_machine::IdempotencyKey;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::client::{Client, Shared};
use crate::error::ClientError;
use crate::problem::Problem;
use crate::wire::{Answer, Encoding, FENCE_HEADER, IDEMPOTENCY_HEADER, INDEX_HEADER, Write};

/// The first pause between two rounds over the nodes.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest one.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// One call, ready to be sent to any node.
pub(crate) struct Call<'a> {
    method: Method,
    /// Path and query, percent-encoded.
    path: String,
    headers: HeaderMap,
    body: Option<&'a dyn Body>,
    is_write: bool,
    /// How long the node itself is asked to wait.
    wait: Duration,
}

/// What a body is made of, until it is known in which form.
trait Body: Sync {
    fn write(&self, encoding: Encoding) -> Result<Vec<u8>, String>;
}

impl<T: Serialize + Sync> Body for T {
    fn write(&self, encoding: Encoding) -> Result<Vec<u8>, String> {
        encoding.write(self)
    }
}

impl<'a> Call<'a> {
    /// A read of this path.
    pub fn get(path: String) -> Self {
        let (headers, wait) = (HeaderMap::new(), Duration::ZERO);
        Self { method: Method::GET, path, headers, body: None, is_write: false, wait }
    }

    /// A write with this body.
    pub fn post<T: Serialize + Sync>(path: String, body: &'a T, write: &Write) -> Result<Self, ClientError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &write.idempotency_key {
            headers.insert(HeaderName::from_static(IDEMPOTENCY_HEADER), header(key.as_str())?);
        }
        if let Some(fence) = &write.fence {
            let text = format!("{}/{}", fence.owner, fence.epoch);
            headers.insert(HeaderName::from_static(FENCE_HEADER), header(&text)?);
        }
        let wait = Duration::ZERO;
        Ok(Self { method: Method::POST, path, headers, body: Some(body), is_write: true, wait })
    }

    /// A write that sets what stands at this path.
    pub fn put<T: Serialize + Sync>(path: String, body: &'a T, write: &Write) -> Result<Self, ClientError> {
        Ok(Self { method: Method::PUT, ..Self::post(path, body, write)? })
    }

    /// A write that removes what stands at this path.
    pub fn delete(path: String, write: &Write) -> Result<Self, ClientError> {
        Ok(Self { method: Method::DELETE, body: None, ..Self::post(path, &(), write)? })
    }

    /// A read that says with a body what is asked for.
    pub fn ask<T: Serialize + Sync>(path: String, body: &'a T) -> Result<Self, ClientError> {
        Ok(Self { is_write: false, ..Self::post(path, body, &Write::default())? })
    }

    /// The same call, which the node may take this long to answer.
    pub fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }
}

/// A key that nobody has used.
pub(crate) fn fresh_key() -> Option<IdempotencyKey> {
    IdempotencyKey::new(Uuid::now_v7().to_string()).ok()
}

fn header(text: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::from_bytes(text.as_bytes())
        .map_err(|_| ClientError::Invalid(format!("{text:?} cannot be sent in a header")))
}

/// Why an attempt did not bring the answer.
pub(crate) struct Failure {
    error: ClientError,
    /// True if another node, or the same one later, may do better.
    pub again: bool,
    /// True if the call may have taken place all the same.
    pub may_have_happened: bool,
    /// What the node asked us to wait.
    retry_after: Option<Duration>,
}

impl Failure {
    /// That a node answered with this error.
    pub fn of_answer(status: u16, error: ClientError) -> Self {
        match status {
            // Another node may have what this one lacks.
            429 | 503 => Self::again(error, false),
            502 | 504 => Self::again(error, true),
            _ => Self::last(error),
        }
    }

    /// What a call ends with if this was its last attempt; `unknown` if it may have taken place by then.
    pub fn into_end(self, unknown: bool) -> ClientError {
        // A rejection is the log's answer to the call, however often it was sent. What else a node says is about this
        // attempt alone.
        let is_answer = !self.again && self.error.reject().is_some();
        end(self.error, unknown && !is_answer)
    }

    fn last(error: ClientError) -> Self {
        Self { error, again: false, may_have_happened: false, retry_after: None }
    }

    fn again(error: ClientError, may_have_happened: bool) -> Self {
        Self { error, again: true, may_have_happened, retry_after: None }
    }
}

impl Client {
    /// Sends the call until a node answers it or the time is up.
    pub(crate) async fn send<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<Answer<T>, ClientError> {
        self.send_noting(call, &mut false).await
    }

    /// The same; notes whether an attempt may have had an effect that its answer would have told of.
    pub(crate) async fn send_noting<T: DeserializeOwned>(
        &self,
        call: Call<'_>,
        may_have_happened: &mut bool,
    ) -> Result<Answer<T>, ClientError> {
        let options = &self.shared.options;
        let deadline = Instant::now() + options.deadline + call.wait;
        let first = self.shared.preferred();
        let (mut attempt, mut before) = (0, None);
        loop {
            let (node, url) = self.shared.node(first, attempt);
            let (whole, left) =
                (options.attempt_timeout + call.wait, deadline.saturating_duration_since(Instant::now()));
            let time = whole.min(left);
            let failure = match timeout(time, self.attempt(url, &call)).await {
                Ok(Ok(answer)) => {
                    self.shared.prefer(node);
                    return Ok(answer);
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    *may_have_happened = true;
                    let late = || ClientError::Unreachable(format!("{url} did not answer in time"));
                    // What was said before tells more than that nothing was said in the little time that was left.
                    Failure::again(before.filter(|_| left < whole).unwrap_or_else(late), true)
                }
            };
            *may_have_happened |= failure.may_have_happened;
            let pause = self.pause(attempt, failure.retry_after);
            if !failure.again || Instant::now() + pause >= deadline {
                return Err(failure.into_end(call.is_write && *may_have_happened));
            }
            tracing::debug!(%url, error = %failure.error, ?pause, "asking the next node");
            sleep(pause).await;
            (attempt, before) = (attempt + 1, Some(failure.error));
        }
    }

    /// None between the nodes of one round, a growing one between rounds, or what the node asked for.
    fn pause(&self, attempt: usize, retry_after: Option<Duration>) -> Duration {
        if let Some(pause) = retry_after {
            return pause;
        }
        let nodes = self.shared.nodes.len();
        if !(attempt + 1).is_multiple_of(nodes) {
            return Duration::ZERO;
        }
        backoff(attempt / nodes)
    }

    async fn attempt<T: DeserializeOwned>(&self, node: &Url, call: &Call<'_>) -> Result<Answer<T>, Failure> {
        let encoding = self.shared.encoding();
        let response = request(&self.shared, node, call, encoding).await?;
        let status = response.status();
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE && encoding != Encoding::Json {
            self.shared.send_json_from_now_on();
            let again = Failure::again(error_of(status, response).await, false);
            return Err(Failure { retry_after: Some(Duration::ZERO), ..again });
        }
        if !status.is_success() {
            return Err(refused(status, response).await);
        }
        let index = response.headers().get(INDEX_HEADER).and_then(|index| index.to_str().ok()?.parse().ok());
        let Some(index) = index else {
            let error = ClientError::Protocol(format!("the answer has no {INDEX_HEADER} header"));
            return Err(Failure::last(error));
        };
        let answered =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).and_then(Encoding::of);
        let body = response.bytes().await.map_err(not_answered)?;
        let value = answered
            .ok_or_else(|| "its content type is none of this client's".to_owned())
            .and_then(|encoding| encoding.read(&body))
            .map_err(|error| Failure::last(ClientError::Protocol(format!("the answer cannot be read: {error}"))))?;
        Ok(Answer { index, value })
    }
}

async fn request(shared: &Shared, node: &Url, call: &Call<'_>, encoding: Encoding) -> Result<Response, Failure> {
    // A base URL ends with a slash, and a path begins with one.
    let url = format!("{}{}", node.as_str().trim_end_matches('/'), call.path);
    let mut request = shared.http.request(call.method.clone(), url).headers(call.headers.clone());
    request = request.header(ACCEPT, encoding.content_type());
    if let Some(body) = call.body {
        let written = body.write(encoding);
        let invalid = |error| Failure::last(ClientError::Invalid(format!("the call cannot be written: {error}")));
        request = request.header(CONTENT_TYPE, encoding.content_type()).body(written.map_err(invalid)?);
    }
    request.send().await.map_err(not_answered)
}

fn not_answered(error: reqwest::Error) -> Failure {
    if error.is_builder() {
        return Failure::last(ClientError::Invalid(sentence(&error)));
    }
    let sent = !error.is_connect();
    Failure::again(ClientError::Unreachable(sentence(&error)), sent)
}

/// An error with what is behind it: reqwest's own text leaves the cause out.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Reads an answer that is not a success.
pub(crate) async fn error_of(status: StatusCode, response: Response) -> ClientError {
    let body = response.bytes().await.unwrap_or_default();
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => problem.into(),
        Err(_) => ClientError::Protocol(format!("status {status} without a problem document")),
    }
}

async fn refused(status: StatusCode, response: Response) -> Failure {
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    let failure = Failure::of_answer(status.as_u16(), error_of(status, response).await);
    if status == StatusCode::TOO_MANY_REQUESTS {
        return Failure { retry_after: retry_after.or(Some(PAUSE_MAX)), ..failure };
    }
    failure
}

/// What a call ends with that had this error for its last.
pub(crate) fn end(last: ClientError, may_have_happened: bool) -> ClientError {
    if may_have_happened { ClientError::Unknown(format!("an attempt had no answer; last: {last}")) } else { last }
}

/// The pause after the `round`-th round: doubled each time, at least half of it, the rest by chance.
pub(crate) fn backoff(round: usize) -> Duration {
    let whole = PAUSE_MIN.saturating_mul(1 << round.min(16)).min(PAUSE_MAX);
    let half = whole / 2;
    let chance = Uuid::new_v4().as_u128() % (half.as_micros() + 1);
    // Below half of PAUSE_MAX in microseconds, so it fits.
    half + Duration::from_micros(chance as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::{ClientOptions, ReadMode, Write};

    #[test]
    fn pauses_grow_to_their_maximum() {
        for round in [0, 1, 5, 100, usize::MAX] {
            let whole = PAUSE_MIN.saturating_mul(1 << round.min(16)).min(PAUSE_MAX);
            let pause = backoff(round);
            assert!(pause >= whole / 2 && pause <= whole, "{round}: {pause:?}");
        }
    }

    /// A node that takes one call on each connection, and gives these answers in turn.
    pub fn node(answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 64 * 1024]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    /// An answer with this body.
    pub fn answer(status: u16, body: &str) -> String {
        let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n{INDEX_HEADER}: 9", body.len());
        format!("HTTP/1.1 {status} -\r\n{headers}\r\nconnection: close\r\n\r\n{body}")
    }

    /// A problem document.
    pub fn problem(status: u16, code: &str) -> String {
        format!(r#"{{"type":"about:blank","title":"-","status":{status},"code":"{code}","detail":"-"}}"#)
    }

    /// A node that takes a call and closes the connection, and refuses the next one.
    fn node_that_refuses_later(status: u16, code: &str) -> String {
        node(vec![String::new(), answer(status, &problem(status, code))])
    }

    #[tokio::test]
    async fn what_a_node_refuses_says_nothing_of_an_attempt_before_it() {
        for (status, code, said) in [
            (507, "storage_full", "unknown"),
            (500, "internal", "unknown"),
            (409, "idempotency_conflict", "idempotency_conflict"),
        ] {
            let client = Client::new([node_that_refuses_later(status, code)]).unwrap();
            let workflow = "order-1".parse().unwrap();
            let written = client.settle(&workflow, Write::default()).await;
            assert_eq!(written.unwrap_err().code(), said, "{status} {code}");
        }
        let client = Client::new([node_that_refuses_later(507, "storage_full")]).unwrap();
        let read = client.workflow(&"order-1".parse().unwrap(), ReadMode::Stale).await;
        assert_eq!(read.unwrap_err().code(), "storage_full", "a read has no effect that could be unknown");
    }

    #[tokio::test]
    async fn a_last_attempt_that_was_cut_short_hides_nothing_that_was_said_before() {
        // Its connections are never taken, and never refused.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = format!("http://{}", silent.local_addr().unwrap());
        let nodes = [node(vec![answer(503, &problem(503, "no_quorum"))]), silent];
        let (deadline, attempt_timeout) = (Duration::from_secs(2), Duration::from_secs(60));
        let options = ClientOptions { deadline, attempt_timeout, ..ClientOptions::default() };
        let client = Client::with_options(nodes, options).unwrap();
        let read = client.workflow(&"order-1".parse().unwrap(), ReadMode::Stale).await;
        assert_eq!(read.unwrap_err().code(), "no_quorum");
    }

    #[test]
    fn a_write_that_may_have_happened_ends_as_unknown() {
        let last = || ClientError::NoQuorum("two of three nodes are gone".to_owned());
        assert_eq!(end(last(), false).code(), "no_quorum");
        assert_eq!(end(last(), true).code(), "unknown");
    }
}
