//! Live rows and the order in which they are due, have their deadlines and grow stale.
//!
//! Only live rows (pending or claimed) are in memory. Finished rows are on disk alone, so a claim costs
//! the same whether a thousand or ten million rows have gone before it. Due rows stand in lanes, one for
//! each owner, pin and activity type of a pool: a claim merges the lanes that it may take from and never
//! walks over rows that are not for it.

mod overdue;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::command::Scope;
use crate::id::{ActivityType, DispatchKey, Millis, Namespace, NodeName, ShardId, TaskQueue, WorkflowId};
use crate::merge::merged;
use crate::outbox::Row;
use crate::row_counts::{CountsBy, RowCounts};
use crate::upcoming::Upcoming;

/// Where a pending row can be had: what a claim has to name to get it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Route {
    /// The namespace.
    pub namespace: Namespace,
    /// The task queue.
    pub task_queue: TaskQueue,
    /// The node that the rows are pinned to.
    pub node: Option<NodeName>,
    /// What to run.
    pub activity_type: ActivityType,
}

/// A route that has rows waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRoute {
    /// The route.
    pub route: Route,
    /// How many rows wait on it, due or not.
    pub pending: u64,
    /// When the first of them is or was due.
    pub next_due: Millis,
}

pub(crate) type Pool = (Namespace, TaskQueue);
type Queue = BTreeSet<(Millis, DispatchKey)>;

/// Pending rows of a pool that are had alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    owner: Option<NodeName>,
    /// The node that the rows are pinned to.
    pub pin: Option<NodeName>,
    /// What to run.
    pub activity: ActivityType,
}

impl Lane {
    /// The route of its rows.
    fn route(&self, pool: &Pool) -> Route {
        let ((namespace, task_queue), Self { owner: _, pin, activity }) = (pool.clone(), self.clone());
        Route { namespace, task_queue, node: pin, activity_type: activity }
    }
}

/// What a row's place in the index depends on besides the row itself. Whoever changes it takes the rows
/// out first and puts them back afterwards.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The owner of its shard.
    pub owner: Option<NodeName>,
    /// True if its workflow is paused.
    pub held: bool,
}

/// The indexes over live rows. Derived from the rows, never stored.
#[derive(Debug, Default)]
pub(crate) struct RowIndex {
    due: BTreeMap<Pool, BTreeMap<Lane, Queue>>,
    /// By the next deadline; pending rows of paused workflows have none.
    deadlines: Queue,
    /// By claim time; the value is the lease's end.
    claimed: BTreeMap<(Millis, DispatchKey), Option<Millis>>,
    counts: CountsBy<Namespace>,
    /// When log time reaches rows that are not due yet.
    pub upcoming: Upcoming,
}

impl RowIndex {
    /// Adds a live row.
    pub fn insert(&mut self, key: &DispatchKey, row: &Row, standing: Standing) {
        self.counts.add(&row.namespace, row);
        if let Some((at, _)) = row.next_deadline().filter(|_| row.claim.is_some() || !standing.held) {
            self.deadlines.insert((at, key.clone()));
        }
        if let Some(claim) = &row.claim {
            self.claimed.insert((claim.claimed_at, key.clone()), claim.deadline);
        } else if !standing.held {
            let (pool, lane) = (pool(row), lane(row, standing.owner));
            self.upcoming.add(&pool, row.visible_after);
            let queue = self.due.entry(pool).or_default().entry(lane).or_default();
            queue.insert((row.visible_after, key.clone()));
        }
    }

    /// Takes a row out, with the owner that it was inserted under.
    pub fn remove(&mut self, key: &DispatchKey, row: &Row, owner: Option<NodeName>) {
        self.counts.remove(&row.namespace, row);
        if let Some((at, _)) = row.next_deadline() {
            self.deadlines.remove(&(at, key.clone()));
        }
        if let Some(claim) = &row.claim {
            self.claimed.remove(&(claim.claimed_at, key.clone()));
            return;
        }
        let (pool, lane) = (pool(row), lane(row, owner));
        let Some(lanes) = self.due.get_mut(&pool) else { return };
        if let Some(queue) = lanes.get_mut(&lane) {
            if queue.remove(&(row.visible_after, key.clone())) {
                self.upcoming.remove(&pool, row.visible_after);
            }
            if queue.is_empty() {
                lanes.remove(&lane);
            }
        }
        if lanes.is_empty() {
            self.due.remove(&pool);
        }
    }

