//! Timers: armed by an engine, listed once log time has passed them, retired by what they were armed as.
//!
//! They belong to the run that is open: its end takes them all away, so an ended workflow has none. While a
//! workflow is paused its timers are held, as its rows are. A change of owner leaves them as they are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::archive::ArchiveResult;
use crate::event::Effect;
use crate::history::WorkflowStatus;
use crate::id::{Millis, Namespace, NodeName, ShardId, TimerId, WorkflowId};
use crate::keys;
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::{Apply, Machine};

/// One arming of a timer. A timer is retired by its whole arming, so a late retirement never takes a newer one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Arming {
    /// The timer's name in its workflow.
    pub timer: TimerId,
    /// When it is due, in log time.
    pub fire_at: Millis,
    /// The number of the event that armed it.
    pub armed_seq: u64,
}

/// What is done to a timer. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TimerChange {
    /// Arms it; an arming that stands under the same name is overwritten.
    Schedule(Arming),
    /// Removes this very arming; another one of the same name is left alone.
    Retire(Arming),
}

/// What came of a retirement. Variants are only added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Retirement {
    /// The arming is gone, now or since before.
    Retired,
    /// Another arming holds the name; it stands.
    Superseded,
}

/// What is stored of an arming, under its workflow and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Armed {
    pub fire_at: Millis,
    pub armed_seq: u64,
}

impl Arming {
    pub(crate) fn of(timer: &TimerId, armed: Armed) -> Self {
        let Armed { fire_at, armed_seq } = armed;
        Self { timer: timer.clone(), fire_at, armed_seq }
    }
}

/// Refuses a commit that leaves its workflow ended and arms a timer all the same.
pub(crate) fn check_schedules(
    workflow: &WorkflowId,
    changes: &[TimerChange],
    status: WorkflowStatus,
) -> Result<(), Reject> {
    let arms = changes.iter().any(|change| matches!(change, TimerChange::Schedule(_)));
    if arms && status.is_terminal() {
        return Err(Reject::WorkflowEnded { workflow: workflow.clone(), status });
    }
    Ok(())
}

impl Apply<'_> {
    /// One change of a timer by itself.
    pub fn timer(&mut self, workflow: WorkflowId, change: TimerChange) -> ArchiveResult<Result<Reply, Reject>> {
        if matches!(change, TimerChange::Schedule(_)) {
            let Some(state) = self.workflow(&workflow)? else { return Ok(Err(Reject::WorkflowNotFound { workflow })) };
            if let Err(reject) = check_schedules(&workflow, std::slice::from_ref(&change), state.status) {
                return Ok(Err(reject));
            }
        }
        Ok(Ok(self.change_timer(&workflow, change).map_or(Reply::TimerScheduled, Reply::TimerRetired)))
    }

    /// Arms or retires a timer of an open workflow; what came of it if it was a retirement.
    pub fn change_timer(&mut self, workflow: &WorkflowId, change: TimerChange) -> Option<Retirement> {
        match change {
            TimerChange::Schedule(arming) => {
                self.schedule(workflow, arming);
                None
            }
            TimerChange::Retire(arming) => {
                let retirement = self.retirement(workflow, &arming);
                if retirement == Retirement::Retired {
                    self.disarm(workflow, &arming.timer);
                }
                Some(retirement)
            }
        }
    }

    fn schedule(&mut self, workflow: &WorkflowId, arming: Arming) {
        let Arming { timer, fire_at, armed_seq } = arming;
        let armed = Armed { fire_at, armed_seq };
        let (shard, held) = (self.state.shard_of(workflow), self.state.is_held(workflow));
        self.state.put(keys::timer(workflow, &timer), &armed);
        self.state.timers.arm(shard, workflow, &timer, armed, held);
        if !held && fire_at <= self.now() {
            self.tell_timers_due(shard);
        }
    }

    /// What comes of retiring this arming now.
    pub fn retirement(&self, workflow: &WorkflowId, arming: &Arming) -> Retirement {
        match self.state.timers.get(workflow, &arming.timer) {
            Some(armed) if Arming::of(&arming.timer, armed) != *arming => Retirement::Superseded,
            _ => Retirement::Retired,
        }
    }

    fn disarm(&mut self, workflow: &WorkflowId, timer: &TimerId) {
        if self.state.timers.get(workflow, timer).is_some() {
            self.state.delete(keys::timer(workflow, timer));
            self.state.timers.disarm(self.state.shard_of(workflow), workflow, timer);
        }
    }

    /// Takes all timers of a workflow away: its run has ended.
    pub fn drop_timers(&mut self, workflow: &WorkflowId) {
        let timers: Vec<TimerId> =
            self.state.timers.of_workflow(workflow, None).map(|(timer, _)| timer.clone()).collect();
        for timer in timers {
            self.disarm(workflow, &timer);
        }
    }

    /// Tells of the timers that log time has passed since it was `before`.
    pub fn pass_timers(&mut self, before: Millis) {
        let shards = self.state.timers.shards_due(before, self.now());
        self.effects.extend(shards.into_iter().map(|shard| Effect::TimersDue { shard }));
    }

    /// Tells of a shard's timers if some of them are due.
    pub fn tell_if_timers_due(&mut self, shard: ShardId) {
        if self.state.timers.is_due(shard, self.now()) {
            self.tell_timers_due(shard);
        }
    }

    /// Once for several in a row.
    fn tell_timers_due(&mut self, shard: ShardId) {
        let due = Effect::TimersDue { shard };
        if self.effects.last() != Some(&due) {
            self.effects.push(due);
        }
    }
}

