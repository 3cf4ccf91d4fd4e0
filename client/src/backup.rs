//! A backup as it comes from a node, piece by piece.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::CONTENT_LENGTH;
use tokio::time::timeout;

use crate::calls::with_words;
use crate::client::Client;
use crate::error::ClientError;
use crate::send::{error_of, sentence};
use crate::wire::{INDEX_HEADER, ReadMode};

/// A node may have to write its whole state to its disk before it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(1_800);
/// A node that sends nothing for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A backup on its way. Its bytes are the file; whoever keeps it should check it (`holdfast backup verify`).
#[derive(Debug)]
pub struct BackupDownload {
    response: Response,
    index: u64,
    length: u64,
    received: u64,
}

impl Client {
    /// A consistent backup of everything, from the first node of this client that gives one: as of a log index that is
    /// fresh enough for `mode`, or a later one.
    ///
    /// # Errors
    /// The last node's refusal, or why it could not be reached.
    pub async fn backup(&self, mode: ReadMode) -> Result<BackupDownload, ClientError> {
        let path = with_words("/v1/cluster/backup".to_owned(), &[], mode);
        let first = self.shared.preferred();
        let mut attempt = 0;
        loop {
            let (node, url) = self.shared.node(first, attempt);
            attempt += 1;
            match self.backup_from(&format!("{}{path}", url.as_str().trim_end_matches('/'))).await {
                Ok(download) => {
                    self.shared.prefer(node);
                    return Ok(download);
                }
                Err(error) if !error.is_retryable() || attempt == self.shared.nodes.len() => return Err(error),
                Err(error) => tracing::debug!(%url, %error, "asking the next node for a backup"),
            }
        }
    }

    async fn backup_from(&self, url: &str) -> Result<BackupDownload, ClientError> {
        let response = timeout(ANSWER_LIMIT, self.shared.http.get(url).send())
            .await
            .map_err(|_| ClientError::Unreachable(format!("{url} did not answer in time")))?
            .map_err(|error| ClientError::Unreachable(sentence(&error)))?;
        let status = response.status();
        if !status.is_success() {
            return Err(error_of(status, response).await);
        }
        let number = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()?.parse().ok());
        let told = number(INDEX_HEADER).zip(number(CONTENT_LENGTH.as_str()));
        let (index, length) =
            told.ok_or_else(|| ClientError::Protocol(format!("{url} says neither index nor length of its backup")))?;
        Ok(BackupDownload { response, index, length, received: 0 })
    }
}

impl BackupDownload {
    /// The log index of the last entry that is in it.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The next bytes; none when all have come.
    ///
    /// # Errors
    /// When the node falls silent or the connection ends before all have come.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let cut = |why: String, received: u64, length: u64| {
            ClientError::Unreachable(format!("the backup was cut off at byte {received} of {length}: {why}"))
        };
        let (received, length) = (self.received, self.length);
        let chunk = timeout(SILENCE_MAX, self.response.chunk())
            .await
            .map_err(|_| cut("the node fell silent".to_owned(), received, length))?
            .map_err(|error| cut(sentence(&error), received, length))?;
        match chunk {
            Some(chunk) => {
                self.received += chunk.len() as u64;
                Ok(Some(chunk))
            }
            None if received == length => Ok(None),
            None => Err(cut("the connection was closed".to_owned(), received, length)),
        }
    }
}
