//! A worker's session as a store attaches it: the embedded `Store`'s attachment and the client's stream say the same.

use async_trait::async_trait;
use holdfast_client::wire::NodeMessage;

use crate::backend::Failure;

/// An attached session.
#[async_trait]
pub trait Attachment: Send + Sync {
    /// The next message for the worker; none behind the last one.
    async fn next(&mut self) -> Option<Result<NodeMessage, Failure>>;
    /// The worker lives, and has the messages up to this one.
    async fn heartbeat(&self, received: u64) -> Result<(), Failure>;
    /// Nothing new from now on.
    async fn drain(&self) -> Result<(), Failure>;
    /// The session ends.
    async fn close(&self) -> Result<(), Failure>;
}

#[async_trait]
impl Attachment for holdfast_client::WorkerStream {
    async fn next(&mut self) -> Option<Result<NodeMessage, Failure>> {
        Some(self.next().await?.map_err(Failure::from))
    }

    async fn heartbeat(&self, received: u64) -> Result<(), Failure> {
        Ok(self.heartbeat(received).await?)
    }

    async fn drain(&self) -> Result<(), Failure> {
        Ok(self.drain().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(self.close().await?)
    }
}

#[cfg(feature = "store")]
#[async_trait]
impl Attachment for holdfast_api::Attachment {
    async fn next(&mut self) -> Option<Result<NodeMessage, Failure>> {
        holdfast_api::Attachment::next(self).await.map(Ok)
    }

    async fn heartbeat(&self, received: u64) -> Result<(), Failure> {
        Ok(self.heartbeat(received).await?)
    }

    async fn drain(&self) -> Result<(), Failure> {
        Ok(self.drain().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(self.close().await?)
    }
}
