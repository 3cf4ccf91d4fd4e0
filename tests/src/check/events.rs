//! Subscribers that follow the events all along, reconnecting at the next node from the last number that they had: no
//! event is missing and none comes twice (invariant 17).

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use holdfast_checkers::invariants::{EventsComeOnce, Seen};
use holdfast_client::{Client, EventId, EventMessage, Write};
use holdfast_machine::ClusterEvent;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::wait::{LONG, wait_until};

/// One that follows.
#[derive(Debug)]
pub struct Subscriber {
    had: Arc<Mutex<Had>>,
    task: JoinHandle<Result<()>>,
}

#[derive(Debug, Default)]
struct Had {
    events: EventsComeOnce,
    adoptions: u64,
    /// How often it fell behind.
    lagged: u64,
}

impl Subscriber {
    /// Begins to follow at the first of these nodes.
    ///
    /// # Errors
    /// When a URL is none.
    pub fn start(urls: &[&str]) -> Result<Self> {
        let had: Arc<Mutex<Had>> = Arc::default();
        let mut stream = Client::new(urls)?.events(None);
        let taken = Arc::clone(&had);
        let task = tokio::spawn(async move {
            while let Some(message) = stream.next().await {
                let mut had = taken.lock();
                match message {
                    Ok(EventMessage::Snapshot(topology)) => had.events.see(Seen::Snapshot(topology.index))?,
                    Ok(EventMessage::Event { id: Some(EventId { index, position }), event }) => {
                        had.adoptions += u64::from(matches!(event, ClusterEvent::ShardAdopted { .. }));
                        had.events.see(Seen::Event((index, position), format!("{event:?}")))?;
                    }
                    Ok(EventMessage::Event { id: None, .. }) => {}
                    Ok(EventMessage::Lagged { .. }) => had.lagged += 1,
                    Err(error) if error.is_retryable() => {}
                    Err(error) => bail!(error),
                }
            }
            bail!("a stream of events has ended")
        });
        Ok(Self { had, task })
    }

    /// Shards that were adopted, as far as it has heard.
    pub fn adoptions(&self) -> u64 {
        self.had.lock().adoptions
    }
}

/// Makes an event, waits until all subscribers have come so far, and holds them against each other. Gives how many events
/// they had, and how often one fell behind.
///
/// # Errors
/// When one has had an event twice, or has not had one that another has.
pub async fn all_had_the_same(client: &Client, subscribers: Vec<Subscriber>) -> Result<(usize, u64)> {
    let namespace = "the-last-event".parse()?;
    let last = client.put_namespace(&namespace, &Default::default(), Write::default()).await?.index;
    for subscriber in &subscribers {
        wait_until("a subscriber has had the last event", LONG, async || {
            ensure!(!subscriber.task.is_finished(), "it has ended");
            let had = subscriber.had.lock().events.last();
            ensure!(had.is_some_and(|(index, _)| index >= last), "it is at {had:?}, the last one is at {last}");
            Ok(())
        })
        .await?;
    }
    let (mut events, mut lagged) = (0, 0);
    for (number, subscriber) in subscribers.iter().enumerate() {
        let had = subscriber.had.lock();
        events += had.events.count();
        lagged += had.lagged;
        if let Some(other) = subscribers.get(number + 1) {
            let other = other.had.lock();
            had.events.same_as(&other.events).with_context(|| format!("subscribers {number} and {}", number + 1))?;
        }
    }
    for subscriber in subscribers {
        subscriber.task.abort();
    }
    Ok((events, lagged))
}
