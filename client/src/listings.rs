//! The listings that an engine reads right after a start or an adoption.

use holdfast_machine::ShardId;

use crate::calls::CallResult;
use crate::client::Client;
use crate::wire::{CountPage, HeadPage, PageCall, ReadMode, RoutePage, UnsettledPage};

impl Client {
    /// Workflows that have pending or claimed rows, by shard, then by id; of one shard or of all.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn unsettled(
        &self,
        shard: Option<ShardId>,
        page: &PageCall,
        mode: ReadMode,
    ) -> CallResult<UnsettledPage> {
        self.list("/v1/outbox/unsettled".to_owned(), vec![of_shard(shard)], page, mode).await
    }

    /// Routes that have rows waiting, by namespace, task queue, node and activity type.
    pub async fn pending_routes(&self, page: &PageCall, mode: ReadMode) -> CallResult<RoutePage> {
        self.list("/v1/outbox/routes".to_owned(), Vec::new(), page, mode).await
    }

    /// Live rows by namespace.
    pub async fn row_counts(&self, page: &PageCall, mode: ReadMode) -> CallResult<CountPage> {
        self.list("/v1/outbox/counts".to_owned(), Vec::new(), page, mode).await
    }

    /// Where histories end, by workflow; of one shard or of all, of open workflows or of all. The listing is at its
    /// end only when there is no `next_cursor`.
    pub async fn heads(
        &self,
        shard: Option<ShardId>,
        open_only: bool,
        page: &PageCall,
        mode: ReadMode,
    ) -> CallResult<HeadPage> {
        let words = vec![of_shard(shard), ("open", Some(open_only.to_string()))];
        self.list("/v1/heads".to_owned(), words, page, mode).await
    }
}

fn of_shard(shard: Option<ShardId>) -> (&'static str, Option<String>) {
    ("shard", shard.map(|shard| shard.to_string()))
}
