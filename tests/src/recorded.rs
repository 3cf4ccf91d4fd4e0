//! A client whose calls are taken down with their answers, so that the checkers can judge them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use holdfast_checkers::history::{Answer, Asked, Outcome, Recorder, digest};
use holdfast_client::{Answer as Answered, ClaimCall, ClaimHolder, Client, ClientError, Delivery, ReadMode, Write};
use holdfast_machine::{
    Claim, Claimed, Command, Commit, Committed, DispatchKey, HistoryEvent, NewHolder, Payload, Reject, Reply, Request,
    WorkflowId,
};

/// Most events of a history that is read in one call; a load's histories are shorter.
const PAGE: u32 = 1_000;

/// A client with a number under which its calls are taken down.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Its number.
    pub number: u64,
    /// What it calls with.
    pub client: Client,
    /// Where its calls are taken down.
    pub recorder: Arc<Recorder>,
    /// Writes that have no answer yet, of all clients.
    pub under_way: Arc<AtomicU64>,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told<T> {
    /// Done.
    Done(T),
    /// Refused by the state machine.
    Refused(Reject),
    /// Nobody took it.
    NotDone,
    /// Done or not.
    Unknown,
}

impl Recorded {
    /// Commits.
    ///
    /// # Errors
    /// When the answer is one that no load expects; so with all calls here.
    pub async fn commit(&self, commit: Commit) -> Result<Told<Committed>> {
        let asked = write(Command::Commit(commit.clone()));
        let call = self.client.commit(commit, Write::default());
        self.answered(asked, call, |committed| Some(Reply::Committed(committed.clone()))).await
    }

    /// Completes a delivery under its token.
    ///
    /// # Errors
    /// As [`Recorded::commit`].
    pub async fn complete(&self, delivery: &Delivery, result: Payload) -> Result<Told<Option<u64>>> {
        let (key, token) = (delivery.key.clone(), Some(delivery.token));
        let asked = write(Command::Complete { key, token, result: result.clone() });
        let call = self.client.complete(&delivery.key, token, result, Write::default());
        let reply = |seq: &Option<u64>| Some(seq.map_or(Reply::NoSuchRow, |seq| Reply::Completed { seq }));
        self.answered(asked, call, reply).await
    }

    /// Claims. One that comes back with nothing has done nothing, whatever it has seen.
    ///
    /// # Errors
    /// As [`Recorded::commit`].
    pub async fn claim(&self, call: ClaimCall) -> Result<Told<Vec<Delivery>>> {
        let ClaimCall { scope, limit, holder, hold, .. } = call.clone();
        let ClaimHolder::Lease { claimant, lease_ms } = holder else { bail!("over HTTP claims are leases") };
        let holder = NewHolder::Lease { claimant, lease_ms };
        let asked = write(Command::Claim(Claim { scope, limit, holder, hold }));
        let reply = |deliveries: &Vec<Delivery>| {
            let claimed = |delivery: &Delivery| Claimed {
                key: delivery.key.clone(),
                token: delivery.token,
                deadline: delivery.deadline,
            };
            let claims: Vec<Claimed> = deliveries.iter().map(claimed).collect();
            (!claims.is_empty()).then_some(Reply::Claimed { claims })
        };
        self.answered(asked, self.client.claim(call, Write::default()), reply).await
    }

    /// Reads a whole history as of now; none if nobody could tell.
    ///
    /// # Errors
    /// As [`Recorded::commit`].
    pub async fn history(&self, id: &WorkflowId) -> Result<Option<Vec<HistoryEvent>>> {
        let made = self.recorder.invoke(self.number, Asked::History(id.clone()));
        let answer = self.client.history(id, 1, PAGE, ReadMode::Linearizable).await;
        let (outcome, events) = match answer {
            Ok(answer) => {
                let events = answer.value;
                ensure!(events.len() < PAGE as usize, "{id} has more events than are read");
                let answered = Answer::History { head: events.len() as u64, digest: digest(&events) };
                (Outcome::Ok { index: answer.index, answer: answered }, Some(events))
            }
            Err(_) => (Outcome::NotDone, None),
        };
        self.recorder.returned(made, outcome);
        Ok(events)
    }

    /// Reads the status of a row as of now; none if nobody could tell.
    ///
    /// # Errors
    /// As [`Recorded::commit`].
    pub async fn row(&self, key: &DispatchKey) -> Result<()> {
        let made = self.recorder.invoke(self.number, Asked::Row(key.clone()));
        let outcome = match self.client.row(key, ReadMode::Linearizable).await {
            Ok(row) => Outcome::Ok { index: row.index, answer: Answer::Row(Some(row.value.row.status)) },
            Err(_) => Outcome::NotDone,
        };
        self.recorder.returned(made, outcome);
        Ok(())
    }

    /// The answer of a write, which counts as under way until it is there.
    async fn answered<T>(
        &self,
        asked: Asked,
        call: impl Future<Output = Result<Answered<T>, ClientError>>,
        reply: impl FnOnce(&T) -> Option<Reply>,
    ) -> Result<Told<T>> {
        let made = self.recorder.invoke(self.number, asked);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let answer = call.await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let (outcome, told) = match answer {
            Ok(answer) => {
                let done = reply(&answer.value);
                let outcome = done.map_or(Outcome::NotDone, |reply| Outcome::Ok {
                    index: answer.index,
                    answer: Answer::Reply(reply),
                });
                (outcome, Told::Done(answer.value))
            }
            Err(ClientError::Reject(reject)) => {
                (Outcome::Refused { index: None, reject: reject.clone() }, Told::Refused(reject))
            }
            Err(ClientError::Unknown(_)) => (Outcome::Unknown, Told::Unknown),
            Err(error) if error.is_retryable() => (Outcome::NotDone, Told::NotDone),
            Err(error) => return Err(error).context("an answer that no story expects"),
        };
        self.recorder.returned(made, outcome);
        Ok(told)
    }
}

fn write(command: Command) -> Asked {
    Asked::Write(Request::from(command))
}
