//! The oracle's view of time: ends of leases, timeouts, and from when on rows wait.

use holdfast_machine::{DispatchKey, ErrorType, Millis, Payload, Row, RowStatus, WorkflowId, WorkflowStatus};

use crate::oracle::{Oracle, to_pending};

/// When something happens to a live row, and what: 0 to 4, of which the first counts if they fall together.
fn deadlines(row: &Row) -> Vec<(Millis, usize)> {
    let later = |at: Millis, ms: u64| Millis(at.0.saturating_add(ms));
    let mut all = Vec::new();
    if let Some(ms) = row.timeouts.schedule_to_close_ms {
        all.push((later(row.scheduled_at, ms), 0));
    }
    if let (Some(at), RowStatus::Pending) = (row.start_by, row.status) {
        all.push((at, 1));
    }
    if let Some(claim) = &row.claim {
        all.extend(row.timeouts.start_to_close_ms.map(|ms| (later(claim.claimed_at, ms), 2)));
        all.extend(row.timeouts.heartbeat_ms.map(|ms| (later(claim.heartbeat_at, ms), 3)));
        all.extend(claim.deadline.map(|at| (at, 4)));
    }
    all
}

/// True once log time has passed one of a live row's deadlines.
pub fn is_overdue(row: &Row, now: Millis) -> bool {
    deadlines(row).iter().any(|(at, _)| *at <= now)
}

impl Oracle {
    /// Does what is due by time alone, one after the other. Sessions end, after what falls on the same time, before
    /// the commands of an entry only.
    pub fn pass_time(&mut self, sessions: bool) {
        loop {
            let mut due: Vec<(Millis, DispatchKey, usize)> = Vec::new();
            for (key, row) in self.rows.iter().filter(|(_, row)| row.status.is_live()) {
                let held = row.status == RowStatus::Pending && self.status(&key.workflow).0 == WorkflowStatus::Paused;
                let first = deadlines(row).into_iter().min().filter(|_| !held);
                due.extend(first.map(|(at, what)| (at, key.clone(), what)));
            }
            let first = due.into_iter().min().filter(|(at, ..)| *at <= self.now);
            let ends = self.sessions.iter().map(|(id, session)| (session.deadline, id.clone())).min();
            let ends = ends.filter(|(at, _)| sessions && *at <= self.now);
            let (rows, paused) = (self.rows.clone(), self.paused());
            if let Some((at, id)) = ends
                && first.as_ref().is_none_or(|(due, ..)| *due > at)
            {
                self.end_session(&id);
                self.let_wait(&rows, &paused);
                continue;
            }
            let Some((_, key, what)) = first else { return };
            let now = self.now;
            match ["schedule_to_close", "schedule_to_start", "start_to_close", "heartbeat"].get(what) {
                None => to_pending(self.row_mut(&key).unwrap(), now),
                Some(name) => {
                    let error = format!(r#"{{"type":"timeout","timeout":"{name}"}}"#);
                    let error = Payload { content_type: "application/json".to_owned(), data: error.into() };
                    let error_type: ErrorType = "timeout".parse().unwrap();
                    drop(self.fail(&key, None, &error, Some(&error_type), what >= 2));
                }
            }
            self.let_wait(&rows, &paused);
        }
    }

    pub fn paused(&self) -> Vec<WorkflowId> {
        let workflows = self.rows.iter().map(|(key, _)| &key.workflow);
        workflows.filter(|id| self.status(id).0 == WorkflowStatus::Paused).cloned().collect()
    }

    /// Sets by when pending rows that are new, changed or resumed have to be claimed.
    pub fn let_wait(&mut self, rows: &[(DispatchKey, Row)], paused: &[WorkflowId]) {
        let still_paused = self.paused();
        let now = self.now;
        for (key, row) in &mut self.rows {
            let is_as_before = rows.iter().any(|(known, before)| known == key && before == row);
            let is_resumed = paused.contains(&key.workflow) && !still_paused.contains(&key.workflow);
            if row.status != RowStatus::Pending {
                row.start_by = None;
            } else if !is_as_before || is_resumed {
                let from = row.visible_after.max(now).0;
                row.start_by = row.timeouts.schedule_to_start_ms.map(|ms| Millis(from.saturating_add(ms)));
            }
        }
    }
}
