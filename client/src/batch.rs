//! Many calls in one request. Calls that a node could not see to are sent again, without those that have their answers.

use holdfast_machine::{Commit, Committed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::calls::CallResult;
use crate::client::Client;
use crate::error::ClientError;
use crate::send::{Call, Failure, backoff, end};
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
        // Of each call that is still open its place, and whether it may have taken place.
        let mut open: Vec<(usize, bool)> = (0..calls.len()).map(|place| (place, false)).collect();
        let mut batch = Batch { calls };
        let mut round = 0;
        while !batch.calls.is_empty() {
            let pause = backoff(round);
            let in_time = Instant::now() + pause < deadline;
            let mut lost = false;
            let outcomes = match self.outcomes(path, &batch, &mut lost).await {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    for (place, unknown) in open {
                        results[place] = Some(Err(end(error.clone(), unknown)));
                    }
                    break;
                }
            };
            let (mut open_yet, mut rest) = (Vec::new(), Vec::new());
            for (((place, unknown), call), outcome) in open.into_iter().zip(batch.calls).zip(outcomes) {
                let failure = match outcome {
                    Outcome::Answer { index, value } => {
                        results[place] = Some(Ok(Answer { index, value }));
                        continue;
                    }
                    Outcome::Problem(problem) => Failure::of_answer(problem.status, problem.into()),
                };
                let unknown = unknown || lost || failure.may_have_happened;
                if failure.again && in_time {
                    open_yet.push((place, unknown));
                    rest.push(call);
                } else {
                    results[place] = Some(Err(failure.into_end(unknown)));
                }
            }
            if !rest.is_empty() {
                sleep(pause).await;
            }
            (open, batch) = (open_yet, Batch { calls: rest });
            round += 1;
        }
        // Each place was either filled or kept for the next round, and there is no round left.
        results.into_iter().flatten().collect()
    }

    async fn outcomes<C, T>(
        &self,
        path: &str,
        batch: &Batch<C>,
        lost: &mut bool,
    ) -> Result<Vec<Outcome<T>>, ClientError>
    where
        C: Serialize + Sync,
        T: DeserializeOwned,
    {
        // The keys are the calls' own, so the whole may be sent again.
        let call = Call::post(path.to_owned(), batch, &Write::default())?;
        let answer: Answer<Outcomes<T>> = self.send_noting(call, lost).await?;
        let outcomes = answer.value.outcomes;
        match outcomes.len() == batch.calls.len() {
            true => Ok(outcomes),
            false => Err(ClientError::Protocol(format!("{} outcomes of {} calls", outcomes.len(), batch.calls.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::Payload;

    use super::*;
    use crate::send::tests::{answer, node, problem};

    async fn codes_of(answers: Vec<String>, calls: usize) -> Vec<String> {
        let client = Client::new([node(answers)]).unwrap();
        let row = RowResult { key: "order-1:1".parse().unwrap(), token: None, result: Payload::default() };
        let results = client.complete_all(vec![(row, Write::default()); calls]).await;
        results
            .iter()
            .map(|result| result.as_ref().map_or_else(|error| error.code().to_owned(), |_| "ok".to_owned()))
            .collect()
    }

    fn outcomes(problems: &[(u16, &str)]) -> String {
        let all: Vec<String> =
            problems.iter().map(|(status, code)| format!(r#"{{"problem":{}}}"#, problem(*status, code))).collect();
        answer(200, &format!(r#"{{"outcomes":[{}]}}"#, all.join(",")))
    }

    #[tokio::test]
    async fn what_is_said_of_a_call_later_says_nothing_of_an_attempt_before_it() {
        // One may have been done, the other certainly was not; then both meet a full disk.
        let first = outcomes(&[(504, "unknown"), (503, "no_quorum")]);
        let second = outcomes(&[(507, "storage_full"), (507, "storage_full")]);
        assert_eq!(codes_of(vec![first.clone(), second], 2).await, ["unknown", "storage_full"]);
        // The same if the request as a whole is refused.
        let second = answer(507, &problem(507, "storage_full"));
        assert_eq!(codes_of(vec![first.clone(), second], 2).await, ["unknown", "storage_full"]);
        // A rejection is the log's answer.
        let second = outcomes(&[(409, "idempotency_conflict"), (409, "idempotency_conflict")]);
        assert_eq!(codes_of(vec![first, second], 2).await, ["idempotency_conflict", "idempotency_conflict"]);
        // A request whose answer was lost may have done all of them.
        let lost = vec![String::new(), outcomes(&[(507, "storage_full")])];
        assert_eq!(codes_of(lost, 1).await, ["unknown"]);
    }
}
