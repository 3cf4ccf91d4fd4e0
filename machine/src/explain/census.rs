//! Which workers there are: for a route whose rows nobody takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{RowReason, Vantage};
use crate::archive::{Archive, ArchiveResult};
use crate::event::Parked;
use crate::id::{ActivityType, Claimant, DispatchKey, Namespace, NodeName, SessionId, TaskQueue};
use crate::session::Session;
use crate::session_index::Serves;
use crate::state::Machine;

/// Workers of the queue that are listed.
const SESSIONS_LISTED_MAX: usize = 100;
/// Other queues that are listed.
const QUEUES_LISTED_MAX: usize = 50;
/// Sessions that are looked at for them.
const SESSIONS_LOOKED_AT_MAX: usize = 10_000;

/// The workers of a task queue, and which other queues have some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Census {
    /// The namespace.
    pub namespace: Namespace,
    /// The task queue.
    pub task_queue: TaskQueue,
    /// How many worker sessions serve it.
    pub workers: u64,
    /// The first hundred of them, by session.
    pub sessions: Vec<CensusSession>,
    /// How many claims wait for its rows by long-poll, on the node that answers.
    pub polls_here: u64,
    /// Other queues that workers serve, by namespace and queue; at most fifty.
    pub elsewhere: Vec<QueueCensus>,
}

/// A worker of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CensusSession {
    /// Its session.
    pub session: SessionId,
    /// Who, in its own words.
    pub identity: Claimant,
    /// The node that it is attached to; none while it has no connection.
    pub attached: Option<NodeName>,
    /// The node whose pinned rows it takes.
    pub node: Option<NodeName>,
    /// The activity types that it takes; empty for all.
    pub activity_types: Vec<ActivityType>,
    /// True once it takes nothing new.
    pub draining: bool,
    /// How many rows it holds.
    pub rows: u64,
    /// How many it can hold.
    pub max_concurrency: u32,
}

/// The workers of another queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueCensus {
    /// The namespace.
    pub namespace: Namespace,
    /// The task queue.
    pub task_queue: TaskQueue,
    /// How many worker sessions serve it.
    pub workers: u64,
    /// The activity types that they take; empty for all.
    pub activity_types: Vec<ActivityType>,
}

/// A session that serves a queue, and how many rows it holds.
#[derive(Debug)]
pub(super) struct Server<'a> {
    pub id: &'a SessionId,
    pub session: &'a Session,
    pub serves: Arc<Serves>,
    pub rows: u64,
}

impl Machine {
    /// The sessions that serve a queue.
    pub(super) fn servers(&self, namespace: &Namespace, task_queue: &TaskQueue) -> Vec<Server<'_>> {
        let serving = self.sessions_serving(namespace, task_queue);
        let server = |(id, session)| {
            let (serves, rows) = (self.sessions.serves(id)?, self.session_row_count(id));
            Some(Server { id, session, serves, rows })
        };
        serving.filter_map(server).collect()
    }

    /// The census of a row's queue, if the row waits for workers.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn census_for(
        &self,
        archive: &dyn Archive,
        key: &DispatchKey,
        reason: &RowReason,
        vantage: &Vantage,
    ) -> ArchiveResult<Option<Census>> {
        if matches!(reason.parked(), None | Some(Parked::NamespaceFull)) {
            return Ok(None);
        }
        let row = self.row(archive, key)?;
        Ok(row.map(|row| self.census(&row.namespace, &row.task_queue, vantage)))
    }

    /// The workers of a task queue, and which other queues have some.
    fn census(&self, namespace: &Namespace, task_queue: &TaskQueue, vantage: &Vantage) -> Census {
        let servers = self.servers(namespace, task_queue);
        let sessions = servers.iter().take(SESSIONS_LISTED_MAX).map(listed).collect();
        let polls = vantage.polls.iter();
        let here = polls.filter(|poll| poll.scope.namespace == *namespace && poll.scope.task_queue == *task_queue);
        Census {
            namespace: namespace.clone(),
            task_queue: task_queue.clone(),
            workers: servers.len() as u64,
            sessions,
            polls_here: here.map(|poll| poll.count).sum(),
            elsewhere: self.elsewhere(namespace, task_queue),
        }
    }

    fn elsewhere(&self, namespace: &Namespace, task_queue: &TaskQueue) -> Vec<QueueCensus> {
        let mut queues: BTreeMap<(&Namespace, &TaskQueue), Vec<&[ActivityType]>> = BTreeMap::new();
        for (_, session) in self.sessions_after(None).take(SESSIONS_LOOKED_AT_MAX) {
            let worker = &session.worker;
            for of in worker.namespaces.iter().filter(|of| (*of, &worker.task_queue) != (namespace, task_queue)) {
                queues.entry((of, &worker.task_queue)).or_default().push(&worker.activity_types);
            }
        }
        let queue =
            |((namespace, task_queue), workers): ((&Namespace, &TaskQueue), Vec<&[ActivityType]>)| QueueCensus {
                namespace: namespace.clone(),
                task_queue: task_queue.clone(),
                workers: workers.len() as u64,
                activity_types: types_of(workers.into_iter()).into_iter().collect(),
            };
        queues.into_iter().take(QUEUES_LISTED_MAX).map(queue).collect()
    }
}

fn listed(server: &Server<'_>) -> CensusSession {
    let Server { id, session, serves: _, rows } = server;
    let worker = &session.worker;
    CensusSession {
        session: (*id).clone(),
        identity: worker.identity.clone(),
        attached: session.attached.as_ref().map(|attached| attached.node.clone()),
        node: worker.node.clone(),
        activity_types: worker.activity_types.clone(),
        draining: session.draining,
        rows: *rows,
        max_concurrency: worker.max_concurrency,
    }
}

/// The activity types that these workers take, each once; empty if one of them takes all.
fn types_of<'a>(servers: impl Iterator<Item = &'a [ActivityType]>) -> BTreeSet<ActivityType> {
    let mut types = BTreeSet::new();
    for of in servers {
        if of.is_empty() {
            return BTreeSet::new();
        }
        types.extend(of.iter().cloned());
    }
    types
}
