//! Which nodes a command asks.

use std::fmt;
use std::time::Duration;

use clap::Args;
use holdfast_client::{Client, ClientError, ClientOptions};

use super::DEFAULT_URL;

/// The nodes that may answer.
#[derive(Debug, Clone, Args)]
pub struct Nodes {
    /// A node's base URL; may be repeated. Where one does not answer, the next one is asked
    #[arg(long = "url", default_value = DEFAULT_URL, value_delimiter = ',', value_name = "URL", global = true)]
    urls: Vec<String>,
}

impl Nodes {
    /// A client of all of them. Each has this long to answer.
    pub fn client(&self, patience: Duration) -> Result<Client, ClientError> {
        let deadline = patience.saturating_mul(self.urls.len() as u32);
        let options = ClientOptions { deadline, attempt_timeout: patience, ..ClientOptions::default() };
        Client::with_options(&self.urls, options)
    }

    /// A client of each, for what they may know differently.
    pub fn clients(&self, patience: Duration) -> Result<Vec<Client>, ClientError> {
        let options = || ClientOptions { deadline: patience, attempt_timeout: patience, ..ClientOptions::default() };
        self.urls.iter().map(|url| Client::with_options([url], options())).collect()
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.urls.join(", "))
    }
}