    fn queues<'a>(&'a self, scope: &'a Scope, owner: Option<&'a NodeName>) -> impl Iterator<Item = &'a Queue> {
        let lanes = self.due.get(&(scope.namespace.clone(), scope.task_queue.clone())).into_iter().flatten();
        let owned = move |lane: &Lane| owner.is_none() || lane.owner.as_ref() == owner;
        lanes
            .filter(move |(lane, _)| owned(lane) && scope.takes(lane.pin.as_ref(), &lane.activity))
            .map(|(_, queue)| queue)
    }

    /// Pending rows of a scope, with the time from which they are due, in the order of claims: oldest
    /// `visible_after` first, then by key. With an `owner` only those of its shards.
    pub fn pending<'a>(
        &'a self,
        scope: &'a Scope,
        owner: Option<&'a NodeName>,
    ) -> impl Iterator<Item = (Millis, &'a DispatchKey)> {
        merged(self.queues(scope, owner)).map(|(at, key)| (*at, key))
    }

    /// Those of the pending rows that are due at `now`.
    pub fn due<'a>(
        &'a self,
        scope: &'a Scope,
        owner: Option<&'a NodeName>,
        now: Millis,
    ) -> impl Iterator<Item = &'a DispatchKey> {
        self.pending(scope, owner).take_while(move |(at, _)| *at <= now).map(|(_, key)| key)
    }

    /// When the first row of a scope is or was due.
    pub fn next_due(&self, scope: &Scope) -> Option<Millis> {
        self.queues(scope, None).filter_map(|queue| queue.first()).map(|(at, _)| *at).min()
    }

    /// The first row of each lane of a pool.
    pub fn heads(&self, pool: &Pool) -> impl Iterator<Item = (&Lane, &(Millis, DispatchKey))> {
        let lanes = self.due.get(pool).into_iter().flatten();
        lanes.filter_map(|(lane, queue)| Some((lane, queue.first()?)))
    }

    /// The first row of one lane.
    pub fn head(&self, pool: &Pool, lane: &Lane) -> Option<&(Millis, DispatchKey)> {
        self.due.get(pool)?.get(lane)?.first()
    }

    /// Up to `limit` routes with what waits on them, in order, from the one after `after` on. Merges the lanes of
    /// the owners; costs as many looks as there are lanes in the pools that it goes through.
    pub fn routes(&self, after: Option<&Route>, limit: usize) -> Vec<PendingRoute> {
        let from = after
            .map_or(Bound::Unbounded, |after| Bound::Included((after.namespace.clone(), after.task_queue.clone())));
        let mut routes = Vec::new();
        for (pool, lanes) in self.due.range((from, Bound::Unbounded)) {
            if routes.len() >= limit {
                break;
            }
            let mut of_pool: BTreeMap<Route, (u64, Millis)> = BTreeMap::new();
            for (lane, queue) in lanes {
                let Some((first, _)) = queue.first() else { continue };
                let (pending, next_due) = of_pool.entry(lane.route(pool)).or_insert((0, *first));
                *pending += queue.len() as u64;
                *next_due = (*next_due).min(*first);
            }
            let rest = of_pool.into_iter().filter(|(route, _)| after.is_none_or(|after| route > after));
            routes.extend(rest.map(|(route, (pending, next_due))| PendingRoute { route, pending, next_due }));
        }
        routes.truncate(limit);
        routes
    }

    /// The first deadline of all.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The rows whose deadline has passed at `now`, earliest first.
    pub fn all_overdue(&self, now: Millis) -> impl Iterator<Item = &DispatchKey> {
        let overdue = self.deadlines.iter().take_while(move |(at, _)| *at <= now);
        overdue.map(|(_, key)| key)
    }

    /// The row whose deadline comes first, if it has passed at `now`.
    pub fn overdue(&self, now: Millis) -> Option<&DispatchKey> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, key)| key)
    }

    /// Claimed rows with the end of their lease, by claim time, then key, from behind `after` up to and including
    /// claims at `until`.
    pub fn claimed_until(
        &self,
        after: Option<&(Millis, DispatchKey)>,
        until: Millis,
    ) -> impl Iterator<Item = (&DispatchKey, Option<Millis>)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.claimed
            .range((start, Bound::Unbounded))
            .take_while(move |((at, _), _)| *at <= until)
            .map(|((_, key), deadline)| (key, *deadline))
    }

    /// How many rows there are, by namespace.
    pub fn counts(&self) -> &CountsBy<Namespace> {
        &self.counts
    }

    /// How many rows are claimed.
    pub fn claimed_count(&self) -> usize {
        self.claimed.len()
    }
}

