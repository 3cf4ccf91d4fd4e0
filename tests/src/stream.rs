//! Worker sessions by hand: streams that a story reads itself.

use anyhow::{Context, Result, bail, ensure};
use holdfast_client::{Client, Delivery, HeldRow, NodeMessage, WorkerStream};
use holdfast_machine::{SessionId, Worker};
use tokio::time::timeout;

use crate::wait::{LONG, wait_until};

/// A lease that outlives every story, in milliseconds.
const LEASE_MS: u64 = 600_000;

/// What a worker of one queue registers as, with room for ten rows.
///
/// # Errors
/// When that is no name of a queue.
pub fn worker(queue: &str) -> Result<Worker> {
    Ok(Worker {
        identity: "by hand".parse()?,
        namespaces: vec![Default::default()],
        task_queue: queue.parse()?,
        activity_types: Vec::new(),
        max_concurrency: 10,
        node: None,
        lease_ms: LEASE_MS,
    })
}

/// Attaches a session as soon as that is possible, and tells whether it was there.
///
/// # Errors
/// When it is not attached.
pub async fn attach(
    client: &Client,
    session: &SessionId,
    worker: &Worker,
    holding: Vec<HeldRow>,
) -> Result<(WorkerStream, bool)> {
    let mut stream = wait_until("the session is attached", LONG, async || {
        Ok(client.attach(session.clone(), worker.clone(), holding.clone()).await?)
    })
    .await?;
    match next(&mut stream).await? {
        NodeMessage::Attached { resumed, .. } => Ok((stream, resumed)),
        other => bail!("not attached: {other:?}"),
    }
}

/// The next message.
///
/// # Errors
/// When none comes.
pub async fn next(stream: &mut WorkerStream) -> Result<NodeMessage> {
    let message = timeout(LONG, stream.next()).await.context("no message came")?;
    Ok(message.context("the stream has ended")??)
}

/// Exactly as many deliveries, and nothing else.
///
/// # Errors
/// When something else comes, or too little.
pub async fn delivered(stream: &mut WorkerStream, count: usize) -> Result<Vec<Delivery>> {
    let mut found = Vec::new();
    while found.len() < count {
        match next(stream).await? {
            NodeMessage::Deliveries { deliveries, .. } => found.extend(deliveries),
            other => bail!("{other:?} instead of deliveries"),
        }
    }
    ensure!(found.len() == count, "{found:?}");
    Ok(found)
}
