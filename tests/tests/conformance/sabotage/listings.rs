//! Listings that are wrong in one way each.

use super::*;

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

fault!(ForgetsWhatIsClaimed {
    async fn unsettled(&self, shard: Option<ShardId>, page: &PageCall, mode: ReadMode) -> Called<UnsettledPage> {
        let mut answer = self.0.unsettled(shard, page, mode).await?;
        answer.value.workflows.iter_mut().for_each(|found| found.claimed = 0);
        Ok(answer)
    }
});

fault!(CountsWhatWaitsOnly {
    async fn row_counts(&self, page: &PageCall, mode: ReadMode) -> Called<CountPage> {
        let mut answer = self.0.row_counts(page, mode).await?;
        answer.value.namespaces.iter_mut().for_each(|counts| counts.in_flight = counts.pending);
        Ok(answer)
    }
});

fault!(ListsFinishedHeadsAsOpen {
    async fn heads(&self, shard: Option<ShardId>, _: bool, page: &PageCall, mode: ReadMode) -> Called<HeadPage> {
        self.0.heads(shard, false, page, mode).await
    }
});