fn pool(row: &Row) -> Pool {
    (row.namespace.clone(), row.task_queue.clone())
}

fn lane(row: &Row, owner: Option<NodeName>) -> Lane {
    Lane { owner, pin: row.node.clone(), activity: row.activity_type.clone() }
}

/// Live rows by shard, then by key, so that a shard's or a workflow's rows are one range.
#[derive(Debug, Default)]
pub(crate) struct LiveRows {
    rows: BTreeMap<ShardId, BTreeMap<DispatchKey, Row>>,
    /// How many rows each workflow has; a shard without any is not in it.
    counts: BTreeMap<ShardId, CountsBy<WorkflowId>>,
}

impl LiveRows {
    pub fn get(&self, shard: ShardId, key: &DispatchKey) -> Option<&Row> {
        self.rows.get(&shard)?.get(key)
    }

    pub fn insert(&mut self, shard: ShardId, key: DispatchKey, row: Row) {
        self.remove(shard, &key);
        self.counts.entry(shard).or_default().add(&key.workflow, &row);
        self.rows.entry(shard).or_default().insert(key, row);
    }

    pub fn remove(&mut self, shard: ShardId, key: &DispatchKey) -> Option<Row> {
        let row = self.rows.get_mut(&shard)?.remove(key)?;
        if let Some(of_shard) = self.counts.get_mut(&shard) {
            of_shard.remove(&key.workflow, &row);
            if of_shard.is_empty() {
                self.counts.remove(&shard);
            }
        }
        Some(row)
    }

    /// Workflows that have live rows, with their numbers, by shard, then by id, after this one; of one shard or of all.
    pub fn unsettled<'a>(
        &'a self,
        shard: Option<ShardId>,
        after: Option<(ShardId, &'a WorkflowId)>,
    ) -> impl Iterator<Item = (&'a WorkflowId, RowCounts)> {
        let first = shard.or(after.map(|(shard, _)| shard)).map_or(Bound::Unbounded, Bound::Included);
        let last = shard.map_or(Bound::Unbounded, Bound::Included);
        self.counts.range((first, last)).flat_map(move |(shard, of_shard)| {
            of_shard.after(after.filter(|(of, _)| of == shard).map(|(_, workflow)| workflow))
        })
    }

    /// How many rows a workflow has.
    pub fn counts_of(&self, shard: ShardId, workflow: &WorkflowId) -> RowCounts {
        self.counts.get(&shard).map(|of_shard| of_shard.get(workflow)).unwrap_or_default()
    }