impl Machine {
    /// Up to `limit` timers that are due at `as_of`, by time, then workflow, then name. With an `owner` only
    /// those of the shards that it owns, with a `namespace` only those of its workflows. Timers of paused workflows are
    /// held and not among them.
    pub fn expired_timers(
        &self,
        owner: Option<&NodeName>,
        namespace: Option<&Namespace>,
        as_of: Millis,
        limit: usize,
    ) -> Vec<(WorkflowId, Arming)> {
        let shards = self.shards_of(owner);
        // Timers are of open workflows, and those are in memory.
        let is_of = |workflow: &WorkflowId| self.open.get(workflow).map(|workflow| &workflow.namespace) == namespace;
        let timers = self.timers.expired(shards.as_ref(), as_of);
        let timers = timers.filter(|(_, workflow, _)| namespace.is_none() || is_of(workflow)).take(limit);
        let arming = |workflow: &WorkflowId, timer: &TimerId| {
            Some((workflow.clone(), Arming::of(timer, self.timers.get(workflow, timer)?)))
        };
        timers.filter_map(|(_, workflow, timer)| arming(workflow, timer)).collect()
    }

    /// The first time after `after` at which a timer is due. With an `owner` only of the shards that it owns.
    pub fn next_timer_due(&self, owner: Option<&NodeName>, after: Millis) -> Option<Millis> {
        self.timers.next_after(self.shards_of(owner).as_ref(), after)
    }

    /// Up to `limit` armed timers of a workflow, by name, behind `after` if that is given.
    pub fn timers_of(&self, workflow: &WorkflowId, after: Option<&TimerId>, limit: usize) -> Vec<Arming> {
        let timers = self.timers.of_workflow(workflow, after).take(limit);
        timers.map(|(timer, armed)| Arming::of(timer, armed)).collect()
    }

    fn shards_of(&self, owner: Option<&NodeName>) -> Option<BTreeSet<ShardId>> {
        owner.map(|owner| self.directory.owned_by(owner).map(|entry| entry.shard).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Commit};
    use crate::history::{EventKind, NewEvent};
    use crate::trial::{DOWN, Trial, id, member};

    fn due(trial: &mut Trial, command: Command) -> Vec<ShardId> {
        let effects = trial.apply(vec![command.into()]).effects;
        let shards = effects.into_iter().filter_map(|effect| match effect {
            Effect::TimersDue { shard } => Some(shard),
            _ => None,
        });
        shards.collect()
    }

    #[test]
    fn a_timer_that_falls_due_is_told_of_once() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        trial.start("held", []);
        for (workflow, at) in [("order-1", 1_010), ("order-1", 1_020), ("held", 1_020)] {
            trial.arm(workflow, &format!("t{at}"), at, 1).unwrap();
        }
        let mut passed = |at| {
            trial.at = at;
            due(&mut trial, Command::Tick)
        };
        assert_eq!(passed(1_009), []);
        assert_eq!(passed(1_010), [ShardId(0)]);
        assert_eq!(passed(1_010), [], "what has been told of is not told of again");
        assert_eq!(passed(1_050), [ShardId(0), ShardId(1)]);
        assert_eq!(passed(900), []);
    }

    #[test]
    fn many_due_timers_of_a_shard_are_told_of_at_once() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        let schedule = |name: &str| TimerChange::Schedule(Arming { timer: id(name), fire_at: Millis(1), armed_seq: 1 });
        let timers = vec![schedule("a"), schedule("b"), schedule("c")];
        let commit = Command::Commit(Commit { timers, ..Commit::new(id("order-1"), 1) });
        assert_eq!(due(&mut trial, commit), [ShardId(0)]);
    }

    #[test]
    fn an_adopter_hears_of_what_is_due() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        trial.arm("order-1", "t", 1_000, 1).unwrap();
        trial.members(&[member("a", DOWN), member("b", crate::Liveness::Up), member("c", crate::Liveness::Up)]);
        let expected_epoch = crate::Epoch(1);
        let adopt = Command::Adopt { shard: ShardId(0), from: id("a"), by: id("c"), expected_epoch };
        assert_eq!(due(&mut trial, adopt), [ShardId(0)]);
        let of = |owner: &str| trial.machine.expired_timers(Some(&id(owner)), None, Millis(1_000), 9).len();
        assert_eq!((of("a"), of("c")), (0, 1));
    }

    #[test]
    fn an_end_takes_timers_away_that_were_held_too() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        trial.arm("order-1", "t", 1_000, 1).unwrap();
        trial.append("order-1", NewEvent::of(EventKind::WorkflowPaused)).unwrap();
        trial.append("order-1", NewEvent::of(EventKind::WorkflowCancelled)).unwrap();
        assert_eq!(trial.machine.timers_of(&id("order-1"), None, 9), []);
        trial.append("order-1", NewEvent::of(EventKind::WorkflowReopened)).unwrap();
        assert_eq!(trial.machine.expired_timers(None, None, Millis(u64::MAX), 9), []);
    }

    #[test]
    fn timers_of_a_workflow_come_in_pages() {
        let mut trial = Trial::new();
        trial.start("order-1", []);
        for name in ["c", "a", "b"] {
            trial.arm("order-1", name, 5_000, 1).unwrap();
        }
        let page = |after: Option<&str>, limit| -> Vec<String> {
            let after = after.map(id::<TimerId>);
            let timers = trial.machine.timers_of(&id("order-1"), after.as_ref(), limit);
            timers.iter().map(|arming| arming.timer.to_string()).collect()
        };
        assert_eq!(page(None, 2), ["a", "b"]);
        assert_eq!(page(Some("b"), 2), ["c"]);
        assert_eq!(page(Some("bb"), 0), [""; 0]);
        assert_eq!(trial.machine.timers_of(&id("held"), None, 9), []);
    }
}
