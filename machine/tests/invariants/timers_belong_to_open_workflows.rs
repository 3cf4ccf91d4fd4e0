//! A timer is armed for a run that is open; the end of the run takes it away. (Contract, section 7: retired ones do
//! not come back, and an ended workflow has nothing left to wake up for.)

use super::Step;

pub fn check(step: &Step<'_>) {
    for (workflow, arming) in &step.after.timers {
        let told = step.after.workflows.get(workflow);
        let open = told.is_some_and(|told| !told.workflow.status.is_terminal());
        assert!(open, "{arming:?} is armed for {workflow}, which is not open");
    }
    let stored = step.after.stored.iter().filter(|key| key[0] == b'F').count();
    assert_eq!(stored, step.after.timers.len(), "timers on disk are not those that are armed");
}
