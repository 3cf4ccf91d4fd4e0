//! The calls, under the names of the embedded `Store`.

use std::fmt::Display;
use std::time::Duration;

use holdfast_machine::{
    ClaimToken, Commit, Committed, DispatchKey, Epoch, HistoryEvent, Millis, Moved, NewEvent, NewRow, NodeName,
    Payload, Returned, ShardId, WorkflowId,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::ClientError;
use crate::send::Call;
use crate::wire::{
    AdoptBody, Adoption, Answer, AppendBody, ClaimCall, ClusterView, CommitBody, CompleteBody, Completed, Deliveries,
    Delivery, Directory, Extended, FailBody, Failure, HeartbeatBody, HistoryPage, Keys, PageCall, ReadMode, RearmBody,
    ReconcileBody, Reconciled, ReplaceBody, Replacement, RetryBody, ReturnedRow, RowView, Runs, SettleBody, StaleRows,
    TransferBody, WorkflowView, Write,
};

/// The result of a call.
pub type CallResult<T> = Result<Answer<T>, ClientError>;

/// All but the characters that RFC 3986 leaves as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Workflows.
impl Client {
    /// Appends events: all or nothing.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn append(
        &self,
        workflow: &WorkflowId,
        expected_seq: u64,
        events: Vec<NewEvent>,
        write: Write,
    ) -> CallResult<Committed> {
        self.post(workflow_path(workflow, "/append")?, &AppendBody { expected_seq, events }, write).await
    }

    /// Appends events, stages rows and settles rows of one workflow: all or nothing.
    pub async fn commit(&self, commit: Commit, write: Write) -> CallResult<Committed> {
        let (workflow, body) = CommitBody::of(commit);
        self.post(workflow_path(&workflow, "/commit")?, &body, write).await
    }

    /// Cancels the live rows of a workflow and returns their keys.
    pub async fn settle(&self, workflow: &WorkflowId, write: Write) -> CallResult<Vec<DispatchKey>> {
        let answer: Answer<Keys> = self.post(workflow_path(workflow, "/settle")?, &SettleBody {}, write).await?;
        Ok(answer.map(|keys| keys.keys))
    }

    /// Puts rows back to pending whatever their status; missing ones are inserted.
    pub async fn rearm(&self, workflow: &WorkflowId, rows: Vec<NewRow>, write: Write) -> CallResult<Vec<DispatchKey>> {
        let answer: Answer<Keys> = self.post(workflow_path(workflow, "/rearm")?, &RearmBody { rows }, write).await?;
        Ok(answer.map(|keys| keys.keys))
    }

    /// A workflow's projection, its shard, and the shard's owner.
    pub async fn workflow(&self, workflow: &WorkflowId, mode: ReadMode) -> CallResult<WorkflowView> {
        self.get(workflow_path(workflow, "")?, &[], mode).await
    }

    /// Up to `limit` events from number `from_seq` on.
    pub async fn history(
        &self,
        workflow: &WorkflowId,
        from_seq: u64,
        limit: u32,
        mode: ReadMode,
    ) -> CallResult<Vec<HistoryEvent>> {
        let query = [("from_seq", from_seq), ("limit", u64::from(limit))];
        let answer: Answer<HistoryPage> = self.get(workflow_path(workflow, "/history")?, &query, mode).await?;
        Ok(answer.map(|page| page.events))
    }

    /// As [`Client::history`], but where there is no event from `from_seq` on the node waits for one, up to `wait`.
    pub async fn next_events(
        &self,
        workflow: &WorkflowId,
        from_seq: u64,
        limit: u32,
        wait: Duration,
        mode: ReadMode,
    ) -> CallResult<Vec<HistoryEvent>> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let query = [("from_seq", from_seq), ("limit", u64::from(limit)), ("wait_ms", wait_ms)];
        let path = with_query(workflow_path(workflow, "/history")?, &query, mode);
        let answer: Answer<HistoryPage> = self.send(Call::get(path).waiting(wait)).await?;
        Ok(answer.map(|page| page.events))
    }

    /// Runs of a workflow, oldest first.
    pub async fn runs(&self, workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> CallResult<Runs> {
        self.list(workflow_path(workflow, "/runs")?, Vec::new(), page, mode).await
    }
}

