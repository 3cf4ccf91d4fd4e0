//! The client: which nodes there are, and how long to go on asking them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_machine::Fence;
use reqwest::Url;

use crate::error::ClientError;
use crate::wire::{Encoding, Write};

/// How patient a client is, and how it speaks.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The time for a call with all its retries. Long polls get their wait on top.
    pub deadline: Duration,
    /// The time for one node to answer before the next one is asked.
    pub attempt_timeout: Duration,
    /// The time for a connection to be made.
    pub connect_timeout: Duration,
    /// How bodies are sent and asked for. Nodes that do not speak this client's postcard are sent JSON.
    pub encoding: Encoding,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            encoding: Encoding::default(),
        }
    }
}

/// A connection to a cluster by HTTP. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    fence: Option<Fence>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub nodes: Vec<Url>,
    /// The node that answered last; asked first.
    preferred: AtomicUsize,
    /// Set once a node has refused postcard.
    json_only: AtomicBool,
    pub http: reqwest::Client,
    pub options: ClientOptions,
}

impl Client {
    /// A client of the cluster whose nodes listen at these base URLs (`http://host:port`).
    ///
    /// # Errors
    /// [`ClientError::Invalid`] for no URL or one that cannot be used.
    pub fn new<U: AsRef<str>>(nodes: impl IntoIterator<Item = U>) -> Result<Self, ClientError> {
        Self::with_options(nodes, ClientOptions::default())
    }

    /// As [`Client::new`], with another patience.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn with_options<U: AsRef<str>>(
        nodes: impl IntoIterator<Item = U>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let nodes = nodes.into_iter().map(|url| base_url(url.as_ref())).collect::<Result<Vec<Url>, _>>()?;
        if nodes.is_empty() {
            return Err(ClientError::Invalid("a client needs the URL of at least one node".to_owned()));
        }
        // A store is reached directly; a proxy that the environment names is meant for the web.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(options.connect_timeout)
            .build()
            .map_err(|error| ClientError::Invalid(format!("the HTTP client cannot be set up: {error}")))?;
        let (preferred, json_only) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { shared: Arc::new(Shared { nodes, preferred, json_only, http, options }), fence: None })
    }

    /// A client whose writes carry this fence unless a call brings its own.
    pub fn with_fence(&self, fence: Fence) -> Self {
        Self { shared: Arc::clone(&self.shared), fence: Some(fence) }
    }

    /// Completes what the caller said about a write: this client's fence, and a fresh key.
    pub(crate) fn guard(&self, write: Write) -> Write {
        let Write { fence, idempotency_key } = self.fenced(write);
        Write { fence, idempotency_key: idempotency_key.or_else(crate::send::fresh_key) }
    }

    /// The same write with this client's fence, unless it brings its own.
    pub(crate) fn fenced(&self, write: Write) -> Write {
        Write { fence: write.fence.or_else(|| self.fence.clone()), ..write }
    }
}

impl Shared {
    /// The number of the node to ask first.
    pub fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// Remembers that this node answered.
    pub fn prefer(&self, node: usize) {
        self.preferred.store(node, Ordering::Relaxed);
    }

    /// How to send a body.
    pub fn encoding(&self) -> Encoding {
        if self.json_only.load(Ordering::Relaxed) { Encoding::Json } else { self.options.encoding }
    }

    /// Remembers that a node speaks another version of postcard, or none.
    pub fn send_json_from_now_on(&self) {
        self.json_only.store(true, Ordering::Relaxed);
    }

    /// The number and the URL of the node to ask at the `attempt`-th try, counted from `first`.
    pub fn node(&self, first: usize, attempt: usize) -> (usize, &Url) {
        let node = first.wrapping_add(attempt) % self.nodes.len();
        (node, &self.nodes[node])
    }
}

fn base_url(text: &str) -> Result<Url, ClientError> {
    let invalid = |problem: &str| ClientError::Invalid(format!("the node URL {text:?} {problem}"));
    let url = Url::parse(text).map_err(|error| invalid(&format!("cannot be read: {error}")))?;
    if url.scheme() != "http" {
        return Err(invalid("must begin with http://"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("must have no path"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn urls_are_checked() {
        assert!(Client::new(["http://127.0.0.1:7101", "http://node-b:7101/"]).is_ok());
        for bad in ["", "node-a:7101", "https://node-a", "http://a/v1", "ftp://a"] {
            let error = Client::new([bad]).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
        assert!(Client::new(Vec::<String>::new()).is_err());
    }

    #[test]
    fn writes_get_a_fence_and_a_key_unless_they_bring_their_own() {
        let fence = |epoch| Fence {
            owner: holdfast_machine::NodeName::new("node-a").unwrap(),
            epoch: holdfast_machine::Epoch(epoch),
        };
        let client = Client::new(["http://127.0.0.1:1"]).unwrap().with_fence(fence(1));
        let own = Write { fence: Some(fence(2)), idempotency_key: Some("k".parse().unwrap()) };
        assert_eq!(client.guard(own.clone()), own);
        let filled = client.guard(Write::default());
        assert_eq!(filled.fence, Some(fence(1)));
        assert_ne!(filled.idempotency_key, client.guard(Write::default()).idempotency_key);
    }
}
