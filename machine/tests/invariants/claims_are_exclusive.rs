//! Invariant 11: no row is held under two valid claim tokens at one index, and no token is given out twice.
//! (Contract, section 6: no two claims ever return the same live row.)

use std::collections::BTreeSet;

use holdfast_machine::{Reply, RowStatus};

use super::Step;

pub fn check(step: &Step<'_>) {
    let mut tokens = BTreeSet::new();
    for (key, row) in &step.after.rows {
        assert_eq!(row.status == RowStatus::Claimed, row.claim.is_some(), "{key} is {}: {:?}", row.status, row.claim);
        if let Some(claim) = &row.claim {
            assert!(tokens.insert(claim.token), "token {} holds two rows", claim.token);
            assert!(claim.token.index <= step.index);
        }
    }
    let mut given = BTreeSet::new();
    for (_, reply) in step.said {
        let Ok(Reply::Claimed { claims }) = reply else { continue };
        for claim in claims.iter().filter(|claim| claim.token.index == step.index) {
            given.insert((claim.key.clone(), claim.token));
            let before = step.before.rows.get(&claim.key).and_then(|row| row.claim.as_ref());
            assert!(before.is_none_or(|before| before.token != claim.token), "token {} was given before", claim.token);
        }
    }
    let distinct: BTreeSet<_> = given.iter().map(|(_, token)| *token).collect();
    assert_eq!(distinct.len(), given.len(), "a token was given out for two rows");
}
