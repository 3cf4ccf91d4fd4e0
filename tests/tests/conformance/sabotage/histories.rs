//! Histories that are wrong in one way each.

use super::*;

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

fault!(ForgetsRuns {
    async fn runs(&self, workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> Called<Runs> {
        let mut answer = self.0.runs(workflow, page, mode).await?;
        let forgotten = answer.value.runs.len().saturating_sub(1);
        answer.value.runs.drain(..forgotten);
        Ok(answer)
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

fault!(NeverWaitsForEvents {
    async fn next_events(
        &self, workflow: &WorkflowId, from: u64, limit: u32, _: Duration, mode: ReadMode
    ) -> Called<Vec<HistoryEvent>> {
        self.0.next_events(workflow, from, limit, Duration::ZERO, mode).await
    }
});

/// Answers each read of a history as it did the first time.
pub(super) struct ReadsWhatItReadBefore(pub(super) Arc<dyn Backend>, pub(super) Mutex<Pages>);

pub(super) type Pages = BTreeMap<(WorkflowId, u64), Answer<Vec<HistoryEvent>>>;

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
