//! Many calls in one: what comes over HTTP in one request, and what an engine has ready at the same time. They share log
//! entries with each other as with everything else; each is checked, fenced and answered by itself.

use futures::future::join_all;
use holdfast_client::wire::RowResult;
use holdfast_machine::{Commit, Committed};

use crate::Write;
use crate::store::{Store, StoreResult};

impl Store {
    /// Many commits at once, each by itself: one that is refused hinders no other. Results are in the order of the calls;
    /// the order in which they take place is open, so two for the same workflow belong into two batches, or into one
    /// commit.
    pub async fn commit_all(&self, calls: Vec<(Commit, Write)>) -> Vec<StoreResult<Committed>> {
        join_all(calls.into_iter().map(|(commit, write)| self.commit(commit, write))).await
    }

    /// Records the results of many activities, each by itself; as [`Store::commit_all`] with results of
    /// [`Store::complete`].
    pub async fn complete_all(&self, calls: Vec<(RowResult, Write)>) -> Vec<StoreResult<Option<u64>>> {
        let complete = async |row: RowResult, write| self.complete(&row.key, row.token, row.result, write).await;
        join_all(calls.into_iter().map(|(row, write)| complete(row, write))).await
    }
}
