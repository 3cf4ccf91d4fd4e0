//! What a claimant or an engine does with a row: heartbeat, complete, fail, retry; and reconciliation.
//!
//! With a token a call is about one claim; without one the engine drives its own row by key, and a key
//! that nobody knows is no error.

use holdfast_machine::{ClaimToken, Command, DispatchKey, Millis, Payload, Reply, Returned};

use crate::store::{Proposed, Store, StoreResult};
use crate::{Failure, Reconciled, Write};

impl Store {
    /// Extends a lease to `lease_ms` from now and returns when it ends.
    ///
    /// # Errors
    /// A [`crate::StoreError`]; `claim_lost` once the claim is over. So with all calls here.
    pub async fn heartbeat(
        &self,
        key: &DispatchKey,
        token: ClaimToken,
        lease_ms: u64,
        details: Payload,
        write: Write,
    ) -> StoreResult<Millis> {
        let command = Command::Heartbeat { key: key.clone(), token, lease_ms, details };
        self.propose(command, write).await?.answer("heartbeat", |reply| match reply {
            Reply::Extended { deadline } => Some(deadline),
            _ => None,
        })
    }

    /// Records an activity's result and returns its event's number; none if there is no such row.
    pub async fn complete(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        result: Payload,
        write: Write,
    ) -> StoreResult<Option<u64>> {
        let command = Command::Complete { key: key.clone(), token, result };
        self.propose(command, write).await?.answer("complete", |reply| match reply {
            Reply::Completed { seq } => Some(Some(seq)),
            Reply::NoSuchRow => Some(None),
            _ => None,
        })
    }

    /// Records a failed attempt; none if there is no such row.
    pub async fn fail(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        failure: Failure,
        write: Write,
    ) -> StoreResult<Option<Returned>> {
        let Failure { error, error_type, retryable } = failure;
        let command = Command::Fail { key: key.clone(), token, error, error_type, retryable };
        returned(self.propose(command, write).await?, "fail")
    }

    /// Hands a row back undelivered, invisible for `delay_ms`; none if there is no such row.
    pub async fn retry(
        &self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        delay_ms: u64,
        write: Write,
    ) -> StoreResult<Option<Returned>> {
        let command = Command::Retry { key: key.clone(), token, delay_ms };
        returned(self.propose(command, write).await?, "retry")
    }

    /// Goes over rows that have been claimed for `older_than_ms`: cancelled if their workflow has ended,
    /// pending if it lives and no lease runs, left alone if nothing is known.
    pub async fn reconcile(
        &self,
        older_than_ms: u64,
        limit: u32,
        excluded: Vec<DispatchKey>,
        write: Write,
    ) -> StoreResult<Reconciled> {
        let command = Command::Reconcile { older_than_ms, limit, excluded };
        self.propose(command, write).await?.answer("reconcile", |reply| match reply {
            Reply::Reconciled { rearmed, settled, unknown } => Some(Reconciled { rearmed, settled, unknown }),
            _ => None,
        })
    }
}

fn returned(proposed: Proposed, command: &'static str) -> StoreResult<Option<Returned>> {
    proposed.answer(command, |reply| match reply {
        Reply::Returned(returned) => Some(Some(returned)),
        Reply::NoSuchRow => Some(None),
        _ => None,
    })
}
