//! The work on etcd. Each call is one transaction, refused as a whole when what it rests on has changed:
//!
//! | key | value |
//! |---|---|
//! | `w/<work>/<workflow>` | the events that it starts with |
//! | `q/<work>/<lane>/<workflow>/<row>` | the input of a row that nobody holds |
//! | `c/<work>/<workflow>/<row>` | the same of one that somebody holds; its revision is the token |
//! | `h/<work>/<workflow>/<row>` | the outcome of a row |

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, KvClient, Txn, TxnOp};
use holdfast_bench::system::{Completes, History, Stages};
use holdfast_bench::work::{ROWS, Work};
use holdfast_machine::WorkflowId;
use tokio::time::sleep;

use crate::content::{COMPLETED, Event, decode, encode, staged_events};

/// Rows wait in lanes, so that not all workers look at the same ones: of two that want to take a row one is refused.
const LANES: usize = 8;
/// A transaction takes 128 operations unless the server is told otherwise, and a claim or an outcome needs two for a row.
const ROWS_OF_ONE: usize = 64;
/// How long a claim that was given nothing waits before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A connection.
pub struct Connection {
    client: KvClient,
    work: Arc<Work>,
    /// The lane that its claims begin with.
    lane: usize,
}

/// A row that was claimed.
#[derive(Debug)]
pub struct Row {
    workflow: WorkflowId,
    /// As it stands in keys.
    ordinal: String,
    token: i64,
}

impl Connection {
    /// One of several, by its number.
    pub fn new(client: Client, work: Arc<Work>, number: usize) -> Self {
        Self { client: client.kv_client(), work, lane: number % LANES }
    }

    fn key(&self, kind: char, rest: &str) -> String {
        format!("{kind}/{}/{rest}", self.work.tag)
    }

    fn of_row(&self, kind: char, row: &Row) -> String {
        self.key(kind, &format!("{}/{}", row.workflow, row.ordinal))
    }

    /// True if it was done, and not refused; and the revision since which it is so.
    async fn transact(&self, rests_on: Vec<Compare>, operations: Vec<TxnOp>) -> Result<(bool, i64)> {
        let answer = self.client.clone().txn(Txn::new().when(rests_on).and_then(operations)).await?;
        let header = answer.header().context("an answer without its header")?;
        Ok((answer.succeeded(), header.revision()))
    }

    async fn count(&self, prefix: String) -> Result<u64> {
        let options = GetOptions::new().with_prefix().with_count_only();
        Ok(u64::try_from(self.client.clone().get(prefix, Some(options)).await?.count())?)
    }

    /// Rows that nobody holds. What was read may be old by now: the transaction that takes them will tell.
    async fn waiting(&self, limit: u32) -> Result<Vec<KeyValue>> {
        let limit = ROWS_OF_ONE.min(limit as usize) as i64;
        for lane in (0..LANES).map(|step| (self.lane + step) % LANES) {
            let options = GetOptions::new().with_prefix().with_limit(limit).with_serializable();
            let found = self.client.clone().get(self.key('q', &format!("{lane}/")), Some(options)).await?.take_kvs();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Takes all of these rows; none if anybody has taken one of them.
    async fn take(&self, waiting: &[KeyValue]) -> Result<Option<Vec<Row>>> {
        let (mut rests_on, mut operations, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for row in waiting {
            let mut parts = row.key_str()?.rsplit('/');
            let (ordinal, workflow) = parts.next().zip(parts.next()).context("the key of a row")?;
            let taken = Row { workflow: WorkflowId::new(workflow)?, ordinal: ordinal.to_owned(), token: 0 };
            rests_on.push(Compare::mod_revision(row.key(), CompareOp::Equal, row.mod_revision()));
            operations.push(TxnOp::delete(row.key(), None));
            operations.push(TxnOp::put(self.of_row('c', &taken), row.value(), None));
            rows.push(taken);
        }
        let (done, token) = self.transact(rests_on, operations).await?;
        rows.iter_mut().for_each(|row| row.token = token);
        Ok(done.then_some(rows))
    }

    /// Completes all of these rows; false if that is refused.
    async fn completed(&self, rows: &[Row]) -> Result<bool> {
        let (mut rests_on, mut operations) = (Vec::new(), Vec::new());
        for row in rows {
            let (claim, ordinal) = (self.of_row('c', row), row.ordinal.parse()?);
            let outcome = Event { kind: COMPLETED, ordinal, payload: self.work.payload().data };
            rests_on.push(Compare::mod_revision(claim.as_str(), CompareOp::Equal, row.token));
            operations.push(TxnOp::delete(claim, None));
            operations.push(TxnOp::put(self.of_row('h', row), encode(&[outcome]), None));
        }
        Ok(self.transact(rests_on, operations).await?.0)
    }
}

impl Stages for Connection {
    async fn stage(&self, id: WorkflowId) -> Result<()> {
        let workflow = self.key('w', id.as_str());
        let is_new = Compare::create_revision(workflow.as_str(), CompareOp::Equal, 0);
        let mut operations = vec![TxnOp::put(workflow, encode(&staged_events(&self.work)), None)];
        let lane = id.as_str().bytes().map(usize::from).sum::<usize>() % LANES;
        for ordinal in 1..=ROWS {
            let row = self.key('q', &format!("{lane}/{id}/{ordinal}"));
            operations.push(TxnOp::put(row, self.work.payload().data, None));
        }
        let (done, _) = self.transact(vec![is_new], operations).await?;
        ensure!(done, "{id} is there already");
        Ok(())
    }

    async fn workflows(&self) -> Result<u64> {
        self.count(self.key('w', "")).await
    }
}

impl Completes for Connection {
    type Row = Row;

    fn workflow(row: &Row) -> &WorkflowId {
        &row.workflow
    }

    async fn claim(&self, limit: u32, wait: Duration) -> Result<Vec<Row>> {
        let begun = Instant::now();
        loop {
            let waiting = self.waiting(limit).await?;
            if !waiting.is_empty() {
                if let Some(rows) = self.take(&waiting).await? {
                    return Ok(rows);
                }
            } else if begun.elapsed() < wait {
                sleep(LOOK_AGAIN).await;
            } else {
                return Ok(Vec::new());
            }
        }
    }

    async fn complete(&self, row: &Row) -> Result<()> {
        self.complete_together(std::slice::from_ref(row)).await
    }

    async fn complete_together(&self, rows: &[Row]) -> Result<()> {
        ensure!(self.completed(rows).await?, "the completion of {} rows was refused", rows.len());
        Ok(())
    }

    async fn refuses_second_completion(&self, row: &Row) -> Result<()> {
        if self.completed(std::slice::from_ref(row)).await? {
            bail!("row {} of {} was completed twice", row.ordinal, row.workflow);
        }
        Ok(())
    }

    async fn rows_left(&self) -> Result<u64> {
        Ok(self.count(self.key('q', "")).await? + self.count(self.key('c', "")).await?)
    }

    async fn history(&self, workflow: &WorkflowId) -> Result<History> {
        let opening = self.client.clone().get(self.key('w', workflow.as_str()), None).await?;
        let opening = opening.kvs().first().context("a workflow is gone")?;
        let outcomes = self.count(self.key('h', &format!("{workflow}/"))).await?;
        Ok(History { events: decode(opening.value())?.len() as u64 + outcomes, outcomes })
    }
}
