//! The work on PostgreSQL, over a pool of connections. Each call is one prepared statement: one round trip, one
//! transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use deadpool_postgres::Pool;
use holdfast_bench::system::{Completes, History, Stages};
use holdfast_bench::work::{ROWS, Work};
use holdfast_machine::WorkflowId;
use tokio::time::sleep;
use tokio_postgres::types::ToSql;

use crate::content::{COMPLETED, staged_events};

/// A workflow with its events and its rows: refused as a whole if there is one of this id.
const STAGE: &str = "
    WITH workflow AS (INSERT INTO workflows (id, namespace, workflow_type) VALUES ($1, $2, 'bench')),
    history AS (
        INSERT INTO events (workflow, kind, ordinal, payload)
        SELECT $1, kind, ordinal, payload
        FROM unnest($3::smallint[], $4::smallint[], $5::bytea[]) AS event (kind, ordinal, payload))
    INSERT INTO outbox (workflow, ordinal, input)
    SELECT $1, ordinal, input FROM unnest($6::smallint[], $7::bytea[]) AS staged (ordinal, input)";
/// Rows that nobody holds, oldest first, without waiting for whoever takes some at the same time.
const CLAIM: &str = "
    UPDATE outbox SET claimed_until = now() + interval '10 minutes', token = token + 1
    WHERE id = ANY (ARRAY(
        SELECT id FROM outbox WHERE claimed_until < now() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING id, token, workflow, ordinal, input";
/// What is held under this token becomes an event, once.
const COMPLETE: &str = "
    WITH done AS (
        DELETE FROM outbox USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS result (id, token, payload)
        WHERE outbox.id = result.id AND outbox.token = result.token
        RETURNING outbox.workflow, outbox.ordinal, result.payload)
    INSERT INTO events (workflow, kind, ordinal, payload) SELECT workflow, $4, ordinal, payload FROM done";
/// How long a claim that was given nothing waits before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What all clients share.
#[derive(Debug)]
pub struct Client {
    pool: Pool,
    work: Arc<Work>,
}

/// A row that was claimed.
#[derive(Debug)]
pub struct Row {
    id: i64,
    token: i64,
    workflow: WorkflowId,
}

impl Client {
    /// One over these connections.
    pub fn new(pool: Pool, work: Arc<Work>) -> Self {
        Self { pool, work }
    }

    /// Completes rows; how many were.
    async fn completed(&self, rows: &[Row]) -> Result<u64> {
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let tokens: Vec<i64> = rows.iter().map(|row| row.token).collect();
        let results: Vec<Bytes> = rows.iter().map(|_| self.work.payload().data).collect();
        let results: Vec<&[u8]> = results.iter().map(AsRef::as_ref).collect();
        let kind = i16::from(COMPLETED);
        let connection = self.pool.get().await?;
        let complete = connection.prepare_cached(COMPLETE).await?;
        Ok(connection.execute(&complete, &[&ids, &tokens, &results, &kind]).await?)
    }

    async fn count(&self, query: &str, of: &str) -> Result<u64> {
        Ok(u64::try_from(self.pool.get().await?.query_one(query, &[&of]).await?.get::<_, i64>(0))?)
    }
}

impl Stages for Client {
    async fn stage(&self, id: WorkflowId) -> Result<()> {
        let events = staged_events(&self.work);
        let kinds: Vec<i16> = events.iter().map(|event| event.kind.into()).collect();
        let about: Vec<i16> = events.iter().map(|event| event.ordinal.into()).collect();
        let payloads: Vec<&[u8]> = events.iter().map(|event| event.payload.as_ref()).collect();
        let ordinals: Vec<i16> = (1..=ROWS as i16).collect();
        let inputs: Vec<Bytes> = ordinals.iter().map(|_| self.work.payload().data).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).collect();
        let (id, namespace) = (id.as_str(), self.work.namespace.as_str());
        let parameters: [&(dyn ToSql + Sync); 7] = [&id, &namespace, &kinds, &about, &payloads, &ordinals, &inputs];
        let connection = self.pool.get().await?;
        let stage = connection.prepare_cached(STAGE).await?;
        let rows = connection.execute(&stage, &parameters).await?;
        ensure!(rows == ROWS, "{rows} rows were staged");
        Ok(())
    }

    async fn workflows(&self) -> Result<u64> {
        self.count("SELECT count(*) FROM workflows WHERE namespace = $1", self.work.namespace.as_str()).await
    }
}

impl Completes for Client {
    type Row = Row;

    fn workflow(row: &Row) -> &WorkflowId {
        &row.workflow
    }

    async fn claim(&self, limit: u32, wait: Duration) -> Result<Vec<Row>> {
        let begun = Instant::now();
        loop {
            let connection = self.pool.get().await?;
            let claim = connection.prepare_cached(CLAIM).await?;
            let rows = connection.query(&claim, &[&i64::from(limit)]).await?;
            drop(connection);
            if rows.is_empty() && begun.elapsed() < wait {
                sleep(LOOK_AGAIN).await;
                continue;
            }
            let row = |row: &tokio_postgres::Row| {
                let input: &[u8] = row.get(4);
                ensure!(!input.is_empty(), "a row without its input");
                Ok(Row { id: row.get(0), token: row.get(1), workflow: WorkflowId::new(row.get::<_, String>(2))? })
            };
            return rows.iter().map(row).collect();
        }
    }

    async fn complete(&self, row: &Row) -> Result<()> {
        self.complete_together(std::slice::from_ref(row)).await
    }

    async fn complete_together(&self, rows: &[Row]) -> Result<()> {
        let completed = self.completed(rows).await?;
        ensure!(completed == rows.len() as u64, "{completed} of {} rows were completed", rows.len());
        Ok(())
    }

    async fn refuses_second_completion(&self, row: &Row) -> Result<()> {
        match self.completed(std::slice::from_ref(row)).await? {
            0 => Ok(()),
            _ => bail!("row {} was completed twice", row.id),
        }
    }

    async fn rows_left(&self) -> Result<u64> {
        self.count("SELECT count(*) FROM outbox WHERE workflow LIKE $1 || '-%'", &self.work.tag).await
    }

    async fn history(&self, workflow: &WorkflowId) -> Result<History> {
        let query = "SELECT count(*), count(*) FILTER (WHERE kind = $2) FROM events WHERE workflow = $1";
        let row = self.pool.get().await?.query_one(query, &[&workflow.as_str(), &i16::from(COMPLETED)]).await?;
        Ok(History { events: u64::try_from(row.get::<_, i64>(0))?, outcomes: u64::try_from(row.get::<_, i64>(1))? })
    }
}
