//! The oracle's view of removal: what is removed is gone at once, as if it had never been.

use holdfast_machine::{EventKind, Reject, Reply, WorkflowId};

use crate::oracle::{Answer, Oracle};

impl Oracle {
    pub fn delete(&mut self, workflow: &WorkflowId) -> Answer {
        let (status, _) = self.status(workflow);
        if self.head(workflow) == 0 {
            return Err(Reject::WorkflowNotFound { workflow: workflow.clone() });
        }
        if !status.is_terminal() {
            return Err(Reject::WorkflowOpen { workflow: workflow.clone(), status });
        }
        self.forget(workflow);
        Ok(Reply::Deleted)
    }

    pub fn purge(&mut self, workflows: &[WorkflowId]) -> Answer {
        let mut gone = 0;
        for workflow in workflows {
            if self.is_due(workflow) {
                self.forget(workflow);
                gone += 1;
            }
        }
        Ok(Reply::Purged { workflows: gone, more: false })
    }

    fn is_due(&self, workflow: &WorkflowId) -> bool {
        let (status, _) = self.status(workflow);
        let history = self.history(workflow);
        // The event that ended the run is the last one that changed the status.
        let ended = history.iter().rev().find(|event| event.kind.leads_to().is_some());
        let Some(ended) = ended.filter(|_| status.is_terminal()) else { return false };
        let opened = history.iter().rev().find(|event| event.kind == EventKind::WorkflowStarted);
        let of_type = opened.and_then(|event| event.start.as_ref()).map(|start| start.workflow_type.clone());
        let settings = self.settings(&self.namespace(workflow)).unwrap();
        let own = of_type.and_then(|of_type| settings.retention_ms_by_type.get(&of_type));
        let kept = match own {
            Some(kept) => *kept,
            None => settings.retention_ms,
        };
        kept.is_some_and(|kept| self.now.0 - ended.at.0 >= kept)
    }

    fn forget(&mut self, workflow: &WorkflowId) {
        self.events.retain(|(id, _)| id != workflow);
        self.landed.retain(|(commit, _)| commit.workflow != *workflow);
        self.rows.retain(|(key, _)| key.workflow != *workflow);
        self.begun.retain(|(id, _)| id != workflow);
        self.removed.push(workflow.clone());
    }
}
