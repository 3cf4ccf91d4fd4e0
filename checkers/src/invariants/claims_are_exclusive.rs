//! Invariant 11: no row is held under two valid claim tokens at one index, and no token is given out twice.
//! (Contract, section 6: no two claims ever return the same live row.)

use std::collections::BTreeSet;

use holdfast_machine::{Reply, RowStatus};

use crate::{Check, Snapshot, Step, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let mut tokens = BTreeSet::new();
    for (key, row) in &state.rows {
        ensure_eq!(row.claim.is_some(), row.status == RowStatus::Claimed, "{key} is {}: {:?}", row.status, row.claim);
        if let Some(claim) = &row.claim {
            ensure!(tokens.insert(claim.token), "token {} holds two rows", claim.token);
            ensure!(claim.token.index <= state.applied, "{key} is held since {}, which is to come", claim.token.index);
        }
    }
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    let mut given = BTreeSet::new();
    for (_, reply) in step.said {
        let Ok(Reply::Claimed { claims }) = reply else { continue };
        for claim in claims.iter().filter(|claim| claim.token.index == step.index) {
            given.insert((claim.key.clone(), claim.token));
            let before = step.before.rows.get(&claim.key).and_then(|row| row.claim.as_ref());
            ensure!(before.is_none_or(|before| before.token != claim.token), "token {} was given before", claim.token);
        }
    }
    let distinct: BTreeSet<_> = given.iter().map(|(_, token)| *token).collect();
    ensure_eq!(distinct.len(), given.len(), "tokens that were given out");
    Ok(())
}
