//! Invariant 8: a shard is adopted only from a node that is committed as down, and only by a member that is up.
//! (Contract, section 4: the conditions of `Adopt`.) That the old owner cannot write is invariant 7.

use holdfast_machine::{Command, Liveness, Reply};

use crate::{Check, Step, ensure, ensure_eq};

pub fn of_step(step: &Step<'_>) -> Check {
    for (request, reply) in step.said {
        if request.idempotency_key.is_some() {
            continue; // the reply may be one of another time
        }
        let (Command::Adopt { from, by, .. }, Ok(Reply::Adopted(moved))) = (&request.command, reply) else { continue };
        let liveness = |node| step.before.members.get(node).map(|member| member.member.liveness);
        ensure!(
            matches!(liveness(from), None | Some(Liveness::Down { .. })),
            "shard {} was adopted from {from}, which is not down",
            moved.shard
        );
        ensure_eq!(liveness(by), Some(Liveness::Up), "shard {} was adopted by a node that is not up", moved.shard);
    }
    Ok(())
}
