//! Claimed rows as their executors need them. They are read in looks that are bounded in rows and in bytes, so that
//! apply does not wait for long.

use holdfast_client::wire::Delivery;
use holdfast_machine::{Archive, ArchiveResult, Claimed, DispatchKey, Machine, RunId};

/// What one look takes at most; the row that passes the bound in bytes is the last one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    pub rows: usize,
    pub input_bytes: usize,
}

impl Portion {
    /// Takes claims from `left` until the portion is full or nothing is left. Rows that were removed since are left out.
    pub fn of(
        self,
        left: &mut impl Iterator<Item = Claimed>,
        machine: &Machine,
        archive: &dyn Archive,
    ) -> ArchiveResult<Vec<Delivery>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for claimed in left.take(self.rows) {
            let Some(delivery) = delivery(machine, archive, claimed)? else { continue };
            bytes += delivery.input.data.len();
            found.push(delivery);
            if bytes >= self.input_bytes {
                break;
            }
        }
        Ok(found)
    }
}

/// What the executor of a claimed row needs; none if the row has been removed since.
fn delivery(machine: &Machine, archive: &dyn Archive, claimed: Claimed) -> ArchiveResult<Option<Delivery>> {
    let Claimed { key, token, deadline } = claimed;
    let Some(row) = machine.row(archive, &key)? else { return Ok(None) };
    let run_id = run_id(machine, archive, &key, row.run)?;
    let input = machine.input(archive, &key)?.unwrap_or_default();
    let finish_by = row.finish_by();
    Ok(Some(Delivery {
        key,
        token,
        deadline,
        run_id,
        namespace: row.namespace,
        task_queue: row.task_queue,
        activity_type: row.activity_type,
        attempt: row.attempt,
        deliveries: row.deliveries,
        scheduled_at: row.scheduled_at,
        timeouts: row.timeouts,
        finish_by,
        input,
    }))
}

/// The name of a workflow's run. Live rows are of the last run, so the list of runs is hardly ever read.
/// A row that was staged by itself may be of a workflow without a history.
fn run_id(machine: &Machine, archive: &dyn Archive, key: &DispatchKey, number: u32) -> ArchiveResult<RunId> {
    let Some(workflow) = machine.workflow(archive, &key.workflow)? else { return Ok(RunId::numbered(number)) };
    if workflow.run.number == number {
        return Ok(workflow.run.run_id);
    }
    let runs = machine.runs(archive, &key.workflow, number.saturating_sub(1), 1)?;
    let run = runs.into_iter().find(|run| run.number == number);
    Ok(run.map_or_else(|| RunId::numbered(number), |run| run.run_id))
}
