//! The events of each node, the moment they arrive. Each node is watched on its own, so that the death of one hides
//! nothing: a committed event comes from all survivors, and the first sighting counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt;
use holdfast_client::{Client, EventMessage};
use holdfast_machine::ClusterEvent;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::nodes::Nodes;

/// Before a stream that broke is opened again.
const PAUSE: Duration = Duration::from_millis(20);

type Sightings = Arc<Mutex<Vec<(Instant, ClusterEvent)>>>;

/// Eyes on all nodes. Dropping it closes them.
#[derive(Debug)]
pub struct Watch {
    sightings: Sightings,
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Watches all of these nodes.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn start(nodes: &Nodes) -> Result<Self> {
        let sightings = Sightings::default();
        let mut tasks = JoinSet::new();
        for number in 0..nodes.len() {
            tasks.spawn(follow(nodes.client_of(number)?, Arc::clone(&sightings)));
        }
        Ok(Self { sightings, _tasks: tasks })
    }

    /// What `pick` finds in the events sighted after `since`, each with the time of its sighting, in order.
    pub fn sighted<T>(&self, since: Instant, pick: impl Fn(&ClusterEvent) -> Option<T>) -> Vec<(Instant, T)> {
        let sightings = self.sightings.lock();
        let after = sightings.iter().filter(|(at, _)| *at > since);
        after.filter_map(|(at, event)| Some((*at, pick(event)?))).collect()
    }
}

async fn follow(client: Client, sightings: Sightings) {
    loop {
        // A new stream each time begins with a snapshot: what was missed meanwhile, the others told.
        let mut events = client.events(None);
        while let Some(Ok(message)) = events.next().await {
            if let EventMessage::Event { event, .. } = message {
                sightings.lock().push((Instant::now(), event));
            }
        }
        sleep(PAUSE).await;
    }
}
