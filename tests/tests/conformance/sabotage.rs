//! Stores that are wrong in one way each, and the checks that must find it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_client::{Answer, ClaimCall, Delivery, ListCall, ReadMode, WorkflowList, Write};
use holdfast_conformance::{Backend, Called, Failure, Layer, Layered, Options, Verdict, run};
use holdfast_machine::{
    ClaimToken, Commit, Committed, DispatchKey, HistoryEvent, Millis, NewEvent, Payload, Reject, RowAction, Run,
    TimerChange, Transition, WorkflowFilter, WorkflowId,
};
use holdfast_tests::embedded::Embedded;
use parking_lot::Mutex;

/// A layer with one fault: the calls that it gets wrong.
macro_rules! fault {
    ($name:ident { $($call:item)+ }) => {
        struct $name(Arc<dyn Backend>);
        #[async_trait]
        impl Layer for $name {
            fn below(&self) -> &dyn Backend {
                &*self.0
            }
            $($call)+
        }
    };
}

fault!(DropsAnEvent {
    async fn append(&self, workflow: &WorkflowId, seq: u64, mut events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        if events.len() > 1 {
            events.pop();
        }
        self.0.append(workflow, seq, events, write).await
    }
});

fault!(IgnoresTheExpectedSequence {
    async fn append(&self, workflow: &WorkflowId, seq: u64, events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        match self.0.append(workflow, seq, events.clone(), Write::default()).await {
            Err(Failure::Refused(Reject::SequenceConflict { found, .. })) => self.0.append(workflow, found, events, write).await,
            answer => answer,
        }
    }
});

fault!(TakesNothingForADuplicate {
    async fn append(&self, workflow: &WorkflowId, seq: u64, events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        let answer = self.0.append(workflow, seq, events, write).await?;
        Ok(answer.map(|committed| Committed { duplicate: false, ..committed }))
    }
});

fault!(ReadsOneEventTooFew {
    async fn history(&self, workflow: &WorkflowId, from: u64, limit: u32, mode: ReadMode) -> Called<Vec<HistoryEvent>> {
        let answer = self.0.history(workflow, from, limit, mode).await?;
        let few = usize::try_from(limit).unwrap().saturating_sub(1).max(1);
        Ok(answer.map(|events| events.into_iter().take(few).collect()))
    }
});

fault!(TellsNoConflictFigures {
    async fn append(&self, workflow: &WorkflowId, seq: u64, events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        self.0.append(workflow, seq, events, write).await.map_err(|failure| match failure {
            Failure::Refused(Reject::SequenceConflict { workflow, expected, .. }) => {
                Failure::Refused(Reject::SequenceConflict { workflow, expected, found: 0 })
            }
            other => other,
        })
    }
});

fault!(LosesContentTypes {
    async fn append(&self, workflow: &WorkflowId, seq: u64, mut events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        for event in &mut events {
            event.payload.content_type = "application/octet-stream".to_owned();
        }
        self.0.append(workflow, seq, events, write).await
    }
});

fault!(StagesNoRows {
    async fn commit(&self, mut commit: Commit, write: Write) -> Called<Committed> {
        commit.rows.pop();
        self.0.commit(commit, write).await
    }
});

fault!(ForgetsRuns {
    async fn runs(&self, workflow: &WorkflowId, limit: u32, mode: ReadMode) -> Called<Vec<Run>> {
        Ok(self.0.runs(workflow, limit, mode).await?.map(|runs| runs.into_iter().rev().take(1).collect()))
    }
});

/// Adds a row of an earlier claim to each claim.
struct ReturnsRowsTwice(Arc<dyn Backend>, Mutex<BTreeMap<String, Delivery>>);

#[async_trait]
impl Layer for ReturnsRowsTwice {
    fn below(&self) -> &dyn Backend {
        &*self.0
    }