/// The outbox.
impl Client {
    /// Takes due rows; waits for some up to `call.wait_ms`. Dropping the future takes nothing that comes later.
    pub async fn claim(&self, call: ClaimCall, write: Write) -> CallResult<Vec<Delivery>> {
        let wait = Duration::from_millis(call.wait_ms);
        let write = self.guard(write);
        let call = Call::post("/v1/outbox/claim".to_owned(), &call, &write)?.waiting(wait);
        let answer: Answer<Deliveries> = self.send(call).await?;
        Ok(answer.map(|deliveries| deliveries.deliveries))
    }

    /// Extends a lease to `lease_ms` from now and returns when it ends.
    pub async fn heartbeat(
        &self,
        key: &DispatchKey,
        token: ClaimToken,
        lease_ms: u64,
        details: Payload,
        write: Write,
    ) -> CallResult<Millis> {
        let body = HeartbeatBody { token, lease_ms, details };
        // To repeat it does no harm, so it gets no key that nobody asked for: every lease would have one remembered for
        // each of its heartbeats.
        let call = Call::post(row_path(key, "/heartbeat"), &body, &self.fenced(write))?;
        let answer: Answer<Extended> = self.send(call).await?;
        Ok(answer.map(|extended| extended.deadline))
    }

    /// Records an activity's result and returns its event's number; none if there is no such row.
    pub async fn complete(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        result: Payload,
        write: Write,
    ) -> CallResult<Option<u64>> {
        let answer: Answer<Completed> =
            self.post(row_path(key, "/complete"), &CompleteBody { token, result }, write).await?;
        Ok(answer.map(|completed| completed.seq))
    }

    /// Records a failed attempt; none if there is no such row.
    pub async fn fail(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        failure: Failure,
        write: Write,
    ) -> CallResult<Option<Returned>> {
        let Failure { error, error_type, retryable } = failure;
        let body = FailBody { token, error, error_type, retryable };
        let answer: Answer<ReturnedRow> = self.post(row_path(key, "/fail"), &body, write).await?;
        Ok(answer.map(|row| row.returned))
    }

    /// Hands a row back undelivered, invisible for `delay_ms`; none if there is no such row.
    pub async fn retry(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        delay_ms: u64,
        write: Write,
    ) -> CallResult<Option<Returned>> {
        let answer: Answer<ReturnedRow> =
            self.post(row_path(key, "/retry"), &RetryBody { token, delay_ms }, write).await?;
        Ok(answer.map(|row| row.returned))
    }

    /// Goes over rows that have been claimed for `older_than_ms`.
    pub async fn reconcile(
        &self,
        older_than_ms: u64,
        limit: u32,
        excluded: Vec<DispatchKey>,
        write: Write,
    ) -> CallResult<Reconciled> {
        let body = ReconcileBody { older_than_ms, limit, excluded };
        self.post("/v1/outbox/reconcile".to_owned(), &body, write).await
    }

    /// Rows that have been claimed for `older_than_ms`, by time of claim.
    pub async fn stale(&self, older_than_ms: u64, page: &PageCall, mode: ReadMode) -> CallResult<StaleRows> {
        let older = vec![("older_than_ms", Some(older_than_ms.to_string()))];
        self.list("/v1/outbox/stale".to_owned(), older, page, mode).await
    }

    /// One row, live or finished.
    pub async fn row(&self, key: &DispatchKey, mode: ReadMode) -> CallResult<RowView> {
        self.get(row_path(key, ""), &[], mode).await
    }
}

/// The cluster.
impl Client {
    /// Who owns which shard.
    pub async fn shards(&self, mode: ReadMode) -> CallResult<Directory> {
        self.get("/v1/shards".to_owned(), &[], mode).await
    }

    /// Moves a shard between live nodes.
    pub async fn transfer(
        &self,
        shard: ShardId,
        to: &NodeName,
        expected_epoch: Epoch,
        write: Write,
    ) -> CallResult<Moved> {
        let body = TransferBody { to: to.clone(), expected_epoch };
        self.post(format!("/v1/shards/{shard}/transfer"), &body, write).await
    }

    /// Takes a shard over from a node that is committed as down.
    pub async fn adopt(
        &self,
        shard: ShardId,
        from: &NodeName,
        by: &NodeName,
        expected_epoch: Epoch,
        write: Write,
    ) -> CallResult<Adoption> {
        let body = AdoptBody { from: from.clone(), by: by.clone(), expected_epoch };
        self.post(format!("/v1/shards/{shard}/adopt"), &body, write).await
    }

