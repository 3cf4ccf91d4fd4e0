//! Invariant 6: one idempotency key, at most one effect; a retry gets the first reply. (Contract, section 10:
//! the reply of a mutating call is remembered in the replicated state for a while.)

use holdfast_machine::Reject;

use crate::{Check, Step, ensure_eq};

pub fn of_step(step: &Step<'_>) -> Check {
    for (request, reply) in step.said {
        let Some(key) = &request.idempotency_key else { continue };
        let first = step.remembered.iter().find(|(known, _)| known.idempotency_key.as_ref() == Some(key));
        let Some((known, first)) = first else { continue };
        if known.command == request.command {
            ensure_eq!(reply, first, "a retry under {key} got another reply");
        } else {
            ensure_eq!(*reply, Err(Reject::IdempotencyConflict), "{key} had an effect twice");
        }
    }
    Ok(())
}