    async fn claim(&self, call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        let queue = call.scope.task_queue.to_string();
        let mut answer = self.0.claim(call, write).await?;
        let mut seen = self.1.lock();
        let before = seen.get(&queue).cloned();
        if let Some(first) = answer.value.first() {
            seen.insert(queue, first.clone());
        }
        answer.value.extend(before);
        Ok(answer)
    }
}

fault!(ReversesTheOrder {
    async fn claim(&self, call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        Ok(self.0.claim(call, write).await?.map(|rows| rows.into_iter().rev().collect()))
    }
});

fault!(IgnoresActivityTypes {
    async fn claim(&self, mut call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        call.scope.activity_types.clear();
        self.0.claim(call, write).await
    }
});

fault!(IgnoresHolds {
    async fn claim(&self, mut call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        call.hold.clear();
        self.0.claim(call, write).await
    }
});

fault!(NeverWaits {
    async fn claim(&self, mut call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        call.wait_ms = 0;
        self.0.claim(call, write).await
    }
});

fault!(ClaimsForgetTheirKey {
    async fn claim(&self, call: ClaimCall, write: Write) -> Called<Vec<Delivery>> {
        self.0.claim(call, Write { idempotency_key: None, ..write }).await
    }
});

fault!(IgnoresIdempotencyKeys {
    async fn retry(&self, key: &DispatchKey, token: Option<ClaimToken>, delay_ms: u64, write: Write) -> Called<Option<holdfast_machine::Returned>> {
        self.0.retry(key, token, delay_ms, Write { idempotency_key: None, ..write }).await
    }
});

fault!(IgnoresFences {
    async fn settle(&self, workflow: &WorkflowId, write: Write) -> Called<Vec<DispatchKey>> {
        self.0.settle(workflow, Write { fence: None, ..write }).await
    }
});

fault!(IgnoresTokens {
    async fn complete(&self, key: &DispatchKey, token: Option<ClaimToken>, result: Payload, write: Write) -> Called<Option<u64>> {
        let _ = token;
        self.0.complete(key, None, result, write).await
    }
});

fault!(SaysYesToEveryHeartbeat {
    async fn heartbeat(&self, key: &DispatchKey, token: ClaimToken, lease_ms: u64, details: Payload, write: Write) -> Called<Millis> {
        let beat = self.0.heartbeat(key, token, lease_ms, details, write).await;
        Ok(beat.unwrap_or(Answer { index: 1, value: Millis(u64::MAX) }))
    }
});

fault!(KeepsNoDetails {
    async fn heartbeat(&self, key: &DispatchKey, token: ClaimToken, lease_ms: u64, _: Payload, write: Write) -> Called<Millis> {
        self.0.heartbeat(key, token, lease_ms, Payload::default(), write).await
    }
});

fault!(TakesPausesForNotes {
    async fn append(&self, workflow: &WorkflowId, seq: u64, mut events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        for event in &mut events {
            if event.kind.name() == "WorkflowPaused" {
                event.kind = holdfast_machine::EventKind::Other("WorkflowPausing".to_owned());
            }
        }
        self.0.append(workflow, seq, events, write).await
    }
});

fault!(SettlesSilently {
    async fn settle(&self, workflow: &WorkflowId, write: Write) -> Called<Vec<DispatchKey>> {
        Ok(self.0.settle(workflow, write).await?.map(|_| Vec::new()))
    }
});

fault!(ReadsTheWholePageForNone {
    async fn history(&self, workflow: &WorkflowId, from: u64, limit: u32, mode: ReadMode) -> Called<Vec<HistoryEvent>> {
        self.0.history(workflow, from, limit.clamp(1, 1_000), mode).await
    }
});

fault!(TellsNoIndex {
    async fn append(&self, workflow: &WorkflowId, seq: u64, events: Vec<NewEvent>, write: Write) -> Called<Committed> {
        let answer = self.0.append(workflow, seq, events, write).await?;
        Ok(Answer { index: 1, ..answer })
    }
});

