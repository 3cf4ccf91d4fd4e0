//! Claiming rows, at once or as soon as there are some.
//!
//! A claim is proposed only when this node's state shows something to take, so waiting costs the cluster
//! nothing. When the state shows nothing, a claim that may not wait, or that may be the retry of one whose
//! reply was lost, first makes sure that the state is fresh.
//!
//! A call that is dropped while it waits leaves nothing behind. One that is dropped between its proposal and
//! the reply leaves its rows to the end of their lease, or to a reconciliation; a retry under the same
//! idempotency key gets them back before.

use std::slice::Iter;
use std::time::Duration;

use holdfast_client::wire::{ClaimCall, ClaimHolder, Delivery};
use holdfast_machine::{
    Archive, ArchiveResult, Claim, Claimed, Command, DispatchKey, Machine, NewHolder, Reply, RunId,
};
use tokio::time::{Instant, sleep_until};

use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::waiting::{Seat, Want};
use crate::{Answer, ReadMode, Write};

/// Rows, and about how many bytes of their inputs, that are read under one look at the state, so that apply does not
/// wait for long.
const ROWS_PER_LOOK: usize = 64;
const INPUT_BYTES_PER_LOOK: usize = 4 * 1024 * 1024;

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
        let mut left = value.iter();
        while left.len() > 0 {
            let found = self.store.shared.raft.view(|machine, archive| look_at_some(&mut left, machine, archive));
            deliveries.extend(found?);
        }
        Ok(Answer { index, value: deliveries })
    }

    fn nothing(&self) -> Answer<Vec<Delivery>> {
        let index = self.store.shared.raft.view(|machine, _| machine.applied());
        Answer { index, value: Vec::new() }
    }
}

/// What one look at the state takes of these rows.
fn look_at_some(
    left: &mut Iter<'_, Claimed>,
    machine: &Machine,
    archive: &dyn Archive,
) -> ArchiveResult<Vec<Delivery>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for claimed in left.take(ROWS_PER_LOOK) {
        let Some(delivery) = delivery(machine, archive, claimed)? else { continue };
        bytes += delivery.input.data.len();
        found.push(delivery);
        if bytes >= INPUT_BYTES_PER_LOOK {
            break;
        }
    }
    Ok(found)
}

/// What the executor of a claimed row needs; none if the row has been removed since.
fn delivery(machine: &Machine, archive: &dyn Archive, claimed: &Claimed) -> ArchiveResult<Option<Delivery>> {
    let Claimed { key, token, deadline } = claimed.clone();
    let Some(row) = machine.row(archive, &key)? else { return Ok(None) };
    let run_id = run_id(machine, archive, &key, row.run)?;
    let input = machine.input(archive, &key)?.unwrap_or_default();
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
