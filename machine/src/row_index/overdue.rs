//! Rows that have been due for a while and are still there.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Lane, Queue, Route, RowIndex};
use crate::id::{Millis, NodeName};

/// Rows of a queue that are not due yet which are told from those that are, when due rows are counted.
const LATER_ROWS_COUNTED_MAX: usize = 10_000;

impl RowIndex {
    /// When the oldest claim was made.
    pub fn oldest_claim(&self) -> Option<Millis> {
        self.claimed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Up to `limit` routes whose first row of this owner's shards has been due since `due_by` or longer, each with how
    /// many are due at `now`; in order, behind `after`. Looks at the first row of each of the owner's lanes.
    pub fn overdue_routes(
        &self,
        owner: &NodeName,
        due_by: Millis,
        now: Millis,
        after: Option<&Route>,
        limit: usize,
    ) -> Vec<(Route, u64)> {
        let from = after
            .map_or(Bound::Unbounded, |after| Bound::Included((after.namespace.clone(), after.task_queue.clone())));
        let mut routes = Vec::new();
        for (pool, lanes) in self.due.range((from, Bound::Unbounded)) {
            for (lane, queue) in of_owner(lanes, owner) {
                if routes.len() >= limit {
                    return routes;
                }
                if queue.first().is_none_or(|(at, _)| *at > due_by) {
                    continue;
                }
                let route = lane.route(pool);
                if after.is_none_or(|after| route > *after) {
                    routes.push((route, due_count(queue, now)));
                }
            }
        }
        routes
    }

    /// When the first row of this owner's shards is or was due.
    pub fn next_due_of(&self, owner: &NodeName) -> Option<Millis> {
        let queues = self.due.values().flat_map(|lanes| of_owner(lanes, owner));
        queues.filter_map(|(_, queue)| queue.first()).map(|(at, _)| *at).min()
    }
}

/// The lanes of an owner, by pin and activity type.
fn of_owner<'a>(lanes: &'a BTreeMap<Lane, Queue>, owner: &NodeName) -> impl Iterator<Item = (&'a Lane, &'a Queue)> {
    let owner = owner.clone();
    lanes.iter().filter(move |(lane, _)| lane.owner.as_ref() == Some(&owner))
}

/// How many rows of a queue are due. Those that are not are told apart one by one, so only so many of them.
fn due_count(queue: &Queue, now: Millis) -> u64 {
    let later = queue.iter().rev().take(LATER_ROWS_COUNTED_MAX).take_while(|(at, _)| *at > now).count();
    (queue.len() - later) as u64
}
