//! Invariant 7: for each shard and epoch one owner; epochs only grow; a write under an old epoch is refused.
//! (Contract, section 4: the epoch grows by one at every change of owner.)

use holdfast_machine::{Command, Reject};

use crate::{Check, Step, broken, ensure, ensure_eq};

pub fn of_step(step: &Step<'_>) -> Check {
    for (shard, before) in &step.before.shards {
        let Some(after) = step.after.shards.get(shard) else { broken!("shard {shard} has no owner any more") };
        ensure!(after.epoch >= before.epoch, "the epoch of shard {shard} went back");
        if after.epoch == before.epoch {
            ensure_eq!(after.owner, before.owner, "shard {shard} has two owners under epoch {}", after.epoch);
        }
        ensure!(after.since >= before.since, "the ownership of shard {shard} began earlier than the one before");
    }
    let moves = |command: &Command| {
        use Command::{Adopt, Assign, Boot, Create, Transfer};
        matches!(command, Adopt { .. } | Assign { .. } | Boot { .. } | Create { .. } | Transfer { .. })
    };
    if step.said.iter().any(|(request, _)| moves(&request.command)) {
        return Ok(()); // the directory moved within the entry
    }
    for (request, reply) in step.said {
        let (Some(fence), Some(workflow)) = (&request.fence, request.command.workflow()) else { continue };
        let holds = step.before.shards.values().any(|entry| entry.owner == fence.owner && entry.epoch == fence.epoch);
        let is_retry = request.idempotency_key.is_some();
        if !holds && !is_retry {
            ensure!(matches!(reply, Err(Reject::NotOwner { .. })), "{fence:?} let a write to {workflow} through");
        }
    }
    Ok(())
}