fault!(LosesTimers {
    async fn commit(&self, mut commit: Commit, write: Write) -> Called<Committed> {
        commit.timers.retain(|change| matches!(change, TimerChange::Retire(_)));
        self.0.commit(commit, write).await
    }
});

fault!(MovesRowsBesideTheCommit {
    async fn commit(&self, mut commit: Commit, write: Write) -> Called<Committed> {
        let transitions = std::mem::take(&mut commit.transitions);
        for Transition { ordinal, action, .. } in &transitions {
            let key = DispatchKey { workflow: commit.workflow.clone(), ordinal: *ordinal };
            if let RowAction::Complete { result } = action {
                self.0.complete(&key, None, result.clone(), Write::default()).await?;
            }
        }
        self.0.commit(commit, write).await
    }
});

fault!(NeverWaitsForEvents {
    async fn next_events(
        &self, workflow: &WorkflowId, from: u64, limit: u32, _: Duration, mode: ReadMode
    ) -> Called<Vec<HistoryEvent>> {
        self.0.next_events(workflow, from, limit, Duration::ZERO, mode).await
    }
});

fault!(IgnoresCursorsOfOthers {
    async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> Called<WorkflowList> {
        match self.0.list_workflows(call, mode).await {
            Err(failure) if failure.code() == "invalid_argument" => {
                let call = ListCall { cursor: None, ..call.clone() };
                self.0.list_workflows(&call, mode).await
            }
            answer => answer,
        }
    }
});

fault!(SkipsBetweenPages {
    async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> Called<WorkflowList> {
        let mut answer = self.0.list_workflows(call, mode).await?;
        if call.cursor.is_some() {
            answer.value.workflows.pop();
        }
        Ok(answer)
    }
});

fault!(CountsRoughly {
    async fn count_workflows(&self, filter: &WorkflowFilter, mode: ReadMode) -> Called<u64> {
        Ok(self.0.count_workflows(filter, mode).await?.map(|count| count.next_multiple_of(10)))
    }
});

fault!(IgnoresAttributes {
    async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> Called<WorkflowList> {
        self.0.list_workflows(&ListCall { attributes: Vec::new(), ..call.clone() }, mode).await
    }
});

fault!(ListsTheOldStatus {
    async fn list_workflows(&self, call: &ListCall, mode: ReadMode) -> Called<WorkflowList> {
        let mut answer = self.0.list_workflows(call, mode).await?;
        for listed in &mut answer.value.workflows {
            listed.status = holdfast_machine::WorkflowStatus::Running;
        }
        Ok(answer)
    }
});

/// Answers each read of a history as it did the first time.
struct ReadsWhatItReadBefore(Arc<dyn Backend>, Mutex<Pages>);

type Pages = BTreeMap<(WorkflowId, u64), Answer<Vec<HistoryEvent>>>;

#[async_trait]
impl Layer for ReadsWhatItReadBefore {
    fn below(&self) -> &dyn Backend {
        &*self.0
    }

    async fn history(&self, workflow: &WorkflowId, from: u64, limit: u32, mode: ReadMode) -> Called<Vec<HistoryEvent>> {
        let place = (workflow.clone(), from);
        if let Some(before) = self.1.lock().get(&place) {
            return Ok(before.clone());
        }
        let answer = self.0.history(workflow, from, limit, mode).await?;
        self.1.lock().insert(place, answer.clone());
        Ok(answer)
    }
}

