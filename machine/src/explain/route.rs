//! Rows that are due: whom they wait for. The same for a single row as for all rows of a route.

use super::census::Server;
use super::row::RowReason;
use super::{Poll, Vantage};
use crate::event::Parked;
use crate::id::{Millis, NodeName, WorkflowId};
use crate::row_index::Route;
use crate::state::Machine;

/// Due rows of one route.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouteOf<'a> {
    pub route: &'a Route,
    /// The owner of their shards.
    pub owner: Option<&'a NodeName>,
    /// The workflow, if they are of one.
    pub workflow: Option<&'a WorkflowId>,
}

/// A route on which due rows wait, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRoute {
    /// The route.
    pub route: Route,
    /// How many of its rows are due.
    pub rows: u64,
    /// Why they wait.
    pub reason: Parked,
}

impl RowReason {
    /// What a parked dispatch is said to wait for; none if it does not wait for anybody who takes rows.
    pub fn parked(&self) -> Option<Parked> {
        Some(match self {
            Self::PinnedNodeAway { .. } | Self::PinnedNodeUnserved { .. } => Parked::PinnedNodeMissing,
            Self::NamespaceFull { .. } | Self::NamespaceStopped { .. } => Parked::NamespaceFull,
            Self::NoWorker { .. } | Self::WorkersAway { .. } | Self::WorkersDraining { .. } => Parked::NoWorker,
            Self::NoWorkerForActivity { .. } => Parked::NoWorkerForActivity,
            Self::WorkersFull { .. } => Parked::WorkersFull,
            _ => return None,
        })
    }
}

impl Machine {
    /// What holds up the due rows of a route, of one owner's shards; none if nothing does.
    pub(super) fn route_reason(&self, of: &RouteOf<'_>, vantage: &Vantage) -> Option<RowReason> {
        let route = of.route;
        let servers = self.servers(&route.namespace, &route.task_queue);
        let polled = vantage.polls.iter().any(|poll| takes(poll, of));
        let pinned: Vec<&Server<'_>> =
            servers.iter().filter(|server| server.serves.takes_pin(route.node.as_ref())).collect();
        if let Some(node) = route.node.as_ref().filter(|_| pinned.is_empty() && !polled)
            && let Some(away) = self.pinned_away(node)
        {
            return Some(away);
        }
        if let Some(full) = self.namespace_full(route) {
            return Some(full);
        }
        if polled {
            return None;
        }
        workers_lack(route, &servers, &pinned)
    }

    fn pinned_away(&self, node: &NodeName) -> Option<RowReason> {
        let away = |down_since| RowReason::PinnedNodeAway { node: node.clone(), down_since };
        match self.member(node) {
            None => Some(away(None)),
            Some(member) if member.is_down() => Some(away(Some(member.since))),
            Some(_) => None,
        }
    }

    fn namespace_full(&self, route: &Route) -> Option<RowReason> {
        if self.room_for_claims(&route.namespace) != Some(0) {
            return None;
        }
        let claimed_max = self.namespace(&route.namespace)?.settings.claimed_max?;
        let (namespace, claimed) = (route.namespace.clone(), self.counts_of(&route.namespace).claimed);
        Some(match claimed_max {
            0 => RowReason::NamespaceStopped { namespace, claimed },
            _ => RowReason::NamespaceFull { namespace, claimed, claimed_max },
        })
    }

    /// Up to `limit` routes of this owner's shards whose first row has been due since `due_by` or longer, in order,
    /// behind `after`, with why their rows wait; one on which nothing holds them up is left out. With them, where to go
    /// on if there are more.
    pub fn parked_routes(
        &self,
        owner: &NodeName,
        due_by: Millis,
        after: Option<&Route>,
        limit: usize,
        vantage: &Vantage,
    ) -> (Vec<ParkedRoute>, Option<Route>) {
        let overdue = self.index.overdue_routes(owner, due_by, vantage.now, after, limit);
        let next = overdue.last().filter(|_| overdue.len() == limit).map(|last| last.0.clone());
        let parked = |(route, rows)| {
            let of = RouteOf { route: &route, owner: Some(owner), workflow: None };
            let reason = self.route_reason(&of, vantage)?.parked()?;
            Some(ParkedRoute { route, rows, reason })
        };
        (overdue.into_iter().filter_map(parked).collect(), next)
    }

    /// When the first row of this owner's shards is or was due.
    pub fn next_due_of(&self, owner: &NodeName) -> Option<Millis> {
        self.index.next_due_of(owner)
    }
}

/// True if the claims of this wish take the rows.
fn takes(poll: &Poll, of: &RouteOf<'_>) -> bool {
    let Poll { scope, owner, hold, count: _ } = poll;
    let route = of.route;
    scope.namespace == route.namespace
        && scope.task_queue == route.task_queue
        && scope.takes(route.node.as_ref(), &route.activity_type)
        && (owner.is_none() || owner.as_ref() == of.owner)
        && of.workflow.is_none_or(|workflow| !hold.contains(workflow))
}

/// What the workers of a queue lack; none if one of them can take a row now. `pinned` are those that take the rows of
/// the route's pin.
fn workers_lack(route: &Route, servers: &[Server<'_>], pinned: &[&Server<'_>]) -> Option<RowReason> {
    let task_queue = || route.task_queue.clone();
    if let Some(node) = route.node.as_ref().filter(|_| pinned.is_empty()) {
        return Some(RowReason::PinnedNodeUnserved { node: node.clone(), task_queue: task_queue() });
    }
    if servers.is_empty() {
        return Some(RowReason::NoWorker { namespace: route.namespace.clone(), task_queue: task_queue() });
    }
    let takers: Vec<&&Server<'_>> =
        pinned.iter().filter(|server| server.serves.takes_activity(&route.activity_type)).collect();
    if takers.is_empty() {
        let (activity_type, workers) = (route.activity_type.clone(), pinned.len() as u64);
        return Some(RowReason::NoWorkerForActivity { task_queue: task_queue(), activity_type, workers });
    }
    let attached: Vec<_> = takers.iter().filter(|server| server.session.attached.is_some()).collect();
    let ready: Vec<_> = attached.iter().filter(|server| !server.session.draining).collect();
    if ready.iter().any(|server| server.rows < u64::from(server.session.worker.max_concurrency)) {
        return None;
    }
    Some(if !ready.is_empty() {
        let rows = ready.iter().map(|server| server.rows).sum();
        let slots = ready.iter().map(|server| u64::from(server.session.worker.max_concurrency)).sum();
        RowReason::WorkersFull { task_queue: task_queue(), workers: ready.len() as u64, rows, slots }
    } else if !attached.is_empty() {
        RowReason::WorkersDraining { task_queue: task_queue(), workers: attached.len() as u64 }
    } else {
        RowReason::WorkersAway { task_queue: task_queue(), workers: takers.len() as u64 }
    })
}
