//! What a command means for a disk that is short of space: whether it begins work, ends some, or keeps the cluster going.

use crate::command::{Command, Commit};
use crate::history::{EventKind, WorkflowStatus};
use crate::timer::TimerChange;

/// Why a command is made, as far as the space on the disk is concerned; in the order in which they are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// It keeps the cluster going or frees space, and is small: starts of nodes, ownership, time, sessions, removal.
    Keep,
    /// It brings work to its end, or hands it out so that it can end: claims, replies, the end of a workflow.
    Finish,
    /// It begins work: workflows, events, rows and timers that were not there before.
    Begin,
}

impl Command {
    /// What the command means for a disk that is short of space.
    pub fn need(&self) -> Need {
        match self {
            Self::Create { .. }
            | Self::Boot { .. }
            | Self::Assign { .. }
            | Self::Adopt { .. }
            | Self::Transfer { .. }
            | Self::Settle { .. }
            | Self::Reconcile { .. }
            | Self::Tick
            | Self::Checkpoint { .. }
            | Self::PutNamespace { .. }
            | Self::Purge { .. }
            | Self::Delete { .. }
            | Self::Session { .. } => Need::Keep,
            // A re-armed row was staged before; it is only put back.
            Self::Claim(_)
            | Self::Heartbeat { .. }
            | Self::Complete { .. }
            | Self::Fail { .. }
            | Self::Retry { .. }
            | Self::Rearm { .. }
            | Self::MarkFailureDelivered { .. } => Need::Finish,
            Self::Timer { change: TimerChange::Retire(_), .. } => Need::Finish,
            Self::Commit(commit) if commit.ends_only() => Need::Finish,
            Self::Timer { change: TimerChange::Schedule(_), .. }
            | Self::Commit(_)
            | Self::Stage { .. }
            | Self::Redrive { .. } => Need::Begin,
        }
    }
}

impl Commit {
    /// True if it ends a run, or rows or timers of it, and begins nothing.
    fn ends_only(&self) -> bool {
        let last = self.events.iter().filter_map(|event| event.kind.leads_to()).next_back();
        let ends = last.is_some_and(WorkflowStatus::is_terminal);
        let starts = self.events.iter().any(|event| event.kind == EventKind::WorkflowStarted);
        let arms = self.timers.iter().any(|change| matches!(change, TimerChange::Schedule(_)));
        let ends_something = ends || !self.settle.is_empty() || !self.transitions.is_empty() || !self.timers.is_empty();
        self.expected_seq > 0 && self.rows.is_empty() && !arms && !starts && ends_something
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::command::{RowAction, Transition};
    use crate::history::NewEvent;
    use crate::id::Millis;
    use crate::outbox::NewRow;
    use crate::timer::Arming;

    fn commit(seq: u64) -> Commit {
        Commit::new("order-1".parse().unwrap(), seq)
    }

    fn arming() -> Arming {
        Arming { timer: "t".parse().unwrap(), fire_at: Millis(5), armed_seq: 1 }
    }

    #[test]
    fn a_commit_that_only_ends_things_is_not_the_beginning_of_any() {
        let need = |commit: Commit| Command::Commit(commit).need();
        let done = NewEvent::of(EventKind::WorkflowCompleted);
        let complete = RowAction::Complete { result: Default::default() };
        let transition = Transition { ordinal: 1, token: None, action: complete };
        assert_eq!(need(commit(3).event(done.clone())), Need::Finish);
        assert_eq!(need(Commit { transitions: vec![transition.clone()], ..commit(3) }), Need::Finish);
        assert_eq!(need(Commit { settle: vec![1], ..commit(3) }), Need::Finish);
        assert_eq!(need(Commit { timers: vec![TimerChange::Retire(arming())], ..commit(3) }), Need::Finish);

        assert_eq!(need(commit(0).event(done)), Need::Begin, "a workflow that was not there before");
        assert_eq!(need(commit(3).event(NewEvent::of(EventKind::WorkflowPaused))), Need::Begin, "more history");
        let both = Commit { transitions: vec![transition], ..commit(3) };
        assert_eq!(need(both.clone().activity(NewRow::new(2, "work".parse().unwrap()))), Need::Begin);
        let next = [EventKind::WorkflowContinuedAsNew, EventKind::WorkflowStarted].map(NewEvent::of);
        assert_eq!(need(Commit { events: next.into(), ..commit(3) }), Need::Begin, "the next run");
        let armed = Commit { timers: vec![TimerChange::Schedule(arming())], ..both };
        assert_eq!(need(armed), Need::Begin);
    }

    #[test]
    fn what_is_given_up_first_is_the_beginning_of_work() {
        assert!(Need::Keep < Need::Finish && Need::Finish < Need::Begin);
        assert_eq!(Command::Tick.need(), Need::Keep);
        let change = TimerChange::Schedule(arming());
        assert_eq!(Command::Timer { workflow: "w".parse().unwrap(), change }.need(), Need::Begin);
    }
}
