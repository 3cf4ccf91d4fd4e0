//! A claim takes no more than the ceiling of its namespace leaves room for, counted over all nodes, queues and
//! holders. A ceiling that is lowered takes nothing away. (Contract, section 8: namespace ceilings.)

use holdfast_machine::{Command, Namespace, RowStatus};

use crate::{Check, Snapshot, Step, ensure};

pub fn of_step(step: &Step<'_>) -> Check {
    for (namespace, state) in &step.before.namespaces {
        let changes = step.said.iter().filter_map(|(request, reply)| match &request.command {
            Command::PutNamespace { namespace: changed, settings } if changed == namespace && reply.is_ok() => {
                Some(settings.claimed_max)
            }
            _ => None,
        });
        // Without a ceiling at any moment of the entry there is nothing to check.
        let highest = changes.fold(state.settings.claimed_max, |a, b| a.zip(b).map(|(a, b)| a.max(b)));
        let Some(highest) = highest else { continue };
        let (before, after) = (claimed(step.before, namespace), claimed(step.after, namespace));
        let most = before.max(highest as usize);
        ensure!(after <= most, "{after} rows of {namespace} are claimed, {before} were, and the ceiling is {highest}");
    }
    Ok(())
}

fn claimed(snapshot: &Snapshot, namespace: &Namespace) -> usize {
    snapshot.rows_in(RowStatus::Claimed).filter(|(_, row)| row.namespace == *namespace).count()
}
