//! Rows and claims that are wrong in one way each.

use super::*;

fault!(StagesNoRows {
    async fn commit(&self, mut commit: Commit, write: Write) -> Called<Committed> {
        commit.rows.pop();
        self.0.commit(commit, write).await
    }
});

/// Adds a row of an earlier claim to each claim.
pub(super) struct ReturnsRowsTwice(pub(super) Arc<dyn Backend>, pub(super) Mutex<BTreeMap<String, Delivery>>);

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

fault!(SettlesSilently {
    async fn settle(&self, workflow: &WorkflowId, write: Write) -> Called<Vec<DispatchKey>> {
        Ok(self.0.settle(workflow, write).await?.map(|_| Vec::new()))
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

fault!(AlwaysForces {
    async fn redrive(&self, key: &DispatchKey, _: RedriveMode, write: Write) -> Called<()> {
        self.0.redrive(key, RedriveMode::Forced, write).await
    }
});

fault!(ForgetsToMark {
    async fn mark_failure_delivered(&self, key: &DispatchKey, _: Write) -> Called<bool> {
        let looked = self.0.row(key, ReadMode::Linearizable).await?;
        Ok(looked.map(|_| true))
    }
});

fault!(SaysThatAllIsStaged {
    async fn stage(&self, workflow: &WorkflowId, namespace: Namespace, rows: Vec<NewRow>, write: Write) -> Called<Vec<Staged>> {
        let mut answer = self.0.stage(workflow, namespace, rows, write).await?;
        answer.value.iter_mut().for_each(|staged| staged.written = true);
        Ok(answer)
    }
});

fault!(SetsNoCeiling {
    async fn put_namespace(&self, namespace: &Namespace, settings: &NamespaceSettings, write: Write) -> Called<NamespaceState> {
        let settings = NamespaceSettings { claimed_max: None, ..settings.clone() };
        self.0.put_namespace(namespace, &settings, write).await
    }
});

fault!(ClosesWhatItDeletes {
    async fn delete(&self, workflow: &WorkflowId, write: Write) -> Called<()> {
        if let Err(Failure::Refused(Reject::WorkflowOpen { .. })) = self.0.delete(workflow, write.clone()).await {
            let head = self.0.workflow(workflow, ReadMode::Linearizable).await?.value.workflow.unwrap().head;
            let ended = vec![NewEvent::of(holdfast_machine::EventKind::WorkflowCancelled)];
            self.0.append(workflow, head, ended, Write::default()).await?;
        }
        self.0.delete(workflow, Write::default()).await
    }
});

fault!(DeletesNothing {
    async fn delete(&self, workflow: &WorkflowId, _: Write) -> Called<()> {
        Ok(self.0.workflow(workflow, ReadMode::Linearizable).await?.map(|_| ()))
    }
});
