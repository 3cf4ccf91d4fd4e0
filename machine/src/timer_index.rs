//! Armed timers: what each workflow has armed, and the order in which each shard's timers are due.
//!
//! Timers of a paused workflow are armed but held: they are in no order until it is resumed.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{Millis, ShardId, TimerId, WorkflowId};
use crate::merge::merged;
use crate::timer::Armed;

/// A timer's place in the order of firing. One without a name stands before all timers of its time; it is never
/// in a set, but bounds a walk over one.
type Place = (Millis, Option<(WorkflowId, TimerId)>);

/// Derived from the stored timers, never stored.
#[derive(Debug, Default)]
pub(crate) struct TimerIndex {
    armed: BTreeMap<WorkflowId, BTreeMap<TimerId, Armed>>,
    /// Timers that are not held.
    due: BTreeMap<ShardId, BTreeSet<Place>>,
    /// How many of them there are for each time, over all shards.
    times: BTreeMap<Millis, usize>,
}

impl TimerIndex {
    /// The arming that holds a name.
    pub fn get(&self, workflow: &WorkflowId, timer: &TimerId) -> Option<Armed> {
        self.armed.get(workflow)?.get(timer).copied()
    }

    /// The timers of a workflow, by name, behind `after` if that is given.
    pub fn of_workflow<'a>(
        &'a self,
        workflow: &WorkflowId,
        after: Option<&'a TimerId>,
    ) -> impl Iterator<Item = (&'a TimerId, Armed)> {
        let timers = self.armed.get(workflow);
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = timers.map(|timers| timers.range::<TimerId, _>((from, std::ops::Bound::Unbounded)));
        range.into_iter().flatten().map(|(timer, armed)| (timer, *armed))
    }

    /// Arms a timer, in the place of another arming of its name.
    pub fn arm(&mut self, shard: ShardId, workflow: &WorkflowId, timer: &TimerId, armed: Armed, held: bool) {
        self.disarm(shard, workflow, timer);
        self.armed.entry(workflow.clone()).or_default().insert(timer.clone(), armed);
        if !held {
            self.line_up(shard, armed.fire_at, workflow, timer);
        }
    }

    /// Takes a timer out.
    pub fn disarm(&mut self, shard: ShardId, workflow: &WorkflowId, timer: &TimerId) {
        let Some(timers) = self.armed.get_mut(workflow) else { return };
        let Some(armed) = timers.remove(timer) else { return };
        if timers.is_empty() {
            self.armed.remove(workflow);
        }
        self.leave_line(shard, armed.fire_at, workflow, timer);
    }

    /// Holds a workflow's timers, or lets them take their places again.
    pub fn set_held(&mut self, shard: ShardId, workflow: &WorkflowId, held: bool) {
        let timers: Vec<_> = self.of_workflow(workflow, None).map(|(timer, armed)| (timer.clone(), armed)).collect();
        for (timer, armed) in timers {
            if held {
                self.leave_line(shard, armed.fire_at, workflow, &timer);
            } else {
                self.line_up(shard, armed.fire_at, workflow, &timer);
            }
        }
    }

    fn line_up(&mut self, shard: ShardId, fire_at: Millis, workflow: &WorkflowId, timer: &TimerId) {
        let place = (fire_at, Some((workflow.clone(), timer.clone())));
        if self.due.entry(shard).or_default().insert(place) {
            *self.times.entry(fire_at).or_default() += 1;
        }
    }

    fn leave_line(&mut self, shard: ShardId, fire_at: Millis, workflow: &WorkflowId, timer: &TimerId) {
        let Some(line) = self.due.get_mut(&shard) else { return };
        if !line.remove(&(fire_at, Some((workflow.clone(), timer.clone())))) {
            return;
        }
        if line.is_empty() {
            self.due.remove(&shard);
        }
        if let Some(count) = self.times.get_mut(&fire_at) {
            *count -= 1;
            if *count == 0 {
                self.times.remove(&fire_at);
            }
        }
    }

    /// The timers of these shards, or of all, that are due at `as_of`: by time, then workflow, then name.
    pub fn expired(
        &self,
        shards: Option<&BTreeSet<ShardId>>,
        as_of: Millis,
    ) -> impl Iterator<Item = (Millis, &WorkflowId, &TimerId)> {
        let lines = self.due.iter().filter(move |(shard, _)| shards.is_none_or(|shards| shards.contains(shard)));
        let places = merged(lines.map(|(_, line)| line)).take_while(move |(at, _)| *at <= as_of);
        places.filter_map(|(at, name)| name.as_ref().map(|(workflow, timer)| (*at, workflow, timer)))
    }

    /// The first time after `after` at which a timer of these shards, or of any, is due.
    pub fn next_after(&self, shards: Option<&BTreeSet<ShardId>>, after: Millis) -> Option<Millis> {
        let from = Millis(after.0.checked_add(1)?);
        let Some(shards) = shards else { return self.times.range(from..).next().map(|(at, _)| *at) };
        shards.iter().filter_map(|shard| first_from(self.due.get(shard)?, from)).min()
    }

    /// The shards with a timer that is due after `after` and up to `until`.
    pub fn shards_due(&self, after: Millis, until: Millis) -> Vec<ShardId> {
        if self.next_after(None, after).is_none_or(|at| at > until) {
            return Vec::new();
        }
        let from = Millis(after.0.saturating_add(1));
        let due = self.due.iter().filter(|(_, line)| first_from(line, from).is_some_and(|at| at <= until));
        due.map(|(shard, _)| *shard).collect()
    }

    /// True if a timer of the shard is due at `now`.
    pub fn is_due(&self, shard: ShardId, now: Millis) -> bool {
        self.due.get(&shard).and_then(BTreeSet::first).is_some_and(|(at, _)| *at <= now)
    }

    /// Sorts the timers into the shards of a cluster that has just been created.
    pub fn spread(&mut self, shard_count: u32) {
        for place in std::mem::take(&mut self.due).into_values().flatten() {
            if let Some((workflow, _)) = &place.1 {
                self.due.entry(ShardId::of(workflow, shard_count)).or_default().insert(place);
            }
        }
    }
}