    /// The cluster as the node that answers sees it.
    pub async fn cluster(&self) -> CallResult<ClusterView> {
        self.send(Call::get("/v1/cluster".to_owned())).await
    }

    /// Has a member replaced that has lost its data and waits for that; with `dry_run`, says what would happen.
    /// Returns as soon as it has begun. The same call again is answered with how far it is.
    pub async fn replace_member(&self, name: &NodeName, dry_run: bool) -> CallResult<Replacement> {
        let path = format!("/v1/cluster/members/{}/replace", name_segment("node name", name.as_str())?);
        self.send(Call::ask(path, &ReplaceBody { dry_run })?).await
    }
}

impl Client {
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: String,
        body: &(impl Serialize + Sync),
        write: Write,
    ) -> CallResult<T> {
        self.send(Call::post(path, body, &self.guard(write))?).await
    }

    async fn get<T: DeserializeOwned>(&self, path: String, query: &[(&str, u64)], mode: ReadMode) -> CallResult<T> {
        self.send(Call::get(with_query(path, query, mode))).await
    }

    /// A page of a listing.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: String,
        mut words: Vec<(&str, Option<String>)>,
        page: &PageCall,
        mode: ReadMode,
    ) -> CallResult<T> {
        words.extend([("limit", Some(page.limit.to_string())), ("cursor", page.cursor.clone())]);
        self.send(Call::get(with_words(path, &words, mode))).await
    }
}

pub(crate) fn with_query(path: String, query: &[(&str, u64)], mode: ReadMode) -> String {
    let words: Vec<_> = query.iter().map(|(name, value)| (*name, Some(value.to_string()))).collect();
    with_words(path, &words, mode)
}

/// The path with those of the parameters that have a value.
pub(crate) fn with_words(mut path: String, words: &[(&str, Option<String>)], mode: ReadMode) -> String {
    let mut separator = '?';
    let mut add = |name: &str, value: &dyn Display| {
        path.push_str(&format!("{separator}{name}={value}"));
        separator = '&';
    };
    for (name, value) in words {
        if let Some(value) = value {
            add(name, &segment(value));
        }
    }
    match mode {
        ReadMode::Linearizable => {}
        ReadMode::Stale => add("consistency", &"stale"),
        ReadMode::AtLeast(index) => add("min_index", &index),
    }
    path
}

pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// A segment that is a name and nothing else. URLs drop the segments `.` and `..`, however they are written.
pub(crate) fn name_segment(what: &str, name: &str) -> Result<String, ClientError> {
    if matches!(name, "." | "..") {
        return Err(ClientError::Invalid(format!("the {what} {name:?} cannot be part of a URL")));
    }
    Ok(segment(name))
}

pub(crate) fn workflow_path(workflow: &WorkflowId, rest: &str) -> Result<String, ClientError> {
    Ok(format!("/v1/workflows/{}{rest}", name_segment("workflow id", workflow.as_str())?))
}

pub(crate) fn row_path(key: &DispatchKey, rest: &str) -> String {
    format!("/v1/outbox/rows/{}{rest}", segment(&key.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ids_are_one_segment_of_a_path_whatever_is_in_them() {
        let path = |id: &str| workflow_path(&WorkflowId::new(id).unwrap(), "/append");
        assert_eq!(path("order-1").unwrap(), "/v1/workflows/order-1/append");
        assert_eq!(path("a/b?c#d%2F e:é").unwrap(), "/v1/workflows/a%2Fb%3Fc%23d%252F%20e%3A%C3%A9/append");
        assert!(path(".").is_err() && path("..").is_err());
        assert_eq!(row_path(&"..:1".parse().unwrap(), ""), "/v1/outbox/rows/..%3A1");
    }

    #[test]
    fn reads_say_how_fresh_they_have_to_be() {
        let query = [("limit", 5)];
        assert_eq!(with_query("/a".into(), &[], ReadMode::Linearizable), "/a");
        assert_eq!(with_query("/a".into(), &query, ReadMode::Stale), "/a?limit=5&consistency=stale");
        assert_eq!(with_query("/a".into(), &[], ReadMode::AtLeast(7)), "/a?min_index=7");
    }
}
