//! The oracle's view of what a commit does besides events and new rows: transitions and timers.

use holdfast_machine::{
    Arming, Commit, DispatchKey, EventKind, NewEvent, Reject, Reply, Retirement, RowAction, RowStatus, TimerChange,
    Transition, WorkflowId,
};

use crate::oracle::{Answer, Oracle, invalid};

pub fn is_hand_back(action: &RowAction) -> bool {
    matches!(action, RowAction::Retry { .. } | RowAction::Fail { retryable: true, .. })
}

/// The commit with the outcomes that its transitions record among its events.
pub fn with_outcomes(commit: &Commit) -> Commit {
    let mut whole = commit.clone();
    for Transition { ordinal, action, .. } in &commit.transitions {
        let (kind, payload) = match action {
            RowAction::Complete { result } => (EventKind::ActivityCompleted, result),
            RowAction::Fail { error, retryable: false, .. } => (EventKind::ActivityFailed, error),
            _ => continue,
        };
        whole.events.push(NewEvent::activity(kind, *ordinal).with(payload.clone()));
    }
    whole
}

fn key_of(commit: &Commit, transition: &Transition) -> DispatchKey {
    DispatchKey { workflow: commit.workflow.clone(), ordinal: transition.ordinal }
}

impl Oracle {
    /// The commit with failures as final as the policies of their rows make them.
    pub fn judged(&self, commit: &Commit) -> Commit {
        let mut judged = commit.clone();
        for transition in &mut judged.transitions {
            let row = self.row(&key_of(commit, transition));
            if let (Some(row), RowAction::Fail { error_type: Some(error_type), retryable, .. }) =
                (row, &mut transition.action)
            {
                *retryable &= !row.retry.non_retryable.contains(error_type);
            }
        }
        judged
    }

    /// Why the transitions of a commit cannot be made, one after the other.
    pub fn check_moves(&mut self, commit: &Commit) -> Result<(), Reject> {
        let mut seen = Vec::new();
        for transition in &commit.transitions {
            let key = key_of(commit, transition);
            if seen.contains(&transition.ordinal) {
                return invalid();
            }
            seen.push(transition.ordinal);
            let Some(row) = self.held(&key, transition.token)? else { return Err(Reject::RowNotFound { key }) };
            if !matches!(transition.action, RowAction::Retry { .. }) {
                self.absorb(&key, &row)?;
            }
            if is_hand_back(&transition.action) && row.status != RowStatus::Claimed {
                return Err(Reject::RowNotClaimed { key, status: row.status });
            }
        }
        Ok(())
    }

    /// What transitions do to rows, but for the outcomes that they record.
    pub fn move_rows(&mut self, commit: &Commit) {
        for transition in &commit.transitions {
            let key = key_of(commit, transition);
            let row = self.row(&key).cloned().unwrap();
            match transition.action {
                RowAction::Complete { .. } => {}
                RowAction::Fail { retryable: false, .. } => self.row_mut(&key).unwrap().deliveries += 1,
                RowAction::Fail { .. } => drop(self.hand_back(&key, row, None)),
                RowAction::Retry { delay_ms } => drop(self.hand_back(&key, row, Some(delay_ms))),
            }
        }
    }

    pub fn statuses(&self, commit: &Commit) -> Vec<RowStatus> {
        commit.transitions.iter().map(|transition| self.row(&key_of(commit, transition)).unwrap().status).collect()
    }

    pub fn timer(&mut self, workflow: &WorkflowId, change: &TimerChange) -> Answer {
        if matches!(change, TimerChange::Schedule(_)) {
            if self.head(workflow) == 0 {
                return Err(Reject::WorkflowNotFound { workflow: workflow.clone() });
            }
            let status = self.status(workflow).0;
            if status.is_terminal() {
                return Err(Reject::WorkflowEnded { workflow: workflow.clone(), status });
            }
        }
        Ok(self.change_timer(workflow, change).map_or(Reply::TimerScheduled, Reply::TimerRetired))
    }

    pub fn change_timer(&mut self, workflow: &WorkflowId, change: &TimerChange) -> Option<Retirement> {
        let same_name =
            |known: &(WorkflowId, Arming), arming: &Arming| known.0 == *workflow && known.1.timer == arming.timer;
        match change {
            TimerChange::Schedule(arming) => {
                self.timers.retain(|known| !same_name(known, arming));
                self.timers.push((workflow.clone(), arming.clone()));
                None
            }
            TimerChange::Retire(arming) => {
                self.timers.retain(|known| *known != (workflow.clone(), arming.clone()));
                Some(self.retirement(workflow, arming))
            }
        }
    }

    /// What retirements would hear now.
    pub fn retirements(&self, workflow: &WorkflowId, changes: &[TimerChange]) -> Vec<Retirement> {
        let retirement = |change: &TimerChange| match change {
            TimerChange::Schedule(_) => None,
            TimerChange::Retire(arming) => Some(self.retirement(workflow, arming)),
        };
        changes.iter().filter_map(retirement).collect()
    }

    fn retirement(&self, workflow: &WorkflowId, arming: &Arming) -> Retirement {
        let named = self.timers.iter().filter(|(of, known)| of == workflow && known.timer == arming.timer);
        if named.into_iter().any(|(_, known)| known != arming) { Retirement::Superseded } else { Retirement::Retired }
    }
}