fn first_from(line: &BTreeSet<Place>, from: Millis) -> Option<Millis> {
    line.range((from, None)..).next().map(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::id;

    fn index(timers: &[(u32, &str, &str, u64)]) -> TimerIndex {
        let mut index = TimerIndex::default();
        for (shard, workflow, timer, at) in timers {
            let armed = Armed { fire_at: Millis(*at), armed_seq: 1 };
            index.arm(ShardId(*shard), &id(workflow), &id(timer), armed, false);
        }
        index
    }

    fn expired(index: &TimerIndex, shards: Option<&[u32]>, as_of: u64) -> Vec<(u64, String)> {
        let shards = shards.map(|shards| shards.iter().map(|shard| ShardId(*shard)).collect());
        let timers = index.expired(shards.as_ref(), Millis(as_of));
        timers.map(|(at, workflow, timer)| (at.0, format!("{workflow}/{timer}"))).collect()
    }

    fn all(names: &[(u64, &str)]) -> Vec<(u64, String)> {
        names.iter().map(|(at, name)| (*at, (*name).to_owned())).collect()
    }

    #[test]
    fn timers_are_due_by_time_then_workflow_then_name() {
        let index = index(&[(1, "b", "t", 5), (0, "a", "u", 5), (0, "a", "t", 5), (2, "c", "t", 3), (1, "d", "t", 9)]);
        assert_eq!(expired(&index, None, 5), all(&[(3, "c/t"), (5, "a/t"), (5, "a/u"), (5, "b/t")]));
        assert_eq!(expired(&index, Some(&[1, 7]), u64::MAX), all(&[(5, "b/t"), (9, "d/t")]));
        assert_eq!(index.shards_due(Millis(3), Millis(8)), [ShardId(0), ShardId(1)]);
        assert_eq!(index.shards_due(Millis(5), Millis(8)), []);
        assert_eq!(index.next_after(None, Millis(5)), Some(Millis(9)));
        assert_eq!(index.next_after(Some(&BTreeSet::from([ShardId(0)])), Millis(5)), None);
        assert_eq!(index.next_after(None, Millis(u64::MAX)), None);
    }

    #[test]
    fn what_goes_in_comes_out_and_leaves_nothing() {
        let mut index = index(&[(0, "a", "t", 5), (0, "a", "u", 5), (1, "b", "t", 5)]);
        index.arm(ShardId(1), &id("b"), &id("t"), Armed { fire_at: Millis(7), armed_seq: 2 }, false);
        assert_eq!(index.times, BTreeMap::from([(Millis(5), 2), (Millis(7), 1)]), "an arming takes the other's place");
        index.set_held(ShardId(0), &id("a"), true);
        assert_eq!((expired(&index, None, 9), index.is_due(ShardId(0), Millis(9))), (all(&[(7, "b/t")]), false));
        index.disarm(ShardId(0), &id("a"), &id("u"));
        index.set_held(ShardId(0), &id("a"), false);
        assert_eq!(expired(&index, None, 9), all(&[(5, "a/t"), (7, "b/t")]));
        index.disarm(ShardId(0), &id("a"), &id("t"));
        index.disarm(ShardId(1), &id("b"), &id("t"));
        assert!(index.armed.is_empty() && index.due.is_empty() && index.times.is_empty(), "{index:?}");
    }

    #[test]
    fn timers_go_to_the_shards_of_a_new_cluster() {
        let mut index = index(&[(0, "order-1", "t", 5), (0, "held", "t", 6)]);
        index.spread(2);
        assert_eq!(expired(&index, Some(&[1]), 9), all(&[(6, "held/t")]));
        assert_eq!(expired(&index, None, 9).len(), 2);
    }
}
