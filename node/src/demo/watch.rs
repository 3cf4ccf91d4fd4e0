//! What the demo sees of the cluster from outside: the events of each node the moment they arrive, and
//! ten times a second a picture for the terminal.
//!
//! Each node is watched on its own, so that the death of one hides nothing: a committed event comes from
//! all survivors, and the first sighting counts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use holdfast_client::{Client, ClientOptions, ClusterView, EventMessage, ReadMode};
use holdfast_machine::{ClusterEvent, Liveness, NodeName};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ledger::Ledger;
use super::picture::{NodePicture, Picture, RowsPicture, Standing};
use super::screen::Screen;

/// Between two pictures.
const PICTURE_EVERY: Duration = Duration::from_millis(100);
/// Before an event stream that broke is opened again.
const PAUSE: Duration = Duration::from_millis(20);

/// One event, as one node told it.
#[derive(Debug, Clone)]
struct Sighting {
    at: Instant,
    event: ClusterEvent,
}

/// The eyes of the demo. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct Watch {
    names: Vec<NodeName>,
    clients: Vec<Client>,
    sightings: Arc<Mutex<Vec<Sighting>>>,
    tasks: JoinSet<()>,
}

impl Watch {
    /// Watches the nodes of these names at these URLs.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn start(names: Vec<NodeName>, urls: &[String]) -> anyhow::Result<Self> {
        let options = ClientOptions {
            deadline: Duration::from_secs(1),
            attempt_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_millis(200),
            ..ClientOptions::default()
        };
        let clients =
            urls.iter().map(|url| Client::with_options([url], options.clone())).collect::<Result<Vec<_>, _>>()?;
        let sightings = Arc::default();
        let mut tasks = JoinSet::new();
        for client in &clients {
            tasks.spawn(follow(client.clone(), Arc::clone(&sightings)));
        }
        Ok(Self { names, clients, sightings, tasks })
    }

    /// A client for each node that asks this node alone and is not patient.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Draws pictures from now on.
    pub fn draw(&mut self, screen: Arc<Screen>, ledger: Ledger, activities: u64) {
        let (names, clients) = (self.names.clone(), self.clients.clone());
        self.tasks.spawn(async move {
            loop {
                screen.show(&picture(&names, &clients, &ledger, activities).await);
                sleep(PICTURE_EVERY).await;
            }
        });
    }

    /// What `pick` finds in the events sighted after `since`, each with the time of its sighting.
    pub fn sighted<T>(&self, since: Instant, pick: impl Fn(&ClusterEvent) -> Option<T>) -> Vec<(Instant, T)> {
        let sightings = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
        let after = sightings.iter().filter(|sighting| sighting.at > since);
        after.filter_map(|sighting| Some((sighting.at, pick(&sighting.event)?))).collect()
    }

    /// Each node's own view; none from a node that does not answer.
    pub async fn views(&self) -> Vec<Option<ClusterView>> {
        views(&self.clients).await
    }
}

async fn follow(client: Client, sightings: Arc<Mutex<Vec<Sighting>>>) {
    loop {
        // A new stream each time begins with a snapshot: what was missed meanwhile, the others told.
        let mut events = client.events(None);
        while let Some(Ok(message)) = events.next().await {
            if let EventMessage::Event { event, .. } = message {
                let sighting = Sighting { at: Instant::now(), event };
                sightings.lock().unwrap_or_else(PoisonError::into_inner).push(sighting);
            }
        }
        sleep(PAUSE).await;
    }
}

async fn views(clients: &[Client]) -> Vec<Option<ClusterView>> {
    join_all(clients.iter().map(|client| async move { Some(client.cluster().await.ok()?.value) })).await
}

async fn picture(names: &[NodeName], clients: &[Client], ledger: &Ledger, activities: u64) -> Picture {
    let views = views(clients).await;
    // The node that has applied most knows best.
    let best = views.iter().enumerate().max_by_key(|(_, view)| view.as_ref().map(|view| view.applied));
    let Some((position, Some(view))) = best else { return Picture::default() };
    let directory = clients[position].shards(ReadMode::Stale).await;
    let mut owners = vec![None; view.shard_count as usize];
    for entry in directory.map(|answer| answer.value.shards).unwrap_or_default() {
        if let Some(owner) = owners.get_mut(entry.shard.0 as usize) {
            *owner = names.iter().position(|name| *name == entry.owner);
        }
    }
    let nodes = names.iter().zip(&views).map(|(name, own)| NodePicture {
        name: name.clone(),
        standing: standing(name, own.as_ref(), view),
        applied: own.as_ref().map(|own| own.applied),
    });
    let (all, done) = (ledger.workflows_staged() * activities, ledger.rows_done());
    let rows = RowsPicture { all, pending: view.rows.pending, claimed: view.rows.claimed, done };
    Picture { nodes: nodes.collect(), owners, rows }
}

fn standing(name: &NodeName, own: Option<&ClusterView>, best: &ClusterView) -> Standing {
    let up = is_up(best, name);
    match own {
        None => Standing::Gone,
        Some(_) if !up => Standing::Starting,
        Some(_) if best.leader.as_ref() == Some(name) => Standing::Leader,
        Some(_) => Standing::Follower,
    }
}

/// True if this view has the node committed as up.
pub(crate) fn is_up(view: &ClusterView, name: &NodeName) -> bool {
    view.members.iter().any(|member| member.member.name == *name && member.member.liveness == Liveness::Up)
}
