//! Claiming rows, at once or as soon as there are some.
//!
//! A claim is proposed only when this node's state shows something to take, so waiting costs the cluster
//! nothing. When the state shows nothing, a claim that may not wait, or that may be the retry of one whose
//! reply was lost, first makes sure that the state is fresh.
//!
//! A call that is dropped while it waits leaves nothing behind. One that is dropped between its proposal and
//! the reply leaves its rows to the end of their lease, or to a reconciliation; a retry under the same
//! idempotency key gets them back before.

use std::time::Duration;

use holdfast_client::wire::{ClaimCall, ClaimHolder, Delivery};
use holdfast_machine::{Claim, Claimed, Command, NewHolder, Reply};
use tokio::time::{Instant, sleep_until};

use crate::deliveries::Portion;
use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::waiting::{Seat, Want};
use crate::{Answer, ReadMode, Write};

/// What is read under one look at the state.
const PORTION: Portion = Portion { rows: 64, input_bytes: 4 * 1024 * 1024 };

impl Store {
    /// Takes due rows, oldest first; waits for some up to `call.wait_ms`, capped by
    /// [`crate::StoreOptions::wait_max`]. Empty if there were none.
    ///
    /// # Errors
    /// A [`StoreError`].
    pub async fn claim(&self, call: ClaimCall, write: Write) -> StoreResult<Vec<Delivery>> {
        let wait = Duration::from_millis(call.wait_ms).min(self.shared.options.wait_max);
        let claim = self.claim_of(call);
        self.limits().check(&Command::Claim(claim.clone()))?;
        let attempt = Attempt { store: self, write, claim };
        attempt.run(Instant::now() + wait).await
    }

    fn claim_of(&self, call: ClaimCall) -> Claim {
        let holder = match call.holder {
            ClaimHolder::Lease { claimant, lease_ms } => NewHolder::Lease { claimant, lease_ms },
            ClaimHolder::Node => {
                let options = &self.shared.options;
                NewHolder::Node { node: options.node.clone(), boot: options.boot.clone() }
            }
        };
        Claim { scope: call.scope, limit: call.limit, holder, hold: call.hold }
    }
}

/// One claim under way.
struct Attempt<'a> {
    store: &'a Store,
    write: Write,
    claim: Claim,
}

impl Attempt<'_> {
    async fn run(self, deadline: Instant) -> StoreResult<Vec<Delivery>> {
        let seat = self.store.shared.waiting.sit(self.want());
        self.look(&seat);
        let may_wait = deadline > Instant::now();
        if !self.has_reason(&seat) && (!may_wait || self.write.idempotency_key.is_some()) {
            self.store.shared.raft.read_index(ReadMode::Linearizable).await?;
            self.look(&seat);
        }
        loop {
            if self.has_reason(&seat) {
                let taken = self.take().await?;
                if !taken.value.is_empty() {
                    drop(seat);
                    return self.deliveries(taken).await;
                }
                seat.wait_on();
                self.look(&seat);
            }
            if deadline <= Instant::now() {
                return Ok(self.nothing());
            }
            self.wait(&seat, deadline).await?;
        }
    }

    fn want(&self) -> Want {
        let Claim { scope, limit, holder, hold } = self.claim.clone();
        let owner = match holder {
            NewHolder::Node { node, .. } => Some(node),
            NewHolder::Lease { .. } => None,
        };
        Want { scope, owner, hold, limit }
    }

    fn look(&self, seat: &Seat) {
        let shared = &self.store.shared;
        shared.raft.view(|machine, _| shared.waiting.look(machine, seat.pool()));
    }

    /// True if a proposal would bring something: rows, or the remembered reply to an earlier try.
    fn has_reason(&self, seat: &Seat) -> bool {
        let key = self.write.idempotency_key.as_ref();
        let remembered = key.is_some_and(|key| self.store.shared.raft.view(|machine, _| machine.remembers(key)));
        remembered || seat.is_called()
    }

    async fn wait(&self, seat: &Seat, deadline: Instant) -> Result<(), StoreError> {
        let mut closed = self.store.shared.closed.subscribe();
        tokio::select! {
            () = seat.called() => Ok(()),
            () = sleep_until(deadline) => Ok(()),
            _ = closed.wait_for(|closed| *closed) => Err(StoreError::Stopped),
        }
    }

    /// Proposes the claim and waits until this node has applied it.
    async fn take(&self) -> StoreResult<Vec<Claimed>> {
        let shared = &self.store.shared;
        let proposed = self.store.propose(Command::Claim(self.claim.clone()), self.write.clone()).await?;
        let at = proposed.at;
        let taken = proposed.answer("claim", |reply| match reply {
            Reply::Claimed { claims } => Some(claims),
            _ => None,
        })?;
        if taken.value.is_empty() {
            shared.waiting.correct_clock(at);
        }
        let applied = shared.raft.read_index(ReadMode::AtLeast(taken.index)).await;
        // The rows are taken, but this node cannot tell what is in them: let the caller ask another one.
        applied.map_err(|_| StoreError::Unknown)?;
        Ok(taken)
    }

    async fn deliveries(&self, taken: Answer<Vec<Claimed>>) -> StoreResult<Vec<Delivery>> {
        let Answer { index, value } = taken;
        let mut deliveries = Vec::with_capacity(value.len());
        let mut left = value.into_iter();
        while left.len() > 0 {
            let found = self.store.shared.raft.view(|machine, archive| PORTION.of(&mut left, machine, archive));
            deliveries.extend(found?);
        }
        Ok(Answer { index, value: deliveries })
    }

    fn nothing(&self) -> Answer<Vec<Delivery>> {
        let index = self.store.shared.raft.view(|machine, _| machine.applied());
        Answer { index, value: Vec::new() }
    }
}
