//! Many calls in one request. Calls that a node could not see to are sent again, without those that have their answers.

use holdfast_machine::{Commit, Committed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::calls::CallResult;
use crate::client::Client;
use crate::error::ClientError;
use crate::send::{Call, backoff};
use crate::wire::{Answer, Batch, BatchedCommit, BatchedResult, Completed, Outcome, Outcomes, RowResult, Write};

impl Client {
    /// Many commits at once, each by itself: one that is refused hinders no other. Results are in the order of the calls;
    /// the order in which they take place is open, so two for the same workflow belong into two batches, or into one
    /// commit.
    pub async fn commit_all(&self, calls: Vec<(Commit, Write)>) -> Vec<CallResult<Committed>> {
        let calls = calls.into_iter().map(|(commit, write)| BatchedCommit::new(commit, self.guard(write)));
        self.send_all("/v1/batch/commit", calls.collect()).await
    }

    /// Records the results of many activities, each by itself; as [`Client::commit_all`] with results of
    /// [`Client::complete`].
    pub async fn complete_all(&self, calls: Vec<(RowResult, Write)>) -> Vec<CallResult<Option<u64>>> {
        let calls = calls.into_iter().map(|(row, write)| BatchedResult::new(row, self.guard(write)));
        let results = self.send_all::<_, Completed>("/v1/batch/complete", calls.collect()).await;
        results.into_iter().map(|result| result.map(|answer| answer.map(|completed| completed.seq))).collect()
    }

    async fn send_all<C, T>(&self, path: &str, calls: Vec<C>) -> Vec<CallResult<T>>
    where
        C: Serialize + Sync,
        T: DeserializeOwned,
    {
        let deadline = Instant::now() + self.shared.options.deadline;
        let mut results: Vec<Option<CallResult<T>>> = calls.iter().map(|_| None).collect();
        let mut places: Vec<usize> = (0..calls.len()).collect();
        let mut batch = Batch { calls };
        let mut round = 0;
        while !batch.calls.is_empty() {
            let pause = backoff(round);
            let in_time = Instant::now() + pause < deadline;
            let outcomes = match self.outcomes(path, &batch).await {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    places.into_iter().for_each(|place| results[place] = Some(Err(error.clone())));
                    break;
                }
            };
            let (mut open, mut rest) = (Vec::new(), Vec::new());
            for ((place, call), outcome) in places.into_iter().zip(batch.calls).zip(outcomes) {
                match result(outcome) {
                    Err(error) if in_time && error.is_for_another_try() => {
                        open.push(place);
                        rest.push(call);
                    }
                    result => results[place] = Some(result),
                }
            }
            if !rest.is_empty() {
                sleep(pause).await;
            }
            (places, batch) = (open, Batch { calls: rest });
            round += 1;
        }
        // Each place was either filled or kept for the next round, and there is no round left.
        results.into_iter().flatten().collect()
    }

    async fn outcomes<C, T>(&self, path: &str, batch: &Batch<C>) -> Result<Vec<Outcome<T>>, ClientError>
    where
        C: Serialize + Sync,
        T: DeserializeOwned,
    {
        // The keys are the calls' own, so the whole may be sent again.
        let answer: Answer<Outcomes<T>> = self.send(Call::post(path.to_owned(), batch, &Write::default())?).await?;
        let outcomes = answer.value.outcomes;
        match outcomes.len() == batch.calls.len() {
            true => Ok(outcomes),
            false => Err(ClientError::Protocol(format!("{} outcomes of {} calls", outcomes.len(), batch.calls.len()))),
        }
    }
}

fn result<T>(outcome: Outcome<T>) -> CallResult<T> {
    match outcome {
        Outcome::Answer { index, value } => Ok(Answer { index, value }),
        Outcome::Problem(problem) => Err(problem.into()),
    }
}