    /// The rows of a shard, by key.
    pub fn of_shard(&self, shard: ShardId) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.rows.get(&shard).into_iter().flatten()
    }

    /// The rows of a workflow, by key.
    pub fn of_workflow(&self, shard: ShardId, workflow: &WorkflowId) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        let bound = |ordinal| DispatchKey { workflow: workflow.clone(), ordinal };
        let range = bound(0)..=bound(u64::MAX);
        self.rows.get(&shard).into_iter().flat_map(move |rows| rows.range(range.clone()))
    }

    /// All rows, by shard, then by key.
    pub fn all(&self) -> impl Iterator<Item = (&DispatchKey, &Row)> {
        self.rows.values().flatten()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }

    /// Sorts the rows into the shards of a cluster that has just been created.
    pub fn spread(&mut self, shard_count: u32) {
        for (key, row) in std::mem::take(self).rows.into_values().flatten() {
            self.insert(ShardId::of(&key.workflow, shard_count), key, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ClaimToken;
    use crate::outbox::{Holder, RowClaim, RowStatus};
    use crate::trial::{Trial, id};

    fn row() -> Row {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.row("order-1:1").unwrap()
    }

    fn owned(owner: &str) -> Standing {
        Standing { owner: Some(id(owner)), held: false }
    }

    #[test]
    fn lanes_are_merged_in_the_order_of_claims() {
        let mut index = RowIndex::default();
        let at = |at, row: &Row| Row { visible_after: Millis(at), ..row.clone() };
        let row = row();
        let mail = Row { activity_type: id("mail"), ..row.clone() };
        let pinned = Row { node: Some(id("a")), ..row.clone() };
        index.insert(&id("w:3"), &at(5, &row), owned("a"));
        index.insert(&id("w:2"), &at(5, &mail), owned("b"));
        index.insert(&id("w:1"), &at(6, &row), owned("b"));
        index.insert(&id("w:4"), &at(4, &pinned), owned("a"));
        index.insert(&id("w:5"), &at(1, &row), Standing { held: true, ..owned("a") });
        let due = |scope: &Scope, owner: Option<&str>, now| -> Vec<u64> {
            let owner = owner.map(id::<NodeName>);
            index.due(scope, owner.as_ref(), Millis(now)).map(|key| key.ordinal).collect()
        };
        let any = Scope::default();
        assert_eq!(due(&any, None, 9), [2, 3, 1]);
        assert_eq!(due(&any, None, 5), [2, 3]);
        assert_eq!(due(&any, Some("b"), 9), [2, 1]);
        assert_eq!(due(&any, Some("c"), 9), [0u64; 0]);
        assert_eq!(due(&Scope { node: Some(id("a")), ..any.clone() }, None, 9), [4, 2, 3, 1]);
        assert_eq!(due(&Scope { activity_types: vec![id("mail")], ..any.clone() }, None, 9), [2]);
        assert_eq!(due(&Scope { task_queue: id("other"), ..any.clone() }, None, 9), [0u64; 0]);
        assert_eq!(index.next_due(&any), Some(Millis(5)));
    }

    #[test]
    fn what_goes_in_comes_out_and_leaves_nothing() {
        let mut index = RowIndex::default();
        let pending = row();
        let claim = RowClaim {
            token: ClaimToken { index: 1, number: 1 },
            holder: Holder::Lease { claimant: id("bob") },
            claimed_at: Millis(3),
            deadline: Some(Millis(9)),
            heartbeat_at: Millis(3),
        };
        let claimed = Row { status: RowStatus::Claimed, claim: Some(claim), ..pending.clone() };
        let key = id("w:1");
        index.insert(&key, &pending, owned("a"));
        index.remove(&key, &pending, Some(id("a")));
        assert!(index.due.is_empty());
        index.insert(&key, &claimed, owned("a"));
        assert_eq!((index.claimed_count(), index.next_deadline()), (1, Some(Millis(9))));
        assert_eq!((index.overdue(Millis(8)), index.overdue(Millis(9))), (None, Some(&key)));
        assert_eq!(index.claimed_until(None, Millis(2)).count(), 0);
        assert_eq!(index.claimed_until(None, Millis(3)).count(), 1);
        index.remove(&key, &claimed, Some(id("a")));
        assert!(index.deadlines.is_empty() && index.claimed.is_empty());
        assert_eq!(index.counts.after(None).count(), 0);
    }
}
