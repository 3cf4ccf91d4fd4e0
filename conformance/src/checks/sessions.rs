//! Worker sessions: what is pushed to whom, and what is taken back.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_client::{Delivery, HeldRow, NodeMessage, ReadMode, Write};
use holdfast_machine::{Holder, RowStatus, SessionId, Worker};
use tokio::time::timeout;

use crate::checks::checks;
use crate::trial::{Trial, claimant, keys, row_key, row_keys, same};
use crate::workers::Attachment;

/// Long enough for every check, and short enough for a session that one of them leaves behind.
const LEASE_MS: u64 = 300_000;
/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(30);

checks! {
    "sessions":
    pushed = "a session is given the due rows of its namespaces and task queue, each under a token of its own",
    room = "a session never holds more rows than it said it can, and an outcome makes room for the next one",
    withdrawn = "a row that is cancelled is withdrawn from the session that holds it",
    resumed = "a session that attaches again keeps its rows, and those that it does not name come again, under their tokens",
    drained = "a session that drains is given nothing new, and its end frees what it holds",
}

struct Session {
    id: SessionId,
    connection: Box<dyn Attachment>,
}

impl Session {
    async fn attach(trial: &Trial, room: u32, holding: Vec<HeldRow>) -> Result<Self> {
        let id = SessionId::new(trial.name("session"))?;
        let registration = Worker {
            identity: claimant()?,
            namespaces: vec![trial.namespace()?],
            task_queue: trial.queue()?,
            activity_types: Vec::new(),
            max_concurrency: room,
            node: None,
            lease_ms: LEASE_MS,
        };
        let connection = trial.store.attach(id.clone(), registration, holding).await?;
        let mut session = Self { id, connection };
        match session.next().await? {
            NodeMessage::Attached { number: 1, .. } => Ok(session),
            other => bail!("the first message is {other:?}"),
        }
    }

    async fn next(&mut self) -> Result<NodeMessage> {
        let message = timeout(PATIENCE, self.connection.next()).await.context("no message came")?;
        Ok(message.context("the stream ended without a last message")??)
    }

    /// Exactly as many deliveries.
    async fn delivered(&mut self, count: usize) -> Result<Vec<Delivery>> {
        let mut found = Vec::new();
        while found.len() < count {
            match self.next().await? {
                NodeMessage::Deliveries { deliveries, .. } => found.extend(deliveries),
                other => bail!("{other:?} instead of deliveries"),
            }
        }
        ensure!(found.len() == count, "{} deliveries instead of {count}", found.len());
        Ok(found)
    }

    /// Ends the session, so that it does not stay behind.
    async fn close(mut self) -> Result<()> {
        self.connection.close().await?;
        loop {
            match self.next().await? {
                NodeMessage::Ended { reason, .. } => {
                    return same("the reason", reason, holdfast_client::Ended::Closed);
                }
                NodeMessage::Withdrawn { .. } => {}
                other => bail!("{other:?} instead of the end"),
            }
        }
    }
}

fn held(row: &Delivery) -> HeldRow {
    HeldRow { key: row.key.clone(), token: row.token }
}

async fn pushed(trial: &Trial) -> Result<()> {
    let before = trial.open("before", [1]).await?;
    let mut session = Session::attach(trial, 9, Vec::new()).await?;
    same("what was due", keys(&session.delivered(1).await?), row_keys(&before, [1]))?;
    let after = trial.open("after", [1, 2]).await?;
    let rows = session.delivered(2).await?;
    same("what was staged", keys(&rows), row_keys(&after, [1, 2]))?;
    ensure!(rows[0].token != rows[1].token, "two claims under one token");
    let claim = trial.view(&rows[0].key).await?.row.claim.context("a row that was pushed is not claimed")?;
    same("the holder", claim.holder, Holder::Session { session: session.id.clone() })?;
    same("token and deadline", (claim.token, claim.deadline), (rows[0].token, rows[0].deadline))?;
    let shown = trial.store.session(&session.id, ReadMode::Linearizable).await?.value;
    same("the rows that it holds", (shown.session.rows, shown.held.len()), (3, 3))?;
    session.close().await
}

async fn room(trial: &Trial) -> Result<()> {
    let mut session = Session::attach(trial, 2, Vec::new()).await?;
    let workflow = trial.open("many", 1..=3).await?;
    let rows = session.delivered(2).await?;
    same("the row beyond its room", trial.status(&row_key(&workflow, 3)).await?, RowStatus::Pending)?;
    trial.complete(&rows[0], "ok").await?;
    same("the next one", keys(&session.delivered(1).await?), row_keys(&workflow, [3]))?;
    session.close().await
}

async fn withdrawn(trial: &Trial) -> Result<()> {
    let mut session = Session::attach(trial, 2, Vec::new()).await?;
    let workflow = trial.open("settled", [1]).await?;
    let row = session.delivered(1).await?.remove(0);
    trial.store.settle(&workflow, Write::default()).await?;
    let NodeMessage::Withdrawn { rows, .. } = session.next().await? else { bail!("the row was not withdrawn") };
    let told: Vec<_> = rows.iter().map(|row| (row.key.clone(), row.token, row.status)).collect();
    same("what was withdrawn", told, vec![(row.key, row.token, Some(RowStatus::Cancelled))])?;
    session.close().await
}

async fn resumed(trial: &Trial) -> Result<()> {
    let mut first = Session::attach(trial, 9, Vec::new()).await?;
    trial.open("kept", [1, 2]).await?;
    let rows = first.delivered(2).await?;
    let mut second = Session::attach(trial, 9, vec![held(&rows[0])]).await?;
    let again = second.delivered(1).await?;
    same("what comes again", again.iter().map(held).collect(), vec![held(&rows[1])])?;
    let NodeMessage::Ended { reason, .. } = first.next().await? else { bail!("two connections have one session") };
    same("the older connection", reason, holdfast_client::Ended::Moved)?;
    same("a row that it kept", trial.complete(&rows[0], "ok").await?.value.is_some(), true)?;
    second.close().await
}

async fn drained(trial: &Trial) -> Result<()> {
    let mut session = Session::attach(trial, 1, Vec::new()).await?;
    let workflow = trial.open("drained", [1, 2]).await?;
    let rows = session.delivered(1).await?;
    session.connection.drain().await?;
    let NodeMessage::Draining { .. } = session.next().await? else { bail!("no answer to drain") };
    trial.complete(&rows[0], "ok").await?;
    same("what is left", trial.status(&row_key(&workflow, 2)).await?, RowStatus::Pending)?;
    session.close().await?;
    same("what is due", keys(&trial.claim(9).await?), row_keys(&workflow, [2]))
}