type Sabotage = (&'static str, fn(Arc<dyn Backend>) -> Arc<dyn Backend>);

/// Each sabotage with the promise that it breaks, as the registry has it.
fn table() -> Vec<(Sabotage, &'static str)> {
    macro_rules! caught {
        ($($fault:ident($($state:expr)?) by $promise:literal,)+) => {
            vec![$((
                (stringify!($fault), |store| -> Arc<dyn Backend> { Arc::new(Layered($fault(store $(, $state)?))) }),
                $promise,
            ),)+]
        };
    }
    caught![
        DropsAnEvent() by "an append at 0 creates the workflow, and its events are numbered from 1",
        IgnoresTheExpectedSequence() by "an append at another place than the head is refused with what was expected and what was found",
        TellsNoConflictFigures() by "an append at another place than the head is refused with what was expected and what was found",
        TakesNothingForADuplicate() by "an append sent again with the same bytes is a duplicate; with other bytes it is a conflict",
        ReadsOneEventTooFew() by "a read gives the range that was asked for, and nothing beyond the head",
        LosesContentTypes() by "payloads are kept to the byte, with their content type",
        StagesNoRows() by "a commit writes events and rows together, and a row reads back as it was staged",
        ForgetsRuns() by "continue-as-new opens the next run in the same history, with the last one as its parent",
        ReturnsRowsTwice(Mutex::default()) by "no two claims return the same live row, however many there are",
        ReversesTheOrder() by "rows are taken oldest visible_after first, then by workflow and by number",
        IgnoresActivityTypes() by "a claim with activity types takes rows of these types only",
        IgnoresHolds() by "the rows of held workflows are passed over and stay pending",
        NeverWaits() by "a claim that waits wakes when a row becomes due",
        ClaimsForgetTheirKey() by "a claim sent again under its key returns the same rows and tokens",
        IgnoresIdempotencyKeys() by "every mutating call sent again under its key gets the first answer and changes nothing",
        IgnoresIdempotencyKeys() by "one call sent many times at once has one effect and one answer",
        IgnoresFences() by "a write under another owner or epoch is refused with those that hold, whatever the write",
        IgnoresTokens() by "a completion under an old token is absorbed: one outcome, the second claimant's",
        IgnoresTokens() by "a token that was never issued moves nothing",
        SaysYesToEveryHeartbeat() by "a heartbeat under a claim that is over is refused",
        KeepsNoDetails() by "a heartbeat extends the lease and replaces the details that are shown",
        TakesPausesForNotes() by "nobody gets the rows of a paused workflow; after it is resumed all of them are due",
        SettlesSilently() by "settling cancels a workflow's live rows and names them; repeating it changes nothing",
        ReadsTheWholePageForNone() by "a page or a claim of nothing makes no sense; one over the limit is refused with both figures",
        TellsNoIndex() by "the index of a write is greater than that of the write before it",
        LosesTimers() by "a commit arms and retires timers, and says what came of each retirement",
        MovesRowsBesideTheCommit() by "a transition that is refused takes the whole commit with it",
        NeverWaitsForEvents() by "a reader that waits wakes when its history grows, whoever makes it grow",
        IgnoresCursorsOfOthers() by "a cursor goes on with its own filter, sort and order, and is refused with any other",
        SkipsBetweenPages() by "a listing is read in pages that have each workflow once, and ends with a null cursor",
        CountsRoughly() by "a count is exactly as many as the listing of its filter has",
        IgnoresAttributes() by "a workflow is found by a search attribute of each type, and by each text of several",
        ListsTheOldStatus() by "a workflow is listed as its last run makes it, as soon as that is acknowledged",
        ReadsWhatItReadBefore(Mutex::default()) by "a linearizable read sees every write that was acknowledged before it",
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sabotage_is_caught_by_name() {
    let nodes = Embedded::start(1).await.unwrap();
    let mut missed = Vec::new();
    for ((name, sabotaged), promise) in table() {
        let store = sabotaged(Arc::new(nodes.node(0).store()));
        let patience = Duration::from_secs(2);
        let options = Options { filter: Some(promise.to_owned()), disturbing: true, patience, ..Options::default() };
        let report = run(store, &options, |_| {}).await;
        assert_eq!(report.findings.len(), 1, "no check, or several, with the promise {promise:?}");
        match &report.findings[0].verdict {
            Verdict::Broken(reason) => println!("{name}: {reason}"),
            verdict => missed.push(format!("{name}: {promise}: {verdict:?}")),
        }
    }
    nodes.stop().await;
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}
