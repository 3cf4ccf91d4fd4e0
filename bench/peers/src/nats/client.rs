//! The work on NATS JetStream. What a workflow starts with is a message of its history and one for each row, sent
//! together; they are not stored together, as this version has no transactions. A row waits in a queue until its outcome
//! is in the history, where only one can be, and it is acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{State, Stream};
use async_nats::jetstream::{Context as JetStream, Message};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::try_join_all;
use holdfast_bench::system::{Completes, History, Stages};
use holdfast_bench::work::{ROWS, Work};
use holdfast_machine::WorkflowId;
use tokio::time::sleep;

use crate::content::{COMPLETED, Event, decode, encode, staged_events};
use crate::server::{LOOK_EVERY, READY_WITHIN};

/// How long a claim that was given nothing waits before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A connection.
#[derive(Debug)]
pub struct Connection {
    jetstream: JetStream,
    work: Arc<Work>,
    histories: Stream,
    rows: Stream,
    consumer: PullConsumer,
}

/// A row that was claimed.
#[derive(Debug)]
pub struct Row {
    workflow: WorkflowId,
    ordinal: u8,
    message: Message,
}

impl Connection {
    /// One on these streams.
    pub async fn new(jetstream: JetStream, work: Arc<Work>, histories: &str, rows: &str) -> Result<Self> {
        let histories = jetstream.get_stream(histories).await?;
        let rows = jetstream.get_stream(rows).await?;
        let consumer = rows.get_consumer("workers").await.map_err(|error| anyhow!("{error}"))?;
        Ok(Self { jetstream, work, histories, rows, consumer })
    }

    /// The subject of a row, or with 0 of what a workflow starts with.
    fn subject(&self, stream: char, workflow: &WorkflowId, ordinal: u8) -> String {
        format!("{stream}.{}.{workflow}.{ordinal}", self.work.tag)
    }

    /// Sends a message that has to be the first one of its subject.
    async fn publish_first(&self, subject: String, payload: Vec<u8>) -> Result<PublishAckFuture> {
        let message = PublishMessage::build().payload(payload.into()).expected_last_subject_sequence(0);
        Ok(self.jetstream.send_publish(subject, message).await?)
    }

    async fn publish_outcome(&self, row: &Row) -> Result<PublishAckFuture> {
        let outcome = Event { kind: COMPLETED, ordinal: row.ordinal, payload: self.work.payload().data };
        self.publish_first(self.subject('h', &row.workflow, row.ordinal), encode(&[outcome])).await
    }

    /// What there is at one time of histories and rows, once it fits together: acknowledged rows go a little later.
    async fn states(&self) -> Result<(State, State)> {
        let begun = Instant::now();
        loop {
            let (histories, rows) = (self.histories.get_info().await?.state, self.rows.get_info().await?.state);
            let (staged, gone) = (rows.last_sequence / ROWS, rows.last_sequence - rows.messages);
            if histories.messages == staged + gone && rows.last_sequence % ROWS == 0 {
                ensure!(histories.subjects_count == histories.messages, "two messages of one subject: {histories:?}");
                return Ok((histories, rows));
            }
            ensure!(begun.elapsed() < READY_WITHIN, "{histories:?} does not fit {rows:?}");
            sleep(LOOK_EVERY).await;
        }
    }

    fn row(&self, message: Message) -> Result<Row> {
        let mut parts = message.subject.rsplit('.');
        let (ordinal, workflow) = parts.next().zip(parts.next()).context("the subject of a row")?;
        let (workflow, ordinal) = (WorkflowId::new(workflow)?, ordinal.parse()?);
        Ok(Row { workflow, ordinal, message })
    }
}

impl Stages for Connection {
    async fn stage(&self, id: WorkflowId) -> Result<()> {
        let opening = encode(&staged_events(&self.work));
        let mut sent = vec![self.publish_first(self.subject('h', &id, 0), opening).await?];
        for ordinal in 1..=ROWS as u8 {
            let input: Bytes = self.work.payload().data;
            sent.push(self.jetstream.publish(self.subject('r', &id, ordinal), input).await?);
        }
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await?;
        Ok(())
    }

    async fn workflows(&self) -> Result<u64> {
        let (_, rows) = self.states().await?;
        Ok(rows.last_sequence / ROWS)
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
            let batch = self.consumer.fetch().max_messages(limit as usize).messages().await?;
            let messages = batch.try_collect::<Vec<Message>>().await.map_err(|error| anyhow!("{error}"))?;
            if !messages.is_empty() || begun.elapsed() >= wait {
                return messages.into_iter().map(|message| self.row(message)).collect();
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn complete(&self, row: &Row) -> Result<()> {
        self.complete_together(std::slice::from_ref(row)).await
    }

    async fn complete_together(&self, rows: &[Row]) -> Result<()> {
        let sent = try_join_all(rows.iter().map(|row| self.publish_outcome(row))).await?;
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await?;
        for row in rows {
            // Not waited for: should it be lost, the row comes again, and its outcome is refused.
            row.message.ack().await.map_err(|error| anyhow!("{error}"))?;
        }
        Ok(())
    }

    async fn refuses_second_completion(&self, row: &Row) -> Result<()> {
        match self.publish_outcome(row).await?.await {
            Ok(_) => bail!("row {} of {} was completed twice", row.ordinal, row.workflow),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn rows_left(&self) -> Result<u64> {
        let (_, rows) = self.states().await?;
        Ok(rows.messages)
    }

    async fn history(&self, workflow: &WorkflowId) -> Result<History> {
        let subject = self.subject('h', workflow, 0);
        let opening = self.histories.get_last_raw_message_by_subject(&subject).await?;
        let of_workflow = format!("h.{}.{workflow}.*", self.work.tag);
        let messages: Vec<(String, usize)> =
            self.histories.info_with_subjects(of_workflow).await?.try_collect().await?;
        let outcomes = messages.iter().map(|(_, count)| *count as u64).sum::<u64>() - 1;
        Ok(History { events: decode(&opening.payload)?.len() as u64 + outcomes, outcomes })
    }
}
